// cuGetProcAddress: the address of a function by its name without a suffix, as programs ask that load symbols
// themselves.
#include <dlfcn.h>

#include <cstring>
#include <map>
#include <string>

#include "config.h"
#include "entry.h"

namespace emu {

namespace {

// This library, which need not be the first of its name in the process.
void *self() {
    static void *handle = [] {
        Dl_info info;
        void *address = reinterpret_cast<void *>(&name_of_code);
        return dladdr(address, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    }();
    return handle;
}

// Functions that came after CUDA 12.0, with the version that brought them.
const std::map<std::string, int> SINCE = {
    {"cuMemcpyBatchAsync", 12080},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuEventElapsedTime_v2", 12080},
    {"cuCtxCreate_v4", 12050},
    {"cuStreamGetDevice", 12080},
};

void *find_symbol(const std::string &name, int version) {
    auto since = SINCE.find(name);
    if (since != SINCE.end() && (since->second > version || since->second > config.driver)) {
        return nullptr;
    }
    return self() ? dlsym(self(), name.c_str()) : nullptr;
}

}  // namespace

}  // namespace emu

using namespace emu;

// `status`, if given: 0 found, 1 no such symbol, 2 the driver is too old.
CUDA_API cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t, int *status) {
    ENTER(Nothing);
    *address = nullptr;
    for (const char *suffix : {"_v4", "_v3", "_v2", ""}) {
        *address = find_symbol(std::string(name) + suffix, version);
        if (*address) {
            break;
        }
    }
    if (status) {
        *status = *address ? 0 : 1;
    }
    return *address ? SUCCESS : NOT_FOUND;
}

CUDA_API cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, address, version, flags, nullptr);
}
