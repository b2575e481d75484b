#include "codes.h"

#include "entry.h"

namespace emu {

const char *name_of_code(int code) {
#define CODE(name)                  \
    case name:                      \
        return "CUDA_ERROR_" #name;
    switch (code) {
    case SUCCESS:
        return "CUDA_SUCCESS";
        CODE(INVALID_VALUE)
        CODE(OUT_OF_MEMORY)
        CODE(NOT_INITIALIZED)
        CODE(NO_DEVICE)
        CODE(INVALID_DEVICE)
        CODE(INVALID_CONTEXT)
        CODE(NO_BINARY_FOR_GPU)
        CODE(INVALID_PTX)
        CODE(UNSUPPORTED_PTX_VERSION)
        CODE(FILE_NOT_FOUND)
        CODE(INVALID_HANDLE)
        CODE(ILLEGAL_STATE)
        CODE(NOT_FOUND)
        CODE(NOT_READY)
        CODE(ILLEGAL_ADDRESS)
        CODE(LAUNCH_OUT_OF_RESOURCES)
        CODE(LAUNCH_TIMEOUT)
        CODE(HOST_MEMORY_ALREADY_REGISTERED)
        CODE(HOST_MEMORY_NOT_REGISTERED)
        CODE(MISALIGNED_ADDRESS)
        CODE(LAUNCH_FAILED)
        CODE(NOT_PERMITTED)
        CODE(NOT_SUPPORTED)
        CODE(UNKNOWN)
    case CAPTURE_UNSUPPORTED:
        return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case CAPTURE_INVALIDATED:
        return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case CAPTURE_MERGE:
        return "CUDA_ERROR_STREAM_CAPTURE_MERGE";
    case CAPTURE_UNMATCHED:
        return "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    case CAPTURE_UNJOINED:
        return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    case CAPTURE_ISOLATION:
        return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    case CAPTURE_IMPLICIT:
        return "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    case CAPTURED_EVENT:
        return "CUDA_ERROR_CAPTURED_EVENT";
    case CAPTURE_WRONG_THREAD:
        return "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
    default:
        return nullptr;
    }
#undef CODE
}

}  // namespace emu

CUDA_API cuGetErrorName(int code, const char **name) {
    *name = emu::name_of_code(code);
    return *name ? emu::SUCCESS : emu::INVALID_VALUE;
}

CUDA_API cuGetErrorString(int code, const char **text) {
    return cuGetErrorName(code, text);
}
