// Faults of ordinary loads and stores: a kernel that touches what is not mapped ends its launch, not the process.
#pragma once

namespace emu {

// Around a launch, on its thread: SIGSEGV, SIGBUS and SIGFPE are reported and end the block. Elsewhere they go where
// they went before.
class FaultGuard {
public:
    FaultGuard();
    ~FaultGuard();
    FaultGuard(const FaultGuard &) = delete;
    FaultGuard &operator=(const FaultGuard &) = delete;
};

// Begins to watch for faults, of kernels and of the host; once does.
void catch_faults();

// Told of a fault outside a launch, before it goes where it went before.
extern void (*host_fault)(const void *address);

}  // namespace emu
