#include "async_copy.h"

#include <cstring>

#include "race.h"
#include "sharing.h"

namespace emu {

namespace {

void land(AsyncCopy &copy) {
    if (copy.bytes) {
        memcpy(copy.to, copy.from, copy.bytes);
    }
    memset(copy.to + copy.bytes, 0, 16 - copy.bytes);
    copy.landed = true;
}

}  // namespace

void wait_for_copies(size_t pending) {
    Thread &me = *current;
    while (me.group_ends.size() - me.groups_waited > pending) {
        size_t end = me.group_ends[me.groups_waited++];
        for (; me.num_waited < end; me.num_waited++) {
            AsyncCopy &copy = me.copies[me.num_waited];
            if (!copy.landed) {
                land(copy);
            }
            race_copy_waited(copy.to);
        }
    }
    if (me.num_waited == me.copies.size() && me.groups_waited == me.group_ends.size()) {
        me.copies.clear();
        me.group_ends.clear();
        me.num_waited = 0;
        me.groups_waited = 0;
    }
}

}  // namespace emu

void pk_cp_async16(void *to, const void *from, int bytes, emu::Where where) {
    using namespace emu;
    statistics.async_copies++;
    if (bytes < 0 || bytes > 16) {
        fault(Outcome::Failed, where, "cp.async of %d bytes", bytes);
        return;
    }
    uintptr_t misaligned = reinterpret_cast<uintptr_t>(to) & 15;
    if (bytes) {
        misaligned |= reinterpret_cast<uintptr_t>(from) & 15;
    }
    if (misaligned) {
        fault(Outcome::Misaligned, where, "cp.async at no multiple of 16: to %p, from %p", to, from);
        return;
    }
    if (bytes && is_global && !is_global(from, size_t(bytes))) {
        fault_at(Outcome::IllegalAddress, where, "cp.async reads outside device memory, a load", size_t(bytes), from);
        return;
    }
    auto *target = static_cast<unsigned char *>(to);
    if (!in_shared(target, 16)) {
        fault(Outcome::IllegalAddress, where, "cp.async writes outside shared memory: %td of %zu bytes",
              target - block.shared, block.shared_bytes);
        return;
    }
    race_copy_issued(target, where);
    if (bytes) {
        sharing_touch(from, size_t(bytes), false, where);
    }
    AsyncCopy copy = {target, static_cast<const unsigned char *>(from), unsigned(bytes), false};
    if (order.async_copies == 1 || (order.async_copies == 2 && (draw() & 1))) {
        land(copy);
    }
    current->copies.push_back(copy);
}

void pk_cp_async_commit() {
    emu::current->group_ends.push_back(emu::current->copies.size());
}
