// Pinned host memory: device and host reach it, and copies of it run when their turn comes, not when they are issued.
#pragma once

#include <cstddef>

namespace emu {

// Whether all of the bytes lie in one pinned range.
bool is_pinned(const void *address, size_t bytes);

}  // namespace emu
