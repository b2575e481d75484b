#include "race.h"

#include <vector>

namespace emu {

namespace {

constexpr size_t CELL_BYTES = 4;

constexpr char COPY_RACE[] = "%s of shared memory at %zu with a cp.async of thread %u in flight into it";
constexpr char WRITE_RACE[] = "%s of shared memory at %zu races with a write by thread %u (no barrier between)";

// When an access happened, by the barriers that its thread had passed.
struct Access {
    uint16_t thread;
    uint8_t bytes;    // which of the cell's four; 0: no access
    unsigned syncs;
    unsigned barriers;
};

struct Cell {
    unsigned block;    // the block that the cell is about; another's is empty
    unsigned copies;   // cp.async under way
    uint16_t copying;  // the thread that issued the last of them
    Access write;
    // The last read; the one before it by another thread; the one before it by another warp.
    Access reads[3];
};

std::vector<Cell> cells;
unsigned current_block = 0;
bool checking = true;

Access access_now(uint8_t bytes) {
    return {uint16_t(current - block.threads), bytes, current->syncs, block.barriers};
}

// Whether the current thread's next access comes after `earlier` for certain.
bool is_ordered(const Access &earlier) {
    if (earlier.thread == current - block.threads) {
        return true;
    }
    if (earlier.thread / 32u == current->warp->index) {
        return current->syncs > earlier.syncs;
    }
    return block.barriers > earlier.barriers;
}

Cell &cell_at(size_t index) {
    Cell &cell = cells[index];
    if (cell.block != current_block) {
        cell = Cell();
        cell.block = current_block;
    }
    return cell;
}

// Calls `visit(cell, which of its bytes)` for the bytes given. False ends it.
template <class Visit>
void each_cell(const unsigned char *address, size_t bytes, Visit visit) {
    size_t from = size_t(address - block.shared);
    size_t end = from + bytes;
    while (from < end) {
        size_t index = from / CELL_BYTES;
        size_t stop = (index + 1) * CELL_BYTES < end ? (index + 1) * CELL_BYTES : end;
        uint8_t mask = uint8_t(((1u << (stop - from)) - 1) << from % CELL_BYTES);
        if (!visit(cell_at(index), mask)) {
            return;
        }
        from = stop;
    }
}

size_t offset_of(const unsigned char *address) {
    return size_t(address - block.shared);
}

bool conflicts(const Access &earlier, uint8_t bytes) {
    return (earlier.bytes & bytes) && !is_ordered(earlier);
}

void remember_read(Cell &cell, uint8_t bytes) {
    Access now = access_now(bytes);
    Access &last = cell.reads[0];
    if (last.thread != now.thread) {
        if (last.thread / 32 != now.thread / 32) {
            cell.reads[2] = last;
        }
        cell.reads[1] = last;
    } else if (last.syncs == now.syncs && last.barriers == now.barriers) {
        now.bytes |= last.bytes;
    }
    last = now;
}

}  // namespace

void race_begin() {
    cells.resize((block.shared_bytes + CELL_BYTES - 1) / CELL_BYTES);
    current_block++;
    if (current_block == 0) {
        cells.assign(cells.size(), Cell());
        current_block = 1;
    }
}

void race_switch(bool on) {
    checking = on;
}

bool race_checks() {
    return checking;
}

bool in_shared(const unsigned char *address, size_t bytes) {
    return address >= block.shared && bytes <= block.shared_bytes &&
           size_t(address - block.shared) <= block.shared_bytes - bytes;
}

void race_read(const unsigned char *address, size_t bytes, Where where, const char *what) {
    if (!checking) {
        return;
    }
    each_cell(address, bytes, [&](Cell &cell, uint8_t mask) {
        if (cell.copies) {
            fault(Outcome::Failed, where, COPY_RACE, what, offset_of(address), cell.copying);
            return false;
        }
        if (conflicts(cell.write, mask)) {
            fault(Outcome::Failed, where, WRITE_RACE, what, offset_of(address), cell.write.thread);
            return false;
        }
        remember_read(cell, mask);
        return true;
    });
}

void race_write(const unsigned char *address, size_t bytes, Where where, const char *what) {
    if (!checking) {
        return;
    }
    each_cell(address, bytes, [&](Cell &cell, uint8_t mask) {
        if (cell.copies) {
            fault(Outcome::Failed, where, COPY_RACE, what, offset_of(address), cell.copying);
            return false;
        }
        if (conflicts(cell.write, mask)) {
            fault(Outcome::Failed, where, WRITE_RACE, what, offset_of(address), cell.write.thread);
            return false;
        }
        for (const Access &read : cell.reads) {
            if (conflicts(read, mask)) {
                fault(Outcome::Failed, where,
                      "%s of shared memory at %zu races with a read by thread %u (no barrier between)", what,
                      offset_of(address), read.thread);
                return false;
            }
        }
        cell.write = access_now(mask);
        return true;
    });
}

void race_copy_issued(const unsigned char *address, Where where) {
    race_write(address, 16, where, "cp.async");
    each_cell(address, 16, [&](Cell &cell, uint8_t) {
        cell.copies++;
        cell.copying = uint16_t(current - block.threads);
        return true;
    });
}

void race_copy_waited(const unsigned char *address) {
    each_cell(address, 16, [&](Cell &cell, uint8_t mask) {
        cell.copies -= cell.copies > 0;
        cell.write = access_now(mask);
        return true;
    });
}

}  // namespace emu
