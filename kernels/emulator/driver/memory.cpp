#include "memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "../device/block.h"
#include "../device/fault.h"
#include "../device/report.h"
#include "config.h"
#include "pinned.h"
#include "stream.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace emu {

namespace {

constexpr size_t PAGE = 4096;
// The driver promises 256.
constexpr size_t ALIGNMENT = 256;
// What an allocation takes of the device's capacity comes in units of this.
constexpr size_t GRANULE = 512;
constexpr size_t ARENA_BYTES = size_t(1) << 38;
// Larger allocations are not filled: their pages are only there once touched.
constexpr size_t FILLED_BYTES = size_t(256) << 20;
constexpr size_t FREED_REMEMBERED = 4096;

size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

void *pointer(CUdeviceptr address) {
    return reinterpret_cast<void *>(address);
}

struct Memory {
    CUdeviceptr arena = 0;
    CUdeviceptr next = 0;  // where the search for a gap begins
    std::map<CUdeviceptr, Allocation> allocations;
    std::deque<Allocation> freed;
    std::map<int, size_t> used;
    int windows = 0;
};

Memory &memory() {
    static auto *memory = new Memory;
    return *memory;
}

void protect(const Allocation &allocation, bool accessible) {
    mprotect(pointer(allocation.pages), allocation.page_bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void protect_all(bool accessible) {
    for (auto &entry : memory().allocations) {
        if (entry.second.live) {
            protect(entry.second, accessible);
        }
    }
}

bool is_open() {
    return !config.guard || memory().windows > 0;
}

// Kernels ask for every access: most go where the last one went.
const Allocation *last_asked = nullptr;

bool global_check(const void *address, size_t bytes) {
    auto at = reinterpret_cast<CUdeviceptr>(address);
    if (last_asked && at >= last_asked->base && at + bytes <= last_asked->base + last_asked->bytes) {
        return true;
    }
    const Allocation *allocation = allocation_of(at, bytes);
    if (allocation && allocation->live) {
        last_asked = allocation;
        return true;
    }
    return is_pinned(address, bytes);
}

void describe_into(const void *address, char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "%s", describe_address(reinterpret_cast<CUdeviceptr>(address)).c_str());
}

void host_touched(const void *address) {
    auto at = reinterpret_cast<CUdeviceptr>(address);
    if (memory().arena && at >= memory().arena && at < memory().arena + ARENA_BYTES) {
        say("the host touched device memory: %p, %s", address, describe_address(at).c_str());
    }
}

bool reserve_arena() {
    if (memory().arena) {
        return true;
    }
    void *arena = mmap(nullptr, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) {
        return false;
    }
    memory().arena = reinterpret_cast<CUdeviceptr>(arena);
    memory().next = memory().arena;
    is_global = global_check;
    describe = describe_into;
    host_fault = host_touched;
    catch_faults();
    return true;
}

// The first page after `address` that no allocation holds, with a page between.
CUdeviceptr skip_allocations(CUdeviceptr at, size_t page_bytes) {
    for (;;) {
        bool moved = false;
        auto after = memory().allocations.lower_bound(at);
        if (after != memory().allocations.begin()) {
            const Allocation &before = std::prev(after)->second;
            CUdeviceptr free_from = before.pages + before.page_bytes + PAGE;
            if (free_from > at) {
                at = free_from;
                moved = true;
            }
        }
        after = memory().allocations.lower_bound(at);
        if (after != memory().allocations.end() && at + page_bytes + PAGE > after->second.pages) {
            at = after->second.pages + after->second.page_bytes + PAGE;
            moved = true;
        }
        if (!moved) {
            return at;
        }
    }
}

CUdeviceptr find_pages(size_t page_bytes) {
    CUdeviceptr end = memory().arena + ARENA_BYTES;
    CUdeviceptr at = skip_allocations(memory().next + PAGE, page_bytes);
    if (at + page_bytes + PAGE > end) {
        at = skip_allocations(memory().arena + PAGE, page_bytes);  // freed addresses come into use again
    }
    if (at + page_bytes + PAGE > end) {
        return 0;
    }
    memory().next = at + page_bytes;
    return at;
}

size_t bytes_before(const Allocation &allocation) {
    return allocation.base - allocation.pages;
}

size_t bytes_behind(const Allocation &allocation) {
    return allocation.page_bytes - bytes_before(allocation) - allocation.bytes;
}

}  // namespace

Allocation *reserve(int device, size_t bytes) {
    size_t &used = memory().used[device];
    size_t charged = round_up(bytes, GRANULE);
    if (charged < bytes || charged > config.memory_bytes || used > config.memory_bytes - charged || !reserve_arena()) {
        return nullptr;
    }
    size_t page_bytes = round_up(bytes, PAGE);
    CUdeviceptr pages = find_pages(page_bytes);
    if (!pages) {
        return nullptr;
    }
    // Against the gap behind, as near as the alignment allows.
    CUdeviceptr base = pages + page_bytes - round_up(bytes, ALIGNMENT);
    used += charged;
    Allocation allocation = {base, bytes, device, pages, page_bytes, false, false};
    return &memory().allocations.emplace(base, allocation).first->second;
}

void make_live(Allocation &allocation) {
    allocation.live = true;
    protect(allocation, true);
    if (config.poison && allocation.bytes <= FILLED_BYTES) {
        memset(pointer(allocation.pages), 0xff, allocation.page_bytes);
    } else {
        memset(pointer(allocation.pages), 0xff, bytes_before(allocation));
        memset(pointer(allocation.base + allocation.bytes), 0xff, bytes_behind(allocation));
    }
    ASAN_POISON_MEMORY_REGION(pointer(allocation.pages), bytes_before(allocation));
    ASAN_POISON_MEMORY_REGION(pointer(allocation.base + allocation.bytes), bytes_behind(allocation));
    if (!is_open()) {
        protect(allocation, false);
    }
}

void release(CUdeviceptr base) {
    auto found = memory().allocations.find(base);
    Allocation allocation = found->second;
    last_asked = nullptr;
    ASAN_UNPOISON_MEMORY_REGION(pointer(allocation.pages), allocation.page_bytes);
    protect(allocation, false);
    madvise(pointer(allocation.pages), allocation.page_bytes, MADV_DONTNEED);
    memory().used[allocation.device] -= round_up(allocation.bytes, GRANULE);
    memory().allocations.erase(found);
    memory().freed.push_back(allocation);
    if (memory().freed.size() > FREED_REMEMBERED) {
        memory().freed.pop_front();
    }
}

void release_what_waits() {
    std::vector<CUdeviceptr> waiting;
    for (auto &entry : memory().allocations) {
        if (entry.second.freeing) {
            waiting.push_back(entry.first);
        }
    }
    for (CUdeviceptr base : waiting) {
        release(base);
    }
}

Allocation *allocation_at(CUdeviceptr base) {
    auto found = memory().allocations.find(base);
    return found == memory().allocations.end() ? nullptr : &found->second;
}

Allocation *allocation_of(CUdeviceptr address, size_t bytes) {
    auto after = memory().allocations.upper_bound(address);
    if (after == memory().allocations.begin()) {
        return nullptr;
    }
    Allocation &allocation = std::prev(after)->second;
    size_t offset = address - allocation.base;
    bool inside = offset <= allocation.bytes && bytes <= allocation.bytes - offset && (offset || allocation.bytes);
    return inside ? &allocation : nullptr;
}

size_t used_bytes(int device) {
    return memory().used[device];
}

std::string describe_address(CUdeviceptr address) {
    char text[200];
    if (address < PAGE) {
        snprintf(text, sizeof text, "null and %zu bytes", size_t(address));
        return text;
    }
    for (auto freed = memory().freed.rbegin(); freed != memory().freed.rend(); ++freed) {
        if (address >= freed->base && address < freed->base + freed->bytes && !allocation_of(address, 1)) {
            snprintf(text, sizeof text, "byte %zu of an allocation of %zu bytes that was freed",
                     size_t(address - freed->base), freed->bytes);
            return text;
        }
    }
    for (auto &entry : memory().allocations) {
        const Allocation &allocation = entry.second;
        CUdeviceptr end = allocation.base + allocation.bytes;
        if (address >= allocation.base && address < end) {
            snprintf(text, sizeof text, "byte %zu of an allocation of %zu bytes%s", size_t(address - allocation.base),
                     allocation.bytes, allocation.live ? "" : ", before the stream came to the allocation");
            return text;
        }
        if (address >= end && address < allocation.pages + allocation.page_bytes + PAGE) {
            snprintf(text, sizeof text, "%zu bytes behind the end of an allocation of %zu bytes", size_t(address - end),
                     allocation.bytes);
            return text;
        }
        if (address < allocation.base && address >= allocation.pages - PAGE) {
            snprintf(text, sizeof text, "%zu bytes before an allocation of %zu bytes",
                     size_t(allocation.base - address), allocation.bytes);
            return text;
        }
    }
    return "which is not device memory";
}

void set_guard(bool guard) {
    config.guard = guard;
    protect_all(is_open());
}

Window::Window() {
    if (memory().windows++ == 0 && config.guard) {
        protect_all(true);
    }
}

Window::~Window() {
    if (--memory().windows == 0 && config.guard) {
        protect_all(false);
    }
}

}  // namespace emu
