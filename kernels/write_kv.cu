// pk_write_kv_<dtype of the pool>: K and V of the query tokens, from the engine's tensors to their slots.
//
// Grid: tokens * kv_heads CTAs of one warp, which writes K and then V of one head of one token. No shared memory.
// Tokens beyond the step's, and tokens whose slot is not in the pool, are left out.
//
// Must match, bit for bit: the host's storage (`src/storage/cpu/movement/writes.rs`); the rules are in `element.cuh`. A
// tensor of the pool's own type is copied as bytes, sixteen at a time where both sides allow it. Lanes take
// neighbouring elements in all ways, so that a warp's accesses are whole lines.
#include "common.cuh"
#include "element.cuh"
#include "memory.cuh"
#include "params.cuh"

// Copies `dim` elements bit for bit.
template <typename Bits>
PK_DEV void copy_head(const pk_u8 *from, int dim, pk_u8 *to) {
    constexpr int wide = sizeof(pk_bytes16) / sizeof(Bits);
    const int lane = threadIdx.x;
    int done = 0;
    if (((pk_address(from) | pk_address(to)) & 15) == 0) {
        for (int i = lane; i < dim / wide; i += PK_WARP_LANES) {
            ((pk_bytes16 *)to)[i] = ((const pk_bytes16 *)from)[i];
        }
        done = dim / wide * wide;
    }
    for (int d = done + lane; d < dim; d += PK_WARP_LANES) {
        ((Bits *)to)[d] = ((const Bits *)from)[d];
    }
}

// The bits of the largest magnitude of a head, the same in all lanes. Magnitudes are ordered as their bits are, and NaN
// beyond them all.
template <int GIVEN>
PK_DEV pk_u32 largest_magnitude(const pk_u8 *from, int dim) {
    pk_u32 largest = 0;
    for (int d = threadIdx.x; d < dim; d += PK_WARP_LANES) {
        const pk_u32 magnitude = pk_bits(pk_load<GIVEN>(from, d)) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    for (int apart = PK_WARP_LANES / 2; apart > 0; apart /= 2) {
        const pk_u32 other = __shfl_xor_sync(PK_ALL_LANES, largest, apart);
        largest = other > largest ? other : largest;
    }
    return largest;
}

// Writes a head of elements of type GIVEN as POOL; `scale_to` is where the scale of integers goes.
template <int GIVEN, int POOL>
PK_DEV void write_as(const pk_u8 *from, int dim, pk_u8 *to, pk_u8 *scale_to) {
    const int lane = threadIdx.x;
    if (GIVEN == POOL) {
        copy_head<typename pk_element<POOL>::Bits>(from, dim, to);
    } else if (POOL == PK_I8) {
        const float scale = pk_scale_of(largest_magnitude<GIVEN>(from, dim));
        for (int d = lane; d < dim; d += PK_WARP_LANES) {
            to[d] = pk_divide_by_scale(pk_load<GIVEN>(from, d), scale);
        }
        if (lane == 0) {
            pk_store_unaligned(scale_to, scale);
        }
    } else {
        for (int d = lane; d < dim; d += PK_WARP_LANES) {
            pk_store<POOL>(to, d, pk_load<GIVEN>(from, d));
        }
    }
}

template <int POOL>
PK_DEV void write_head(const pk_tensor &tensor, int dim, const pk_plane &pool, const pk_plane &scales, int token,
                       int head, pk_place place) {
    const pk_u8 *from = pk_tensor_row(tensor, token, head);
    pk_u8 *to = pk_at(pool, place, head);
    pk_u8 *scale_to = POOL == PK_I8 ? pk_at(scales, place, head) : nullptr;
    switch (tensor.dtype) {
    case PK_F16:
        write_as<PK_F16, POOL>(from, dim, to, scale_to);
        break;
    case PK_BF16:
        write_as<PK_BF16, POOL>(from, dim, to, scale_to);
        break;
    default:
        write_as<PK_F32, POOL>(from, dim, to, scale_to);
    }
}

template <int POOL>
PK_DEV void write_kv(const pk_write_params &p) {
    const int token = blockIdx.x / p.kv_heads;
    const int head = blockIdx.x % p.kv_heads;
    if (token >= p.step.counts->tokens || token >= p.k.tokens) {
        return;
    }
    const pk_place place = pk_place_of_slot(p.step.slots[token], p.block_size, p.num_blocks);
    if (place.block < 0) {
        return;
    }
    write_head<POOL>(p.k, p.k_dim, p.k_pool, p.k_scales, token, head, place);
    // A layout may let K and V share memory: then V comes last, whichever lanes write it.
    __syncwarp();
    write_head<POOL>(p.v, p.v_dim, p.v_pool, p.v_scales, token, head, place);
}

#define PK_WRITE_KV(name, pool)                                                                                        \
    extern "C" __global__ void __launch_bounds__(32) name(const __grid_constant__ pk_write_params p) {                 \
        write_kv<pool>(p);                                                                                             \
    }                                                                                                                  \
    PK_EXPORT(name)

PK_WRITE_KV(pk_write_kv_f32, PK_F32)
PK_WRITE_KV(pk_write_kv_f16, PK_F16)
PK_WRITE_KV(pk_write_kv_bf16, PK_BF16)
PK_WRITE_KV(pk_write_kv_e4m3, PK_E4M3)
PK_WRITE_KV(pk_write_kv_i8, PK_I8)
