// Copies and fills. A copy of pinned memory reads or writes it when it runs; one from pageable memory takes the bytes
// at once; one to pageable memory waits for the stream.
#include <cstring>

#include "config.h"
#include "entry.h"
#include "memory.h"
#include "pinned.h"
#include "stream.h"
#include "../device/report.h"

namespace emu {

namespace {

void *pointer(CUdeviceptr address) {
    return reinterpret_cast<void *>(address);
}

CUdeviceptr address_of(const void *host) {
    return reinterpret_cast<CUdeviceptr>(host);
}

bool is_device(CUdeviceptr address, size_t bytes) {
    return allocation_of(address, bytes) != nullptr;
}

// Bytes at an address, when a copy of them runs.
bool is_usable(CUdeviceptr address, size_t bytes) {
    Allocation *allocation = allocation_of(address, bytes);
    return (allocation && allocation->live) || is_pinned(pointer(address), bytes);
}

CUresult fault_of_copy(const char *what, CUdeviceptr address, size_t bytes) {
    say("%s %zu bytes at %p: %s", what, bytes, pointer(address), describe_address(address).c_str());
    return ILLEGAL_ADDRESS;
}

Run copy_between(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return [=]() -> CUresult {
        if (!is_usable(to, bytes)) {
            return fault_of_copy("a copy writes", to, bytes);
        }
        if (!is_usable(from, bytes)) {
            return fault_of_copy("a copy reads", from, bytes);
        }
        memmove(pointer(to), pointer(from), bytes);
        return SUCCESS;
    };
}

// The bytes are the host's own, read now.
Run copy_from_host(CUdeviceptr to, const void *from, size_t bytes) {
    auto *begin = static_cast<const char *>(from);
    auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return [=]() -> CUresult {
        if (!is_usable(to, bytes)) {
            return fault_of_copy("a copy writes", to, bytes);
        }
        memcpy(pointer(to), staged->data(), bytes);
        return SUCCESS;
    };
}

Run copy_to_host(void *to, CUdeviceptr from, size_t bytes) {
    return [=]() -> CUresult {
        if (!is_usable(from, bytes)) {
            return fault_of_copy("a copy reads", from, bytes);
        }
        memcpy(to, pointer(from), bytes);
        return SUCCESS;
    };
}

// `unit` bytes at `pattern`, `count` times.
Run fill(CUdeviceptr to, unsigned pattern, size_t unit, size_t count) {
    return [=]() -> CUresult {
        if (!is_usable(to, unit * count)) {
            return fault_of_copy("a fill writes", to, unit * count);
        }
        for (size_t i = 0; i < count; i++) {
            memcpy(pointer(to + i * unit), &pattern, unit);
        }
        return SUCCESS;
    };
}

CUresult push_fill(CUdeviceptr to, unsigned pattern, size_t unit, size_t count, void *handle) {
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (count > SIZE_MAX / unit || !is_device(to, unit * count) || to % unit) {
        return INVALID_VALUE;
    }
    return push(stream, "fill", fill(to, pattern, unit, count));
}

CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, Stream *stream) {
    if (!is_device(to, bytes)) {
        return INVALID_VALUE;
    }
    if (is_pinned(from, bytes)) {
        return push(stream, "copy", copy_between(to, address_of(from), bytes));
    }
    if (stream->capture) {
        return invalidate(stream, CAPTURE_UNSUPPORTED, "a copy from pageable memory inside a capture");
    }
    return push(stream, "copy", copy_from_host(to, from, bytes));
}

CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, Stream *stream) {
    if (!is_device(from, bytes)) {
        return INVALID_VALUE;
    }
    if (is_pinned(to, bytes)) {
        return push(stream, "copy", copy_between(address_of(to), from, bytes));
    }
    if (stream->capture) {
        return invalidate(stream, CAPTURE_UNSUPPORTED, "a copy to pageable memory inside a capture");
    }
    CUresult code = push(stream, "copy", copy_to_host(to, from, bytes));
    return code ? code : drain(stream);
}

// For copies that name no direction: each side is device memory, pinned, or the host's.
CUresult copy_any(CUdeviceptr to, CUdeviceptr from, size_t bytes, Stream *stream) {
    bool to_device = is_device(to, bytes);
    bool from_device = is_device(from, bytes);
    if (to_device && from_device) {
        return push(stream, "copy", copy_between(to, from, bytes));
    }
    if (to_device) {
        return copy_in(to, pointer(from), bytes, stream);
    }
    return from_device ? copy_out(pointer(to), from, bytes, stream) : int(INVALID_VALUE);
}

CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, size_t *failed, void *handle) {
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (stream == stream->context->null_stream || !count) {
        return INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (CUresult code = copy_any(to[i], from[i], bytes[i], stream)) {
            if (failed) {
                *failed = i;
            }
            return code;
        }
    }
    return SUCCESS;
}

// A function of a later CUDA than the driver pretends to be is not there.
bool is_too_new(const char *function, int since) {
    if (config.driver >= since) {
        return false;
    }
    say("%s needs a driver of CUDA %d.%d", function, since / 1000, since % 1000 / 10);
    return true;
}

}  // namespace

}  // namespace emu

using namespace emu;

CUDA_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    return stream ? copy_in(to, from, bytes, stream) : int(INVALID_HANDLE);
}

CUDA_API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    return stream ? copy_out(to, from, bytes, stream) : int(INVALID_HANDLE);
}

CUDA_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream) {
        return INVALID_HANDLE;
    }
    if (!is_device(to, bytes) || !is_device(from, bytes)) {
        return INVALID_VALUE;
    }
    return push(stream, "copy", copy_between(to, from, bytes));
}

CUDA_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *handle) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    return stream ? copy_any(to, from, bytes, stream) : int(INVALID_HANDLE);
}

CUDA_API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuMemcpyHtoD")) {
        return code;
    }
    CUresult code = copy_in(to, from, bytes, current_context()->null_stream);
    return code ? code : drain(current_context()->null_stream);
}

CUDA_API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuMemcpyDtoH")) {
        return code;
    }
    CUresult code = copy_out(to, from, bytes, current_context()->null_stream);
    return code ? code : drain(current_context()->null_stream);
}

// Does not wait: between addresses of the device the driver does not either.
CUDA_API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuMemcpyDtoD")) {
        return code;
    }
    return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}

CUDA_API cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *, size_t *, size_t,
                            size_t *failed, void *handle) {
    ENTER(Context);
    if (is_too_new(__func__, 12080)) {
        return NOT_SUPPORTED;
    }
    return copy_batch(to, from, bytes, count, failed, handle);
}

CUDA_API cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *, size_t *,
                               size_t, void *handle) {
    ENTER(Context);
    if (is_too_new(__func__, 13000)) {
        return NOT_SUPPORTED;
    }
    return copy_batch(to, from, bytes, count, nullptr, handle);
}

CUDA_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, void *handle) {
    ENTER(Context);
    return push_fill(to, value, 1, count, handle);
}

CUDA_API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, void *handle) {
    ENTER(Context);
    return push_fill(to, value, 2, count, handle);
}

CUDA_API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, void *handle) {
    ENTER(Context);
    return push_fill(to, value, 4, count, handle);
}

CUDA_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuMemsetD8")) {
        return code;
    }
    return push_fill(to, value, 1, count, nullptr);
}

CUDA_API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuMemsetD32")) {
        return code;
    }
    return push_fill(to, value, 4, count, nullptr);
}
