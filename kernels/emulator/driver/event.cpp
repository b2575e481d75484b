// Events: marks in streams that other streams and the host wait for.
#include <set>

#include "config.h"
#include "entry.h"
#include "stream.h"

namespace emu {

namespace {

struct Event {
    Context *context;
    bool timed;
    std::shared_ptr<Record> last;  // null: never recorded, which counts as done
};

std::set<Event *> &events() {
    static auto *events = new std::set<Event *>;
    return *events;
}

bool is_event(Event *event) {
    return events().count(event) > 0;
}

}  // namespace

}  // namespace emu

using namespace emu;

CUDA_API cuEventCreate(Event **handle, unsigned flags) {
    ENTER(Context);
    *handle = new Event{current_context(), !(flags & 2), nullptr};
    events().insert(*handle);
    return SUCCESS;
}

CUDA_API cuEventDestroy_v2(Event *event) {
    ENTER(Release);
    if (!is_event(event)) {
        return INVALID_HANDLE;
    }
    events().erase(event);
    delete event;
    return sticky();
}

CUDA_API cuEventRecord(Event *event, void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream || !is_event(event) || event->context != stream->context) {
        return INVALID_HANDLE;
    }
    auto record = std::make_shared<Record>();
    record->stream = stream;
    event->last = record;
    if (stream->capture) {
        if (stream->capture->invalid) {
            return CAPTURE_INVALIDATED;
        }
        record->capture = stream->capture;
        record->frontier = stream->frontier;
        return SUCCESS;
    }
    push_record(stream, record);
    return sticky();
}

CUDA_API cuEventRecordWithFlags(Event *event, void *handle, unsigned) {
    return cuEventRecord(event, handle);
}

CUDA_API cuStreamWaitEvent(void *handle, Event *event, unsigned) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream || !is_event(event)) {
        return INVALID_HANDLE;
    }
    std::shared_ptr<Record> record = event->last;
    if (stream->capture) {
        if (!record || record->capture != stream->capture) {
            return invalidate(stream, CAPTURE_ISOLATION, "a wait for an event that was recorded outside the capture");
        }
        stream->frontier.insert(record->frontier.begin(), record->frontier.end());
        return SUCCESS;
    }
    if (!record) {
        return SUCCESS;
    }
    if (record->capture) {
        if (!record->capture->active) {
            return CAPTURED_EVENT;
        }
        // Waiting for an event of a capture brings the stream into it.
        stream->capture = record->capture;
        stream->frontier = record->frontier;
        return SUCCESS;
    }
    push_wait(stream, record);
    return sticky();
}

// The last recording of an event that `call` asks after; none where nothing was recorded.
static CUresult recording_of(Event *event, const char *call, std::shared_ptr<Record> &record) {
    if (!is_event(event)) {
        return INVALID_HANDLE;
    }
    if (CUresult code = refuse_in_capture(call)) {
        return code;
    }
    record = event->last;
    if (record && record->capture) {
        record->capture->invalid = true;
        return CAPTURED_EVENT;
    }
    return SUCCESS;
}

CUDA_API cuEventQuery(Event *event) {
    ENTER(Context);
    std::shared_ptr<Record> record;
    if (CUresult code = recording_of(event, "cuEventQuery", record)) {
        return code;
    }
    if (!record) {
        return SUCCESS;
    }
    if (record->done) {
        return SUCCESS;
    }
    step(record->stream);
    return sticky() ? sticky() : NOT_READY;
}

CUDA_API cuEventSynchronize(Event *event) {
    ENTER(Context);
    std::shared_ptr<Record> record;
    if (CUresult code = recording_of(event, "cuEventSynchronize", record)) {
        return code;
    }
    if (!record) {
        return SUCCESS;
    }
    // A sticky error drops the queue, and recordings count as done.
    while (!record->done) {
        jitter();
        if (!record->done) {
            step(record->stream);
        }
    }
    return sticky();
}

CUDA_API cuEventElapsedTime_v2(float *milliseconds, Event *begin, Event *end) {
    ENTER(Context);
    if (!is_event(begin) || !is_event(end) || !begin->timed || !end->timed || !begin->last || !end->last) {
        return INVALID_HANDLE;
    }
    if (!begin->last->done || !end->last->done) {
        return NOT_READY;
    }
    std::chrono::duration<float, std::milli> elapsed = end->last->time - begin->last->time;
    *milliseconds = elapsed.count();
    return SUCCESS;
}

CUDA_API cuEventElapsedTime(float *milliseconds, Event *begin, Event *end) {
    return cuEventElapsedTime_v2(milliseconds, begin, end);
}
