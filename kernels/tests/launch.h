// Launches a kernel by name on the emulator's device, without a driver: memory is the process's own.
#pragma once

#include <cstddef>

namespace test {

// Blocks in one dimension. Whether it ran to its end without a fault; PK_ORDER in the environment is the seed of the
// order in which threads, warps and blocks take turns.
bool launch_kernel(const char *name, int grid, int threads, size_t shared_bytes, void **arguments);

}  // namespace test
