//! What was learned from all blocks: first gaps, and the odds of kinds.

use super::clock::Clock;
use crate::id::ix;

/// Kinds of blocks: the ends of chains, and the others by how much of their chain was new.
pub(super) const KINDS: usize = 8;

/// What was learned from all blocks.
#[derive(Clone, Debug)]
pub(super) struct Learned {
    /// Candidates that were sampled, and those of them that came back: of one or two uses, and of more, by kind.
    few: [Odds; KINDS],
    many: [Odds; KINDS],
    /// First gaps, by octave.
    pub(super) first_gaps: [u32; 16],
    /// The octave taken for the gap of a block used once: that of the median first gap.
    pub(super) first_gap: u8,
    /// By class of uses and kind.
    pub(super) levels: [[u8; KINDS]; 6],
    /// By which the wait is told from age and gap.
    pub(super) life: Life,
}

/// LRU's lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Below a quarter of the median first gap.
    Short,
    /// Below it.
    Middle,
    /// As long, or longer.
    Long,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds {
    pub(super) idle: u32,
    pub(super) back: u32,
}

impl Odds {
    /// Forgets half of what is old.
    fn age(&mut self) {
        if self.idle > 16_384 {
            self.idle /= 2;
            self.back /= 2;
        }
    }
}

/// The class of uses: 1, 2, 3 and 4, 5 to 8, 9 to 16, more.
pub(super) fn class_of_uses(uses: u8) -> usize {
    let log = u32::BITS - (u32::from(uses.max(1)) - 1).leading_zeros();
    ix(log.min(5))
}

impl Learned {
    pub(super) const fn new() -> Self {
        Self {
            few: [Odds { idle: 0, back: 0 }; KINDS],
            many: [Odds { idle: 0, back: 0 }; KINDS],
            first_gaps: [0; 16],
            first_gap: 6,
            levels: [[4; KINDS]; 6],
            life: Life::Short,
        }
    }

    pub(super) fn odds(&mut self, uses: u8, kind: u8) -> &mut Odds {
        let odds = if uses <= 2 { &mut self.few } else { &mut self.many };
        &mut odds[usize::from(kind)]
    }

    /// Draws the conclusions.
    pub(super) fn conclude(&mut self, clock: &Clock, cutoff: Option<u16>) {
        /// Observations that a kind is worth having, in its favour and against it as they are overall.
        const PRIOR: u64 = 16;
        /// Twice the binary logarithm of the uses, by class.
        const USES: [i32; 6] = [0, 2, 4, 5, 7, 9];
        let gaps: u32 = self.first_gaps.iter().sum();
        if gaps >= 64 {
            let mut below = 0;
            let at = self.first_gaps.iter().position(|&count| {
                below += count;
                2 * below > gaps
            });
            self.first_gap = at.and_then(|at| u8::try_from(at).ok()).unwrap_or(15);
            if gaps > 65_536 {
                self.first_gaps.iter_mut().for_each(|count| *count /= 2);
            }
        }
        let lived = cutoff.map_or(4 * u64::from(clock.turnover), u64::from);
        let first = clock.middle(self.first_gap);
        // The exponent s, in quarters.
        let steepness = if lived * 2 < first {
            5
        } else if lived < first {
            4
        } else if lived < 2 * first {
            3
        } else {
            2
        };
        self.life = if lived * 4 < first {
            Life::Short
        } else if lived < first {
            Life::Middle
        } else {
            Life::Long
        };
        // All but the ends of chains, with one in four to begin with.
        let (mut idle, mut back) = (4, 1);
        for odds in self.few[1..].iter().chain(&self.many[1..]) {
            idle += u64::from(odds.idle);
            back += u64::from(odds.back.min(odds.idle));
        }
        for kind in 0..KINDS {
            let odds = self.few[kind];
            let (own_idle, own_back) = (u64::from(odds.idle), u64::from(odds.back.min(odds.idle)));
            // (own_back + PRIOR × share) / (own_idle - own_back + PRIOR × (1 - share)) by back / (idle - back).
            let pro = own_back * idle + PRIOR * back;
            let contra = (own_idle - own_back) * idle + PRIOR * (idle - back);
            // 16 binary places, and √2 to round in the logarithm. Below 2^17 and 2^32 each, so within 128 bits.
            let ratio =
                u128::from(pro) * u128::from(idle - back) * 92_682 / (u128::from(contra) * u128::from(back)).max(1);
            let octave = ratio.checked_ilog2().map_or(-16, |log| i32::from(log.to_le_bytes()[0]) - 16);
            for (uses, row) in USES.iter().zip(&mut self.levels) {
                // Half octaves: of the uses to the power of s, of the odds to that of 2s / 3.
                let level = (uses * steepness / 4 + (octave * steepness / 3).clamp(-3, 3) + 4).clamp(1, 15);
                row[kind] = if octave <= -4 && *uses == 0 { 0 } else { level.to_le_bytes()[0] };
            }
            self.few[kind].age();
            self.many[kind].age();
        }
    }
}
