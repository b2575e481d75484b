//! How close decode on the CPU comes to the roof: the rate at which this machine can read memory at all.
//!
//! A decode step reads K and V of every context once and does little with each byte, so that memory bandwidth is its
//! limit. What that limit is depends on the machine and on who else uses it at the moment. So four passes over the memory
//! of one `CpuStorage` take turns in one run, in another order each round:
//!
//! | pass | reads |
//! |---|---|
//! | decode | K and V through `attend`, over block tables in random order |
//! | decode, contiguous | the same, over tables of consecutive blocks |
//! | sequential | the allocations from end to end, in big shares, adding up |
//! | scattered | the same blocks as decode, in the order of the tables, KV head by KV head, adding up |
//!
//! The two read-only passes run in two forms each ([`read::FORMS`]): every byte, at one place at a time; and one word
//! of every cache line, at four places. The better one is the roof. A pass goes on in the layers where the one before
//! it stopped, and comes back to a layer only when the whole pool has been read: the pool has to be much larger than
//! the caches.
//!
//! Bytes are those of K and V of the contexts, and of their scales where there are some; GB/s are 10⁹ bytes a second,
//! times those of a clock on the wall.
//!
//! | module | job |
//! |---|---|
//! | [`options`] | the command line, checked |
//! | [`pool`] | a storage with content, and tables over it |
//! | [`read`] | the read-only passes |
//! | [`measure`] | rounds and times |
//! | [`load`] | what else the figures depend on |
//! | [`report`], [`plot`] | JSON, a table, a picture |

pub mod error;
pub mod load;
pub mod measure;
pub mod options;
pub mod plot;
pub mod pool;
pub mod read;
pub mod report;

use std::ffi::OsString;
use std::io::Write;

use command_line::PlotFile;
use paged_kv::layout::DType;

use error::Error;
use load::Load;
use options::{Command, Options};
use plot::PlotError;
use report::Report;

/// The element types that can be measured, and their names: the one list to extend.
pub const DTYPES: [(&str, DType); 5] =
    [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16), ("int8", DType::I8), ("fp8", DType::F8E4M3)];

/// Runs a command line, the program's name first.
///
/// # Errors
/// [`Error`], to be shown on one line.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Error> {
    let options = match Options::parse(arguments)? {
        Command::Run(options) => options,
        Command::Show(text) => return std::io::stdout().write_all(text.as_bytes()).map_err(Error::Output),
    };
    // Before the long part, so that a path that cannot be written to is said at once.
    let plot = options.plot.as_deref().map(PlotFile::open).transpose().map_err(PlotError::from)?;
    let load = Load::now(&options)?;
    let rows = measure::measure(&options)?;
    let report = Report { load: load.ended(), rows };
    if let Some(plot) = plot {
        plot.write(&plot::svg(&report)?).map_err(PlotError::from)?;
    }
    let text =
        if options.json { report.to_json().map_err(|error| Error::Output(error.into()))? } else { report.to_text() };
    writeln!(std::io::stdout(), "{text}").map_err(Error::Output)
}
