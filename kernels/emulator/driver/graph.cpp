// Capture and replay. Nodes run in any order that their edges allow, by the schedule's seed.
#include <set>

#include "config.h"
#include "entry.h"
#include "stream.h"

namespace emu {

namespace {

struct Graph {
    std::vector<Node> nodes;
};

struct Executable {
    std::shared_ptr<std::vector<Node>> nodes;
};

std::set<Graph *> &graphs() {
    static auto *graphs = new std::set<Graph *>;
    return *graphs;
}

std::set<Executable *> &executables() {
    static auto *executables = new std::set<Executable *>;
    return *executables;
}

// The nodes from which one of `frontier` can be reached, itself included.
std::set<int> ancestors(const Capture &capture, const std::set<int> &frontier) {
    std::set<int> seen = frontier;
    std::vector<int> open(frontier.begin(), frontier.end());
    while (!open.empty()) {
        int node = open.back();
        open.pop_back();
        for (int before : capture.nodes[size_t(node)].after) {
            if (seen.insert(before).second) {
                open.push_back(before);
            }
        }
    }
    return seen;
}

// Takes all streams out of the capture; whether those that joined it have come back to its origin.
bool close(const std::shared_ptr<Capture> &capture) {
    std::set<int> joined = ancestors(*capture, capture->origin->frontier);
    bool all_joined = true;
    for (Stream *stream : all_streams()) {
        if (stream->capture != capture) {
            continue;
        }
        for (int node : stream->frontier) {
            all_joined &= joined.count(node) > 0;
        }
        stream->capture = nullptr;
        stream->frontier.clear();
    }
    capture->active = false;
    return all_joined;
}

bool is_ready(const std::vector<Node> &nodes, const std::vector<bool> &done, size_t node) {
    for (int before : nodes[node].after) {
        if (!done[size_t(before)]) {
            return false;
        }
    }
    return !done[node];
}

CUresult replay(const std::vector<Node> &nodes) {
    std::vector<bool> done(nodes.size());
    for (size_t left = nodes.size(); left > 0; left--) {
        std::vector<size_t> ready;
        for (size_t node = 0; node < nodes.size(); node++) {
            if (is_ready(nodes, done, node)) {
                ready.push_back(node);
            }
        }
        size_t node = ready[config.schedule > 1 ? draw_schedule() % ready.size() : 0];
        if (CUresult code = nodes[node].run()) {
            return code;
        }
        done[node] = true;
    }
    return SUCCESS;
}

}  // namespace

}  // namespace emu

using namespace emu;

CUDA_API cuStreamBeginCapture_v2(void *handle, int mode) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (stream == stream->context->null_stream) {
        return CAPTURE_UNSUPPORTED;
    }
    if (stream->capture) {
        return ILLEGAL_STATE;
    }
    static uint64_t captures = 0;
    stream->capture = std::make_shared<Capture>();
    stream->capture->id = ++captures;
    stream->capture->origin = stream;
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    stream->frontier.clear();
    return SUCCESS;
}

CUDA_API cuStreamEndCapture(void *handle, Graph **graph) {
    ENTER(Context);
    *graph = nullptr;
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) {
        return ILLEGAL_STATE;
    }
    if (capture->origin != stream) {
        return CAPTURE_UNMATCHED;
    }
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) {
        return CAPTURE_WRONG_THREAD;
    }
    bool joined = close(capture);
    if (capture->invalid) {
        return CAPTURE_INVALIDATED;
    }
    if (!joined) {
        return CAPTURE_UNJOINED;
    }
    *graph = new Graph{std::move(capture->nodes)};
    graphs().insert(*graph);
    return SUCCESS;
}

CUDA_API cuStreamIsCapturing(void *handle, int *status) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (!stream->capture) {
        *status = 0;
    } else {
        *status = stream->capture->invalid ? 2 : 1;
    }
    return SUCCESS;
}

// Of what may be asked for, status and id are given.
CUDA_API cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, Graph **graph, void **dependencies,
                                   size_t *num_dependencies) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (graph || dependencies || num_dependencies) {
        return NOT_SUPPORTED;
    }
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    if (id && stream->capture) {
        *id = stream->capture->id;
    }
    return SUCCESS;
}

CUDA_API cuGraphGetNodes(Graph *graph, void **nodes, size_t *count) {
    ENTER(Context);
    if (!graphs().count(graph)) {
        return INVALID_VALUE;
    }
    for (size_t i = 0; nodes && i < *count; i++) {
        nodes[i] = i < graph->nodes.size() ? &graph->nodes[i] : nullptr;
    }
    *count = graph->nodes.size();
    return SUCCESS;
}

CUDA_API cuGraphInstantiateWithFlags(Executable **executable, Graph *graph, unsigned long long flags) {
    ENTER(Context);
    // Freeing on launch and launching from the device exclude each other.
    if (!graphs().count(graph) || ((flags & 1) && (flags & 4))) {
        return INVALID_VALUE;
    }
    *executable = new Executable{std::make_shared<std::vector<Node>>(graph->nodes)};
    executables().insert(*executable);
    return SUCCESS;
}

CUDA_API cuGraphUpload(Executable *executable, void *handle) {
    ENTER(Context);
    if (!find_stream(handle)) {
        return INVALID_HANDLE;
    }
    return executables().count(executable) ? SUCCESS : INVALID_VALUE;
}

CUDA_API cuGraphLaunch(Executable *executable, void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (!executables().count(executable)) {
        return INVALID_VALUE;
    }
    if (stream->capture) {
        return invalidate(stream, CAPTURE_UNSUPPORTED, "a launch of a graph inside a capture");
    }
    // The nodes outlive the executable while a launch is queued.
    auto nodes = executable->nodes;
    return push(stream, "graph", [nodes] { return replay(*nodes); });
}

CUDA_API cuGraphExecDestroy(Executable *executable) {
    ENTER(Release);
    if (!executables().erase(executable)) {
        return INVALID_VALUE;
    }
    delete executable;
    return sticky();
}

CUDA_API cuGraphDestroy(Graph *graph) {
    ENTER(Release);
    if (!graphs().erase(graph)) {
        return INVALID_VALUE;
    }
    delete graph;
    return sticky();
}
