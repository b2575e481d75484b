#include "sharing.h"

#include <unordered_map>

#include "race.h"

namespace emu {

namespace {

constexpr size_t CELL_BYTES = 4;
constexpr size_t PAGE_BYTES = 4096;
constexpr size_t CELLS_A_PAGE = PAGE_BYTES / CELL_BYTES;
// Beyond this, pages of earlier launches are forgotten: 20 KiB each.
constexpr size_t PAGES_KEPT = 4096;

struct Cell {
    uint32_t launch;      // the launch that the cell is about; another's is empty
    uint32_t writer;      // a block
    uint32_t readers[2];  // the last, and the last of another block
    uint8_t written;      // which of the cell's bytes; 0: none
    uint8_t read[2];
};

std::unordered_map<uintptr_t, std::vector<Cell>> pages;
uintptr_t last_number = 0;
Cell *last_page = nullptr;
uint32_t launch_number = 0;

// A cell that a block wrote over what another had written. Which bytes come is known only after the store, so the bytes
// that were there are kept until the end of the launch: if all blocks wrote the same, they are there still.
struct Overwrite {
    const unsigned char *address;
    uint8_t bytes;
    unsigned char before[CELL_BYTES];
    uint32_t other;
    uint3 block;
    Thread *thread;
    Where where;
};

std::vector<Overwrite> overwrites;

Cell *page_of(uintptr_t number) {
    if (number != last_number || !last_page) {
        std::vector<Cell> &page = pages[number];
        page.resize(CELLS_A_PAGE);
        last_page = page.data();
        last_number = number;
    }
    return last_page;
}

uint32_t block_number() {
    return block.index.x + block.grid_dim.x * (block.index.y + block.grid_dim.y * block.index.z);
}

void report(Where where, const char *mine, const char *theirs, uint32_t other, const void *address) {
    char text[256] = "";
    if (describe) {
        describe(address, text, sizeof text);
    }
    fault(Outcome::Failed, where, "%s what block number %u of the same launch %s: %p, %s", mine, other, theirs, address,
          text);
}

void remember_read(Cell &cell, uint32_t me, uint8_t bytes) {
    if (cell.readers[0] == me) {
        cell.read[0] |= bytes;
        return;
    }
    cell.readers[1] = cell.readers[0];
    cell.read[1] = cell.read[0];
    cell.readers[0] = me;
    cell.read[0] = bytes;
}

// `address` is in the cell; `bytes` are those that both blocks write.
void remember_overwrite(const Cell &cell, uint8_t bytes, Where where, const void *address) {
    size_t offset = reinterpret_cast<uintptr_t>(address) % CELL_BYTES;
    const unsigned char *begin = static_cast<const unsigned char *>(address) - offset;
    Overwrite overwrite = {begin, bytes, {}, cell.writer, block.index, current, where};
    for (size_t i = 0; i < CELL_BYTES; i++) {
        if (bytes >> i & 1) {
            overwrite.before[i] = begin[i];
        }
    }
    overwrites.push_back(overwrite);
}

bool is_unchanged(const Overwrite &overwrite) {
    for (size_t i = 0; i < CELL_BYTES; i++) {
        if ((overwrite.bytes >> i & 1) && overwrite.address[i] != overwrite.before[i]) {
            return false;
        }
    }
    return true;
}

// False after a report.
bool touch_cell(Cell &cell, uint8_t bytes, bool write, Where where, const void *address) {
    uint32_t me = block_number();
    if (cell.launch != launch_number) {
        cell = Cell();
        cell.launch = launch_number;
    }
    bool written_by_other = (cell.written & bytes) && cell.writer != me;
    if (written_by_other && !write) {
        report(where, "reads", "wrote", cell.writer, address);
        return false;
    }
    if (!write) {
        remember_read(cell, me, bytes);
        return true;
    }
    for (int i = 0; i < 2; i++) {
        if ((cell.read[i] & bytes) && cell.readers[i] != me) {
            report(where, "writes", "read", cell.readers[i], address);
            return false;
        }
    }
    if (written_by_other) {
        remember_overwrite(cell, uint8_t(cell.written & bytes), where, address);
    }
    cell.written = cell.writer == me ? uint8_t(cell.written | bytes) : bytes;
    cell.writer = me;
    return true;
}

}  // namespace

void sharing_begin() {
    launch_number++;
    if (pages.size() > PAGES_KEPT || launch_number == 0) {
        pages.clear();
        launch_number = launch_number ? launch_number : 1;
    }
    last_page = nullptr;
    overwrites.clear();
}

void sharing_end() {
    for (const Overwrite &overwrite : overwrites) {
        if (!is_unchanged(overwrite)) {
            block.index = overwrite.block;
            current = overwrite.thread;
            report(overwrite.where, "writes other bytes over", "wrote", overwrite.other, overwrite.address);
        }
    }
    current = nullptr;
}

void sharing_touch(const void *address, size_t bytes, bool write, Where where) {
    if (!race_checks()) {
        return;
    }
    auto at = reinterpret_cast<uintptr_t>(address);
    uintptr_t end = at + bytes;
    while (at < end) {
        uintptr_t next = (at / CELL_BYTES + 1) * CELL_BYTES;
        uintptr_t stop = next < end ? next : end;
        uint8_t mask = uint8_t(((1u << (stop - at)) - 1) << at % CELL_BYTES);
        Cell &cell = page_of(at / PAGE_BYTES)[at % PAGE_BYTES / CELL_BYTES];
        if (!touch_cell(cell, mask, write, where, reinterpret_cast<const void *>(at))) {
            return;
        }
        at = stop;
    }
}

}  // namespace emu
