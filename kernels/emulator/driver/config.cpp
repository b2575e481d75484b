#include "config.h"

#include <cstdlib>
#include <cstring>
#include <set>

#include "../device/block.h"
#include "../device/race.h"
#include "../device/report.h"
#include "context.h"
#include "entry.h"
#include "memory.h"
#include "stream.h"

namespace emu {

Config config;

namespace {

std::recursive_mutex &driver_mutex() {
    static auto *mutex = new std::recursive_mutex;
    return *mutex;
}

uint64_t drawn_schedule = 1;
CUresult sticky_code = SUCCESS;
bool initialized = false;

void seed_schedule(uint64_t seed) {
    config.schedule = seed;
    drawn_schedule = seed * 0x9E3779B97F4A7C15ull + 1;
    for (int i = 0; i < 9; i++) {
        draw_schedule();
    }
}

// "lazy", "eager", "forward" and "reverse" are the seeds 0 and 1.
uint64_t seed_of(const std::string &value) {
    if (value == "lazy" || value == "forward") {
        return 0;
    }
    if (value == "eager" || value == "reverse") {
        return 1;
    }
    return strtoull(value.c_str(), nullptr, 0);
}

int landing_of(const std::string &value) {
    if (value == "late") {
        return 0;
    }
    if (value == "early") {
        return 1;
    }
    return 2;
}

void set_defaults() {
    config = Config();
    set_guard(config.guard);
    seed_schedule(0);
    order = Order();
    race_switch(true);
    set_quiet(false);
}

// "<function>:<nth>:<code>"
bool set_failure(const std::string &value) {
    size_t first = value.find(':');
    size_t last = value.rfind(':');
    if (first == std::string::npos || first == last) {
        return false;
    }
    long nth = atol(value.substr(first + 1, last - first - 1).c_str());
    config.failures[value.substr(0, first)] = {nth, atoi(value.substr(last + 1).c_str())};
    return true;
}

bool set_option(const std::string &key, const std::string &value) {
    bool on = value == "1";
    if (key == "reset") {
        set_defaults();
        clear_sticky();
        forget_messages();
    } else if (key == "schedule") {
        seed_schedule(seed_of(value));
    } else if (key == "order") {
        order.seed = seed_of(value);
    } else if (key == "copies") {
        order.async_copies = landing_of(value);
    } else if (key == "races") {
        race_switch(on);
    } else if (key == "guard") {
        set_guard(on);
    } else if (key == "poison") {
        config.poison = on;
    } else if (key == "memory") {
        config.memory_bytes = strtoull(value.c_str(), nullptr, 0);
    } else if (key == "driver") {
        config.driver = atoi(value.c_str());
    } else if (key == "devices") {
        config.devices = atoi(value.c_str());
    } else if (key == "compute") {
        config.compute = atoi(value.c_str());
    } else if (key == "pools") {
        config.pools = on;
    } else if (key == "trace") {
        config.trace = on;
    } else if (key == "quiet") {
        set_quiet(on);
    } else if (key == "fail") {
        return set_failure(value);
    } else {
        return false;
    }
    return true;
}

// Sets options from "key=value,..."; the number of those that are unknown or malformed.
int configure(const char *options) {
    std::string all = options;
    int refused = 0;
    size_t at = 0;
    while (at < all.size()) {
        size_t end = all.find(',', at);
        end = end == std::string::npos ? all.size() : end;
        std::string option = all.substr(at, end - at);
        size_t equals = option.find('=');
        std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
        if (!option.empty() && !set_option(option.substr(0, equals), value)) {
            say("unknown option %s", option.c_str());
            refused++;
        }
        at = end + 1;
    }
    return refused;
}

struct FromEnvironment {
    FromEnvironment() {
        if (const char *options = getenv("PAGED_KV_EMULATOR")) {
            configure(options);
        }
    }
} from_environment;

// The code that an injected failure asks for.
CUresult injected(const char *function) {
    auto failure = config.failures.find(function);
    if (failure == config.failures.end() || --failure->second.calls > 0) {
        return SUCCESS;
    }
    int code = failure->second.code;
    config.failures.erase(failure);
    return code;
}

void trace(const char *function) {
    static auto *seen = new std::set<std::string>;
    if (config.trace && seen->insert(function).second) {
        say("called: %s", function);
    }
}

}  // namespace

uint64_t draw_schedule() {
    drawn_schedule ^= drawn_schedule << 13;
    drawn_schedule ^= drawn_schedule >> 7;
    drawn_schedule ^= drawn_schedule << 17;
    return drawn_schedule;
}

CUresult sticky() {
    return sticky_code;
}

void set_sticky(CUresult code) {
    if (sticky_code == SUCCESS && code != SUCCESS) {
        sticky_code = code;
        drop_all_work();
    }
}

void clear_sticky() {
    sticky_code = SUCCESS;
}

void set_initialized() {
    initialized = true;
}

Entry::Entry(const char *function, Needs needs) : lock_(driver_mutex()) {
    trace(function);
    refused_ = injected(function);
    if (refused_ != SUCCESS || needs == Needs::Nothing) {
        return;
    }
    if (!initialized) {
        refused_ = NOT_INITIALIZED;
    } else if (needs == Needs::Context && sticky_code != SUCCESS) {
        refused_ = sticky_code;
    } else if (needs == Needs::Context && !current_context()) {
        refused_ = INVALID_CONTEXT;
    }
}

}  // namespace emu

// Sets options; 0 if all were understood.
extern "C" __attribute__((visibility("default"))) int emulator_configure(const char *options) {
    std::lock_guard<std::recursive_mutex> lock(emu::driver_mutex());
    return emu::configure(options);
}

// Copies the last messages, one a line, with a 0 behind, as far as they fit. Returns the bytes of all, without the 0.
extern "C" __attribute__((visibility("default"))) size_t emulator_report(char *buffer, size_t bytes) {
    std::string all = emu::messages();
    if (bytes) {
        size_t copied = all.size() < bytes - 1 ? all.size() : bytes - 1;
        memcpy(buffer, all.data(), copied);
        buffer[copied] = 0;
    }
    return all.size();
}

// Counts since the library was loaded: switches, collectives, cp.async, conflicts of banks in ldmatrix.
extern "C" __attribute__((visibility("default"))) void emulator_statistics(uint64_t counts[4]) {
    std::lock_guard<std::recursive_mutex> lock(emu::driver_mutex());
    counts[0] = emu::statistics.switches;
    counts[1] = emu::statistics.collectives;
    counts[2] = emu::statistics.async_copies;
    counts[3] = emu::statistics.bank_conflicts;
}
