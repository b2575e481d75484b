// pk_read: reads memory and does nothing else: the ceiling that attention is measured against. Not part of the library.
//
// Every thread sums words of 16 bytes, several loads on their way at once, and writes the sum where it is one that the
// memory does not give, so that no load can be left out.
//
// Grid: any number of CTAs of 256 threads. No shared memory.
#include "common.cuh"
#include "memory.cuh"
#include "params.cuh"

// Loads of a thread that are on their way together.
#define IN_FLIGHT 8

extern "C" __global__ void __launch_bounds__(256) pk_read(const __grid_constant__ pk_read_params p) {
    const pk_bytes16 *data = (const pk_bytes16 *)p.data;
    const pk_i64 threads = (pk_i64)gridDim.x * blockDim.x;
    pk_u32 sum = 0;
    pk_i64 at = (pk_i64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + (IN_FLIGHT - 1) * threads < p.count; at += IN_FLIGHT * threads) {
        pk_bytes16 held[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            held[i] = data[at + i * threads];
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            sum += held[i].words[0] ^ held[i].words[1] ^ held[i].words[2] ^ held[i].words[3];
        }
    }
    for (; at < p.count; at += threads) {
        sum += data[at].words[0] ^ data[at].words[1] ^ data[at].words[2] ^ data[at].words[3];
    }
    if (sum == p.never) {
        *p.out = sum;
    }
}
PK_EXPORT(pk_read)
