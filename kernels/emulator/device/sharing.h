// The check of device memory that blocks of one launch share: nothing orders blocks, so what one writes no other may
// read in the same launch, nor write, unless it writes the same bytes.
//
// That blocks run one after the other here would hide it: a kernel that hands results from block to block, by whatever
// flags and fences, is reported. Memory that a kernel reaches by plain accesses and cp.async is seen; see
// instrument.cpp.
#pragma once

#include "block.h"

namespace emu {

// Begins a launch: nothing has been touched.
void sharing_begin();

// Ends it: reports where several blocks wrote different bytes.
void sharing_end();

// The current block's access to device memory.
void sharing_touch(const void *address, size_t bytes, bool write, Where where);

}  // namespace emu
