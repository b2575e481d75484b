// Copies of bytes by all threads of a CTA, as wide as addresses and length allow.
#pragma once

#include "common.cuh"
#include "memory.cuh"

// Loads of a thread that are on their way together.
#define PK_COPY_IN_FLIGHT 4

// Copies `units` units with all threads of the CTA.
template <typename Unit>
PK_DEV void pk_copy_units(const pk_u8 *from, pk_u8 *to, pk_i64 units) {
    const Unit *source = (const Unit *)from;
    Unit *target = (Unit *)to;
    const int stride = blockDim.x;
    pk_i64 at = threadIdx.x;
    for (; at + (PK_COPY_IN_FLIGHT - 1) * stride < units; at += PK_COPY_IN_FLIGHT * stride) {
        Unit held[PK_COPY_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < PK_COPY_IN_FLIGHT; i++) {
            held[i] = source[at + i * stride];
        }
#pragma unroll
        for (int i = 0; i < PK_COPY_IN_FLIGHT; i++) {
            target[at + i * stride] = held[i];
        }
    }
    for (; at < units; at += stride) {
        target[at] = source[at];
    }
}

// With the widest accesses that both addresses and the length allow.
PK_DEV void pk_copy_bytes(const pk_u8 *from, pk_u8 *to, pk_i64 bytes) {
    const pk_u64 all = pk_address(from) | pk_address(to) | (pk_u64)bytes;
    if ((all & 15) == 0) {
        pk_copy_units<pk_bytes16>(from, to, bytes / 16);
    } else if ((all & 3) == 0) {
        pk_copy_units<pk_u32>(from, to, bytes / 4);
    } else {
        pk_copy_units<pk_u8>(from, to, bytes);
    }
}
