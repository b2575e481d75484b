// A fiber: a stack and the place where its execution stands. One per CUDA thread, and one for the scheduler.
#pragma once

#include <cstddef>

// The context switch is assembler on x86-64, ucontext elsewhere. EMULATOR_UCONTEXT takes ucontext everywhere, for
// tests.
#if !defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
#define EMULATOR_UCONTEXT
#endif

#ifdef EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace emu {

struct Fiber {
#ifdef EMULATOR_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;  // while the fiber does not run
#endif
    // What AddressSanitizer wants to know of the stack; of the scheduler's it is learnt at the first switch away.
    const void *stack_bottom;
    size_t stack_bytes;
    void *fake_stack;
};

// Makes `fiber` one that begins with `entry`, which must not return, on the stack given.
void fiber_prepare(Fiber &fiber, void *stack_bottom, size_t stack_bytes, void (*entry)());

// Leaves `from`, which is the one that runs, and goes on with `to`.
void fiber_switch(Fiber &from, Fiber &to);

// To be called first by an entry function: completes the switch that brought it to life.
void fiber_begun(Fiber &scheduler);

}  // namespace emu
