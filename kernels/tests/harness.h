// What the tests of the kernels share: checks that count, random numbers from a seed, and launches by name.
//
// The kernels run on the emulator, built for the host (PK_HOST_EMU). Expected values come from `formats.h` and from
// sums in double, never from the headers under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../params.cuh"
#include "launch.h"

namespace test {

inline int failures = 0;
inline long long checks = 0;

// Counts a check; says what failed, the first few times.
inline bool check(bool holds, const std::string &what) {
    checks++;
    if (!holds && failures++ < 20) {
        std::printf("FAILED: %s\n", what.c_str());
    }
    return holds;
}

inline int report(const char *name) {
    std::printf("%s: %lld checks, %d failures\n", name, checks, failures);
    return failures == 0 ? 0 : 1;
}

// splitmix64.
class Random {
public:
    explicit Random(uint64_t seed) : state(seed) {}

    uint64_t bits() {
        uint64_t x = state += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
    }

    // From `low` to `high`, both included.
    int between(int low, int high) {
        return low + (int)(bits() % (uint64_t)((int64_t)high - low + 1));
    }

    template <typename T>
    T one_of(std::initializer_list<T> of) {
        return of.begin()[between(0, (int)of.size() - 1)];
    }

    // Roughly normal: the sum of twelve uniform numbers less six has a variance of 1.
    float normal() {
        double sum = -6.0;
        for (int i = 0; i < 12; i++) {
            sum += (double)(bits() >> 11) / 9007199254740992.0;
        }
        return (float)sum;
    }

private:
    uint64_t state;
};

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Bytes of the device, each 0xff at first: NaN in every float type. They begin `misalign` bytes behind a multiple of
// 16, and end where their allocation does, so that AddressSanitizer sees a byte too many.
class Memory {
public:
    explicit Memory(size_t size, size_t misalign = 0) : size(size), misalign(misalign) {
        void *fresh = nullptr;
        if (posix_memalign(&fresh, 16, misalign + size) != 0) {
            std::abort();
        }
        bytes.reset(static_cast<unsigned char *>(fresh));
        std::memset(data(), 0xff, size);
    }

    unsigned char *data() {
        return bytes.get() + misalign;
    }

    std::vector<unsigned char> copy() {
        return {data(), data() + size};
    }

private:
    struct Free {
        void operator()(unsigned char *bytes) const {
            std::free(bytes);
        }
    };

    std::unique_ptr<unsigned char, Free> bytes;
    size_t size, misalign;
};

// A step on the host: what the kernels find behind `pk_step`.
struct Step {
    pk_counts counts = {0, 0, 0, 0};
    std::vector<pk_row> rows;
    std::vector<int> token_rows, slots, tables;
    std::vector<pk_copy> copies;
    long long table_len = 0;

    pk_step pointers() {
        return {&counts, rows.data(), token_rows.data(), slots.data(), copies.data(), tables.data(), table_len};
    }
};

template <typename Params>
void launch(const std::string &kernel, int grid, int threads, size_t shared_bytes, Params params) {
    void *arguments[] = {&params};
    check(launch_kernel(kernel.c_str(), grid, threads, shared_bytes, arguments), kernel + " does not run to its end");
}

inline const char *const DTYPE_NAMES[] = {"f32", "f16", "bf16", "e4m3", "i8"};
inline const int DTYPE_BYTES[] = {4, 2, 2, 1, 1};

}  // namespace test
