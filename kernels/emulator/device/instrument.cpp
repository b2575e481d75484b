// Checks of plain loads and stores. Kernels are compiled with -fsanitize=thread, which calls a function before each
// access to memory that is not a local variable of its own; these are the functions, in place of ThreadSanitizer's.
//
// Shared memory: bounds and races. Device memory: bounds, to the byte. Host memory that is not pinned: refused, as the
// device could not reach it. What blocks share: see sharing.h. The stack and the constants of a kernel are its own.
#include <link.h>

#include <cstring>

#include "block.h"
#include "race.h"
#include "sharing.h"

namespace emu {

namespace {

struct Range {
    uintptr_t begin, end;

    bool holds(uintptr_t address) const {
        return address >= begin && address < end;
    }
};

// What of this library is mapped: constants, tables, the state of the emulator.
Range image() {
    static Range range = [] {
        Range found = {0, 0};
        dl_iterate_phdr(
            [](dl_phdr_info *info, size_t, void *data) {
                Range candidate = {UINTPTR_MAX, 0};
                for (int i = 0; i < info->dlpi_phnum; i++) {
                    const ElfW(Phdr) &header = info->dlpi_phdr[i];
                    if (header.p_type == PT_LOAD) {
                        uintptr_t begin = info->dlpi_addr + header.p_vaddr;
                        candidate.begin = begin < candidate.begin ? begin : candidate.begin;
                        uintptr_t end = begin + header.p_memsz;
                        candidate.end = end > candidate.end ? end : candidate.end;
                    }
                }
                if (!candidate.holds(reinterpret_cast<uintptr_t>(&block))) {
                    return 0;
                }
                *static_cast<Range *>(data) = candidate;
                return 1;
            },
            &found);
        return found;
    }();
    return range;
}

void touch(const void *address, size_t bytes, bool write, const void *instruction) {
    if (!current) {
        return;  // the registration of kernels, as the library is loaded
    }
    auto at = reinterpret_cast<uintptr_t>(address);
    auto stack = reinterpret_cast<uintptr_t>(current->fiber.stack_bottom);
    if (at - stack < current->fiber.stack_bytes) {
        return;
    }
    auto *byte = static_cast<const unsigned char *>(address);
    Where where = {nullptr, 0, instruction};
    const char *what = write ? "a store" : "a load";
    if (in_shared(byte, bytes)) {
        write ? race_write(byte, bytes, where, what) : race_read(byte, bytes, where, what);
        return;
    }
    auto threads = reinterpret_cast<uintptr_t>(block.threads);
    if (at - threads < block.num_threads * sizeof(Thread) || image().holds(at)) {
        return;
    }
    // Without a driver, all memory of the process counts as the device's.
    if (is_global ? is_global(address, bytes) : !near_shared(address)) {
        sharing_touch(address, bytes, write, where);
        return;
    }
    fault_at(Outcome::IllegalAddress, where, what, bytes, address);
    give_up();
}

void touch_aligned(const void *address, size_t bytes, bool write, const void *instruction) {
    if (current && (reinterpret_cast<uintptr_t>(address) & (bytes - 1))) {
        Where where = {nullptr, 0, instruction};
        const char *what = write ? "a store" : "a load";
        fault(Outcome::Misaligned, where, "%s of %zu bytes at %p, which is not a multiple", what, bytes, address);
        give_up();
    }
    touch(address, bytes, write, instruction);
}

}  // namespace

}  // namespace emu

// The call itself: what follows it may belong to another line.
#define CALL_ADDRESS (static_cast<char *>(__builtin_extract_return_addr(__builtin_return_address(0))) - 1)

#define HOOKS(bytes)                                                      \
    extern "C" void __tsan_read##bytes(void *address) {                   \
        emu::touch_aligned(address, bytes, false, CALL_ADDRESS);        \
    }                                                                     \
    extern "C" void __tsan_write##bytes(void *address) {                  \
        emu::touch_aligned(address, bytes, true, CALL_ADDRESS);         \
    }                                                                     \
    extern "C" void __tsan_unaligned_read##bytes(void *address) {         \
        emu::touch(address, bytes, false, CALL_ADDRESS);                \
    }                                                                     \
    extern "C" void __tsan_unaligned_write##bytes(void *address) {        \
        emu::touch(address, bytes, true, CALL_ADDRESS);                 \
    }

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" void __tsan_read_range(void *address, size_t bytes) {
    emu::touch(address, bytes, false, CALL_ADDRESS);
}

extern "C" void __tsan_write_range(void *address, size_t bytes) {
    emu::touch(address, bytes, true, CALL_ADDRESS);
}

// clang calls these in place of the functions of C.
extern "C" void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    emu::touch(from, bytes, false, CALL_ADDRESS);
    emu::touch(to, bytes, true, CALL_ADDRESS);
    return memcpy(to, from, bytes);
}

extern "C" void *__tsan_memset(void *to, int value, size_t bytes) {
    emu::touch(to, bytes, true, CALL_ADDRESS);
    return memset(to, value, bytes);
}

extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
