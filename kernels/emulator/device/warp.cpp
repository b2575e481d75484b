#include "warp.h"

namespace emu {

namespace {

// Matrix operations are "aligned": every lane of the warp must take part.
bool needs_every_lane(Collective collective) {
    return collective >= Collective::LdMatrix;
}

void finish(Warp &warp, Meeting &meeting, Combine combine) {
    statistics.collectives++;
    combine(meeting);
    for (unsigned lane = 0; lane < warp.size; lane++) {
        if (meeting.arrived >> lane & 1) {
            warp.threads[lane].state = State::Runnable;
        }
    }
    meeting.arrived = 0;
}

// What each kind of meeting does, for the lane that leaves and thereby completes one.
Combine combine_of(Collective collective);

Meeting *find(Warp &warp, uint32_t mask) {
    Meeting *free = nullptr;
    for (Meeting &meeting : warp.meetings) {
        if (meeting.arrived && meeting.mask == mask) {
            return &meeting;
        }
        if (!meeting.arrived && !free) {
            free = &meeting;
        }
    }
    return free;
}

struct Shuffled {
    const void *value;
    size_t bytes;
    int source;
};

void combine_nothing(Meeting &) {}

void combine_shuffle(Meeting &meeting) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(meeting.arrived >> lane & 1)) {
            continue;
        }
        const Shuffled &mine = *static_cast<const Shuffled *>(meeting.in[lane]);
        if (!(meeting.arrived >> mine.source & 1)) {
            fault(Outcome::Failed, meeting.where, "lane %d shuffles from lane %d, which does not take part", lane,
                  mine.source);
            continue;
        }
        const Shuffled &theirs = *static_cast<const Shuffled *>(meeting.in[mine.source]);
        memcpy(meeting.out[lane], theirs.value, mine.bytes);
    }
}

void combine_vote(Meeting &meeting) {
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++) {
        if ((meeting.arrived >> lane & 1) && *static_cast<const int *>(meeting.in[lane])) {
            votes |= 1u << lane;
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        if (meeting.arrived >> lane & 1) {
            *static_cast<unsigned *>(meeting.out[lane]) = votes;
        }
    }
}

Combine combine_of(Collective collective) {
    switch (collective) {
    case Collective::Shuffle:
        return combine_shuffle;
    case Collective::Vote:
        return combine_vote;
    default:
        return combine_nothing;
    }
}

}  // namespace

void meet(Collective collective, Where where, uint32_t mask, const void *in, void *out, Combine combine) {
    Thread *me = current;
    Warp &warp = *me->warp;
    mask &= warp.size >= 32 ? ~0u : (1u << warp.size) - 1;
    if (!(mask >> me->lane & 1)) {
        fault(Outcome::Failed, where, "%s by a lane that is not in its own mask %08x", name_of(collective), mask);
        return;
    }
    if (needs_every_lane(collective) && (warp.size < 32 || warp.exited)) {
        fault(Outcome::Failed, where, "%s in a warp of which lanes %08x are missing", name_of(collective),
              warp.exited | (warp.size < 32 ? ~0u << warp.size : 0));
        give_up();
    }
    Meeting *meeting = find(warp, mask);
    if (!meeting) {
        fault(Outcome::Failed, where, "more than 8 collectives of one warp at once");
        give_up();
    }
    if (!meeting->arrived) {
        meeting->mask = mask;
        meeting->collective = collective;
        meeting->where = where;
    } else if (meeting->collective != collective || meeting->where.line != where.line) {
        fault(Outcome::Failed, where, "lanes of one warp meet at different collectives: %s here, %s in line %d",
              name_of(collective), name_of(meeting->collective), meeting->where.line);
        give_up();
    }
    meeting->in[me->lane] = in;
    meeting->out[me->lane] = out;
    meeting->arrived |= 1u << me->lane;
    me->collective = collective;
    me->where = where;
    if ((meeting->arrived | (warp.exited & mask)) == mask) {
        finish(warp, *meeting, combine);
        maybe_yield();
    } else {
        me->state = State::AtCollective;
        wait_here();
    }
}

void leave_warp() {
    Warp &warp = *current->warp;
    warp.exited |= 1u << current->lane;
    for (Meeting &meeting : warp.meetings) {
        if (!meeting.arrived || (meeting.arrived | (warp.exited & meeting.mask)) != meeting.mask) {
            continue;
        }
        if (needs_every_lane(meeting.collective)) {
            fault(Outcome::Failed, meeting.where, "a lane returned while others wait for it at %s",
                  name_of(meeting.collective));
            block.given_up = true;
            continue;
        }
        finish(warp, meeting, combine_of(meeting.collective));
    }
}

void shuffle(uint32_t mask, const void *value, void *out, size_t bytes, int source, Where where) {
    Shuffled mine = {value, bytes, source};
    meet(Collective::Shuffle, where, mask, &mine, out, combine_shuffle);
}

const char *name_of(Collective collective) {
    switch (collective) {
    case Collective::SyncWarp:
        return "__syncwarp";
    case Collective::Shuffle:
        return "shuffle";
    case Collective::Vote:
        return "vote";
    case Collective::LdMatrix:
        return "ldmatrix";
    case Collective::LdMatrixTrans:
        return "ldmatrix.trans";
    case Collective::MovMatrix:
        return "movmatrix";
    case Collective::Mma:
        return "mma";
    }
    return "?";
}

}  // namespace emu

void __syncwarp(uint32_t mask, emu::Where where) {
    emu::meet(emu::Collective::SyncWarp, where, mask, nullptr, nullptr, emu::combine_nothing);
    // Only a barrier of the whole warp counts: the race check then need not know who met whom.
    if (mask == ~0u) {
        emu::current->syncs++;
    }
}

unsigned __ballot_sync(uint32_t mask, int predicate, emu::Where where) {
    unsigned votes = 0;
    emu::meet(emu::Collective::Vote, where, mask, &predicate, &votes, emu::combine_vote);
    return votes;
}

int __any_sync(uint32_t mask, int predicate, emu::Where where) {
    return __ballot_sync(mask, predicate != 0, where) != 0;
}

int __all_sync(uint32_t mask, int predicate, emu::Where where) {
    return __ballot_sync(mask, predicate == 0, where) == 0;
}
