//! Attention over a set of keys from attention over its parts.

use crate::storage::StorageError;

/// Joins attention over further keys to `out` `[heads, v_dim]` and `lse` `[heads]`: what attention over both sets of keys
/// at once gives, up to rounding. The sets have no key in common, and a sink was given to one of them at most.
///
/// `heads` stands for any number of query tokens and heads, dense, as
/// [`attend`](crate::storage::KvStorage::attend) leaves them with
/// [`CpuTensorMut::with_lse`](crate::storage::CpuTensorMut::with_lse). Parts may be of any number and are joined one
/// after the other: contexts in several storages, on several machines, or a prefix that many requests share.
///
/// # Errors
/// [`StorageError::States`] where the lengths do not fit together; nothing is written then.
///
/// # Example
/// Two keys of equal weight, each on its own: the mean of their values, and ln (e⁰ + e⁰).
/// ```
/// use paged_kv::storage::merge_states;
///
/// let (mut out, mut lse) = ([1.0, 2.0], [0.0]);
/// merge_states(&mut out, &mut lse, &[3.0, 6.0], &[0.0])?;
/// assert_eq!(out, [2.0, 4.0]);
/// assert!((lse[0] - 2.0_f32.ln()).abs() < 1e-6);
/// # Ok::<(), paged_kv::storage::StorageError>(())
/// ```
///
/// # Source
/// Ye et al., "Cascade Inference" (FlashInfer, 2024); the joining step of FlashAttention (Dao et al., 2022, section 3.1).
pub fn merge_states(
    out: &mut [f32],
    lse: &mut [f32],
    other_out: &[f32],
    other_lse: &[f32],
) -> Result<(), StorageError> {
    let heads = lse.len();
    let fits = out.len() == other_out.len() && heads == other_lse.len();
    let v_dim = out.len().checked_div(heads).unwrap_or(0);
    if !fits || v_dim * heads != out.len() {
        let (outs, lses) = ([out.len(), other_out.len()], [heads, other_lse.len()]);
        return Err(StorageError::States { outs, lses });
    }
    if v_dim == 0 {
        return Ok(());
    }
    let others = other_out.chunks_exact(v_dim).zip(other_lse);
    for ((out, lse), (other_out, &other_lse)) in out.chunks_exact_mut(v_dim).zip(lse).zip(others) {
        if [*lse, other_lse] == [f32::NEG_INFINITY; 2] {
            // Neither has seen anything: zeros stay zeros.
            continue;
        }
        let top = lse.max(other_lse);
        let (here, there) = ((*lse - top).exp(), (other_lse - top).exp());
        let sum = here + there;
        for (out, other) in out.iter_mut().zip(other_out) {
            *out = (*out * here + other * there) / sum;
        }
        *lse = top + sum.ln();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Sums of e^score over keys, and their weighted values, in f64.
    fn whole(keys: &[(f64, f64)]) -> (f64, f64) {
        let sum: f64 = keys.iter().map(|(score, _)| score.exp()).sum();
        (keys.iter().map(|(score, value)| score.exp() * value).sum::<f64>() / sum, sum.ln())
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "test values")]
    fn parts_give_what_the_whole_gives() {
        let keys: Vec<_> = (0..30).map(|i| (f64::from(i * 7 % 11) - 5.0, f64::from(i * 5 % 13) - 6.0)).collect();
        for cut in [1, 10, 29] {
            let (left, right, all) = (whole(&keys[..cut]), whole(&keys[cut..]), whole(&keys));
            let (mut out, mut lse) = ([left.0 as f32], [left.1 as f32]);
            merge_states(&mut out, &mut lse, &[right.0 as f32], &[right.1 as f32]).unwrap();
            // Values up to 6 and scores up to 6: some roundings of 6 × 2⁻²⁴ each.
            assert!((f64::from(out[0]) - all.0).abs() < 5e-6 && (f64::from(lse[0]) - all.1).abs() < 5e-6);
        }
    }

    #[test]
    fn a_part_that_saw_nothing_adds_nothing() {
        let nothing = f32::NEG_INFINITY;
        let (mut out, mut lse) = ([1.0, 2.0, 0.0, 0.0, 0.0, 0.0], [0.5, nothing, nothing]);
        let (other, other_lse) = ([0.0, 0.0, 3.0, 4.0, 0.0, 0.0], [nothing, 0.25, nothing]);
        merge_states(&mut out, &mut lse, &other, &other_lse).unwrap();
        assert_eq!(out, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
        assert_eq!(lse, [0.5, 0.25, nothing]);
        // However far apart: the smaller one weighs e^−200, which is 0 in f32.
        let (mut out, mut lse) = ([1.0], [100_000.0]);
        merge_states(&mut out, &mut lse, &[9.0], &[-100_000.0]).unwrap();
        assert_eq!((out, lse), ([1.0], [100_000.0]));
    }

    #[test]
    fn a_part_that_is_not_a_number_stays_so_from_either_side() {
        let nothing = f32::NEG_INFINITY;
        for (mine, other) in [((0.0, nothing), (f32::NAN, f32::NAN)), ((f32::NAN, f32::NAN), (0.0, nothing))] {
            let (mut out, mut lse) = ([mine.0], [mine.1]);
            merge_states(&mut out, &mut lse, &[other.0], &[other.1]).unwrap();
            assert!(out[0].is_nan() && lse[0].is_nan());
        }
    }

    #[test]
    fn lengths_that_do_not_fit_change_nothing() {
        for (out_len, lse_len, other_len, other_lse_len) in [(4, 2, 3, 2), (4, 2, 4, 1), (5, 2, 5, 2), (1, 0, 1, 0)] {
            let (mut out, mut lse) = (alloc::vec![1.0; out_len], alloc::vec![0.0; lse_len]);
            let (other, other_lse) = (alloc::vec![2.0; other_len], alloc::vec![0.0; other_lse_len]);
            let refused = merge_states(&mut out, &mut lse, &other, &other_lse);
            let (outs, lses) = ([out_len, other_len], [lse_len, other_lse_len]);
            assert_eq!(refused, Err(StorageError::States { outs, lses }));
            assert!(out.iter().all(|x| *x == 1.0));
        }
        assert_eq!(merge_states(&mut [], &mut [], &[], &[]), Ok(()));
        assert_eq!(merge_states(&mut [], &mut [0.0], &[], &[0.0]), Ok(()));
    }
}
