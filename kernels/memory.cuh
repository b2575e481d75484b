// Where things lie: slots and rows in bytes, and loads of more than an element.
//
// Every offset is 64-bit: a pool may have more than 2^32 bytes, and a stride more than 2^31.
#pragma once

#include "common.cuh"
#include "params.cuh"

// Sixteen bytes that one instruction moves.
struct alignas(16) pk_bytes16 {
    pk_u32 words[4];
};

// A token of a block. `block` is -1 for no place at all.
struct pk_place {
    int block, offset;
};

PK_DEV bool pk_is_block(int block, int num_blocks) {
    return block >= 0 && block < num_blocks;
}

PK_DEV pk_place pk_place_of_slot(int slot, int block_size, int num_blocks) {
    if (slot < 0 || slot / block_size >= num_blocks) {
        return {-1, 0};
    }
    return {slot / block_size, slot % block_size};
}

// The first byte of a head of a token; the place exists.
PK_DEV pk_u8 *pk_at(const pk_plane &plane, pk_place place, int head) {
    return plane.base + place.block * plane.block_bytes + head * plane.head_bytes + place.offset * plane.token_bytes;
}

// The first byte of a head of a token of a tensor.
PK_DEV pk_u8 *pk_tensor_row(const pk_tensor &tensor, int token, int head) {
    return tensor.data + token * tensor.token_bytes + head * tensor.head_bytes;
}

PK_DEV pk_u64 pk_address(const void *pointer) {
    return (pk_u64)pointer;
}

// f32 at any address, as scales are.
PK_DEV float pk_load_unaligned(const pk_u8 *at) {
    return __int_as_float((int)((pk_u32)at[0] | (pk_u32)at[1] << 8 | (pk_u32)at[2] << 16 | (pk_u32)at[3] << 24));
}

PK_DEV void pk_store_unaligned(pk_u8 *at, float x) {
    const pk_u32 bits = (pk_u32)__float_as_int(x);
    at[0] = (pk_u8)bits;
    at[1] = (pk_u8)(bits >> 8);
    at[2] = (pk_u8)(bits >> 16);
    at[3] = (pk_u8)(bits >> 24);
}
