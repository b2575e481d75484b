// Matrix fragments: ldmatrix, movmatrix and mma.m16n8k16, with the register layouts of the PTX manual.
//
// mma multiplies and adds in float, in the order of k. A tensor core adds in another order and rounds differently.
#pragma once

#include "block.h"

// Four 8 x 8 matrices of 16 bits; lane i gives the address of row i % 8 of matrix i / 8.
void pk_ldmatrix_x4(unsigned result[4], const void *row, PK_WHERE);
void pk_ldmatrix_x4_trans(unsigned result[4], const void *row, PK_WHERE);

// The transpose of an 8 x 8 matrix of 16 bits that lies across the warp.
unsigned pk_movmatrix_trans(unsigned value, PK_WHERE);

// c += a * b; a is 16 x 16, b is 16 x 8.
void pk_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1, PK_WHERE);
void pk_mma_f16(float c[4], const unsigned a[4], unsigned b0, unsigned b1, PK_WHERE);
