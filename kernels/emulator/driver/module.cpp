// Modules: the PTX is checked for what a driver would refuse, then the twin compiled for the host runs.
//
// Checked are the ISA version against the driver's, the target against the device's, that the entry is there, that its
// parameters have the sizes of the twin's, and its limit of threads. A cubin is taken as it is.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "../device/launch.h"
#include "../device/report.h"
#include "config.h"
#include "entry.h"
#include "stream.h"

namespace emu {

namespace {

constexpr size_t SHARED_UNASKED = 48 * 1024;

struct Function {
    const Kernel *kernel;
    Context *context;
    unsigned max_threads = 1024;
    size_t max_shared = SHARED_UNASKED;
};

struct Module {
    Context *context;
    std::string ptx;  // empty: a cubin
    std::map<std::string, std::unique_ptr<Function>> functions;
};

std::set<Module *> &modules() {
    static auto *modules = new std::set<Module *>;
    return *modules;
}

std::set<Function *> &functions() {
    static auto *functions = new std::set<Function *>;
    return *functions;
}

// The newest PTX ISA of a driver, times ten: 8.0 of CUDA 12.0, 9.0 of 13.0; of 12.6 and later it runs on by one more.
int newest_isa(int driver) {
    int minor = driver % 1000 / 10;
    if (driver >= 13000) {
        return 90 + minor;
    }
    static const int OF_CUDA_12[] = {80, 81, 82, 83, 84, 85, 85, 86, 87, 88};
    return driver >= 12000 ? OF_CUDA_12[minor > 9 ? 9 : minor] : 78;
}

// Space and comments in front of a token are skipped.
std::string without_comments(const char *text) {
    std::string result;
    for (const char *at = text; *at;) {
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
        } else {
            result += *at++;
        }
    }
    return result;
}

CUresult check_header(const std::string &ptx) {
    size_t version = ptx.find(".version");
    size_t target = ptx.find(".target");
    int major = 0;
    int minor = 0;
    int compute = 0;
    char suffix = ' ';
    if (version == std::string::npos || target == std::string::npos ||
        sscanf(&ptx[version], ".version %d.%d", &major, &minor) != 2 ||
        sscanf(&ptx[target], ".target sm_%d%c", &compute, &suffix) < 1) {
        say("PTX without .version and .target");
        return INVALID_PTX;
    }
    if (major * 10 + minor > newest_isa(config.driver)) {
        say("PTX %d.%d, but a driver of CUDA %d.%d knows up to %d.%d", major, minor, config.driver / 1000,
            config.driver % 1000 / 10, newest_isa(config.driver) / 10, newest_isa(config.driver) % 10);
        return UNSUPPORTED_PTX_VERSION;
    }
    bool exact = suffix == 'a';
    if (compute > config.compute || (exact && compute != config.compute)) {
        say("PTX for sm_%d%s, but the device is sm_%d", compute, exact ? "a" : "", config.compute);
        return NO_BINARY_FOR_GPU;
    }
    return SUCCESS;
}

// What follows ".entry <name>" up to the body; empty if there is no such entry.
std::string find_entry(const std::string &ptx, const std::string &name) {
    for (size_t at = ptx.find(".entry"); at != std::string::npos; at = ptx.find(".entry", at + 1)) {
        size_t begin = ptx.find_first_not_of(" \t\r\n", at + strlen(".entry"));
        size_t end = ptx.find_first_of(" \t\r\n(", begin);
        if (begin != std::string::npos && ptx.substr(begin, end - begin) == name) {
            return ptx.substr(end, ptx.find('{', end) - end);
        }
    }
    return "";
}

// The bytes of a ".param .align 8 .b8 name[456]" or ".param .u64 name".
size_t parameter_bytes(const std::string &declaration) {
    size_t bracket = declaration.find('[');
    size_t count = bracket == std::string::npos ? 1 : strtoull(&declaration[bracket + 1], nullptr, 10);
    size_t bits = 0;
    std::istringstream words(declaration);
    std::string word;
    while (words >> word) {
        bool is_type = word.size() > 2 && word[0] == '.' && strchr("bsuf", word[1]) && isdigit(word[2]);
        if (is_type) {
            bits = strtoull(&word[2], nullptr, 10);
        }
    }
    return bits / 8 * count;
}

std::vector<size_t> parameters_of(const std::string &entry) {
    std::vector<size_t> sizes;
    std::string list = entry.substr(0, entry.find(')'));
    for (size_t at = list.find(".param"); at != std::string::npos;) {
        size_t next = list.find(".param", at + 1);
        size_t begin = at + strlen(".param");
        sizes.push_back(parameter_bytes(list.substr(begin, next == std::string::npos ? next : next - begin)));
        at = next;
    }
    return sizes;
}

CUresult check_entry(const std::string &ptx, const Kernel &kernel, Function &function) {
    std::string entry = find_entry(ptx, kernel.name);
    if (entry.empty()) {
        say("%s: not an entry of the module", kernel.name);
        return NOT_FOUND;
    }
    std::vector<size_t> sizes = parameters_of(entry);
    if (sizes != kernel.parameter_bytes) {
        say("%s: parameters of the PTX (%zu, the first of %zu bytes) are not those of the host twin (%zu, %zu bytes)",
            kernel.name, sizes.size(), sizes.empty() ? 0 : sizes[0], kernel.parameter_bytes.size(),
            kernel.parameter_bytes.empty() ? 0 : kernel.parameter_bytes[0]);
        return INVALID_VALUE;
    }
    size_t limit = entry.find(".maxntid");
    unsigned x = 0;
    unsigned y = 1;
    unsigned z = 1;
    if (limit != std::string::npos && sscanf(&entry[limit], ".maxntid %u , %u , %u", &x, &y, &z) >= 1) {
        function.max_threads = x * y * z;
    }
    return SUCCESS;
}

CUresult code_of(Outcome outcome) {
    switch (outcome) {
    case Outcome::Ok:
        return SUCCESS;
    case Outcome::IllegalAddress:
        return ILLEGAL_ADDRESS;
    case Outcome::Misaligned:
        return MISALIGNED_ADDRESS;
    case Outcome::Deadlock:
        return LAUNCH_TIMEOUT;
    case Outcome::Failed:
        break;
    }
    return LAUNCH_FAILED;
}

bool check_launch(const Function &function, dim3 grid, dim3 block, size_t shared_bytes) {
    uint64_t num_threads = uint64_t(block.x) * block.y * block.z;
    const char *why = nullptr;
    if (!grid.x || !grid.y || !grid.z || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
        why = "the grid is empty or too large";
    } else if (!num_threads || num_threads > function.max_threads || block.z > 64) {
        why = "the block is empty or too large";
    } else if (shared_bytes > function.max_shared) {
        why = "more shared memory than the function asked for";
    }
    if (why) {
        say("%s: bad launch, %s: grid (%u,%u,%u), block (%u,%u,%u) of at most %u, %zu bytes shared of at most %zu",
            function.kernel->name, why, grid.x, grid.y, grid.z, block.x, block.y, block.z, function.max_threads,
            shared_bytes, function.max_shared);
    }
    return !why;
}

using Arguments = std::vector<std::vector<char>>;

Run launch_later(const Kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes, Arguments arguments) {
    auto kept = std::make_shared<Arguments>(std::move(arguments));
    return [=]() -> CUresult {
        std::vector<void *> pointers;
        for (auto &argument : *kept) {
            pointers.push_back(argument.data());
        }
        return code_of(emu::run({kernel, grid, block, shared_bytes, pointers.data()}));
    };
}

}  // namespace

}  // namespace emu

