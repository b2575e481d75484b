#include "context.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "config.h"
#include "entry.h"
#include "memory.h"
#include "stream.h"

namespace emu {

namespace {

std::map<int, Context *> primaries;
std::set<Context *> contexts;
thread_local std::vector<Context *> stack;  // of the calling thread; the last is current

bool is_device(int device) {
    return device >= 0 && device < config.devices;
}

Context *create(int device, bool primary) {
    auto *context = new Context{device, primary, nullptr};
    context->null_stream = create_stream(context, true);
    contexts.insert(context);
    return context;
}

// CUdevice_attribute, those that the stand-in knows; others are 0.
int attribute(int number) {
    switch (number) {
    case 1:  // threads of a block
    case 2:
    case 3:
        return 1024;
    case 4:
        return 64;
    case 5:  // blocks of a grid
        return 2147483647;
    case 6:
    case 7:
        return 65535;
    case 8:  // shared memory of a block, without asking for more
        return 49152;
    case 10:  // lanes
        return 32;
    case 12:  // registers of a block
    case 82:  // and of a multiprocessor
        return 65536;
    case 13:  // kHz
        return 1000000;
    case 16:  // multiprocessors
        return 4;
    case 31:  // concurrent kernels
    case 40:  // copy engines
    case 41:  // unified addresses
    case 90:  // host registration
    case 91:
        return 1;
    case 38:  // bytes of the second-level cache
        return 4 << 20;
    case 39:  // threads of a multiprocessor
        return 2048;
    case 75:
        return config.compute / 10;
    case 76:
        return config.compute % 10;
    case 81:
        return shared_bytes_per_multiprocessor();
    case 97:
        return shared_bytes_per_block();
    case 106:  // blocks of a multiprocessor
        return 32;
    case 115:
        return config.pools ? 1 : 0;
    default:
        return 0;
    }
}

}  // namespace

Context *current_context() {
    return stack.empty() ? nullptr : stack.back();
}

int shared_bytes_per_multiprocessor() {
    switch (config.compute) {
    case 75:
        return 64 * 1024;
    case 80:
    case 87:
        return 164 * 1024;
    case 86:
    case 89:
    case 120:
        return 100 * 1024;
    default:
        return 228 * 1024;
    }
}

int shared_bytes_per_block() {
    // One KiB of each block is the system's.
    return config.compute == 75 ? 64 * 1024 : shared_bytes_per_multiprocessor() - 1024;
}

}  // namespace emu

using namespace emu;

CUDA_API cuInit(unsigned flags) {
    ENTER(Nothing);
    if (flags) {
        return INVALID_VALUE;
    }
    if (!config.devices) {
        return NO_DEVICE;
    }
    set_initialized();
    return SUCCESS;
}

CUDA_API cuDriverGetVersion(int *version) {
    ENTER(Nothing);
    *version = config.driver;
    return SUCCESS;
}

CUDA_API cuDeviceGetCount(int *count) {
    ENTER(Init);
    *count = config.devices;
    return SUCCESS;
}

CUDA_API cuDeviceGet(int *device, int ordinal) {
    ENTER(Init);
    if (!is_device(ordinal)) {
        return INVALID_DEVICE;
    }
    *device = ordinal;
    return SUCCESS;
}

CUDA_API cuDeviceGetName(char *name, int bytes, int device) {
    ENTER(Init);
    if (!is_device(device)) {
        return INVALID_DEVICE;
    }
    snprintf(name, size_t(bytes), "emulated sm_%d", config.compute);
    return SUCCESS;
}

CUDA_API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER(Init);
    if (!is_device(device)) {
        return INVALID_DEVICE;
    }
    memset(uuid, 0xe5, 16);
    uuid[15] = static_cast<unsigned char>(device);
    return SUCCESS;
}

