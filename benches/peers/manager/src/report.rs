//! Medians and minima, as a table or as JSON.

use std::fmt::Write;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};

use crate::clock::Clock;

/// Nanoseconds per operation, of every column.
#[derive(Debug)]
pub(crate) struct Line {
    name: String,
    unit: &'static str,
    samples: Vec<Vec<f64>>,
}

/// Everything measured.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// What a column's samples say.
#[derive(Clone, Copy, Debug)]
struct Summary {
    median_ns: f64,
    min_ns: f64,
}

impl Line {
    pub(crate) fn new(name: String, unit: &'static str, columns: usize) -> Self {
        Self { name, unit, samples: vec![Vec::new(); columns] }
    }

    pub(crate) fn push(&mut self, column: usize, ns: f64) {
        self.samples[column].push(ns);
    }

    fn summaries(&self) -> Vec<Option<Summary>> {
        self.samples.iter().map(|samples| summary(samples)).collect()
    }
}

fn summary(samples: &[f64]) -> Option<Summary> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    let median_ns = if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + upper) / 2.0 } else { upper };
    Some(Summary { median_ns, min_ns: sorted[0] })
}

impl Report {
    pub(crate) fn table(&self, clock: &Clock) -> String {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        let columns = self.columns.iter().map(String::as_str);
        table.set_header(["", "per"].into_iter().chain(columns));
        for line in &self.lines {
            let summaries = line.summaries();
            let first = summaries.first().copied().flatten();
            let mut row = vec![line.name.clone(), line.unit.to_owned()];
            for (index, summary) in summaries.iter().enumerate() {
                row.push(match (summary, first) {
                    (None, _) => "-".to_owned(),
                    (Some(it), Some(first)) if index > 0 => {
                        let ratio = it.median_ns / first.median_ns;
                        format!("{} ({})\n{ratio:.2} x", time(it.median_ns), time(it.min_ns))
                    }
                    (Some(it), _) => format!("{} ({})", time(it.median_ns), time(it.min_ns)),
                });
            }
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{}\n{table}\n", self.title);
        write!(
            text,
            "thread CPU time: median (minimum), and the median over that of the first column; reading the clock takes \
             {} ns, which is taken off every interval",
            clock.overhead_ns()
        )
        .expect("a string takes all");
        text
    }

    pub(crate) fn json(&self, clock: &Clock) -> String {
        let lines: Vec<Value> = self.lines.iter().map(|line| self.json_line(line)).collect();
        json!({
            "title": self.title,
            "clock": "thread CPU time",
            "clock_overhead_ns": clock.overhead_ns(),
            "columns": self.columns,
            "lines": lines,
        })
        .to_string()
    }

    fn json_line(&self, line: &Line) -> Value {
        let summaries = line.summaries();
        let first = summaries.first().copied().flatten();
        let mut results = Map::new();
        for ((column, summary), samples) in self.columns.iter().zip(summaries).zip(&line.samples) {
            let (Some(summary), Some(first)) = (summary, first) else { continue };
            let result = json!({
                "median_ns": summary.median_ns,
                "min_ns": summary.min_ns,
                "ratio_of_medians": summary.median_ns / first.median_ns,
                "samples": samples.len(),
            });
            results.insert(column.clone(), result);
        }
        json!({ "name": line.name, "per": line.unit, "results": results })
    }
}

/// Nanoseconds for people.
fn time(ns: f64) -> String {
    match ns {
        ..100.0 => format!("{ns:.1} ns"),
        ..1_000.0 => format!("{ns:.0} ns"),
        ..10_000.0 => format!("{:.2} µs", ns / 1e3),
        ..100_000.0 => format!("{:.1} µs", ns / 1e3),
        _ => format!("{:.0} µs", ns / 1e3),
    }
}
