//! Time, relative to the pool.

/// Time: blocks that became idle, in steps of about a 512th of the pool, so that 16 bits last for 64 turnovers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    pub(super) now: u16,
    /// Idle blocks a tick, and until the next.
    per_tick: u32,
    left: u32,
    /// Ticks a turnover of the pool: 512 to 1023, or the number of blocks.
    pub(super) turnover: u16,
    /// The same in eighths of a turnover, which 8 bits count for 32 turnovers, and ticks until the next.
    pub(super) coarse_now: u8,
    coarse_left: u16,
}

impl Clock {
    pub(super) const fn new() -> Self {
        Self { now: 0, per_tick: 1, left: 1, turnover: 1, coarse_now: 0, coarse_left: 1 }
    }

    pub(super) fn start(num_blocks: u32) -> Self {
        let per_tick = (num_blocks / 512).max(1);
        let turnover = u16::try_from(num_blocks / per_tick).unwrap_or(u16::MAX).max(1);
        let start = Self { now: 0, per_tick, left: per_tick, turnover, coarse_now: 0, coarse_left: 0 };
        Self { coarse_left: start.coarse(), ..start }
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
        self.coarse_left -= 1;
        if self.coarse_left == 0 {
            self.coarse_left = self.coarse();
            self.coarse_now = self.coarse_now.wrapping_add(1);
        }
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

    /// The ghost's unit of time.
    pub(super) const fn coarse(&self) -> u16 {
        if self.turnover < 8 { 1 } else { self.turnover / 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octaves_are_relative_to_a_turnover_and_round_in_the_logarithm() {
        let clock = Clock::start(100_000);
        // 100,000 / 512 is 195 blocks a tick, so 512 ticks a turnover.
        assert_eq!((clock.per_tick, clock.turnover), (195, 512));
        assert_eq!([256, 512, 700, 740, 1024].map(|ticks| clock.octave(ticks)), [5, 6, 6, 7, 7]);
        assert_eq!([5, 6, 7].map(|octave| clock.middle(octave)), [256, 512, 1024]);
        // A pool of fewer blocks than ticks counts every one.
        assert_eq!((Clock::start(50).per_tick, Clock::start(50).turnover), (1, 50));
    }
}