using namespace emu;

CUDA_API cuModuleLoadData(Module **handle, const void *image) {
    ENTER(Context);
    if (CUresult code = refuse_in_capture("cuModuleLoadData")) {
        return code;
    }
    auto module = std::make_unique<Module>();
    module->context = current_context();
    if (memcmp(image, "\x7f" "ELF", 4)) {
        module->ptx = without_comments(static_cast<const char *>(image));
        if (CUresult code = check_header(module->ptx)) {
            return code;
        }
    }
    modules().insert(module.get());
    *handle = module.release();
    return SUCCESS;
}

CUDA_API cuModuleLoadDataEx(Module **handle, const void *image, unsigned, int *, void **) {
    return cuModuleLoadData(handle, image);
}

CUDA_API cuModuleLoad(Module **handle, const char *path) {
    ENTER(Context);
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return FILE_NOT_FOUND;
    }
    std::ostringstream text;
    text << file.rdbuf();
    return cuModuleLoadData(handle, text.str().c_str());
}

CUDA_API cuModuleUnload(Module *module) {
    ENTER(Release);
    if (!modules().erase(module)) {
        return INVALID_HANDLE;
    }
    for (auto &entry : module->functions) {
        functions().erase(entry.second.get());
    }
    delete module;
    return sticky();
}

