//! What models ask of attention beside the softmax of scaled scores.

/// Options of one attention call.
///
/// A score is formed in this order: q · k × `scale`, soft cap, `ALiBi`; then the softmax is taken over the keys that the
/// query sees, with the sink of its head in the sum. Scores and sinks are kept times log₂ e = 1.44 in `f32`, so that they
/// have to stay below 2.3 × 10³⁸. A scale, slope or sink that is NaN makes the outputs of its queries NaN, but for a
/// scale beside a soft cap, which is refused.
///
/// # Example
/// A layer of Gemma 2: a window of 4,096 tokens, scores capped at ±50.
/// ```
/// use paged_kv::storage::AttendParams;
///
/// let params = AttendParams::new(256).with_window(4096).with_soft_cap(50.0);
/// assert_eq!(params.scale, 1.0 / 16.0);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct AttendParams<'a> {
    /// What scores are multiplied by before the softmax.
    pub scale: f32,
    /// Sliding window: a query at position p sees keys from p − window + 1 on, so at most so many up to its own; more than
    /// 0. Blocks outside of it are not read, so that their table entries may be any block of the pool.
    pub window: Option<u32>,
    /// Soft cap c > 0: a score s becomes c × tanh(s / c). Of usual size: c × 1.44 and `scale` / c are numbers in `f32`.
    pub soft_cap: Option<f32>,
    /// Attention sinks `[q_heads]`: a score per query head that takes part in the softmax without a value. Counted once
    /// per query, in the log-sum-exp too.
    pub sinks: Option<&'a [f32]>,
    /// `ALiBi` slopes m `[q_heads]`: m × (j − i) is added to the score of the query at position i with the key at
    /// position j.
    pub alibi_slopes: Option<&'a [f32]>,
    /// Which queries of its own row a query sees, instead of those up to its own: trees of speculative tokens, or
    /// tokens that see each other both ways. Positions, for windows and slopes, stay those in the row, whatever the depth
    /// in a tree.
    pub mask: Option<QueryMask<'a>>,
}

impl<'a> AttendParams<'a> {
    /// The usual scale, 1 / √`head_dim`, and no more.
    pub fn new(head_dim: u32) -> Self {
        let scale = inverse_sqrt(head_dim);
        Self { scale, window: None, soft_cap: None, sinks: None, alibi_slopes: None, mask: None }
    }

    /// Another scale.
    #[must_use]
    pub const fn with_scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// A sliding window of this many keys, the query's own included.
    #[must_use]
    pub const fn with_window(self, keys: u32) -> Self {
        Self { window: Some(keys), ..self }
    }

    /// Scores between −cap and cap.
    #[must_use]
    pub const fn with_soft_cap(self, cap: f32) -> Self {
        Self { soft_cap: Some(cap), ..self }
    }

    /// A sink per query head.
    #[must_use]
    pub const fn with_sinks(self, sinks: &'a [f32]) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// A slope per query head.
    #[must_use]
    pub const fn with_alibi_slopes(self, slopes: &'a [f32]) -> Self {
        Self { alibi_slopes: Some(slopes), ..self }
    }

    /// Which queries of its row a query sees.
    #[must_use]
    pub const fn with_mask(self, mask: QueryMask<'a>) -> Self {
        Self { mask: Some(mask), ..self }
    }
}

/// For every query token of a step, which query tokens of its own row it sees.
///
/// `words_per_token` words of 64 bits for each query token of the step, one after the other. Bit j of a token's words
/// (bit j % 64 of word j / 64) says whether it sees the row's query token number j, later ones included. What lies
/// before the row's first query token is seen by all; a window holds beside the mask.
///
/// # Example
/// One row of four speculative tokens: 0 is the root, 1 and 2 are its children, 3 is a child of 2.
/// ```text
/// token   sees      bits
///   0     0         0001
///   1     0 1       0011
///   2     0 2       0101
///   3     0 2 3     1101
/// ```
/// ```
/// use paged_kv::storage::{AttendParams, QueryMask};
///
/// let tree = [0b0001, 0b0011, 0b0101, 0b1101];
/// let params = AttendParams::new(128).with_mask(QueryMask { words: &tree, words_per_token: 1 });
/// # let _ = params;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueryMask<'a> {
    /// `[T, words_per_token]`.
    pub words: &'a [u64],
    /// Words of one token: at least a 64th of the query tokens of the longest row, rounded up.
    pub words_per_token: u32,
}

/// 1 / √x by Newton's method: `core` has no square root, and a storage may live without `std`. Seven rounds from a
/// start within a factor of two reach the last bit of f64, of which f32 keeps 24.
fn inverse_sqrt(x: u32) -> f32 {
    let x = f64::from(x.max(1));
    // Half the exponent, turned around: within a factor of √2 of the result for any normal number.
    let mut y = f64::from_bits(0x5fe6_eb50_c7b5_37a9 - (x.to_bits() >> 1));
    for _ in 0..7 {
        y *= 1.5 - 0.5 * x * y * y;
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    let y = y as f32;
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_scale_is_one_over_the_root_of_head_dim() {
        // Exact powers of four, and 1 / √128 = 0.08838834764831845 (f64).
        assert_eq!(AttendParams::new(64).scale, 0.125);
        assert_eq!(AttendParams::new(256).scale, 0.0625);
        assert_eq!(AttendParams::new(1).scale, 1.0);
        assert_eq!(AttendParams::new(128).scale, 0.088_388_346); // the f32 nearest to it
    }
}
