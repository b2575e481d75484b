// What a kernel takes for granted: vector types, qualifiers, and the names of the portability header.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

struct alignas(8) int2 {
    int x, y;
};

struct alignas(8) uint2 {
    unsigned x, y;
};

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) int4 {
    int x, y, z, w;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

#define __global__
#define __device__
#define __host__
#define __constant__
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define PK_DEV inline __attribute__((always_inline))

namespace emu {

// A place in a kernel's source, for reports. It is a default argument everywhere, so that it names the call.
struct Where {
    const char *file;         // null: known by the instruction only
    int line;
    const void *instruction;  // null: not known
};

}  // namespace emu

#define PK_WHERE emu::Where where = {__builtin_FILE(), __builtin_LINE(), nullptr}