CUDA_API cuDeviceGetUuid(unsigned char *uuid, int device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

CUDA_API cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER(Init);
    if (!is_device(device)) {
        return INVALID_DEVICE;
    }
    *bytes = config.memory_bytes;
    return SUCCESS;
}

CUDA_API cuDeviceGetAttribute(int *value, int number, int device) {
    ENTER(Init);
    if (!is_device(device)) {
        return INVALID_DEVICE;
    }
    *value = attribute(number);
    return SUCCESS;
}

CUDA_API cuDevicePrimaryCtxRetain(Context **context, int device) {
    ENTER(Init);
    if (!is_device(device)) {
        return INVALID_DEVICE;
    }
    Context *&primary = primaries[device];
    if (!primary) {
        primary = create(device, true);
    }
    *context = primary;
    return SUCCESS;
}

// The context stays: a later retain gives the same one.
CUDA_API cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(Init);
    return is_device(device) ? SUCCESS : INVALID_DEVICE;
}

CUDA_API cuDevicePrimaryCtxReset_v2(int device) {
    ENTER(Init);
    clear_sticky();
    return is_device(device) ? SUCCESS : INVALID_DEVICE;
}

CUDA_API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    ENTER(Init);
    *flags = 0;
    *active = primaries.count(device) ? 1 : 0;
    return is_device(device) ? SUCCESS : INVALID_DEVICE;
}

CUDA_API cuCtxCreate_v2(Context **context, unsigned, int device) {
    ENTER(Init);
    if (!is_device(device)) {
        return INVALID_DEVICE;
    }
    *context = create(device, false);
    stack.push_back(*context);
    return SUCCESS;
}

CUDA_API cuCtxCreate_v4(Context **context, void *, unsigned flags, int device) {
    return cuCtxCreate_v2(context, flags, device);
}

CUDA_API cuCtxDestroy_v2(Context *context) {
    ENTER(Release);
    if (!contexts.count(context) || context->primary) {
        return INVALID_CONTEXT;
    }
    drain_all();
    contexts.erase(context);
    if (current_context() == context) {
        stack.pop_back();
    }
    destroy_stream(context->null_stream);
    delete context;
    return sticky();
}

CUDA_API cuCtxSetCurrent(Context *context) {
    ENTER(Init);
    if (context && !contexts.count(context)) {
        return INVALID_CONTEXT;
    }
    if (!stack.empty()) {
        stack.pop_back();
    }
    if (context) {
        stack.push_back(context);
    }
    return SUCCESS;
}

CUDA_API cuCtxGetCurrent(Context **context) {
    ENTER(Init);
    *context = current_context();
    return SUCCESS;
}

CUDA_API cuCtxPushCurrent_v2(Context *context) {
    ENTER(Init);
    if (!contexts.count(context)) {
        return INVALID_CONTEXT;
    }
    stack.push_back(context);
    return SUCCESS;
}

CUDA_API cuCtxPopCurrent_v2(Context **context) {
    ENTER(Init);
    if (stack.empty()) {
        return INVALID_CONTEXT;
    }
    if (context) {
        *context = stack.back();
    }
    stack.pop_back();
    return SUCCESS;
}

CUDA_API cuCtxGetDevice(int *device) {
    ENTER(Init);
    if (!current_context()) {
        return INVALID_CONTEXT;
    }
    *device = current_context()->device;
    return SUCCESS;
}

CUDA_API cuCtxGetApiVersion(Context *, unsigned *version) {
    ENTER(Init);
    *version = unsigned(config.driver);
    return SUCCESS;
}

CUDA_API cuCtxSetFlags(unsigned) {
    ENTER(Context);
    return SUCCESS;
}

CUDA_API cuCtxGetFlags(unsigned *flags) {
    ENTER(Context);
    *flags = 0;
    return SUCCESS;
}

CUDA_API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(Context);
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

CUDA_API cuCtxSynchronize() {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuCtxSynchronize")) {
        return code;
    }
    drain_all();
    return sticky();
}
