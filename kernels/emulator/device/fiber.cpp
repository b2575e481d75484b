#include "fiber.h"

#include <cstdint>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef EMULATOR_UCONTEXT
// Saves the registers that a callee must keep, swaps the stack pointer, and takes the same registers of the other
// fiber. A new fiber's stack looks as though it had been left here, with its entry as the address of return.
asm(R"(
    .text
    .type emu_swap_stacks, @function
emu_swap_stacks:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emu_swap_stacks, . - emu_swap_stacks
)");
extern "C" void emu_swap_stacks(void **save, void *to);
#endif

namespace emu {

void fiber_prepare(Fiber &fiber, void *stack_bottom, size_t stack_bytes, void (*entry)()) {
#ifdef __SANITIZE_ADDRESS__
    // A fiber that was given up in the middle leaves the red zones of its frames behind.
    ASAN_UNPOISON_MEMORY_REGION(stack_bottom, stack_bytes);
#endif
    fiber.stack_bottom = stack_bottom;
    fiber.stack_bytes = stack_bytes;
    fiber.fake_stack = nullptr;
#ifdef EMULATOR_UCONTEXT
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack_bottom;
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#else
    uintptr_t top = (reinterpret_cast<uintptr_t>(stack_bottom) + stack_bytes) & ~uintptr_t(15);
    void **stack = reinterpret_cast<void **>(top);
    // The entry finds the stack as after a call: 8 off a multiple of 16, with an address of return that ends a
    // backtrace.
    *--stack = nullptr;
    *--stack = reinterpret_cast<void *>(entry);
    for (int saved_register = 0; saved_register < 6; saved_register++) {
        *--stack = nullptr;
    }
    fiber.stack_pointer = stack;
#endif
}

void fiber_switch(Fiber &from, Fiber &to) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack_bottom, to.stack_bytes);
#endif
#ifdef EMULATOR_UCONTEXT
    swapcontext(&from.context, &to.context);
#else
    emu_swap_stacks(&from.stack_pointer, to.stack_pointer);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void fiber_begun(Fiber &scheduler) {
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    // Whoever starts the first fiber of a launch is the scheduler; later ones are started by fibers too.
    if (!scheduler.stack_bottom) {
        scheduler.stack_bottom = bottom;
        scheduler.stack_bytes = bytes;
    }
#else
    (void)scheduler;
#endif
}

}  // namespace emu
