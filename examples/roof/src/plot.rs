//! The picture: a bar for each row, as long as decode is fast, and where the two roofs are.

use command_line::WriteError;
use plotters::prelude::*;

use crate::report::{Report, Row};

/// Pixels: the picture's width, what is left and right of the bars, above the first, under the last, and of a row.
const WIDTH: i32 = 900;
const LEFT: i32 = 190;
const RIGHT: i32 = 60;
const HEAD: i32 = 84;
const FOOT: i32 = 52;
const ROW: i32 = 22;
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(225, 225, 225);
const SEQUENTIAL: RGBColor = INK;
/// Colours that stay apart for all kinds of colour vision (Okabe and Ito, 2008).
const SCATTERED: RGBColor = RGBColor(213, 94, 0);
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(86, 180, 233), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The picture cannot be drawn.
    #[error("the picture cannot be drawn: {0}")]
    Draw(String),
}

/// The picture of a report, as SVG.
///
/// # Errors
/// [`PlotError::Draw`]; none in practice.
pub fn svg(report: &Report) -> Result<String, PlotError> {
    let mut out = String::new();
    draw(report, &mut out).map_err(|error| PlotError::Draw(error.to_string()))?;
    Ok(out)
}

fn draw(report: &Report, out: &mut String) -> Result<(), Box<dyn core::error::Error>> {
    let rows = i32::try_from(report.rows.len())?;
    let bottom = HEAD + rows * ROW;
    let size = (WIDTH.unsigned_abs(), (bottom + FOOT).unsigned_abs());
    let root = SVGBackend::with_string(out, size).into_drawing_area();
    root.fill(&WHITE)?;
    let scale = Scale::of(&report.rows);
    let ink = |size: u32| ("sans-serif", size).into_font().color(&INK);
    let text = |text: String, at: (i32, i32), size: u32| Text::new(text, at, ink(size));
    root.draw(&text("Decode on the CPU, and how fast the same memory can be read".to_owned(), (12, 12), 20))?;
    let about = format!("GB/s at median times. {}", report.load_line());
    root.draw(&text(about, (12, bottom + 30), 14))?;
    for (x, colour, label) in [(LEFT, SEQUENTIAL, "read sequentially"), (LEFT + 190, SCATTERED, "read block by block")]
    {
        root.draw(&Rectangle::new([(x, 46), (x + 4, 62)], colour.filled()))?;
        root.draw(&text(label.to_owned(), (x + 12, 47), 14))?;
    }
    for tick in 0..=scale.ticks {
        let rate = f64::from(tick) * scale.step;
        let x = scale.x(rate);
        root.draw(&PathElement::new(vec![(x, HEAD - 6), (x, bottom)], GRID))?;
        root.draw(&text(format!("{rate}"), (x - 5, bottom + 6), 14))?;
    }
    let mut dtypes: Vec<&str> = report.rows.iter().map(|row| row.dtype).collect();
    dtypes.dedup();
    for (row, index) in report.rows.iter().zip(0..) {
        let top = HEAD + index * ROW;
        let colour = dtypes.iter().position(|&dtype| dtype == row.dtype).unwrap_or(0) % COLOURS.len();
        let end = scale.x(row.gb_s);
        root.draw(&text(row.name(), (12, top + 2), 14))?;
        root.draw(&Rectangle::new([(LEFT, top + 3), (end, top + ROW - 5)], COLOURS[colour].filled()))?;
        for (rate, colour) in [(row.sequential_gb_s, SEQUENTIAL), (row.scattered_gb_s, SCATTERED)] {
            let x = scale.x(rate);
            root.draw(&Rectangle::new([(x - 2, top + 1), (x + 2, top + ROW - 3)], colour.filled()))?;
        }
        let roof = scale.x(row.sequential_gb_s.max(row.scattered_gb_s).max(row.gb_s));
        root.draw(&text(format!("{:.0} %", 100.0 * row.of_sequential), (roof + 8, top + 2), 14))?;
    }
    root.present()?;
    Ok(())
}

/// From GB/s to pixels.
struct Scale {
    ticks: i32,
    /// GB/s from a tick to the next.
    step: f64,
}

impl Scale {
    /// At most ten ticks at round numbers, the last beyond every rate.
    fn of(rows: &[Row]) -> Self {
        let rates = rows.iter().flat_map(|row| [row.gb_s, row.sequential_gb_s, row.scattered_gb_s]);
        let most = rates.fold(1.0, f64::max);
        let step = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];
        let step = step.into_iter().find(|step| most / step <= 10.0).unwrap_or(most);
        #[expect(clippy::cast_possible_truncation, reason = "at most ten")]
        let ticks = (most / step).ceil() as i32;
        Self { ticks, step }
    }

    fn x(&self, rate: f64) -> i32 {
        let share = rate / (f64::from(self.ticks) * self.step);
        #[expect(clippy::cast_possible_truncation, reason = "pixels of a picture")]
        let along = (share * f64::from(WIDTH - LEFT - RIGHT)).round() as i32;
        LEFT + along
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn the_scale_ends_beyond_the_fastest_rate_at_a_round_number() {
        // 20 GB/s at most: ten ticks, two apart; 650 pixels of 900 for them.
        let scale = Scale::of(&report().rows);
        assert_eq!((scale.ticks, scale.step), (10, 2.0));
        assert_eq!((scale.x(0.0), scale.x(20.0), scale.x(10.0)), (190, 840, 515));
    }

    #[test]
    fn every_row_has_a_name_and_its_share_of_the_roof() {
        let svg = svg(&report()).unwrap();
        for what in ["bf16 8x1024, 1 thread\n", "bf16 8x1024, 2 threads\n", "80 %", "60 %", "load 0.50 before"] {
            assert!(svg.contains(what), "{what}");
        }
    }
}
