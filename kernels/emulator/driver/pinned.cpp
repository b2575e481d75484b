#include "pinned.h"

#include <cstdlib>
#include <cstring>
#include <map>

#include "config.h"
#include "entry.h"
#include "memory.h"
#include "stream.h"

namespace emu {

namespace {

struct Range {
    size_t bytes;
    bool registered;  // the host's own memory, by cuMemHostRegister
    unsigned flags;
};

std::map<CUdeviceptr, Range> &ranges() {
    static auto *ranges = new std::map<CUdeviceptr, Range>;
    return *ranges;
}

CUdeviceptr address_of(const void *pointer) {
    return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace

bool is_pinned(const void *address, size_t bytes) {
    CUdeviceptr at = address_of(address);
    auto after = ranges().upper_bound(at);
    if (after == ranges().begin()) {
        return false;
    }
    auto range = std::prev(after);
    size_t offset = at - range->first;
    return offset <= range->second.bytes && bytes <= range->second.bytes - offset;
}

}  // namespace emu

using namespace emu;

CUDA_API cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuMemHostAlloc")) {
        return code;
    }
    if (!bytes || !pointer) {
        return INVALID_VALUE;
    }
    void *memory = nullptr;
    if (posix_memalign(&memory, 4096, bytes)) {
        return OUT_OF_MEMORY;
    }
    memset(memory, 0xff, bytes);
    ranges()[address_of(memory)] = {bytes, false, flags};
    *pointer = memory;
    return SUCCESS;
}

CUDA_API cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUDA_API cuMemFreeHost(void *pointer) {
    ENTER(Release);
    auto range = ranges().find(address_of(pointer));
    if (range == ranges().end() || range->second.registered) {
        return INVALID_VALUE;
    }
    if (CUresult code = refuse_in_capture("cuMemFreeHost")) {
        return code;
    }
    drain_all();
    ranges().erase(range);
    free(pointer);
    return sticky();
}

CUDA_API cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    ENTER(Context);
    if (!pointer || !bytes) {
        return INVALID_VALUE;
    }
    if (is_pinned(pointer, 1)) {
        return HOST_MEMORY_ALREADY_REGISTERED;
    }
    ranges()[address_of(pointer)] = {bytes, true, flags};
    return SUCCESS;
}

CUDA_API cuMemHostUnregister(void *pointer) {
    ENTER(Release);
    auto range = ranges().find(address_of(pointer));
    if (range == ranges().end() || !range->second.registered) {
        return HOST_MEMORY_NOT_REGISTERED;
    }
    drain_all();
    ranges().erase(range);
    return sticky();
}

CUDA_API cuMemHostGetDevicePointer_v2(CUdeviceptr *device_pointer, void *pointer, unsigned) {
    ENTER(Context);
    if (!is_pinned(pointer, 1)) {
        return INVALID_VALUE;
    }
    *device_pointer = address_of(pointer);
    return SUCCESS;
}

CUDA_API cuMemHostGetFlags(unsigned *flags, void *pointer) {
    ENTER(Context);
    auto range = ranges().find(address_of(pointer));
    if (range == ranges().end()) {
        return INVALID_VALUE;
    }
    *flags = range->second.flags;
    return SUCCESS;
}
