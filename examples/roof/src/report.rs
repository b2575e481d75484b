//! What was measured: one JSON object for programs, a table for people.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::load::Load;
use crate::measure::{Rate, median};
use crate::options::Shape;

/// The object that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The machine and its load.
    pub load: Load,
    /// Element types, in each the shapes, in each the numbers of threads.
    pub rows: Vec<Row>,
}

/// The rates of the passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Attention over tables in random order.
    pub decode: Rate,
    /// Attention over tables of consecutive blocks.
    pub contiguous: Rate,
    /// The read-only pass over all memory.
    pub sequential: Rate,
    /// The read-only pass over the blocks in random order.
    pub scattered: Rate,
}

/// An element type, a shape and a number of threads. Rates are in GB/s of K and V at the median time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Element type of K and V.
    pub dtype: &'static str,
    /// Sequences.
    pub batch: u32,
    /// Tokens of each.
    pub context: u32,
    /// Threads at work.
    pub threads: usize,
    /// Decode over tables in random order.
    pub gb_s: f64,
    /// The sequential read-only pass.
    pub sequential_gb_s: f64,
    /// The scattered read-only pass.
    pub scattered_gb_s: f64,
    /// Decode as a share of the sequential pass.
    pub of_sequential: f64,
    /// Decode as a share of the scattered pass.
    pub of_scattered: f64,
    /// Time of decode over a table in random order, in times of one over consecutive blocks.
    pub paged_over_contiguous: f64,
    /// With the rates at the shortest times, for the table.
    #[serde(skip)]
    pub rates: Rates,
}

impl Row {
    /// The row of some rates.
    pub fn new(dtype: &'static str, shape: Shape, threads: usize, rates: &Rates) -> Self {
        let Rates { decode, contiguous, sequential, scattered } = *rates;
        Self {
            dtype,
            batch: shape.batch,
            context: shape.context,
            threads,
            gb_s: decode.median,
            sequential_gb_s: sequential.median,
            scattered_gb_s: scattered.median,
            of_sequential: decode.median / sequential.median,
            of_scattered: decode.median / scattered.median,
            // Times of the same bytes are in the inverse ratio of the rates.
            paged_over_contiguous: contiguous.median / decode.median,
            rates: *rates,
        }
    }

    /// What was measured, in words.
    pub fn name(&self) -> String {
        let threads = if self.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", self.threads) };
        format!("{} {}x{}, {threads}", self.dtype, self.batch, self.context)
    }
}

