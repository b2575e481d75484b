// Device memory: parts of one arena, with gaps between that nobody may touch.
//
// An address is not given twice before the arena is used up, so that freed memory stays out of reach and a kernel that
// reads it faults. Fresh memory is full of 0xff, which is NaN in every format, as are the bytes between an allocation
// and the ends of its pages: those are no gap to the processor, and kernels are kept out by what instruments them.
#pragma once

#include <cstddef>
#include <string>

#include "codes.h"

namespace emu {

struct Allocation {
    CUdeviceptr base;
    size_t bytes;
    int device;
    CUdeviceptr pages;  // the pages that hold it
    size_t page_bytes;
    bool live;      // accessible: false until the operation of an asynchronous allocation has run
    bool freeing;   // an asynchronous release is queued
};

// Reserves `bytes` on the device; null if its capacity or the arena is used up. Not yet accessible.
Allocation *reserve(int device, size_t bytes);

// Makes it accessible, and fills it.
void make_live(Allocation &allocation);

void release(CUdeviceptr base);

// Releases what a queued operation would have, that will not run.
void release_what_waits();

// The allocation that begins at `base`, or that holds all of the bytes given; null if there is none.
Allocation *allocation_at(CUdeviceptr base);
Allocation *allocation_of(CUdeviceptr address, size_t bytes);

size_t used_bytes(int device);

// What lies at an address: "8 bytes behind an allocation of 64 bytes", ...
std::string describe_address(CUdeviceptr address);

// Guard mode, in which device memory is out of the host's reach.
void set_guard(bool guard);

// While one lives, device memory may be touched; otherwise, in guard mode, nobody may.
class Window {
public:
    Window();
    ~Window();
    Window(const Window &) = delete;
    Window &operator=(const Window &) = delete;
};

}  // namespace emu
