#include "stream.h"

#include "../device/report.h"
#include "config.h"
#include "entry.h"
#include "memory.h"

namespace emu {

namespace {

uint64_t issued = 0;

std::set<Stream *> &streams() {
    static auto *streams = new std::set<Stream *>;
    return *streams;
}

bool is_before(const Stream *stream, uint64_t number) {
    return !stream->queue.empty() && stream->queue.front().number < number;
}

// The stream that must move before the head of this one may run; null if it may.
Stream *blocker(const Stream *stream) {
    const Operation &head = stream->queue.front();
    if (head.wait && !head.wait->done) {
        return head.wait->stream;
    }
    Stream *null_stream = stream->context->null_stream;
    if (stream != null_stream) {
        return stream->blocking && is_before(null_stream, head.number) ? null_stream : nullptr;
    }
    for (Stream *other : streams()) {
        bool ordered = other != stream && other->context == stream->context && other->blocking;
        if (ordered && is_before(other, head.number)) {
            return other;
        }
    }
    return nullptr;
}

// One of the streams that have work; null if none has.
Stream *any_with_work() {
    std::vector<Stream *> candidates;
    for (Stream *stream : streams()) {
        if (!stream->queue.empty()) {
            candidates.push_back(stream);
        }
    }
    return candidates.empty() ? nullptr : candidates[draw_schedule() % candidates.size()];
}

void complete(Record &record) {
    record.done = true;
    record.time = std::chrono::steady_clock::now();
}

void forget_if_finished(Stream *stream) {
    if (stream->destroyed && stream->queue.empty()) {
        streams().erase(stream);
        delete stream;
    }
}

}  // namespace

const std::set<Stream *> &all_streams() {
    return streams();
}

Stream *create_stream(Context *context, bool blocking) {
    auto *stream = new Stream;
    stream->context = context;
    stream->blocking = blocking;
    streams().insert(stream);
    return stream;
}

void destroy_stream(Stream *stream) {
    stream->destroyed = true;
    forget_if_finished(stream);
}

Stream *find_stream(void *handle) {
    if (reinterpret_cast<uintptr_t>(handle) <= 2) {
        return current_context() ? current_context()->null_stream : nullptr;
    }
    auto *stream = static_cast<Stream *>(handle);
    return streams().count(stream) && !stream->destroyed ? stream : nullptr;
}

CUresult push(Stream *stream, const char *kind, Run run) {
    if (stream->capture) {
        Capture &capture = *stream->capture;
        if (capture.invalid) {
            return CAPTURE_INVALIDATED;
        }
        capture.nodes.push_back({std::move(run), stream->frontier, kind});
        stream->frontier = {int(capture.nodes.size()) - 1};
        return SUCCESS;
    }
    stream->queue.push_back({std::move(run), nullptr, nullptr, issued++});
    jitter();
    return sticky();
}

void push_wait(Stream *stream, std::shared_ptr<Record> record) {
    stream->queue.push_back({nullptr, std::move(record), nullptr, issued++});
    jitter();
}

void push_record(Stream *stream, std::shared_ptr<Record> record) {
    stream->queue.push_back({nullptr, nullptr, std::move(record), issued++});
    jitter();
}

void step(Stream *stream) {
    if (stream->queue.empty()) {
        return;
    }
    while (Stream *first = blocker(stream)) {
        stream = first;
    }
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (operation.run) {
        Window window;
        set_sticky(operation.run());
    }
    if (operation.record) {
        complete(*operation.record);
    }
    forget_if_finished(stream);
}

void jitter() {
    if (config.schedule == 1) {
        drain_all();
        return;
    }
    // The seed also says how lazy: a step at every call, or at one in 2, 4 or 8.
    if (config.schedule > 1 && draw_schedule() % (1u << config.schedule % 4) == 0) {
        if (Stream *stream = any_with_work()) {
            step(stream);
        }
    }
}

CUresult drain(Stream *stream) {
    while (!stream->queue.empty()) {
        jitter();
        if (!stream->queue.empty()) {
            step(stream);
        }
    }
    return sticky();
}

void drain_all() {
    while (Stream *stream = any_with_work()) {
        step(stream);
    }
}

void drop_all_work() {
    for (Stream *stream : streams()) {
        for (Operation &operation : stream->queue) {
            if (operation.record) {
                complete(*operation.record);
            }
        }
        stream->queue.clear();
    }
    release_what_waits();
}

CUresult invalidate(Stream *stream, CUresult code, const char *why) {
    stream->capture->invalid = true;
    say("capture invalidated: %s", why);
    return code;
}

// What this thread is allowed beside captures: 0 global, 1 those of this thread, 2 relaxed.
static thread_local int capture_mode = 0;

CUresult refuse_in_capture(const char *call) {
    if (capture_mode == 2) {
        return SUCCESS;
    }
    for (Stream *stream : streams()) {
        if (!stream->capture || !stream->capture->active) {
            continue;
        }
        const Capture &capture = *stream->capture;
        bool ours = capture.mode == 1 && capture.thread == std::this_thread::get_id();
        if ((capture.mode == 0 && capture_mode == 0) || ours) {
            return invalidate(stream, CAPTURE_UNSUPPORTED, call);
        }
    }
    return SUCCESS;
}

}  // namespace emu

using namespace emu;

CUDA_API cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(Nothing);
    if (*mode < 0 || *mode > 2) {
        return INVALID_VALUE;
    }
    std::swap(*mode, capture_mode);
    return SUCCESS;
}

CUDA_API cuStreamCreateWithPriority(void **handle, unsigned flags, int priority) {
    ENTER(Context);
    if (flags > 1) {
        return INVALID_VALUE;
    }
    Stream *stream = create_stream(current_context(), !(flags & 1));
    stream->flags = flags;
    stream->priority = priority;
    *handle = stream;
    return SUCCESS;
}

CUDA_API cuStreamCreate(void **handle, unsigned flags) {
    ENTER(Context);
    return cuStreamCreateWithPriority(handle, flags, 0);
}

// Work that is queued still runs.
CUDA_API cuStreamDestroy_v2(void *handle) {
    ENTER(Release);
    Stream *stream = find_stream(handle);
    if (!stream || stream == stream->context->null_stream) {
        return INVALID_HANDLE;
    }
    if (stream->capture) {
        stream->capture->invalid = true;
    }
    destroy_stream(stream);
    return sticky();
}

CUDA_API cuStreamSynchronize(void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (stream->capture) {
        return invalidate(stream, CAPTURE_UNSUPPORTED, "cuStreamSynchronize of a stream that captures");
    }
    return drain(stream);
}

CUDA_API cuStreamQuery(void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (stream->capture) {
        return invalidate(stream, CAPTURE_UNSUPPORTED, "cuStreamQuery of a stream that captures");
    }
    if (stream->queue.empty()) {
        return SUCCESS;
    }
    step(stream);  // whoever polls sees progress
    return sticky() ? sticky() : NOT_READY;
}

CUDA_API cuStreamGetCtx(void *handle, Context **context) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    *context = stream->context;
    return SUCCESS;
}

CUDA_API cuStreamGetDevice(void *handle, int *device) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    *device = stream->context->device;
    return SUCCESS;
}

CUDA_API cuStreamGetFlags(void *handle, unsigned *flags) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    *flags = stream->flags;
    return SUCCESS;
}

CUDA_API cuStreamGetPriority(void *handle, int *priority) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    *priority = stream->priority;
    return SUCCESS;
}

CUDA_API cuLaunchHostFunc(void *handle, void (*function)(void *), void *data) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    return push(stream, "host function", [=] {
        function(data);
        return int(SUCCESS);
    });
}
