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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lives of LRU where the median first gap is a turnover, 512 ticks, and the exponent of each in quarters.
    const LIVES: [(u16, i32); 6] = [(255, 5), (256, 4), (511, 4), (512, 3), (1023, 3), (1024, 2)];

    /// Much was learned, of kinds that come back as often as not.
    fn even() -> Learned {
        let mut learned = Learned::new();
        for odds in learned.few[1..].iter_mut().chain(&mut learned.many[1..]) {
            *odds = Odds { idle: 16_000, back: 8000 };
        }
        learned
    }

    /// In a pool of 512 blocks, whose turnover is 512 ticks.
    fn conclude(learned: &mut Learned, cutoff: impl Into<Option<u16>>) {
        learned.conclude(&Clock::start(512), cutoff.into());
    }

    #[test]
    fn classes_of_uses_are_octaves_rounded_up() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 16, 17, 31].map(class_of_uses), [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }

    #[test]
    fn the_first_gap_is_the_median_of_enough() {
        let mut learned = Learned::new();
        let mut concluded = |few: u32, many: u32| {
            (learned.first_gaps[2], learned.first_gaps[9]) = (few, many);
            conclude(&mut learned, None);
            (learned.first_gap, learned.first_gaps[2], learned.first_gaps[9])
        };
        assert_eq!(concluded(0, 63), (6, 0, 63));
        assert_eq!(concluded(31, 33), (9, 31, 33));
        assert_eq!(concluded(33, 31), (2, 33, 31));
        // Of more than 65,536 half are forgotten.
        assert_eq!(concluded(10_000, 50_000), (9, 10_000, 50_000));
        assert_eq!(concluded(10_000, 60_000), (9, 5000, 30_000));
    }

    #[test]
    fn lru_lives_short_up_to_a_quarter_of_the_first_gap_and_long_from_the_whole() {
        let mut learned = even();
        let mut life = |cutoff| {
            conclude(&mut learned, cutoff);
            learned.life
        };
        assert_eq!(
            [127, 128, 511, 512].map(|cutoff| life(Some(cutoff))),
            [Life::Short, Life::Middle, Life::Middle, Life::Long]
        );
        assert_eq!(life(None), Life::Long);
        // Where it evicts nothing it counts as four turnovers: half of a first gap of eight.
        learned.first_gaps[9] = 64;
        conclude(&mut learned, None);
        assert_eq!(learned.life, Life::Middle);
    }

    #[test]
    fn uses_are_worth_the_more_the_faster_the_chance_to_come_back_falls() {
        // Of 1, 2, 4 uses, and the middle of 4 and 8, 8 and 16, 16 and 32.
        let uses = [1.0, 2.0, 4.0, 4.0 * 2f64.sqrt(), 8.0 * 2f64.sqrt(), 16.0 * 2f64.sqrt()];
        let mut learned = even();
        for (cutoff, quarters) in LIVES {
            conclude(&mut learned, cutoff);
            for (uses, row) in uses.iter().zip(learned.levels) {
                // In half octaves, rounded down, from 4 on.
                let worth = uses.powf(f64::from(quarters) / 4.0);
                let level = (1..16).rev().find(|&level| 2f64.powf(f64::from(level - 4) / 2.0) < worth * 1.001);
                assert_eq!(row, [u8::try_from(level.unwrap()).unwrap(); KINDS], "{uses} uses, LRU lives {cutoff}");
            }
        }
    }

    #[test]
    fn odds_of_a_kind_count_by_two_thirds_of_the_exponent_relative_to_those_of_all() {
        for (cutoff, quarters) in LIVES {
            for octave in -6..=6 {
                // Rounded in the logarithm. The ends of chains are no part of all.
                for off in [-0.4, 0.0, 0.4] {
                    let share = 1.0 / (1.0 + 2f64.powf(-f64::from(octave) - off));
                    let mut learned = even();
                    learned.few[0] =
                        Odds { idle: 16_000, back: (0..16_000).find(|&n| f64::from(n) >= 16e3 * share).unwrap() };
                    conclude(&mut learned, cutoff);
                    // s × 2/3 octaves, of which 3 half ones at most count.
                    let halves = (octave * quarters / 3).clamp(-3, 3);
                    let level = |own: i32| u8::try_from(own.min(15)).unwrap();
                    let once = if octave <= -4 { 0 } else { level(4 + halves) };
                    assert_eq!(learned.levels[0][..2], [once, 4], "2^({octave} + {off}), LRU lives {cutoff}");
                    let twice = 4 + 2 * quarters / 4;
                    assert_eq!(learned.levels[1][..2], [level(twice + halves), level(twice)]);
                    let most = 4 + 9 * quarters / 4;
                    assert_eq!(learned.levels[5][0], level(most + halves));
                }
            }
        }
    }

    #[test]
    fn a_kind_has_the_odds_of_all_until_it_was_seen() {
        let level = |idle, back| {
            let mut learned = even();
            *learned.odds(2, 3) = Odds { idle, back };
            conclude(&mut learned, 256);
            learned.levels[0][3]
        };
        assert_eq!(level(0, 0), 4);
        // To 16 of even odds come as many that did not come back, or did: 8 to 24, or 24 to 8. That is two octaves,
        // rounded, and two thirds of them are 2.7 half ones.
        assert_eq!((level(16, 0), level(16, 16)), (2, 6));
        // More cannot come back than were there.
        assert_eq!(level(16, 50_000), 6);
        // Where all else comes back, what does not goes at once.
        let mut learned = even();
        let most = Odds { idle: 200_000, back: 200_000 };
        learned.few[1..].iter_mut().chain(&mut learned.many[1..]).for_each(|odds| *odds = most);
        learned.few[3] = Odds { idle: 16_000, back: 0 };
        conclude(&mut learned, 256);
        assert_eq!(learned.levels[0][3], 0);
        // To begin with, of all that is known one in four comes back: its odds are a third, of 3 in 4 three.
        let mut learned = Learned::new();
        conclude(&mut learned, 256);
        assert_eq!(learned.levels[0], [4; KINDS]);
        learned.few[0] = Odds { idle: 16_000, back: 12_000 };
        conclude(&mut learned, 256);
        assert_eq!(learned.levels[0], [7, 4, 4, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn odds_are_apart_for_few_uses_and_many_and_half_of_many_observations_is_forgotten() {
        let mut learned = Learned::new();
        for (uses, idle, back) in [(2, 20_000, 9000), (3, 18_000, 6000)] {
            *learned.odds(uses, 5) = Odds { idle, back };
            *learned.odds(uses, 6) = Odds { idle: idle / 2, back };
        }
        conclude(&mut learned, None);
        let mut found = |uses, kind| (learned.odds(uses, kind).idle, learned.odds(uses, kind).back);
        assert_eq!([found(1, 5), found(2, 5), found(3, 5)], [(10_000, 4500), (10_000, 4500), (9000, 3000)]);
        assert_eq!([found(1, 6), found(2, 6), found(3, 6)], [(10_000, 9000), (10_000, 9000), (9000, 6000)]);
    }
}
