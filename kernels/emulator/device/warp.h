// Operations of a warp. Lanes meet: the last to arrive does the work for all, on pointers into their stacks.
//
// A lane that has returned is not waited for, as on the device, except by matrix operations, which need the whole warp.
#pragma once

#include <cstring>

#include "block.h"

namespace emu {

using Combine = void (*)(Meeting &);

// Waits until every lane of `mask` has come here, then `combine`.
void meet(Collective collective, Where where, uint32_t mask, const void *in, void *out, Combine combine);

// The current lane has returned: those that waited only for it go on.
void leave_warp();

// `bytes` is 4 or 8.
void shuffle(uint32_t mask, const void *value, void *out, size_t bytes, int source, Where where);

const char *name_of(Collective collective);

}  // namespace emu

void __syncwarp(uint32_t mask = ~0u, PK_WHERE);
unsigned __ballot_sync(uint32_t mask, int predicate, PK_WHERE);
int __any_sync(uint32_t mask, int predicate, PK_WHERE);
int __all_sync(uint32_t mask, int predicate, PK_WHERE);

template <class T>
inline T __shfl_sync(uint32_t mask, T value, int source, PK_WHERE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    T result = value;
    emu::shuffle(mask, &value, &result, sizeof(T), source & 31, where);
    return result;
}

template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, PK_WHERE) {
    return __shfl_sync(mask, value, emu::current->lane ^ lane_mask, where);
}

template <class T>
inline T __shfl_up_sync(uint32_t mask, T value, unsigned delta, PK_WHERE) {
    unsigned lane = emu::current->lane;
    return __shfl_sync(mask, value, int(lane >= delta ? lane - delta : lane), where);
}

template <class T>
inline T __shfl_down_sync(uint32_t mask, T value, unsigned delta, PK_WHERE) {
    unsigned lane = emu::current->lane;
    return __shfl_sync(mask, value, int(lane + delta < 32 ? lane + delta : lane), where);
}
