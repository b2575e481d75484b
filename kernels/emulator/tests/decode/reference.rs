//! Attention in `f64`, and how far off the kernel may be.

use super::rig::{Case, Outputs, Type};

/// Compares; returns the largest error of an output as a share of what is allowed.
///
/// Let u be the largest relative error of rounding to the 16-bit type of the MMA, e = 2⁻²⁴ that of `f32`, S the largest
/// |scale| Σ |q k| of the keys. A score is off by
/// * u S where queries are rounded (0 where they are of that type already),
/// * (`head_dim` + 3) e S for the sum, the scale and the change of base, and 2 e |score| for the exponent's own rounding,
/// * 8 e c under a soft cap c, and 4 e |bias| for a bias.
///
/// A weighted mean moves by at most twice the relative error of its weights times the largest |v|. A weight's is that
/// of its score and 4 e of the exponential, and, in the sum of V alone, u of its rounding; weights below 2⁻¹⁴ of the
/// largest are subnormal in f16, off by 2⁻²⁵ of it each. Sums of n weights in four warps add n / 64 + 80 roundings,
/// twice. At last u of the output's type.
pub(crate) fn check(case: &Case, outputs: &Outputs) -> Result<f64, String> {
    let (mut worst, mut heads, mut lses) = (0.0_f64, outputs.out.chunks(case.head_dim), outputs.lse.iter());
    let e = 2.0_f64.powi(-24);
    let inner = case.pool.of_queries();
    let (u, u_q) = (inner.unit(), if case.q == inner { 0.0 } else { inner.unit() });
    for (index, row) in case.rows.iter().enumerate() {
        let read = |part| -> Vec<Vec<Vec<f32>>> {
            let heads = |at| (0..case.kv_heads).map(|head| case.token(part, index, at, head)).collect();
            (0..row.start + row.len).map(heads).collect()
        };
        let (keys, values) = (read(0), read(1));
        for query in 0..row.len {
            let position = row.start + query;
            for head in 0..case.q_heads() {
                let kv = head / case.group;
                let q: Vec<f64> =
                    (0..case.head_dim).map(|d| f64::from(case.number(2, index, position, head, d))).collect();
                let hole = |key: usize| {
                    let block = key / case.block_size;
                    case.holes.contains(&(index, block)) || case.table_len.is_some_and(|len| block >= len)
                };
                let seen: Vec<usize> =
                    (0..row.start + row.len).filter(|&key| case.sees(*row, query, key) && !hole(key)).collect();
                let mut size = 0.0_f64;
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|&at| {
                        let products = q.iter().zip(&keys[at][kv]).map(|(q, k)| q * f64::from(*k));
                        let (dot, sum) = products.fold((0.0, 0.0), |(dot, sum), x| (dot + x, sum + x.abs()));
                        let scale = f64::from(case.scale);
                        let mut score = dot * scale;
                        let s = sum * scale.abs();
                        let mut error = u_q * s + (case.head_dim as f64 + 3.0) * e * s;
                        if case.soft_cap > 0.0 {
                            let cap = f64::from(case.soft_cap);
                            score = cap * (score / cap).tanh();
                            error += 8.0 * e * cap;
                        }
                        let bias = f64::from(case.slope(head)) * (at as f64 - position as f64);
                        score += bias;
                        size = size.max(error + 4.0 * e * bias.abs() + 2.0 * e * score.abs());
                        score
                    })
                    .collect();
                let sink = case.sink(head).map(f64::from);
                // A maximum ignores NaN, which is in the sum.
                let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
                let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
                let sums = (seen.len() as f64 / 64.0 + 80.0) * e;
                let largest =
                    seen.iter().flat_map(|&at| &values[at][kv]).fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
                let small =
                    if inner == Type::F16 && total > 0.0 { 2.0_f64.powi(-25) * seen.len() as f64 / total } else { 0.0 };
                let relative = 2.0 * (size + 4.0 * e).exp_m1() + u + small + 2.0 * sums;
                let got = heads.next().ok_or("outputs are missing")?;
                let place = format!("row {index}, query {query}, head {head}");
                for (d, &got) in got.iter().enumerate() {
                    let want = if total == 0.0 {
                        0.0
                    } else {
                        weights
                            .iter()
                            .zip(&seen)
                            .map(|(weight, &at)| weight * f64::from(values[at][kv][d]))
                            .sum::<f64>()
                            / total
                    };
                    let allowed = relative * largest + want.abs() * case.out.unit() + 1e-38;
                    let share = (f64::from(got) - want).abs() / allowed;
                    let right = if want.is_nan() { got.is_nan() } else { share <= 1.0 };
                    if !right {
                        return Err(format!("{place}, element {d}: {got} where {want} ± {allowed:e} is right"));
                    }
                    worst = if want.is_nan() { worst } else { worst.max(share) };
                }
                let lse = f64::from(*lses.next().ok_or("log-sum-exps are missing")?);
                let want = if total == 0.0 { f64::NEG_INFINITY } else { top + total.ln() };
                let allowed = size + sums + 4.0 * e + 5.0 * e * (top.abs() + want.abs() + 1.0);
                let right = lse == want || (lse - want).abs() <= allowed || (lse.is_nan() && want.is_nan());
                if !right {
                    return Err(format!("{place}: log-sum-exp {lse} where {want} ± {allowed:e} is right"));
                }
            }
        }
    }
    if !heads.all(|head| head.iter().all(|x| x.to_bits() == 0)) || !lses.all(|lse| *lse == f32::NEG_INFINITY) {
        return Err("padding gets other than zeros and minus infinity".into());
    }
    Ok(worst)
}
