// cp.async: copies from global to shared memory that land late, at once, or either by the seed.
//
// Late is the default and shows a missing wait; at once shows a slot that is refilled while others still read it.
#pragma once

#include "block.h"

namespace emu {

// Waits until at most `pending` committed groups of the current thread are under way.
void wait_for_copies(size_t pending);

}  // namespace emu

// `bytes`, 0 to 16, of 16; the rest is zeros.
void pk_cp_async16(void *to, const void *from, int bytes = 16, PK_WHERE);
void pk_cp_async_commit();

template <int N>
inline void pk_cp_async_wait() {
    emu::wait_for_copies(N);
}
