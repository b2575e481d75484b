//! Time, relative to the pool.

/// Bits of a rough time.
pub(super) const ROUGH_BITS: u32 = 9;
const ROUGH_MASK: u16 = (1 << ROUGH_BITS) - 1;

/// Time: blocks that became idle, in steps of about a 512th of the pool, so that 16 bits last for 64 turnovers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    pub(super) now: u16,
    /// Idle blocks a tick, and until the next.
    per_tick: u32,
    left: u32,
    /// Ticks a turnover of the pool: 512 to 1023, or the number of blocks.
    pub(super) turnover: u16,
    /// Rough times are in units of 2^shift ticks: a 16th to a 32nd of a turnover.
    shift: u32,
}

impl Clock {
    pub(super) const fn new() -> Self {
        Self { now: 0, per_tick: 1, left: 1, turnover: 1, shift: 0 }
    }

    pub(super) fn start(num_blocks: u32) -> Self {
        let per_tick = (num_blocks / 512).max(1);
        let turnover = u16::try_from(num_blocks / per_tick).unwrap_or(u16::MAX).max(1);
        Self { now: 0, per_tick, left: per_tick, turnover, shift: turnover.ilog2().saturating_sub(4) }
    }

    /// A block has become idle. Whether a tick has passed.
    #[inline]
    pub(super) fn pass(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = self.per_tick;
        self.now = self.now.wrapping_add(1);
        true
    }

    /// The octave of a time, with code 6 for one turnover, rounded in the logarithm.
    pub(super) fn octave(&self, ticks: u16) -> u8 {
        // 64 × √2 is 90.5.
        let scaled = u32::from(ticks) * 90 / u32::from(self.turnover);
        scaled.checked_ilog2().map_or(1, |log| log.to_le_bytes()[0]).clamp(1, 15)
    }

    /// The middle of an octave, in ticks.
    pub(super) const fn middle(&self, octave: u8) -> u64 {
        ((self.turnover as u64) << octave) >> 6
    }

    /// A time in [`ROUGH_BITS`] bits.
    #[inline]
    pub(super) const fn rough(&self, time: u16) -> u16 {
        time >> self.shift & ROUGH_MASK
    }

    /// How many ticks ago a rough time was, give or take half a unit, if no longer than the [`horizon`](Self::horizon).
    #[inline]
    pub(super) const fn since_rough(&self, rough: u16) -> u16 {
        let unit = 1 << self.shift;
        let ago = self.now.wrapping_sub(rough << self.shift) & (ROUGH_MASK << self.shift | (unit - 1));
        ago.saturating_sub(unit / 2)
    }

    /// Ticks after which a rough time is to be forgotten: an eighth before it looks like now. At least 14 turnovers.
    #[inline]
    pub(super) const fn horizon(&self) -> u16 {
        (ROUGH_MASK - ROUGH_MASK / 8) << self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn octaves_are_relative_to_a_turnover_and_round_in_the_logarithm() {
        let clock = Clock::start(100_000);
        // 100,000 / 512 is 195 blocks a tick, so 512 ticks a turnover.
        assert_eq!((clock.per_tick, clock.turnover), (195, 512));
        assert_eq!([256, 512, 700, 740, 1024].map(|ticks| clock.octave(ticks)), [5, 6, 6, 7, 7]);
        assert_eq!([5, 6, 7].map(|octave| clock.middle(octave)), [256, 512, 1024]);
        // 512 ticks are 16 units of 2^5.
        assert_eq!((clock.rough(64), clock.horizon()), (2, 448 << 5));
        // A pool of fewer blocks than ticks counts every one.
        assert_eq!((Clock::start(50).per_tick, Clock::start(50).turnover), (1, 50));
    }

    #[test]
    fn a_tick_is_as_many_blocks_as_a_512th_of_the_pool_rounded_down() {
        for (num_blocks, per_tick) in [(50, 1), (1023, 1), (1024, 2), (100_000, 195)] {
            let mut clock = Clock::start(num_blocks);
            let passed: Vec<u32> = (1..=10 * per_tick).filter(|_| clock.pass()).collect();
            assert!(passed.into_iter().eq((1..=10).map(|tick| tick * per_tick)), "{num_blocks} blocks");
            assert_eq!(clock.now, 10);
        }
    }

    #[test]
    fn rough_times_are_half_a_unit_off_at_most_until_the_horizon_whenever_it_is() {
        let mut clock = Clock::start(1 << 20);
        for now in [0, 31, 32, 17_000, u16::MAX] {
            clock.now = now;
            for age in [0, 1, 16, 31, 500, 10_000, clock.horizon() - 32] {
                let found = clock.since_rough(clock.rough(now.wrapping_sub(age)));
                assert!(found.abs_diff(age) <= 16, "{age} ago at {now} is {found}");
            }
        }
    }
}
