// Devices and their contexts: a primary one each, and others on request.
#pragma once

#include "codes.h"

namespace emu {

struct Stream;

struct Context {
    int device;
    bool primary;
    Stream *null_stream;
};

// Of the calling thread; null if it has none.
Context *current_context();

// Shared memory of a device, in bytes, by its compute capability.
int shared_bytes_per_block();
int shared_bytes_per_multiprocessor();

}  // namespace emu
