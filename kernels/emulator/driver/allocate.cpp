// Allocation of device memory, in the order of a stream and outside it, and what may be asked of an address.
#include <cstring>

#include "config.h"
#include "entry.h"
#include "memory.h"
#include "pinned.h"
#include "stream.h"

namespace emu {

namespace {

// Releases that are queued may make room.
Allocation *reserve_or_drain(int device, size_t bytes) {
    Allocation *allocation = reserve(device, bytes);
    if (!allocation) {
        drain_all();
        allocation = reserve(device, bytes);
    }
    return allocation;
}

// One pool a device, which only counts.
char pools[16];
uint64_t release_threshold = 0;

}  // namespace

}  // namespace emu

using namespace emu;

CUDA_API cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuMemAlloc")) {
        return code;
    }
    if (!bytes) {
        return INVALID_VALUE;
    }
    Allocation *allocation = reserve_or_drain(current_context()->device, bytes);
    if (!allocation) {
        return OUT_OF_MEMORY;
    }
    make_live(*allocation);
    *pointer = allocation->base;
    return SUCCESS;
}

CUDA_API cuMemFree_v2(CUdeviceptr pointer) {
    ENTER(Release);
    if (!pointer) {
        return SUCCESS;
    }
    Allocation *allocation = allocation_at(pointer);
    if (!allocation || allocation->freeing) {
        return INVALID_VALUE;
    }
    if (CUresult code = refuse_in_capture("cuMemFree")) {
        return code;
    }
    drain_all();
    release(pointer);
    return sticky();
}

CUDA_API cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (!config.pools) {
        return NOT_SUPPORTED;
    }
    if (stream->capture) {
        return invalidate(stream, CAPTURE_UNSUPPORTED, "an allocation inside a capture");
    }
    if (!bytes) {
        return INVALID_VALUE;
    }
    Allocation *allocation = reserve_or_drain(stream->context->device, bytes);
    if (!allocation) {
        return OUT_OF_MEMORY;
    }
    CUdeviceptr base = allocation->base;
    *pointer = base;
    return push(stream, "allocation", [base] {
        if (Allocation *reserved = allocation_at(base)) {
            make_live(*reserved);
        }
        return int(SUCCESS);
    });
}

CUDA_API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, void *, void *handle) {
    return cuMemAllocAsync(pointer, bytes, handle);
}

CUDA_API cuMemFreeAsync(CUdeviceptr pointer, void *handle) {
    ENTER(Release);
    Stream *stream = find_stream(handle);
    Allocation *allocation = allocation_at(pointer);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (!allocation || allocation->freeing) {
        return INVALID_VALUE;
    }
    if (stream->capture) {
        return invalidate(stream, CAPTURE_UNSUPPORTED, "a release inside a capture");
    }
    if (sticky()) {
        release(pointer);
        return sticky();
    }
    allocation->freeing = true;
    return push(stream, "release", [pointer] {
        release(pointer);
        return int(SUCCESS);
    });
}

CUDA_API cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    ENTER(Context);
    size_t used = used_bytes(current_context()->device);
    *total_bytes = config.memory_bytes;
    *free_bytes = config.memory_bytes > used ? config.memory_bytes - used : 0;
    return SUCCESS;
}

CUDA_API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    ENTER(Context);
    Allocation *allocation = allocation_of(pointer, 1);
    if (!allocation) {
        return NOT_FOUND;
    }
    if (base) {
        *base = allocation->base;
    }
    if (bytes) {
        *bytes = allocation->bytes;
    }
    return SUCCESS;
}

CUDA_API cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer) {
    ENTER(Context);
    Allocation *allocation = allocation_of(pointer, 1);
    bool pinned = is_pinned(reinterpret_cast<void *>(pointer), 1);
    if (!allocation && !pinned) {
        return INVALID_VALUE;
    }
    switch (attribute) {
    case 2: {  // kind of memory: 1 host, 2 device
        unsigned kind = allocation ? 2 : 1;
        memcpy(data, &kind, sizeof kind);
        return SUCCESS;
    }
    case 3:  // address on the device
        memcpy(data, &pointer, sizeof pointer);
        return SUCCESS;
    case 4:  // address on the host
        if (!pinned) {
            return INVALID_VALUE;
        }
        memcpy(data, &pointer, sizeof pointer);
        return SUCCESS;
    case 8: {  // managed
        unsigned managed = 0;
        memcpy(data, &managed, sizeof managed);
        return SUCCESS;
    }
    case 9: {  // device
        int device = allocation ? allocation->device : current_context()->device;
        memcpy(data, &device, sizeof device);
        return SUCCESS;
    }
    case 11:  // begin and size of the range
        if (!allocation) {
            return NOT_SUPPORTED;
        }
        memcpy(data, &allocation->base, sizeof allocation->base);
        return SUCCESS;
    case 12:
        if (!allocation) {
            return NOT_SUPPORTED;
        }
        memcpy(data, &allocation->bytes, sizeof allocation->bytes);
        return SUCCESS;
    default:
        return NOT_SUPPORTED;
    }
}

CUDA_API cuDeviceGetDefaultMemPool(void **pool, int device) {
    ENTER(Init);
    if (device < 0 || device >= config.devices) {
        return INVALID_DEVICE;
    }
    *pool = &pools[device % 16];
    return config.pools ? SUCCESS : NOT_SUPPORTED;
}

CUDA_API cuDeviceGetMemPool(void **pool, int device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

CUDA_API cuMemPoolSetAttribute(void *, int attribute, void *value) {
    ENTER(Init);
    if (attribute == 4) {
        memcpy(&release_threshold, value, sizeof release_threshold);
    }
    return SUCCESS;
}

CUDA_API cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    ENTER(Init);
    uint64_t number = 0;
    if (attribute == 4) {
        number = release_threshold;
    } else if (attribute >= 5) {  // bytes reserved and used, now and at most
        number = used_bytes(int(static_cast<char *>(pool) - pools));
    }
    memcpy(value, &number, attribute < 4 ? sizeof(int) : sizeof number);
    return SUCCESS;
}

CUDA_API cuMemPoolTrimTo(void *, size_t) {
    ENTER(Init);
    return SUCCESS;
}
