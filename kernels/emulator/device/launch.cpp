#include "launch.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <unordered_map>

#include "fault.h"
#include "place.h"
#include "race.h"
#include "report.h"
#include "sharing.h"
#include "warp.h"

namespace emu {

Block block;
Thread *current;
Order order;
Statistics statistics;
bool (*is_global)(const void *, size_t);
void (*describe)(const void *, char *, size_t);

namespace {

// AddressSanitizer makes frames larger.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK_BYTES = 256 * 1024;
#else
constexpr size_t STACK_BYTES = 64 * 1024;
#endif
constexpr size_t GUARD_BYTES = 4096;
// On the device, PK_SMEM gives the same alignment.
constexpr size_t SHARED_ALIGNMENT = 1024;
// No block has more shared memory than the gap on either side of it.
constexpr size_t SHARED_GAP = size_t(1) << 20;
constexpr size_t SHARED_REGION = 3 * SHARED_GAP;
constexpr unsigned REPORTS_A_LAUNCH = 3;

uint64_t drawn = 1;

void seed_draws() {
    drawn = order.seed * 0x9E3779B97F4A7C15ull + 1;
    for (int i = 0; i < 8; i++) {
        draw();
    }
}

bool is_seeded() {
    return order.seed > 1;
}

bool is_reverse() {
    return order.seed == 1;
}

// The stacks of a launch's threads, kept for the next launch; below each lies a page that nobody may touch.
class Stacks {
public:
    void grow(unsigned count) {
        if (count <= count_) {
            return;
        }
        if (base_) {
            munmap(base_, count_ * (STACK_BYTES + GUARD_BYTES));
        }
        size_t bytes = count * (STACK_BYTES + GUARD_BYTES);
        void *base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            perror("emulator: no memory for the stacks of a block");
            abort();
        }
        base_ = static_cast<char *>(base);
        count_ = count;
        for (unsigned i = 0; i < count; i++) {
            mprotect(base_ + i * (STACK_BYTES + GUARD_BYTES), GUARD_BYTES, PROT_NONE);
        }
    }

