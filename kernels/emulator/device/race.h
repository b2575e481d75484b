// The race check of shared memory: who touched which bytes, and whether a barrier lies between.
//
// An access is ordered after an earlier one of the same block if the same thread made both, if both are of one warp and
// a full __syncwarp lies between, or if a __syncthreads does. A shuffle or an mma orders nothing. The target of a
// cp.async belongs to the copy from its issue to its wait, and to the thread that waited from there on.
//
// cp.async and ldmatrix are always checked. Plain loads and stores are checked in a build that instruments kernels (see
// instrument.cpp). Four bytes share a cell that remembers the last write and the last reads, so that a race may be
// missed, but none is reported that is not there.
#pragma once

#include "block.h"

namespace emu {

// Begins a block: nothing has been touched.
void race_begin();

// With `on` false, nothing is checked.
void race_switch(bool on);
bool race_checks();

bool in_shared(const unsigned char *address, size_t bytes);

// `what` names the access in a report.
void race_read(const unsigned char *address, size_t bytes, Where where, const char *what);
void race_write(const unsigned char *address, size_t bytes, Where where, const char *what);

// The life of a cp.async into the 16 bytes at `address`.
void race_copy_issued(const unsigned char *address, Where where);
void race_copy_waited(const unsigned char *address);

}  // namespace emu
