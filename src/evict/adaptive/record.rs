//! What is known of a block: 64 bits.

/// In which state a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Held, computed, and never seen before as far as anybody remembers.
    Fresh = 0,
    /// Held, computed again; LRU would not have kept it.
    Restored = 1,
    /// Held, computed again; LRU would have kept it.
    RestoredKept = 2,
    /// Held, found; LRU would not have kept it.
    Found = 3,
    /// Held, found; LRU would have kept it.
    FoundKept = 4,
    /// A candidate that nobody will remember.
    Idle = 5,
    /// A candidate to be remembered when it is evicted.
    Sampled = 6,
}

impl State {
    pub(super) const fn restored(kept: bool) -> Self {
        if kept { Self::RestoredKept } else { Self::Restored }
    }

    pub(super) const fn found(kept: bool) -> Self {
        if kept { Self::FoundKept } else { Self::Found }
    }

    pub(super) const fn is_restored(self) -> bool {
        matches!(self, Self::Restored | Self::RestoredKept)
    }

    pub(super) const fn is_found(self) -> bool {
        matches!(self, Self::Found | Self::FoundKept)
    }

    /// Whether LRU would have kept it.
    pub(super) const fn is_kept(self) -> bool {
        matches!(self, Self::RestoredKept | Self::FoundKept)
    }
}

/// Bits from the lowest: since 16, uses 5, gap 4, level 4, kind 3, state 3, has child 1, key 28.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record(u64);

const SINCE: (u32, u64) = (0, 0xFFFF);
const USES: (u32, u64) = (16, 31);
const GAP: (u32, u64) = (21, 15);
const LEVEL: (u32, u64) = (25, 15);
const KIND: (u32, u64) = (29, 7);
const STATE: (u32, u64) = (32, 7);
const CHILD: (u32, u64) = (35, 1);
const KEY: (u32, u64) = (36, (1 << 28) - 1);

/// Uses counted; more are as good as these.
pub(super) const MOST_USES: u8 = 31;

impl Record {
    #[inline]
    const fn get(self, (shift, mask): (u32, u64)) -> u64 {
        self.0 >> shift & mask
    }

    #[inline]
    const fn byte(self, field: (u32, u64)) -> u8 {
        self.get(field).to_le_bytes()[0]
    }

    #[inline]
    const fn set(&mut self, (shift, mask): (u32, u64), value: u64) {
        self.0 = self.0 & !(mask << shift) | (value & mask) << shift;
    }

    /// Freshly stored content; the upper 28 bits of the key are kept.
    pub(super) const fn new(key: u32) -> Self {
        let mut record = Self(0);
        record.set(KEY, (key >> 4) as u64);
        record.set(USES, 1);
        record
    }

    /// The key, rounded down to 28 bits.
    pub(super) const fn key(self) -> u32 {
        let [a, b, c, d, ..] = self.get(KEY).to_le_bytes();
        u32::from_le_bytes([a, b, c, d]) << 4
    }

    /// In ticks: since when it has been idle, or before it was held. Of a fresh block instead: how many fresh ones its
    /// chain ends with, itself included.
    #[inline]
    pub(super) const fn since(self) -> u16 {
        let [a, b, ..] = self.get(SINCE).to_le_bytes();
        u16::from_le_bytes([a, b])
    }

    #[inline]
    pub(super) const fn set_since(&mut self, ticks: u16) {
        self.set(SINCE, ticks as u64);
    }

    /// From 1 to [`MOST_USES`].
    pub(super) const fn uses(self) -> u8 {
        self.byte(USES)
    }

    pub(super) const fn set_uses(&mut self, uses: u8) {
        self.set(USES, uses as u64);
    }

    /// The octave of its gap, below 16.
    #[inline]
    pub(super) const fn gap(self) -> u8 {
        self.byte(GAP)
    }

    pub(super) const fn set_gap(&mut self, gap: u8) {
        self.set(GAP, gap as u64);
    }

    /// Its level, below 16.
    #[inline]
    pub(super) const fn level(self) -> u8 {
        self.byte(LEVEL)
    }

    pub(super) const fn set_level(&mut self, level: u8) {
        self.set(LEVEL, level as u64);
    }

    /// Its kind, below 8.
    pub(super) const fn kind(self) -> u8 {
        self.byte(KIND)
    }

    pub(super) const fn set_kind(&mut self, kind: u8) {
        self.set(KIND, kind as u64);
    }

    pub(super) const fn has_child(self) -> bool {
        self.get(CHILD) != 0
    }

    pub(super) const fn set_has_child(&mut self) {
        self.set(CHILD, 1);
    }

    #[inline]
    pub(super) const fn state(self) -> State {
        match self.get(STATE) {
            0 => State::Fresh,
            1 => State::Restored,
            2 => State::RestoredKept,
            3 => State::Found,
            4 => State::FoundKept,
            5 => State::Idle,
            _ => State::Sampled,
        }
    }

    #[inline]
    pub(super) const fn set_state(&mut self, state: State) {
        self.set(STATE, state as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let mut record = Record::new(0xDEAD_BEEF);
        record.set_since(u16::MAX);
        record.set_uses(MOST_USES);
        record.set_gap(5);
        record.set_level(15);
        record.set_kind(7);
        record.set_state(State::Sampled);
        record.set_has_child();
        record.set_gap(2);
        record.set_since(77);
        assert_eq!((record.key(), record.since(), record.uses()), (0xDEAD_BEE0, 77, MOST_USES));
        assert_eq!((record.gap(), record.level(), record.kind()), (2, 15, 7));
        assert!(record.state() == State::Sampled && record.has_child());
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_says_who_found_the_block() {
        use State::{Found, FoundKept, Fresh, Idle, Restored, RestoredKept, Sampled};
        for (state, restored, found, kept) in [
            (Fresh, false, false, false),
            (Restored, true, false, false),
            (RestoredKept, true, false, true),
            (Found, false, true, false),
            (FoundKept, false, true, true),
            (Idle, false, false, false),
            (Sampled, false, false, false),
        ] {
            let mut record = Record::new(0);
            assert_eq!(record.state(), Fresh);
            record.set_state(Idle);
            record.set_state(state);
            assert_eq!(record.state(), state);
            assert_eq!((state.is_restored(), state.is_found(), state.is_kept()), (restored, found, kept), "{state:?}");
        }
        assert_eq!([false, true].map(State::restored), [Restored, RestoredKept]);
        assert_eq!([false, true].map(State::found), [Found, FoundKept]);
    }
}
