// The block being run: its threads, warps and shared memory. Blocks run one after the other, so there is one of these.
//
// Invariants: `current` is the thread whose fiber runs, or null while the scheduler does. A thread is entered only
// while `Runnable`. Everything here belongs to the launch in progress; the driver runs one launch at a time, under its
// lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fiber.h"
#include "types.h"

namespace emu {

enum class State : uint8_t { Runnable, AtCollective, AtBarrier, Done };

enum class Collective : uint8_t { SyncWarp, Shuffle, Vote, LdMatrix, LdMatrixTrans, MovMatrix, Mma };

// How a launch ended, worst news first come.
enum class Outcome : uint8_t { Ok, Failed, IllegalAddress, Misaligned, Deadlock };

struct Warp;

// One cp.async of 16 bytes: `bytes` from global memory, zeros behind.
struct AsyncCopy {
    unsigned char *to;
    const unsigned char *from;
    unsigned bytes;
    bool landed;  // the bytes are there already, though nothing waited for them
};

struct Thread {
    Fiber fiber;
    State state;
    uint8_t lane;
    Collective collective;  // while AtCollective
    Where where;            // while AtCollective or AtBarrier
    unsigned syncs;         // barriers of the warp or block passed: orders accesses within the warp
    Warp *warp;
    uint3 index;
    std::vector<AsyncCopy> copies;   // issued; the first `num_waited` have been waited for
    std::vector<size_t> group_ends;  // committed; the first `groups_waited` have been waited for
    size_t num_waited, groups_waited;
};

// Lanes that wait for each other at one collective operation.
struct Meeting {
    uint32_t mask, arrived;
    Collective collective;
    Where where;
    const void *in[32];
    void *out[32];
};

struct Warp {
    Thread *threads;
    unsigned size, index;
    uint32_t exited;      // lanes that have returned
    Meeting meetings[8];  // one per mask in use; a warp rarely has more than two
};

struct Block {
    const char *kernel;
    Thread *threads;
    Warp *warps;
    unsigned num_threads, num_warps;
    unsigned alive, at_barrier;
    unsigned barriers;  // __syncthreads passed
    uint3 index;
    dim3 grid_dim, block_dim;
    unsigned char *shared;
    size_t shared_bytes;
    unsigned reports;
    Outcome outcome;
    bool given_up;  // no thread of the block may go on
    Fiber scheduler;
    void (*entry)(void **arguments);
    void **arguments;
};

// How threads, warps and blocks take turns.
struct Order {
    uint64_t seed = 0;      // 0: forward, 1: reverse, else any order drawn from the seed
    int async_copies = 0;   // cp.async lands 0: at the wait, 1: at once, 2: either, by the seed
};

struct Statistics {
    uint64_t switches, collectives, async_copies;
    uint64_t bank_conflicts;  // phases of ldmatrix, 8 rows of 16 bytes, that do not lie in 8 different bank groups
};

extern Block block;
extern Thread *current;
extern Order order;
extern Statistics statistics;

// Whether a kernel may touch these bytes of global memory, and what they are. The driver says; without one it may.
extern bool (*is_global)(const void *address, size_t bytes);
extern void (*describe)(const void *address, char *text, size_t text_bytes);

// The next number of the launch's own sequence, which depends on `order.seed` alone.
uint64_t draw();

// Reports a fault of the current thread and goes on, so that one launch may report several.
void fault(Outcome outcome, Where where, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Whether an address lies in shared memory or in the gaps around it.
bool near_shared(const void *address);

// Reports that the current thread's access, `what`, leads where a kernel has no business.
void fault_at(Outcome outcome, Where where, const char *what, size_t bytes, const void *address);

// Gives the block up: the current thread never comes back.
[[noreturn]] void give_up();

// Leaves the current thread, which is not Runnable, until it is again.
void wait_here();

// In seeded orders: now and then another warp's turn.
void maybe_yield();

}  // namespace emu

#define threadIdx (emu::current->index)
#define blockIdx (emu::block.index)
#define blockDim (emu::block.block_dim)
#define gridDim (emu::block.grid_dim)

// All shared memory is dynamic: it then has its exact size, begins as NaN, and is seen by the race check.
#define PK_SMEM(name) unsigned char *name = emu::block.shared

void __syncthreads(PK_WHERE);
