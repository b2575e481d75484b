// The handler runs on a stack of its own, reports, and leaves by a switch to the scheduler, as a thread does that gives
// up. That is sound because the signal is synchronous: it interrupts nothing but the kernel's own code, which holds no
// lock.
#include "fault.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include <ucontext.h>

#include "block.h"
#include "report.h"

namespace emu {

void (*host_fault)(const void *address);

namespace {

constexpr size_t SIGNAL_STACK_BYTES = 128 * 1024;
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};

struct sigaction previous[NSIG];
thread_local bool launching = false;
thread_local stack_t previous_stack;
thread_local void *signal_stack = nullptr;

bool on_own_stack(const void *address) {
    auto at = reinterpret_cast<uintptr_t>(address);
    auto bottom = reinterpret_cast<uintptr_t>(current->fiber.stack_bottom);
    return at >= bottom - 4096 && at < bottom;
}

const void *instruction_of(const void *context) {
    auto &machine = static_cast<const ucontext_t *>(context)->uc_mcontext;
#if defined(__x86_64__)
    return reinterpret_cast<const void *>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return reinterpret_cast<const void *>(machine.pc);
#else
    (void)machine;
    return nullptr;
#endif
}

void report(int signal, const siginfo_t &info, const void *context) {
    Where where = {nullptr, 0, instruction_of(context)};
    if (signal == SIGFPE) {
        fault(Outcome::Failed, where, "an integer division by zero");
    } else if (on_own_stack(info.si_addr)) {
        fault(Outcome::Failed, where, "the stack of the thread is full (%zu bytes)", current->fiber.stack_bytes);
    } else if (signal == SIGBUS || info.si_code == SI_KERNEL) {
        // The processor gives no address when a vector access is misaligned or the address is not canonical.
        fault(Outcome::Misaligned, where, "a misaligned access of 16 bytes or more, or a wild address");
    } else {
        fault_at(Outcome::IllegalAddress, where, "an access", 1, info.si_addr);
    }
}

void pass_on(int signal, siginfo_t *info, void *context) {
    const struct sigaction &before = previous[signal];
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    } else {
        // Returning repeats the access, which now ends the process as it would have.
        sigaction(signal, &before, nullptr);
    }
}

void handle(int signal, siginfo_t *info, void *context) {
    if (launching && current) {
        report(signal, *info, context);
        give_up();
    }
    if (signal == SIGSEGV && host_fault) {
        host_fault(info->si_addr);
    }
    pass_on(signal, info, context);
}

void install() {
    for (int signal : SIGNALS) {
        struct sigaction action = {};
        action.sa_sigaction = handle;
        // The handler is left by a switch of stacks, so the signal must not stay blocked.
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        sigaction(signal, &action, &previous[signal]);
    }
}

}  // namespace

void catch_faults() {
    static std::once_flag once;
    std::call_once(once, install);
}

FaultGuard::FaultGuard() {
    catch_faults();
    if (!signal_stack) {
        signal_stack = malloc(SIGNAL_STACK_BYTES);
    }
    stack_t stack = {};
    stack.ss_sp = signal_stack;
    stack.ss_size = SIGNAL_STACK_BYTES;
    sigaltstack(&stack, &previous_stack);
    launching = true;
}

FaultGuard::~FaultGuard() {
    launching = false;
    sigaltstack(&previous_stack, nullptr);
}

}  // namespace emu
