#include "matrix.h"

#include <cstring>

#include "numbers.h"
#include "race.h"
#include "warp.h"

namespace emu {

namespace {

uint16_t element(const Meeting &meeting, int matrix, int row, int column) {
    uint16_t value;
    memcpy(&value, static_cast<const unsigned char *>(meeting.in[matrix * 8 + row]) + column * 2, 2);
    return value;
}

void count_bank_conflicts(const Meeting &meeting) {
    for (int matrix = 0; matrix < 4; matrix++) {
        unsigned groups = 0;
        for (int row = 0; row < 8; row++) {
            auto *address = static_cast<const unsigned char *>(meeting.in[matrix * 8 + row]);
            groups |= 1u << (size_t(address - block.shared) >> 4 & 7);
        }
        statistics.bank_conflicts += groups != 0xff;
    }
}

// Lane l holds elements (l / 4, 2 (l % 4)) and the next of each matrix, or those of its transpose.
template <bool transpose>
void combine_ldmatrix(Meeting &meeting) {
    count_bank_conflicts(meeting);
    for (int matrix = 0; matrix < 4; matrix++) {
        for (int lane = 0; lane < 32; lane++) {
            int row = lane / 4;
            int column = lane % 4 * 2;
            unsigned low = transpose ? element(meeting, matrix, column, row) : element(meeting, matrix, row, column);
            unsigned high =
                transpose ? element(meeting, matrix, column + 1, row) : element(meeting, matrix, row, column + 1);
            static_cast<unsigned *>(meeting.out[lane])[matrix] = low | high << 16;
        }
    }
}

template <bool transpose>
void ldmatrix(unsigned result[4], const void *row, Where where) {
    auto *address = static_cast<const unsigned char *>(row);
    if (reinterpret_cast<uintptr_t>(row) & 15) {
        fault(Outcome::Misaligned, where, "ldmatrix of a row that does not begin at a multiple of 16");
        give_up();
    }
    if (!in_shared(address, 16)) {
        fault(Outcome::IllegalAddress, where, "ldmatrix reads outside shared memory: %td of %zu bytes",
              address - block.shared, block.shared_bytes);
        give_up();
    }
    race_read(address, 16, where, "ldmatrix");
    meet(transpose ? Collective::LdMatrixTrans : Collective::LdMatrix, where, ~0u, row, result,
         combine_ldmatrix<transpose>);
}

void combine_movmatrix(Meeting &meeting) {
    uint16_t matrix[8][8];
    for (int lane = 0; lane < 32; lane++) {
        memcpy(&matrix[lane / 4][lane % 4 * 2], meeting.in[lane], 4);
    }
    for (int lane = 0; lane < 32; lane++) {
        unsigned low = matrix[lane % 4 * 2][lane / 4];
        unsigned high = matrix[lane % 4 * 2 + 1][lane / 4];
        *static_cast<unsigned *>(meeting.out[lane]) = low | high << 16;
    }
}

struct Factors {
    const unsigned *a;
    unsigned b[2];
};

template <float (*to_float)(uint16_t)>
void combine_mma(Meeting &meeting) {
    float a[16][16];
    float b[16][8];
    float c[16][8] = {};
    for (int lane = 0; lane < 32; lane++) {
        const Factors &mine = *static_cast<const Factors *>(meeting.in[lane]);
        int group = lane / 4;
        int pair = lane % 4 * 2;
        // Registers of a: rows g and g + 8, then the same rows of the second half of k.
        for (int j = 0; j < 4; j++) {
            float *to = &a[group + j % 2 * 8][pair + j / 2 * 8];
            to[0] = to_float(uint16_t(mine.a[j]));
            to[1] = to_float(uint16_t(mine.a[j] >> 16));
        }
        // Registers of b: column g, rows of k.
        for (int j = 0; j < 2; j++) {
            b[pair + j * 8][group] = to_float(uint16_t(mine.b[j]));
            b[pair + j * 8 + 1][group] = to_float(uint16_t(mine.b[j] >> 16));
        }
    }
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 16; k++) {
            for (int column = 0; column < 8; column++) {
                c[row][column] += a[row][k] * b[k][column];
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        float *mine = static_cast<float *>(meeting.out[lane]);
        int group = lane / 4;
        int pair = lane % 4 * 2;
        mine[0] += c[group][pair];
        mine[1] += c[group][pair + 1];
        mine[2] += c[group + 8][pair];
        mine[3] += c[group + 8][pair + 1];
    }
}

}  // namespace

}  // namespace emu

void pk_ldmatrix_x4(unsigned result[4], const void *row, emu::Where where) {
    emu::ldmatrix<false>(result, row, where);
}

void pk_ldmatrix_x4_trans(unsigned result[4], const void *row, emu::Where where) {
    emu::ldmatrix<true>(result, row, where);
}

unsigned pk_movmatrix_trans(unsigned value, emu::Where where) {
    unsigned result = 0;
    emu::meet(emu::Collective::MovMatrix, where, ~0u, &value, &result, emu::combine_movmatrix);
    return result;
}

void pk_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1, emu::Where where) {
    emu::Factors mine = {a, {b0, b1}};
    emu::meet(emu::Collective::Mma, where, ~0u, &mine, c, emu::combine_mma<pk_bf16_to_f32>);
}

void pk_mma_f16(float c[4], const unsigned a[4], unsigned b0, unsigned b1, emu::Where where) {
    emu::Factors mine = {a, {b0, b1}};
    emu::meet(emu::Collective::Mma, where, ~0u, &mine, c, emu::combine_mma<pk_f16_to_f32>);
}
