// How every function of the driver API begins: one lock for all, injected failures, and what must have come before.
#pragma once

#include <mutex>

#include "codes.h"

#define CUDA_API extern "C" __attribute__((visibility("default"))) CUresult

namespace emu {

// What a function needs. After a sticky error, those that need a context fail with it; those that release work and
// then return it.
enum class Needs { Nothing, Init, Context, Release };

class Entry {
public:
    Entry(const char *function, Needs needs);

    // Not SUCCESS: to be returned at once.
    CUresult refused() const {
        return refused_;
    }

private:
    std::lock_guard<std::recursive_mutex> lock_;
    CUresult refused_;
};

// The error that a kernel or copy left behind; SUCCESS if none has.
CUresult sticky();

// Makes `code` sticky, unless another is, and drops all work that has not run.
void set_sticky(CUresult code);
void clear_sticky();

// cuInit has been called.
void set_initialized();

}  // namespace emu

#define ENTER(needs)                                     \
    emu::Entry entry_(__func__, emu::Needs::needs);      \
    if (CUresult refused_code_ = entry_.refused()) {     \
        return refused_code_;                            \
    }
