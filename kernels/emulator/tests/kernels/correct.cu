// Correct kernels: what they compute must come out the same in every order.
#include "emulator/device/device.h"

struct sum_params {
    const float *in;  // [blocks, 128]
    float *out;       // [blocks]
};

// The sum of 128 numbers, by a tree in shared memory. 128 threads, 512 bytes of shared memory.
extern "C" __global__ void test_sum(const __grid_constant__ sum_params p) {
    PK_SMEM(shared);
    float *values = reinterpret_cast<float *>(shared);
    values[threadIdx.x] = p.in[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    for (unsigned half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            values[threadIdx.x] += values[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        p.out[blockIdx.x] = values[0];
    }
}
PK_EXPORT(test_sum)

// The same by shuffles within warps, whose first lanes meet in shared memory. 16 bytes of it.
extern "C" __global__ void test_sum_warps(const __grid_constant__ sum_params p) {
    PK_SMEM(shared);
    float *values = reinterpret_cast<float *>(shared);
    float sum = p.in[blockIdx.x * 128 + threadIdx.x];
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
    }
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        p.out[blockIdx.x] = values[0] + values[1] + values[2] + values[3];
    }
}
PK_EXPORT(test_sum_warps)

struct product_params {
    const uint16_t *a;  // [16, 16] bf16
    const uint16_t *b;  // [8, 16] bf16, the transpose of what multiplies
    float *c;           // [16, 8]
};

// c = a b by one mma of one warp; rows come by cp.async and ldmatrix. 768 bytes of shared memory.
extern "C" __global__ void test_product(const __grid_constant__ product_params p) {
    PK_SMEM(shared);
    unsigned lane = threadIdx.x;
    pk_cp_async16(shared + lane * 16, p.a + lane * 8);
    if (lane < 16) {
        pk_cp_async16(shared + 512 + lane * 16, p.b + lane * 8);
    }
    pk_cp_async_commit();
    pk_cp_async_wait<0>();
    __syncwarp();
    unsigned a[4];
    unsigned b[4];
    // Matrices of a: rows 0 to 7, rows 8 to 15, then both for the second half of k. Of b: both halves of k, twice.
    pk_ldmatrix_x4(a, shared + (lane % 16) * 32 + lane / 16 * 16);
    pk_ldmatrix_x4(b, shared + 512 + lane % 8 * 32 + lane / 8 % 2 * 16);
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    pk_mma_bf16(c, a, b[0], b[1]);
    unsigned row = lane / 4;
    unsigned column = lane % 4 * 2;
    p.c[row * 8 + column] = c[0];
    p.c[row * 8 + column + 1] = c[1];
    p.c[(row + 8) * 8 + column] = c[2];
    p.c[(row + 8) * 8 + column + 1] = c[3];
}
PK_EXPORT(test_product)

struct ring_params {
    const float *in;  // [steps, 128]
    float *out;       // [128]
    int steps;
};

// Sums over steps through a ring of two slots that cp.async fills one step ahead. 32 threads, 1024 bytes.
extern "C" __global__ void test_ring(const __grid_constant__ ring_params p) {
    PK_SMEM(shared);
    unsigned lane = threadIdx.x;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    pk_cp_async16(shared + lane * 16, p.in + lane * 4);
    pk_cp_async_commit();
    for (int step = 0; step < p.steps; step++) {
        if (step + 1 < p.steps) {
            pk_cp_async16(shared + (step + 1) % 2 * 512 + lane * 16, p.in + (step + 1) * 128 + lane * 4);
        }
        pk_cp_async_commit();
        pk_cp_async_wait<1>();
        __syncwarp();
        // Reads what another lane's copy brought.
        const float *slot = reinterpret_cast<const float *>(shared + step % 2 * 512);
        for (int i = 0; i < 4; i++) {
            sum[i] += slot[i * 32 + lane];
        }
        __syncwarp();
    }
    for (int i = 0; i < 4; i++) {
        p.out[i * 32 + lane] = sum[i];
    }
}
PK_EXPORT(test_ring)

struct add_params {
    int *data;  // [count]
    int count;
    int amount;
};

// data += amount. Any grid of 32 threads.
extern "C" __global__ void test_add(const __grid_constant__ add_params p) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < p.count) {
        p.data[i] += p.amount;
    }
}
PK_EXPORT(test_add)

struct operations_params {
    const uint32_t *in;  // [32], what the mode says
    uint32_t *out;       // [32, 4]
    int mode;
    int unused;
};

// One operation of a warp on its lanes' values. 32 threads, 512 bytes. Mode 0: movmatrix; 1: ldmatrix and 2: its
// transpose, of four matrices of which lane i brings row i % 8 of matrix i / 8 as 8 elements i * 8, i * 8 + 1, ...; 3:
// shuffles up, down, xor and by index; 4: votes; 5: mma of f16, a and b all ones and c the lane; 6: conversions.
extern "C" __global__ void test_operations(const __grid_constant__ operations_params p) {
    PK_SMEM(shared);
    unsigned lane = threadIdx.x;
    uint32_t in = p.in[lane];
    uint32_t out[4] = {0, 0, 0, 0};
    if (p.mode == 0) {
        out[0] = pk_movmatrix_trans(in);
    } else if (p.mode <= 2) {
        uint16_t *row = reinterpret_cast<uint16_t *>(shared + lane * 16);
        for (unsigned i = 0; i < 8; i++) {
            row[i] = uint16_t(lane * 8 + i);
        }
        __syncwarp();
        if (p.mode == 1) {
            pk_ldmatrix_x4(out, row);
        } else {
            pk_ldmatrix_x4_trans(out, row);
        }
    } else if (p.mode == 3) {
        out[0] = __shfl_up_sync(~0u, in, 3);
        out[1] = __shfl_down_sync(~0u, in, 3);
        out[2] = __shfl_xor_sync(~0u, in, 5);
        out[3] = __shfl_sync(~0u, in, 9);
    } else if (p.mode == 4) {
        out[0] = __ballot_sync(~0u, int(in & 1));
        out[1] = uint32_t(__any_sync(~0u, in == 7));
        out[2] = uint32_t(__all_sync(~0u, in < 100));
        out[3] = uint32_t(__all_sync(~0u, in != 7));
    } else if (p.mode == 5) {
        float c[4];
        unsigned ones = 0x3c003c00u;
        unsigned a[4] = {ones, ones, ones, ones};
        for (float &element : c) {
            element = float(lane);
        }
        pk_mma_f16(c, a, ones, ones);
        for (int i = 0; i < 4; i++) {
            out[i] = uint32_t(__float_as_int(c[i]));
        }
    } else {
        float x = __int_as_float(int(in));
        out[0] = pk_pack_f16(x, pk_f16_to_f32(pk_f32_to_f16(x)));
        out[1] = pk_pack_bf16(x, pk_bf16_to_f32(pk_f32_to_bf16(x)));
        out[2] = pk_f32x2_to_e4m3x2(x, -x);
        out[3] = pk_e4m3x2_to_f16x2(static_cast<unsigned short>(in));
    }
    for (unsigned i = 0; i < 4; i++) {
        p.out[lane * 4 + i] = out[i];
    }
}
PK_EXPORT(test_operations)
