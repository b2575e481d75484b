#include "place.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unordered_map>

namespace emu {

namespace {

constexpr int INLINED_SHOWN = 3;

// The last part of "/path/file.cu:12 (discriminator 3)", without what follows the line.
std::string short_name(char *line) {
    line[strcspn(line, " \n")] = 0;
    const char *slash = strrchr(line, '/');
    return slash ? slash + 1 : line;
}

std::string by_addr2line(const char *library, uintptr_t offset) {
    char command[1024];
    snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", library, size_t(offset));
    FILE *output = popen(command, "r");
    if (!output) {
        return "";
    }
    std::string place;
    char line[512];
    for (int shown = 0; fgets(line, sizeof line, output);) {
        if (shown < INLINED_SHOWN && line[0] != '?') {
            place += (shown ? " < " : "") + short_name(line);
            shown++;
        }
    }
    pclose(output);
    return place;
}

std::string find_place(const void *instruction) {
    Dl_info info;
    if (!instruction || !dladdr(const_cast<void *>(instruction), &info)) {
        return "";
    }
    uintptr_t offset = reinterpret_cast<uintptr_t>(instruction) - reinterpret_cast<uintptr_t>(info.dli_fbase);
    std::string place = by_addr2line(info.dli_fname, offset);
    if (place.empty()) {
        char text[64];
        snprintf(text, sizeof text, "libcuda.so+0x%zx", size_t(offset));
        place = text;
    }
    return place;
}

}  // namespace

std::string place_of(const void *instruction) {
    // A fault that is provoked again and again would otherwise spend its time in addr2line.
    static auto *known = new std::unordered_map<const void *, std::string>;
    auto found = known->find(instruction);
    if (found == known->end()) {
        found = known->emplace(instruction, find_place(instruction)).first;
    }
    return found->second;
}

}  // namespace emu
