// pk_decode_f16_<head_dim>x<columns>: the decode kernel for pools of f16. See `decode.cuh`.
//
// CTAs of a multiprocessor: as many as have room for rings of 64 KiB, 96 KiB and 192 KiB in its 228 KiB.
// Flags: --fmad=false
#include "decode.cuh"

PK_DECODE(pk_decode_f16_64x8, PK_F16, 64, 1, 3)
PK_DECODE(pk_decode_f16_64x16, PK_F16, 64, 2, 3)
PK_DECODE(pk_decode_f16_128x8, PK_F16, 128, 1, 2)
PK_DECODE(pk_decode_f16_128x16, PK_F16, 128, 2, 2)
PK_DECODE(pk_decode_f16_256x8, PK_F16, 256, 1, 1)
