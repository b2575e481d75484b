// A warp's ring of pages: K and V on their way to shared memory while others are at work.
//
// A warp takes page `warp` of each tile of its CTA's share. The ring runs on across items. A slot that is asked for
// gets one commit, whether there is anything to copy or not, so that waiting for all groups but the newest ones waits
// for the oldest slot.
//
// Invariants: table entries outside of the span's keys are not read, and what they are is asked before they are
// followed. Tokens that no column of the span sees are not read but come as zeros: no stale NaN meets the MMA.
#pragma once

#include "common.cuh"
#include "decode_items.cuh"
#include "decode_shape.cuh"
#include "memory.cuh"
#include "params.cuh"

template <class S>
struct pk_ring {
    pk_u8 *slots;
    int stages;
    pk_cursor at;      // what comes next
    int left;          // tiles still to come
    int first, end;    // keys of the span of `at`
    const int *table;  // of its row
    int block;         // where the warp's page of `at` lies; -1 where it need not be read
    pk_u32 filled;     // a bit for each slot: whether it holds a page

    PK_DEV pk_ring(const pk_decode_params &p, pk_u8 *ring, pk_cursor from, int tiles) {
        slots = ring + warp() * p.stages * S::SLOT_BYTES;
        stages = p.stages;
        at = from;
        left = tiles;
        filled = 0;
        enter(p);
        look_up(p);
    }

    static PK_DEV int warp() {
        return threadIdx.x / PK_WARP_LANES;
    }

    PK_DEV pk_u8 *slot(int number) const {
        return slots + number * S::SLOT_BYTES;
    }

    PK_DEV bool has_page(int number) const {
        return (filled >> number & 1) != 0;
    }

    PK_DEV void enter(const pk_decode_params &p) {
        const pk_span &span = p.plan.spans[at.span];
        first = span.first;
        end = span.end;
        table = p.step.tables + p.step.rows[span.row].table * p.step.table_len;
    }

    PK_DEV int page() const {
        return at.tile * PK_DECODE_WARPS + warp();
    }

    PK_DEV void look_up(const pk_decode_params &p) {
        const int begin = page() * PK_PAGE_TOKENS;
        block = -1;
        if (begin < end && begin + PK_PAGE_TOKENS > first) {
            const int entry = table[begin / p.block_size];
            block = pk_is_block(entry, p.num_blocks) ? entry : -1;
        }
    }

    // Sets the copies of the next tile's page on their way to a slot that nobody reads.
    PK_DEV void fetch(const pk_decode_params &p, int number) {
        if (left > 0) {
            filled &= ~(1u << number);
            if (block >= 0) {
                filled |= 1u << number;
                copy(p, number);
            }
            left--;
            if (left > 0) {
                const int span = at.span;
                pk_advance(p, at);
                if (at.span != span) {
                    enter(p);
                }
                // A whole tile before it is needed: the entry says where to read, and both take their time.
                look_up(p);
            }
        }
        pk_cp_async_commit();
    }

    PK_DEV void copy(const pk_decode_params &p, int number) {
        constexpr int ROWS = PK_WARP_LANES / S::CHUNKS;  // that the warp copies at once
        const int lane = threadIdx.x % PK_WARP_LANES;
        const int row = lane / S::CHUNKS;
        const int chunk = lane % S::CHUNKS;
        const int begin = page() * PK_PAGE_TOKENS;
        const pk_place place = {block, begin % p.block_size + row};
        const int head = at.head / p.parts;
        const pk_u8 *k = pk_at(p.k_pool, place, head) + chunk * 16;
        const pk_u8 *v = pk_at(p.v_pool, place, head) + chunk * 16;
        pk_u8 *to = slot(number);
#pragma unroll
        for (int i = 0; i < PK_PAGE_TOKENS / ROWS; i++) {
            const int token = begin + i * ROWS + row;
            const int bytes = token >= first && token < end ? 16 : 0;
            const int offset = S::place(i * ROWS + row, chunk);
            pk_cp_async16(to + offset, k, bytes);
            pk_cp_async16(to + S::PAGE_BYTES + offset, v, bytes);
            k += ROWS * p.k_pool.token_bytes;
            v += ROWS * p.v_pool.token_bytes;
        }
    }

    // Until the page that was fetched `stages` - 1 fetches ago is there, for all lanes.
    PK_DEV void wait() const {
        switch (stages) {
        case 1:
            pk_cp_async_wait<0>();
            break;
        case 2:
            pk_cp_async_wait<1>();
            break;
        case 3:
            pk_cp_async_wait<2>();
            break;
        case 4:
            pk_cp_async_wait<3>();
            break;
        case 5:
            pk_cp_async_wait<4>();
            break;
        default:
            pk_cp_async_wait<5>();
            break;
        }
        __syncwarp();
    }
};
