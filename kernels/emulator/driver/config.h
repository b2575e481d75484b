// Options of the emulator: the table is in ../README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace emu {

struct Config {
    uint64_t schedule = 0;  // 0: lazy, 1: eager, else a seed
    bool guard = true;
    bool trace = false;
    bool poison = true;
    size_t memory_bytes = size_t(1) << 30;
    int driver = 13000;
    int devices = 1;
    int compute = 90;
    bool pools = true;

    // Which call of a function fails, counted down, and with which code.
    struct Failure {
        long calls;
        int code;
    };
    std::map<std::string, Failure> failures;
};

extern Config config;

// Numbers that depend on the schedule's seed alone.
uint64_t draw_schedule();

}  // namespace emu
