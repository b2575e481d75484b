//! The picture: the share of blocks found over sizes of the cache, a line for each policy.

use std::path::{Path, PathBuf};

use command_line::{PlotFile, WriteError, grouped};
use plotters::prelude::*;

use crate::policy::Policy;
use crate::report::Report;

/// Width and height, in pixels.
const SIZE: (u32, u32) = (900, 540);
/// Pixels left of the axis, from the top to the middle of the legend, and that a row of it takes.
const LEFT: i32 = 76;
const LEGEND_Y: i32 = 64;
const LEGEND_ROW: i32 = 24;
/// Pixels that the label of a size takes, with room between.
const LABEL_WIDTH: f64 = 64.0;
const INK: RGBColor = RGBColor(51, 51, 51);
const GREY: RGBColor = RGBColor(140, 140, 140);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Colours that stay apart for all kinds of colour vision (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The picture would replace the trace.
    #[error("--plot {} is the trace", .0.display())]
    OverTrace(PathBuf),
    /// The picture cannot be drawn.
    #[error("the picture cannot be drawn: {0}")]
    Draw(String),
}

/// The file of the picture, which is not that of the trace.
///
/// # Errors
/// [`PlotError`].
pub fn file(path: &Path, trace: &Path) -> Result<PlotFile, PlotError> {
    let same = |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
    if same(path, trace) {
        return Err(PlotError::OverTrace(path.to_owned()));
    }
    Ok(PlotFile::open(path)?)
}

/// The picture of a report, as SVG.
///
/// # Errors
/// [`PlotError::Draw`]; none in practice.
pub fn svg(report: &Report) -> Result<String, PlotError> {
    let mut out = String::new();
    draw(report, SVGBackend::with_string(&mut out, SIZE)).map_err(|error| PlotError::Draw(error.to_string()))?;
    Ok(out)
}

