//! Tokens that look like those of a vocabulary of 131,072, and prompts of which no two begin alike.

const VOCABULARY_BITS: u32 = 17;

/// Gives out prompts. The first two tokens of each are its number, so that no two share a block; the rest is noise.
#[derive(Debug, Default)]
pub(crate) struct Prompts {
    given: u64,
}

impl Prompts {
    /// Gives out none of the first so many.
    pub(crate) fn starting_at(given: u64) -> Self {
        Self { given }
    }

    pub(crate) fn next(&mut self, len: usize) -> Vec<u32> {
        self.given += 1;
        let mut tokens = noise(self.given, len);
        for (token, at) in tokens.iter_mut().zip(0..) {
            match at {
                0 => *token = low_bits(self.given),
                1 => *token = low_bits(self.given >> VOCABULARY_BITS),
                _ => break,
            }
        }
        tokens
    }

    pub(crate) fn batch(&mut self, prompts: usize, len: usize) -> Vec<Vec<u32>> {
        (0..prompts).map(|_| self.next(len)).collect()
    }
}

/// `len` tokens, the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| low_bits(random.next() >> 40)).collect()
}

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD129_0228_96D2_1A45))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, near enough to uniform for choosing prompts.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }
}

fn low_bits(value: u64) -> u32 {
    u32::try_from(value & ((1 << VOCABULARY_BITS) - 1)).expect("17 bits")
}
