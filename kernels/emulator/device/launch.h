// Runs a kernel: blocks one after the other, the threads of a block as fibers.
#pragma once

#include "block.h"
#include "registry.h"

namespace emu {

struct Launch {
    const Kernel *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void **arguments;
};

// Ends with the first block that fails.
Outcome run(const Launch &launch);

}  // namespace emu
