//! Lines over the steps of runs, as a picture.

use std::error::Error as AnyError;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

use crate::checkpoint::durable::replace;
use crate::error::{Error, Result};

/// A line never has more points than this, and so takes the same memory however long the run is.
const POINTS: usize = 800;
/// The colors of the first lines. Those of more have other hues, all around the circle.
const COLORS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];
/// The part of a circle by which points are far apart, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Values over steps: every point is the mean of `each` values, and the last one of those that are still too few.
#[derive(Debug)]
pub(super) struct CurveLine {
    pub points: Vec<(f64, f64)>,
    each: usize,
    /// The values since the last point: their sums, and how many.
    open: (f64, f64, usize),
}

impl CurveLine {
    pub fn new() -> Self {
        Self { points: Vec::with_capacity(POINTS), each: 1, open: (0.0, 0.0, 0) }
    }

    /// Adds a value. What is not finite is left out.
    pub fn push(&mut self, step: f64, value: f64) {
        if !value.is_finite() {
            return;
        }
        let (steps, values, count) = self.open;
        self.open = (steps + step, values + value, count + 1);
        if self.open.2 == self.each {
            self.points.extend(self.last());
            self.open = (0.0, 0.0, 0);
        }
        if self.points.len() == POINTS {
            let mean = |pair: &[(f64, f64)]| ((pair[0].0 + pair[1].0) / 2.0, (pair[0].1 + pair[1].1) / 2.0);
            (0..POINTS / 2).for_each(|index| self.points[index] = mean(&self.points[2 * index..2 * index + 2]));
            self.points.truncate(POINTS / 2);
            self.each *= 2;
        }
    }

    /// The mean of the values since the last point.
    fn last(&self) -> Option<(f64, f64)> {
        let (steps, values, count) = self.open;
        (count > 0).then(|| (steps / count as f64, values / count as f64))
    }

    pub fn drawn(&self) -> Vec<(f64, f64)> {
        self.points.iter().copied().chain(self.last()).collect()
    }
}

/// A line as it is drawn: its name in the legend, its width, its values.
pub(super) type NamedLine<'a> = (&'a str, u32, &'a CurveLine);

/// Draws lines, each in the color of its place, into an SVG file; `value` is what they show. Lines without a value are left out;
/// without any, nothing is drawn.
///
/// # Errors
///
/// When the file cannot be written.
pub(super) fn draw(path: &Path, value: &str, lines: &[NamedLine<'_>]) -> Result<()> {
    let drawn = lines.iter().enumerate().map(|(place, (name, width, line))| DrawnLine {
        name,
        style: color(place).stroke_width(*width),
        points: line.drawn(),
    });
    let drawn: Vec<DrawnLine<'_>> = drawn.filter(|line| !line.points.is_empty()).collect();
    let Some(extent) = extent(drawn.iter().flat_map(|line| &line.points)) else {
        return Ok(());
    };
    let mut picture = String::new();
    plot(&mut picture, value, extent, drawn).map_err(|error| Error::file(path, error))?;
    // A viewer never sees half a picture.
    replace(path, picture.as_bytes())
}

struct DrawnLine<'a> {
    name: &'a str,
    style: ShapeStyle,
    points: Vec<(f64, f64)>,
}

fn color(place: usize) -> RGBAColor {
    match COLORS.get(place) {
        Some(color) => color.to_rgba(),
        None => HSLColor((place as f64 * GOLDEN).fract(), 0.65, 0.45).to_rgba(),
    }
}

type Extent = (Range<f64>, Range<f64>);

/// The ranges to draw: those of the points, never empty, with some air above and below.
fn extent<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Option<Extent> {
    let grow = |range: Option<Extent>, &(step, value): &(f64, f64)| match range {
        None => Some((step..step, value..value)),
        Some((steps, values)) => {
            Some((steps.start.min(step)..steps.end.max(step), values.start.min(value)..values.end.max(value)))
        }
    };
    let (steps, values) = points.fold(None, grow)?;
    let air = ((values.end - values.start) * 0.05).max(values.end.abs() * 1e-3).max(1e-9);
    Some((steps.start..steps.end.max(steps.start + 1.0), values.start - air..values.end + air))
}

fn plot(
    picture: &mut String,
    value: &str,
    (steps, values): Extent,
    lines: Vec<DrawnLine<'_>>,
) -> Result<(), Box<dyn AnyError>> {
    let root = SVGBackend::with_string(picture, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&root);
    builder.margin(16).x_label_area_size(40).y_label_area_size(60);
    let mut chart = builder.build_cartesian_2d(steps, values)?;
    let steps_label = |step: &f64| format!("{step:.0}");
    chart.configure_mesh().max_light_lines(1).x_label_formatter(&steps_label).x_desc("step").y_desc(value).draw()?;
    for DrawnLine { name, style, points } in lines {
        let drawn = chart.draw_series(LineSeries::new(points, style))?;
        let sample = style.stroke_width(2);
        drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], sample));
    }
    let labels = SeriesLabelPosition::UpperRight;
    chart
        .configure_series_labels()
        .position(labels)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_one_of_means_and_takes_no_more_memory() {
        let mut line = CurveLine::new();
        let capacity = line.points.capacity();
        (1..=5 * POINTS).for_each(|step| line.push(step as f64, step as f64));
        line.push(0.0, f64::NAN);
        assert_eq!((line.each, line.points.len(), line.points.capacity()), (8, POINTS * 5 / 8, capacity));
        assert_eq!(line.drawn()[..2], [(4.5, 4.5), (12.5, 12.5)]);
        line.push(4001.0, 3.0);
        assert_eq!(line.drawn()[500..], [(4001.0, 3.0)], "the last values are drawn at once");
    }

    #[test]
    fn a_picture_has_room_for_its_lines() {
        assert!(extent([].iter()).is_none());
        let (steps, values) = extent([(4.0, 2.0)].iter()).unwrap();
        assert!(steps.end > steps.start && values.start < 2.0 && values.end > 2.0);
    }

    #[test]
    fn every_line_has_a_color_of_its_own() {
        let colors: Vec<(u8, u8, u8)> = (0..40).map(|place| color(place).rgb()).collect();
        let apart =
            |a: &(u8, u8, u8), b: &(u8, u8, u8)| a.0.abs_diff(b.0).max(a.1.abs_diff(b.1)).max(a.2.abs_diff(b.2));
        for (place, one) in colors.iter().enumerate() {
            assert!(colors[..place].iter().all(|other| apart(one, other) >= 4), "{place}: {colors:?}");
        }
    }
}