impl Report {
    /// The object on one line.
    ///
    /// # Errors
    /// None in practice: a number that is not finite becomes `null`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The table, with what it is about over it and what to know under it.
    pub fn to_text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "K and V",
            "batch",
            "context",
            "threads",
            "decode",
            "sequential",
            "scattered",
            "of sequential",
            "of scattered",
            "paged / contiguous",
        ]);
        for row in &self.rows {
            let Rates { decode, contiguous, sequential, scattered } = row.rates;
            table.add_row([
                row.dtype.to_owned(),
                row.batch.to_string(),
                row.context.to_string(),
                row.threads.to_string(),
                rate(decode),
                rate(sequential),
                rate(scattered),
                share(decode, sequential),
                share(decode, scattered),
                times(contiguous, decode),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut lines = vec![self.load_line(), table.to_string()];
        lines.push("GB/s and ratios at median times, and at the shortest ones in brackets.".to_owned());
        lines.extend(self.medians());
        lines.join("\n")
    }

    /// What the figures depend on.
    pub(crate) fn load_line(&self) -> String {
        let Load { cpus, isa, load_average, load_average_after, pool_mib, rounds } = self.load;
        let load = match (load_average, load_average_after) {
            (Some([before, ..]), Some([after, ..])) => format!("load {before:.2} before and {after:.2} after"),
            _ => "load unknown".to_owned(),
        };
        format!("{cpus} CPUs with {isa}, {load}; {pool_mib} MiB of K and V, {rounds} rounds")
    }

    /// A line for each element type: what holds for the middle one of its shapes.
    fn medians(&self) -> Vec<String> {
        let mut dtypes: Vec<&str> = self.rows.iter().map(|row| row.dtype).collect();
        dtypes.dedup();
        let most = self.rows.iter().map(|row| row.threads).max().unwrap_or(1);
        let line = |dtype: &str| {
            let rows = || self.rows.iter().filter(move |row| row.dtype == dtype);
            let middle = |values: &mut dyn Iterator<Item = f64>| {
                let mut values: Vec<f64> = values.collect();
                values.sort_by(f64::total_cmp);
                (!values.is_empty()).then(|| median(&values))
            };
            let mut line = format!(
                "{dtype}, median over shapes: {:.0} % of sequential, {:.0} % of scattered, paged / contiguous {:.3}",
                100.0 * middle(&mut rows().map(|row| row.of_sequential)).unwrap_or(f64::NAN),
                100.0 * middle(&mut rows().map(|row| row.of_scattered)).unwrap_or(f64::NAN),
                middle(&mut rows().map(|row| row.paged_over_contiguous)).unwrap_or(f64::NAN),
            );
            let pairs = || {
                rows().filter(|row| row.threads == most && most > 1).filter_map(move |many| {
                    let shape = |row: &Row| (row.batch, row.context);
                    Some((many, rows().find(|one| one.threads == 1 && shape(one) == shape(many))?))
                })
            };
            let decode = middle(&mut pairs().map(|(many, one)| many.gb_s / one.gb_s));
            let read = middle(&mut pairs().map(|(many, one)| many.sequential_gb_s / one.sequential_gb_s));
            if let (Some(decode), Some(read)) = (decode, read) {
                line.push_str(&format!("; {most} threads over 1: decode {decode:.2}, sequential {read:.2}"));
            }
            line + "."
        };
        dtypes.into_iter().map(line).collect()
    }
}

fn rate(rate: Rate) -> String {
    format!("{:.1} ({:.1})", rate.median, rate.best)
}

fn share(of: Rate, roof: Rate) -> String {
    format!("{:.0} % ({:.0} %)", 100.0 * of.median / roof.median, 100.0 * of.best / roof.best)
}

fn times(of: Rate, over: Rate) -> String {
    format!("{:.3} ({:.3})", of.median / over.median, of.best / over.best)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row on one thread, and one on two that is 1.5 times as fast, with a roof that is twice as fast.
    pub(crate) fn report() -> Report {
        let rate = |median| Rate { median, best: 1.25 * median };
        let rates = |decode, roof| Rates {
            decode: rate(decode),
            contiguous: Rate { median: 1.01 * decode, best: decode },
            sequential: rate(roof),
            scattered: rate(0.8 * roof),
        };
        let shape = Shape { batch: 8, context: 1024 };
        let load = Load {
            cpus: 2,
            isa: "avx512",
            load_average: Some([0.5, 1.0, 1.5]),
            load_average_after: Some([1.5, 1.0, 1.5]),
            pool_mib: 1024,
            rounds: 31,
        };
        let rows = vec![Row::new("bf16", shape, 1, &rates(8.0, 10.0)), Row::new("bf16", shape, 2, &rates(12.0, 20.0))];
        Report { load, rows }
    }

    #[test]
    fn json_has_the_documented_names_in_order() {
        let expected = concat!(
            r#"{"load":{"cpus":2,"isa":"avx512","load_average":[0.5,1.0,1.5],"load_average_after":[1.5,1.0,1.5],"#,
            r#""pool_mib":1024,"rounds":31},"rows":[{"dtype":"bf16","batch":8,"context":1024,"threads":1,"gb_s":8.0,"#,
            r#""sequential_gb_s":10.0,"scattered_gb_s":8.0,"of_sequential":0.8,"of_scattered":1.0,"#,
            r#""paged_over_contiguous":1.01},"#
        );
        let json = report().to_json().unwrap();
        assert!(json.starts_with(expected), "{json}");
    }

    #[test]
    fn the_table_says_medians_best_times_load_and_scaling() {
        let text = report().to_text();
        for what in [
            "2 CPUs with avx512, load 0.50 before and 1.50 after; 1024 MiB",
            "8.0 (10.0)",
            "80 % (80 %)",
            // Contiguous at its best is at 1 / 1.25 of decode's best.
            "1.010 (0.800)",
            "bf16, median over shapes: 70 % of sequential, 88 % of scattered, paged / contiguous 1.010",
            "2 threads over 1: decode 1.50, sequential 2.00.",
        ] {
            assert!(text.contains(what), "{what}: {text}");
        }
    }
}
