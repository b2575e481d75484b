//! The figures: a table for people, JSON for programs.

use core::fmt;

use comfy_table::{Table, presets};
use serde::Serialize;

/// All figures of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) device: String,
    /// GB/s of the pass that only reads.
    pub(crate) read_gb_s: f64,
    pub(crate) rows: Vec<Row>,
    /// Shapes that did not fit the pool, or the time.
    pub(crate) skipped: Vec<String>,
}

/// One shape.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// `decode`, `prefill`, `copy`, `swap out` or `swap in`.
    pub(crate) what: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) batch: u32,
    pub(crate) context: u32,
    pub(crate) head_dim: u32,
    pub(crate) group: u32,
    /// Microseconds, the median.
    pub(crate) us: f64,
    /// Of K and V that are read, or bytes that are moved.
    pub(crate) gb_s: f64,
    /// As a share of the pass that only reads.
    pub(crate) of_read: f64,
    /// Multiply-adds, times two.
    pub(crate) tflop_s: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, reading only: {:.0} GB/s", self.device, self.read_gb_s)?;
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["", "pool", "batch", "context", "head_dim", "group", "us", "GB/s", "of reading", "TFLOP/s"]);
        for row in &self.rows {
            table.add_row([
                row.what.to_owned(),
                row.dtype.to_owned(),
                row.batch.to_string(),
                row.context.to_string(),
                row.head_dim.to_string(),
                row.group.to_string(),
                format!("{:.1}", row.us),
                format!("{:.0}", row.gb_s),
                format!("{:.0} %", row.of_read * 100.0),
                format!("{:.1}", row.tflop_s),
            ]);
        }
        write!(f, "{table}")?;
        if !self.skipped.is_empty() {
            write!(f, "\nskipped: {}", self.skipped.join(", "))?;
        }
        Ok(())
    }
}
