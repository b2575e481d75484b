// Streams: queues of operations that run only when something waits for them.
//
// Work that nothing waits for may run as late as possible (schedule=lazy), at once (eager), or at calls that a seed
// chooses; which of several streams goes first is the seed's choice too. Missing synchronisation so comes out as a
// wrong value or a fault. A stream that captures records nodes instead.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "codes.h"
#include "context.h"

namespace emu {

using Run = std::function<CUresult()>;

struct Stream;
struct Capture;

// One recording of an event.
struct Record {
    bool done = false;
    std::chrono::steady_clock::time_point time;
    Stream *stream = nullptr;
    std::shared_ptr<Capture> capture;  // of a recording inside a capture
    std::set<int> frontier;            // the nodes that it stands behind, then
};

struct Operation {
    Run run;                         // empty: none
    std::shared_ptr<Record> wait;    // to be done first; null: none
    std::shared_ptr<Record> record;  // then done; null: none
    uint64_t number;                 // in the order of issue
};

struct Node {
    Run run;
    std::set<int> after;
    const char *kind;
};

struct Capture {
    uint64_t id;  // no other has it, ever
    std::vector<Node> nodes;
    Stream *origin;
    int mode;  // 0: global, 1: of the thread, 2: relaxed
    std::thread::id thread;
    bool invalid = false;
    bool active = true;
};

struct Stream {
    Context *context;
    bool blocking;           // ordered with the null stream
    bool destroyed = false;  // goes when its queue is empty
    int priority = 0;
    unsigned flags = 0;
    std::deque<Operation> queue;
    std::shared_ptr<Capture> capture;
    std::set<int> frontier;  // of the capture: the nodes that the next one comes after
};

Stream *create_stream(Context *context, bool blocking);
void destroy_stream(Stream *stream);

// The stream of a handle, of which 0, 1 and 2 are the current context's null stream; null if there is none.
Stream *find_stream(void *handle);

// Queues or captures an operation. `kind` names it in reports.
CUresult push(Stream *stream, const char *kind, Run run);
void push_wait(Stream *stream, std::shared_ptr<Record> record);
void push_record(Stream *stream, std::shared_ptr<Record> record);

// Runs the head of the stream, or of a stream that it waits for, if there is one.
void step(Stream *stream);

// Now and then, by the schedule, runs something.
void jitter();

// Runs everything of the stream, or of all.
CUresult drain(Stream *stream);
void drain_all();

// Forgets queued work, but for releases of memory; events count as done.
void drop_all_work();

// The stream's capture is beyond repair; gives `code` back.
CUresult invalidate(Stream *stream, CUresult code, const char *why);

// A call that may not happen while a stream of this thread, or in global mode any, captures.
CUresult refuse_in_capture(const char *call);

const std::set<Stream *> &all_streams();

}  // namespace emu
