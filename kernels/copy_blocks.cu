// pk_copy_blocks: the step's copies of blocks, all layers in one launch.
//
// What a block is made of is a list of runs, each at the same place in every block. The work is copies * runs, each cut
// in equal pieces where there are fewer of them than CTAs, so that one copy of one large block is done by the whole
// device. A piece is at least 2 KiB: 16 bytes for each of 128 threads.
//
// Grid: any number of CTAs of 128 threads. No shared memory. A copy from or to what is no block is left out. No block
// is the target of two copies, or of one and the source of another: copies have no order.
#include "common.cuh"
#include "copy.cuh"
#include "memory.cuh"
#include "params.cuh"

// Pieces in all for every CTA, so that pieces of different size even out.
#define PIECES_PER_CTA 4
#define LEAST_PIECE_BYTES 2048

// Piece `piece` of `pieces` of a run of `bytes`: multiples of 16 bytes, but for the last.
PK_DEV void copy_piece(const pk_run &run, const pk_copy &copy, pk_i64 piece, pk_i64 pieces) {
    pk_i64 piece_bytes = ((run.bytes + pieces - 1) / pieces + 15) / 16 * 16;
    piece_bytes = piece_bytes < LEAST_PIECE_BYTES ? LEAST_PIECE_BYTES : piece_bytes;
    const pk_i64 begin = piece * piece_bytes;
    if (begin >= run.bytes) {
        return;
    }
    const pk_i64 left = run.bytes - begin;
    const pk_u8 *from = run.base + copy.src * run.block_bytes + begin;
    pk_u8 *to = run.base + copy.dst * run.block_bytes + begin;
    pk_copy_bytes(from, to, left < piece_bytes ? left : piece_bytes);
}

extern "C" __global__ void __launch_bounds__(128) pk_copy_blocks(const __grid_constant__ pk_copy_params p) {
    const pk_i64 whole = (pk_i64)p.step.counts->copies * p.num_runs;
    if (whole <= 0) {
        return;
    }
    const pk_i64 wanted = (pk_i64)gridDim.x * PIECES_PER_CTA;
    const pk_i64 pieces = (wanted + whole - 1) / whole;
    // Pieces of a run are neighbours, so that CTAs which run together read what lies together.
    for (pk_i64 index = blockIdx.x; index < whole * pieces; index += gridDim.x) {
        const pk_i64 part = index / pieces;
        const pk_copy copy = p.step.copies[part / p.num_runs];
        if (pk_is_block(copy.src, p.num_blocks) && pk_is_block(copy.dst, p.num_blocks) && copy.src != copy.dst) {
            copy_piece(p.runs[part % p.num_runs], copy, index % pieces, pieces);
        }
    }
}
PK_EXPORT(pk_copy_blocks)
