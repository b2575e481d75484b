// The CUDA execution model as host C++: what kernels/common.cuh includes in place of its inline PTX.
//
// A kernel compiled with this header runs on fibers, one per CUDA thread, and its operations do what the device's do,
// with checks. See ../README.md for what that shows and what it cannot show.
#pragma once

#ifndef PK_HOST_EMU
#define PK_HOST_EMU
#endif

#include "async_copy.h"
#include "block.h"
#include "matrix.h"
#include "numbers.h"
#include "registry.h"
#include "types.h"
#include "warp.h"