CUDA_API cuModuleGetFunction(Function **handle, Module *module, const char *name) {
    ENTER(Context);
    if (!modules().count(module)) {
        return INVALID_HANDLE;
    }
    auto known = module->functions.find(name);
    if (known != module->functions.end()) {
        *handle = known->second.get();
        return SUCCESS;
    }
    const Kernel *kernel = find_kernel(name);
    if (!kernel) {
        say("%s: no kernel of that name was compiled for the host", name);
        return NOT_FOUND;
    }
    auto function = std::make_unique<Function>();
    function->kernel = kernel;
    function->context = module->context;
    if (!module->ptx.empty()) {
        if (CUresult code = check_entry(module->ptx, *kernel, *function)) {
            return code;
        }
    }
    *handle = function.get();
    functions().insert(function.get());
    module->functions[name] = std::move(function);
    return SUCCESS;
}

// CUfunction_attribute 0: threads of a block, 8: dynamic shared memory.
CUDA_API cuFuncSetAttribute(Function *function, int attribute, int value) {
    ENTER(Context);
    if (!functions().count(function)) {
        return INVALID_HANDLE;
    }
    if (attribute == 8) {
        if (value < 0 || value > shared_bytes_per_block()) {
            return INVALID_VALUE;
        }
        function->max_shared = size_t(value);
    }
    return SUCCESS;
}

CUDA_API cuFuncGetAttribute(int *value, int attribute, Function *function) {
    ENTER(Context);
    if (!functions().count(function)) {
        return INVALID_HANDLE;
    }
    switch (attribute) {
    case 0:
        *value = int(function->max_threads);
        break;
    case 5:  // PTX version
    case 6:  // binary version
        *value = config.compute;
        break;
    case 8:
        *value = int(function->max_shared);
        break;
    default:
        *value = 0;
    }
    return SUCCESS;
}

CUDA_API cuFuncSetCacheConfig(Function *function, int) {
    ENTER(Context);
    return functions().count(function) ? SUCCESS : INVALID_HANDLE;
}

CUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Function *function, int threads,
                                                              size_t shared_bytes, unsigned) {
    ENTER(Context);
    if (!functions().count(function)) {
        return INVALID_HANDLE;
    }
    if (threads <= 0) {
        return INVALID_VALUE;
    }
    // By threads, by shared memory with the system's KiB, and at most 32. Registers are not known here.
    int by_threads = 2048 / threads;
    int by_shared = int(size_t(shared_bytes_per_multiprocessor()) / (shared_bytes + 1024));
    int fewest = by_threads < by_shared ? by_threads : by_shared;
    *blocks = shared_bytes > function->max_shared ? 0 : fewest < 32 ? fewest : 32;
    return SUCCESS;
}

CUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *function, int threads,
                                                     size_t shared_bytes) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

CUDA_API cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *handle, void **arguments,
                        void **) {
    ENTER(Context);
    Stream *stream = find_stream(handle);
    if (!stream || !functions().count(function) || function->context != stream->context) {
        return INVALID_HANDLE;
    }
    dim3 grid = {grid_x, grid_y, grid_z};
    dim3 block = {block_x, block_y, block_z};
    if (!check_launch(*function, grid, block, shared_bytes)) {
        return INVALID_VALUE;
    }
    Arguments copied;
    for (size_t i = 0; i < function->kernel->parameter_bytes.size(); i++) {
        auto *argument = static_cast<const char *>(arguments[i]);
        copied.emplace_back(argument, argument + function->kernel->parameter_bytes[i]);
    }
    return push(stream, "kernel", launch_later(function->kernel, grid, block, shared_bytes, std::move(copied)));
}
