// pk_gather_blocks, pk_scatter_blocks: blocks of all layers to records, and back: for swaps.
//
// A record is all of a block in an order that does not depend on the layout; `pieces` says for every run of a block where
// it lies in its record. Records may be in pinned memory of the host: then the copy crosses the bus as it is made, without
// a stop on the device. The pieces of all blocks are dealt to the CTAs one after the other.
//
// Grid: any number of CTAs of 128 threads. No shared memory. What is no block is left out. Blocks that are written differ;
// layers that share memory are written in no order.
#include "common.cuh"
#include "copy.cuh"
#include "memory.cuh"
#include "params.cuh"

template <bool GATHER>
PK_DEV void move_records(const pk_records_params &p) {
    const pk_i64 all = (pk_i64)p.count * p.num_pieces;
    for (pk_i64 index = blockIdx.x; index < all; index += gridDim.x) {
        const pk_i64 record = index / p.num_pieces;
        const pk_piece piece = p.pieces[index % p.num_pieces];
        const int block = p.blocks[record];
        if (!pk_is_block(block, p.num_blocks)) {
            continue;
        }
        pk_u8 *in_pool = piece.base + block * piece.block_bytes;
        pk_u8 *in_record = p.records + record * p.record_bytes + piece.at;
        pk_copy_bytes(GATHER ? in_pool : in_record, GATHER ? in_record : in_pool, piece.bytes);
    }
}

extern "C" __global__ void __launch_bounds__(128) pk_gather_blocks(const __grid_constant__ pk_records_params p) {
    move_records<true>(p);
}
PK_EXPORT(pk_gather_blocks)

extern "C" __global__ void __launch_bounds__(128) pk_scatter_blocks(const __grid_constant__ pk_records_params p) {
    move_records<false>(p);
}
PK_EXPORT(pk_scatter_blocks)