    void *bottom(unsigned index) const {
        return base_ + index * (STACK_BYTES + GUARD_BYTES) + GUARD_BYTES;
    }

private:
    char *base_ = nullptr;
    unsigned count_ = 0;
};

// The shared memory of a block, in a region of its own whose rest nobody may touch. For AddressSanitizer it comes from
// the heap instead, of exactly the size asked for, so that the byte behind is known to be wrong.
class SharedMemory {
public:
    explicit SharedMemory(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
        if (posix_memalign(&region_, SHARED_ALIGNMENT, bytes ? bytes : 1)) {
            abort();
        }
        begin_ = static_cast<unsigned char *>(region_);
#else
        region_ = mmap(nullptr, SHARED_REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region_ == MAP_FAILED || bytes > SHARED_GAP) {
            abort();
        }
        // Against the end of its pages, as near as the alignment allows.
        size_t page_bytes = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
        size_t aligned_bytes = (bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
        unsigned char *pages = static_cast<unsigned char *>(region_) + SHARED_GAP;
        mprotect(pages, page_bytes, PROT_READ | PROT_WRITE);
        begin_ = pages + page_bytes - aligned_bytes;
#endif
    }

    ~SharedMemory() {
#ifdef __SANITIZE_ADDRESS__
        free(region_);
#else
        munmap(region_, SHARED_REGION);
#endif
    }

    SharedMemory(const SharedMemory &) = delete;
    SharedMemory &operator=(const SharedMemory &) = delete;

    unsigned char *begin() const {
        return begin_;
    }

private:
    void *region_;
    unsigned char *begin_;
};

Stacks stacks;
std::vector<Thread> threads;
std::vector<Warp> warps;

void enter(Thread &thread) {
    current = &thread;
    statistics.switches++;
    fiber_switch(block.scheduler, thread.fiber);
    current = nullptr;
}

void leave_to_scheduler() {
    Thread &from = *current;
    current = nullptr;
    statistics.switches++;
    fiber_switch(from.fiber, block.scheduler);
}

Thread *next_in_warp() {
    Warp &warp = *current->warp;
    for (unsigned step = 1; step < warp.size; step++) {
        unsigned lane = is_reverse() ? current->lane + warp.size - step : current->lane + step;
        Thread &thread = warp.threads[lane % warp.size];
        if (thread.state == State::Runnable) {
            return &thread;
        }
    }
    return nullptr;
}

void thread_main() {
    fiber_begun(block.scheduler);
    block.entry(block.arguments);
    current->state = State::Done;
    block.alive--;
    leave_warp();
    wait_here();
    abort();  // nobody enters a thread that is done
}

void begin_thread(unsigned index) {
    Thread &thread = threads[index];
    thread.state = State::Runnable;
    thread.lane = uint8_t(index % 32);
    thread.warp = &warps[index / 32];
    thread.syncs = 0;
    thread.index = {index % block.block_dim.x, index / block.block_dim.x % block.block_dim.y,
                    index / (block.block_dim.x * block.block_dim.y)};
    thread.copies.clear();
    thread.group_ends.clear();
    thread.num_waited = 0;
    thread.groups_waited = 0;
    fiber_prepare(thread.fiber, stacks.bottom(index), STACK_BYTES, thread_main);
}

void begin_block(uint3 index) {
    block.index = index;
    block.alive = block.num_threads;
    block.at_barrier = 0;
    block.barriers = 0;
    if (block.shared_bytes) {
        memset(block.shared, 0xff, block.shared_bytes);
    }
    race_begin();
    for (unsigned i = 0; i < block.num_warps; i++) {
        Warp &warp = warps[i];
        warp.threads = &threads[i * 32];
        warp.index = i;
        warp.size = block.num_threads - i * 32 < 32 ? block.num_threads - i * 32 : 32;
        warp.exited = 0;
        for (Meeting &meeting : warp.meetings) {
            meeting.arrived = 0;
        }
    }
    for (unsigned i = 0; i < block.num_threads; i++) {
        begin_thread(i);
    }
}

// Enters one runnable lane of the warp, if there is one.
bool run_warp(Warp &warp) {
    unsigned first = is_seeded() ? unsigned(draw() % warp.size) : 0;
    for (unsigned i = 0; i < warp.size; i++) {
        unsigned lane = is_reverse() ? warp.size - 1 - i : (first + i) % warp.size;
        if (warp.threads[lane].state == State::Runnable) {
            enter(warp.threads[lane]);
            return true;
        }
    }
    return false;
}

bool run_warps() {
    bool progress = false;
    for (unsigned i = 0; i < block.num_warps && !block.given_up; i++) {
        unsigned index = is_reverse() ? block.num_warps - 1 - i : i;
        if (is_seeded()) {
            index = unsigned(draw() % block.num_warps);
        }
        progress |= run_warp(warps[index]);
    }
    return progress;
}

// Lets all threads pass __syncthreads, if all that live have come to it.
bool pass_barrier() {
    if (!block.alive || block.at_barrier != block.alive) {
        return false;
    }
    Thread *first = nullptr;
    for (unsigned i = 0; i < block.num_threads; i++) {
        Thread &thread = threads[i];
        if (thread.state != State::AtBarrier) {
            continue;
        }
        if (first && first->where.line != thread.where.line) {
            current = &thread;
            fault(Outcome::Failed, thread.where, "threads meet at different __syncthreads: thread %u in line %d",
                  unsigned(first - block.threads), first->where.line);
            current = nullptr;
            block.given_up = true;
            return true;
        }
        first = first ? first : &thread;
        thread.state = State::Runnable;
    }
    block.at_barrier = 0;
    block.barriers++;
    return true;
}

bool has_runnable() {
    for (unsigned i = 0; i < block.num_threads; i++) {
        if (threads[i].state == State::Runnable) {
            return true;
        }
    }
    return false;
}

// Appends where each warp's waiting lanes stand.
std::string waiting_lanes() {
    std::string text;
    for (unsigned w = 0; w < block.num_warps; w++) {
        Warp &warp = warps[w];
        for (unsigned lane = 0; lane < warp.size; lane++) {
            const Thread &thread = warp.threads[lane];
            if (thread.state != State::AtCollective) {
                continue;
            }
            char part[160];
            snprintf(part, sizeof part, "; thread %u waits at %s, line %d", w * 32 + lane, name_of(thread.collective),
                     thread.where.line);
            text += part;
            break;  // one lane of a warp says enough
        }
        if (text.size() > 800) {
            return text + "; ...";
        }
    }
    for (unsigned i = 0; i < block.num_threads; i++) {
        if (threads[i].state == State::AtBarrier) {
            char part[160];
            snprintf(part, sizeof part, "; thread %u waits at __syncthreads, line %d", i, threads[i].where.line);
            return text + part;
        }
    }
    return text;
}

void report_deadlock() {
    block.outcome = Outcome::Deadlock;
    block.given_up = true;
    say("%s: block (%u,%u,%u): deadlock: %u of %u live threads wait at __syncthreads%s", block.kernel, block.index.x,
        block.index.y, block.index.z, block.at_barrier, block.alive, waiting_lanes().c_str());
}

void run_block() {
    while (block.alive && !block.given_up) {
        bool progress = run_warps();
        progress |= pass_barrier();
        // A seeded round may have missed the warps that can run.
        if (!progress && !block.given_up && !has_runnable()) {
            report_deadlock();
        }
    }
}

uint3 index_of_block(uint64_t number, dim3 grid) {
    return {unsigned(number % grid.x), unsigned(number / grid.x % grid.y), unsigned(number / grid.x / grid.y)};
}

// Visiting multiples of a number that shares no factor with the count visits every block once.
uint64_t draw_stride(uint64_t num_blocks) {
    uint64_t stride = (draw() % num_blocks) | 1;
    while (std::gcd(stride, num_blocks) != 1) {
        stride += 2;
    }
    return stride;
}

// " file:line", if that is known.
std::string text_of(Where where) {
    if (!where.file) {
        return where.instruction ? " " + place_of(where.instruction) : "";
    }
    const char *name = strrchr(where.file, '/');
    return std::string(" ") + (name ? name + 1 : where.file) + ":" + std::to_string(where.line);
}

std::unordered_map<std::string, Kernel> &kernels() {
    static auto *kernels = new std::unordered_map<std::string, Kernel>;
    return *kernels;
}

}  // namespace

uint64_t draw() {
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return drawn;
}

void fault(Outcome outcome, Where where, const char *format, ...) {
    if (block.outcome == Outcome::Ok) {
        block.outcome = outcome;
    }
    if (block.reports++ >= REPORTS_A_LAUNCH) {
        return;
    }
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    say("%s: block (%u,%u,%u) thread %u%s: %s", block.kernel, block.index.x, block.index.y, block.index.z,
        current ? unsigned(current - block.threads) : 0, text_of(where).c_str(), what);
}

bool near_shared(const void *address) {
    // Counted from a gap before the memory; what lies further before wraps around.
    auto offset = static_cast<const unsigned char *>(address) - block.shared;
    return block.shared && size_t(offset) + SHARED_GAP < 2 * SHARED_GAP;
}

void fault_at(Outcome outcome, Where where, const char *what, size_t bytes, const void *address) {
    char there[256] = "";
    if (near_shared(address)) {
        snprintf(there, sizeof there, "byte %td of shared memory, which has %zu",
                 static_cast<const unsigned char *>(address) - block.shared, block.shared_bytes);
    } else if (describe) {
        describe(address, there, sizeof there);
    }
    fault(outcome, where, "%s of %zu bytes at %p: %s", what, bytes, address, there);
}

void give_up() {
    block.given_up = true;
    current->state = State::Done;
    leave_to_scheduler();
    abort();
}

void wait_here() {
    Thread *next = block.given_up ? nullptr : next_in_warp();
    if (!next) {
        leave_to_scheduler();
        return;
    }
    Thread &from = *current;
    current = next;
    statistics.switches++;
    fiber_switch(from.fiber, next->fiber);
}

void maybe_yield() {
    if (is_seeded() && draw() % 8 == 0) {
        leave_to_scheduler();
    }
}

const Kernel *find_kernel(const char *name) {
    auto found = kernels().find(name);
    return found == kernels().end() ? nullptr : &found->second;
}

void register_kernel(Kernel kernel) {
    std::string name = kernel.name;
    kernels()[name] = std::move(kernel);
}

Outcome run(const Launch &launch) {
    unsigned num_threads = launch.block.x * launch.block.y * launch.block.z;
    stacks.grow(num_threads);
    threads.resize(num_threads);
    warps.resize((num_threads + 31) / 32);
    seed_draws();
    sharing_begin();

    block.kernel = launch.kernel->name;
    block.threads = threads.data();
    block.warps = warps.data();
    block.num_threads = num_threads;
    block.num_warps = unsigned(warps.size());
    block.grid_dim = launch.grid;
    block.block_dim = launch.block;
    block.entry = launch.kernel->call;
    block.arguments = launch.arguments;
    block.reports = 0;
    block.outcome = Outcome::Ok;
    block.given_up = false;
    block.scheduler.stack_bottom = nullptr;
    SharedMemory shared(launch.shared_bytes);
    block.shared = shared.begin();
    block.shared_bytes = launch.shared_bytes;

    FaultGuard guard;
    uint64_t num_blocks = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    uint64_t stride = is_seeded() ? draw_stride(num_blocks) : 1;
    for (uint64_t i = 0; i < num_blocks && block.outcome == Outcome::Ok; i++) {
        uint64_t number = is_reverse() ? num_blocks - 1 - i : i * stride % num_blocks;
        begin_block(index_of_block(number, launch.grid));
        run_block();
    }
    if (block.outcome == Outcome::Ok) {
        sharing_end();
    }
    block.shared = nullptr;
    current = nullptr;
    return block.outcome;
}

}  // namespace emu

void __syncthreads(emu::Where where) {
    using namespace emu;
    Thread &me = *current;
    me.where = where;
    me.state = State::AtBarrier;
    block.at_barrier++;
    wait_here();
    me.syncs++;
}
