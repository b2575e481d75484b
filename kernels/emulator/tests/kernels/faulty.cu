// Kernels with a fault each, which the emulator must find. Where it has several, `mode` chooses.
#include "emulator/device/device.h"

struct fault_params {
    uint32_t *data;  // what the mode says
    int mode;
    int unused;
};

// Each thread reads what another wrote, with no barrier between. 128 threads, 512 bytes.
extern "C" __global__ void test_missing_barrier(const __grid_constant__ fault_params p) {
    PK_SMEM(shared);
    uint32_t *values = reinterpret_cast<uint32_t *>(shared);
    values[threadIdx.x] = threadIdx.x;
    if (p.mode == 1) {
        __syncwarp();  // orders a warp, not the block
    }
    p.data[threadIdx.x] = values[127 - threadIdx.x];
}
PK_EXPORT(test_missing_barrier)

// Shared memory is used again while others may still read it. 128 threads, 512 bytes.
extern "C" __global__ void test_missing_second_barrier(const __grid_constant__ fault_params p) {
    PK_SMEM(shared);
    uint32_t *values = reinterpret_cast<uint32_t *>(shared);
    uint32_t sum = 0;
    for (unsigned round = 0; round < 2; round++) {
        values[threadIdx.x] = threadIdx.x + round;
        __syncthreads();
        sum += values[127 - threadIdx.x];
    }
    p.data[threadIdx.x] = sum;
}
PK_EXPORT(test_missing_second_barrier)

// Reads what cp.async brings: mode 0 without a wait, 1 with one that is too lax, 2 without the barrier behind it, 3
// copies into what others still read. 32 threads, 512 bytes.
extern "C" __global__ void test_missing_copy_wait(const __grid_constant__ fault_params p) {
    PK_SMEM(shared);
    unsigned lane = threadIdx.x;
    uint32_t *mine = reinterpret_cast<uint32_t *>(shared + lane * 16);
    uint32_t *next = reinterpret_cast<uint32_t *>(shared + (lane + 1) % 32 * 16);
    pk_cp_async16(mine, p.data + lane * 4);
    pk_cp_async_commit();
    uint32_t value = 0;
    if (p.mode == 0) {
        value = *mine;
    } else if (p.mode == 1) {
        pk_cp_async_wait<1>();
        __syncwarp();
        value = *mine;
    } else if (p.mode == 2) {
        pk_cp_async_wait<0>();
        value = *next;
    } else {
        pk_cp_async_wait<0>();
        __syncwarp();
        value = *next;
        pk_cp_async16(mine, p.data + 128 + lane * 4);
        pk_cp_async_commit();
    }
    p.data[256 + lane] = value;
}
PK_EXPORT(test_missing_copy_wait)

// Touches byte `mode` of shared memory: as a load, or as a store if `data` is null. One thread.
extern "C" __global__ void test_shared_byte(const __grid_constant__ fault_params p) {
    PK_SMEM(shared);
    if (p.data) {
        p.data[0] = shared[p.mode];
    } else {
        shared[p.mode] = 1;
    }
}
PK_EXPORT(test_shared_byte)

// Threads that do not meet. 64 threads. Mode 0: different barriers; 1: half a warp waits for a shuffle that the rest
// does not come to; 2: lanes at different collectives; 3: one lane returns before an mma; 4: returns before
// __syncthreads, as is allowed.
extern "C" __global__ void test_divergence(const __grid_constant__ fault_params p) {
    unsigned thread = threadIdx.x;
    if (p.mode == 0) {
        if (thread < 32) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    } else if (p.mode == 1) {
        if (thread % 32 < 16) {
            __shfl_sync(~0u, thread, 0);
        } else {
            __syncthreads();
        }
    } else if (p.mode == 2) {
        if (thread % 32 == 5) {
            __ballot_sync(~0u, 1);
        } else {
            __shfl_sync(~0u, thread, 0);
        }
    } else {
        if (thread % 32 == 7) {
            return;
        }
        if (p.mode == 3) {
            float c[4] = {};
            unsigned a[4] = {};
            pk_mma_bf16(c, a, 0, 0);
        }
        __syncthreads();
    }
}
PK_EXPORT(test_divergence)

struct touch_params {
    uint32_t *address;
    uint32_t *result;
    int mode;  // 0: load, 1: store, 2: load of 16 bytes, 3: cp.async
    int block, thread;  // who does it
    int unused;
};

// Touches an address. Any grid; 16 bytes of shared memory.
extern "C" __global__ void test_touch(const __grid_constant__ touch_params p) {
    PK_SMEM(shared);
    if (int(blockIdx.x) != p.block || int(threadIdx.x) != p.thread) {
        return;
    }
    if (p.mode == 0) {
        *p.result = *p.address;
    } else if (p.mode == 1) {
        *p.address = 1;
    } else if (p.mode == 2) {
        uint4 value = *reinterpret_cast<const uint4 *>(p.address);
        *p.result = value.x ^ value.y ^ value.z ^ value.w;
    } else {
        pk_cp_async16(shared, p.address);
        pk_cp_async_commit();
        pk_cp_async_wait<0>();
        *p.result = *reinterpret_cast<uint32_t *>(shared);
    }
}
PK_EXPORT(test_touch)

// Blocks of one launch that share memory. One thread. Mode 0: block 1 reads what block 0 wrote; 1: both write one
// place, each its own number; 2: both read one place and write their own, and 3: both write the same, as is allowed.
extern "C" __global__ void test_blocks_share(const __grid_constant__ fault_params p) {
    unsigned block = blockIdx.x;
    if (p.mode == 0) {
        if (block == 0) {
            p.data[0] = 1;
        } else {
            p.data[1] = p.data[0];
        }
    } else if (p.mode == 1) {
        p.data[0] = block;
    } else if (p.mode == 3) {
        p.data[0] = 7;
    } else {
        p.data[1 + block] = p.data[0];
    }
}
PK_EXPORT(test_blocks_share)

static unsigned dive(volatile unsigned *depth) {
    volatile unsigned here[64];
    here[0] = *depth + 1;
    return here[0] > 1000000 ? here[0] : dive(here) + here[0];
}

// What a thread can do wrong by itself. One thread. Mode 0: recursion without end; 1: division by zero.
extern "C" __global__ void test_alone(const __grid_constant__ fault_params p) {
    if (p.mode == 0) {
        volatile unsigned depth = 0;
        *p.data = dive(&depth);
    } else {
        *p.data = 7 / *p.data;
    }
}
PK_EXPORT(test_alone)