/// The points of a policy, in ascending order of size: blocks, and percent found.
fn points(report: &Report, policy: &str) -> Vec<(f64, f64)> {
    let rows = report.results.iter().filter(|row| row.policy == policy);
    let mut points: Vec<(f64, f64)> = rows.map(|row| (row.capacity.into(), 100.0 * row.block_hit_rate)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn draw(report: &Report, backend: SVGBackend<'_>) -> Result<(), Box<dyn core::error::Error>> {
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let mut sizes: Vec<f64> = report.results.iter().map(|row| row.capacity.into()).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let (Some(&first), Some(&last)) = (sizes.first(), sizes.last()) else { return Ok(()) };
    // A margin at both ends, which is a stretch to draw on where there is one size only.
    let margin = (last / first).powf(0.04).max(1.1);
    let range = first / margin..last * margin;
    let best = report.results.iter().map(|row| 100.0 * row.block_hit_rate).fold(0.0, f64::max);
    let top = ((best * 1.04 / 5.0).ceil() * 5.0).clamp(5.0, 100.0);
    let labelled = labelled(&sizes, (range.end / range.start).ln());

    let ink = |size: u32| ("sans-serif", size).into_font().color(&INK);
    root.draw(&Text::new("Prompt blocks found in the cache", (LEFT, 20), ink(24)))?;
    let mut policies: Vec<&str> = Vec::new();
    for row in &report.results {
        if !policies.contains(&row.policy) {
            policies.push(row.policy);
        }
    }
    let legend = legend(&policies);
    let head = legend.last().map_or(LEGEND_Y, |last| last.1) + LEGEND_ROW;

    let mut chart = ChartBuilder::on(&root)
        .margin_top(head)
        .margin_right(30)
        .margin_bottom(12)
        .margin_left(12)
        .x_label_area_size(54)
        .y_label_area_size(LEFT - 12)
        .build_cartesian_2d(range.log_scale().with_key_points(labelled), 0.0..top)?;
    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(ink(15))
        .axis_desc_style(ink(18))
        .x_desc("size of the cache in blocks, logarithmic")
        .y_desc("% of all prompt blocks")
        .x_label_formatter(&|blocks| grouped(blocks.round()))
        .y_labels(11)
        .y_label_formatter(&|percent| format!("{percent}"))
        .draw()?;

    for (number, (&policy, (left, middle))) in policies.iter().zip(legend).enumerate() {
        let style = Style::of(policy, number);
        let at: Vec<(i32, i32)> = points(report, policy).iter().map(|point| chart.backend_coord(point)).collect();
        style.line(&root, &at)?;
        style.line(&root, &[(left, middle), (left + 34, middle)])?;
        for at in at.into_iter().chain([(left + 17, middle)]) {
            style.mark(&root, at)?;
        }
        root.draw(&Text::new(title(policy), (left + 42, middle - 8), ink(17)))?;
    }
    root.present()?;
    Ok(())
}

/// What the legend calls a policy.
fn title(policy: &str) -> &str {
    if policy == Policy::Belady.name() { "belady (offline optimum)" } else { policy }
}

/// Where the samples of the policies begin, in as many rows as they need.
fn legend(policies: &[&str]) -> Vec<(i32, i32)> {
    let (mut left, mut middle) = (LEFT, LEGEND_Y);
    let place = |policy: &&str| {
        // A sample, about 8 pixels a letter, and a gap.
        let width = 42 + 8 * i32::try_from(title(policy).len()).unwrap_or(0) + 18;
        if left + width > SIZE.0.cast_signed() && left > LEFT {
            (left, middle) = (LEFT, middle + LEGEND_ROW);
        }
        left += width;
        (left - width, middle)
    };
    policies.iter().map(place).collect()
}

/// The sizes that get a label: the first, and behind it as many as have room. `width` is that of the axis, as a
/// logarithm.
fn labelled(sizes: &[f64], width: f64) -> Vec<f64> {
    let gap = width * LABEL_WIDTH / f64::from(SIZE.0 - LEFT.unsigned_abs());
    let far = |a: f64, b: f64| (b / a).ln() >= gap;
    let mut kept: Vec<f64> = Vec::new();
    for &size in sizes {
        if kept.last().is_none_or(|&before| far(before, size)) {
            kept.push(size);
        }
    }
    kept
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn core::error::Error>>;

/// How a policy is told from the others: by colour and by mark.
struct Style {
    colour: RGBColor,
    /// The bounds of all others are dashed, and of no colour.
    dash: Option<(i32, i32)>,
    mark: usize,
}

impl Style {
    fn of(policy: &str, number: usize) -> Self {
        match Policy::named(policy) {
            Some(Policy::Belady) => Self { colour: INK, dash: Some((7, 4)), mark: 0 },
            Some(Policy::BeladyHeld) => Self { colour: GREY, dash: Some((2, 3)), mark: 2 },
            _ => Self { colour: COLOURS[number % COLOURS.len()], dash: None, mark: number },
        }
    }

    fn line(&self, area: &Area<'_>, points: &[(i32, i32)]) -> Drawn {
        let stroke = self.colour.stroke_width(2);
        if let Some((dash, gap)) = self.dash {
            area.draw(&plotters::element::DashedPathElement::new(points.iter().copied(), dash, gap, stroke))?;
        } else {
            area.draw(&PathElement::new(points.to_vec(), stroke))?;
        }
        Ok(())
    }

    fn mark(&self, area: &Area<'_>, at: (i32, i32)) -> Drawn {
        let filled = self.colour.filled();
        match self.mark % 4 {
            0 => area.draw(&Circle::new(at, 4, filled))?,
            1 => area.draw(&TriangleMarker::new(at, 6, filled))?,
            2 => area.draw(&Rectangle::new([(at.0 - 4, at.1 - 4), (at.0 + 4, at.1 + 4)], filled))?,
            _ => {
                let (left, top, right, bottom) =
                    ((at.0 - 5, at.1), (at.0, at.1 - 5), (at.0 + 5, at.1), (at.0, at.1 + 5));
                area.draw(&Polygon::new(vec![left, top, right, bottom], filled))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_that_is_too_wide_takes_another_row() {
        assert_eq!(legend(&["lru", "belady"]), [(76, 64), (160, 64)]);
        let many = legend(&["lru"; 12]);
        assert_eq!((many[8], many[9], many[11]), ((748, 64), (76, 88), (244, 88)));
    }

    #[test]
    fn labels_keep_their_distance() {
        let sizes = [1000.0, 1001.0, 2000.0, 5000.0, 10_000.0];
        assert_eq!(labelled(&sizes, 10f64.ln()), [1000.0, 2000.0, 5000.0, 10_000.0]);
        assert_eq!(labelled(&[7.0], 2f64.ln()), [7.0]);
    }
}
