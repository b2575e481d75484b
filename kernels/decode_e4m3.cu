// pk_decode_e4m3_<head_dim>x<columns>: the decode kernel for pools of E4M3. See `decode.cuh`.
//
// CTAs of a multiprocessor: as many as have room for rings of 48 KiB, 64 KiB and 128 KiB in its 228 KiB.
// From sm_90 on one instruction makes two f16 of two bytes, where before some ten do.
// Flags: --fmad=false
// Also for: compute_90
#include "decode.cuh"

PK_DECODE(pk_decode_e4m3_64x8, PK_E4M3, 64, 1, 4)
PK_DECODE(pk_decode_e4m3_64x16, PK_E4M3, 64, 2, 4)
PK_DECODE(pk_decode_e4m3_128x8, PK_E4M3, 128, 1, 3)
PK_DECODE(pk_decode_e4m3_128x16, PK_E4M3, 128, 2, 3)
PK_DECODE(pk_decode_e4m3_256x8, PK_E4M3, 256, 1, 1)
