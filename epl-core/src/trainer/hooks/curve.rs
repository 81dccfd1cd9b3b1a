//! The loss as a picture.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use serde_json::Value;

use crate::checkpoint::durable::replace;
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::hook::Hook;
use crate::trainer::json_lines;
use crate::trainer::record::{Evaluation, StepRecord};
use crate::trainer::run::Run;

/// A line never has more points than this, and so takes the same memory however long the run is.
const POINTS: usize = 800;

/// Draws the loss on the training data and, where it was evaluated, on the validation data, over the steps.
///
/// It is drawn after every evaluation and at the end.
#[derive(Debug)]
pub struct Curve {
    path: PathBuf,
    history: Option<PathBuf>,
    train: CurveLine,
    valid: CurveLine,
}

/// Values over steps: every point is the mean of `each` values, and the last one of those that are still too few.
#[derive(Debug)]
struct CurveLine {
    points: Vec<(f64, f64)>,
    each: usize,
    /// The values since the last point: their sums, and how many.
    open: (f64, f64, usize),
}

impl CurveLine {
    fn new() -> Self {
        Self { points: Vec::with_capacity(POINTS), each: 1, open: (0.0, 0.0, 0) }
    }

    /// Adds a value. What is not finite is left out.
    fn push(&mut self, step: f64, value: f64) {
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

    fn drawn(&self) -> Vec<(f64, f64)> {
        self.points.iter().copied().chain(self.last()).collect()
    }
}

impl Curve {
    /// A curve in this SVG file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), history: None, train: CurveLine::new(), valid: CurveLine::new() }
    }

    /// The `metrics.jsonl` from which a resumed run reads the steps that were done before.
    #[must_use]
    pub fn with_history(mut self, path: impl Into<PathBuf>) -> Self {
        self.history = Some(path.into());
        self
    }

    /// Begins anew; of a run that was resumed after `done` steps, with those.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub fn open(&mut self, done: u64) -> Result<()> {
        (self.train, self.valid) = (CurveLine::new(), CurveLine::new());
        match self.history.clone() {
            Some(history) if done > 0 => self.read(&history, done),
            _ => Ok(()),
        }
    }

    fn read(&mut self, history: &Path, done: u64) -> Result<()> {
        for line in json_lines::read(history)? {
            let number = |key| line.get(key).and_then(Value::as_f64);
            let Some(step) = number("step").filter(|step| *step <= done as f64) else { continue };
            number("loss").into_iter().for_each(|loss| self.train.push(step, loss));
            number("valid_loss").into_iter().for_each(|loss| self.valid.push(step, loss));
        }
        Ok(())
    }

    /// Takes the loss of a step.
    pub fn add_step(&mut self, record: &StepRecord) {
        self.train.push(record.step as f64, record.report.loss);
    }

    /// Takes the loss on the validation data, if it was measured.
    pub fn add_evaluation(&mut self, evaluation: &Evaluation) {
        let loss = evaluation.get("valid_loss");
        loss.into_iter().for_each(|loss| self.valid.push(evaluation.step as f64, loss));
    }

    /// Draws what there is; nothing, if there is nothing.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn draw(&self) -> Result<()> {
        let (train, valid) = (self.train.drawn(), self.valid.drawn());
        let Some((steps, losses)) = extent(train.iter().chain(&valid)) else {
            return Ok(());
        };
        let mut picture = String::new();
        plot(&mut picture, (steps, losses), &train, &valid).map_err(|error| Error::file(&self.path, error))?;
        // A viewer never sees half a picture.
        replace(&self.path, picture.as_bytes())
    }
}

type Extent = (Range<f64>, Range<f64>);

/// The ranges to draw: those of the points, never empty, with some air above and below.
fn extent<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Option<Extent> {
    let grow = |range: Option<Extent>, &(step, loss): &(f64, f64)| match range {
        None => Some((step..step, loss..loss)),
        Some((steps, losses)) => {
            Some((steps.start.min(step)..steps.end.max(step), losses.start.min(loss)..losses.end.max(loss)))
        }
    };
    let (steps, losses) = points.fold(None, grow)?;
    let air = ((losses.end - losses.start) * 0.05).max(losses.end.abs() * 1e-3).max(1e-9);
    Some((steps.start..steps.end.max(steps.start + 1.0), losses.start - air..losses.end + air))
}

fn plot(
    picture: &mut String,
    (steps, losses): Extent,
    train: &[(f64, f64)],
    valid: &[(f64, f64)],
) -> Result<(), Box<dyn std::error::Error>> {
    let (blue, orange) = (RGBColor(31, 119, 180), RGBColor(255, 127, 14));
    let root = SVGBackend::with_string(picture, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&root);
    builder.margin(16).x_label_area_size(40).y_label_area_size(60);
    let mut chart = builder.build_cartesian_2d(steps, losses)?;
    let steps_label = |step: &f64| format!("{step:.0}");
    chart.configure_mesh().max_light_lines(1).x_label_formatter(&steps_label).x_desc("step").y_desc("loss").draw()?;
    let line = |color: RGBColor| move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2));
    let drawn = chart.draw_series(LineSeries::new(train.iter().copied(), blue.stroke_width(1)))?;
    drawn.label("train").legend(line(blue));
    if !valid.is_empty() {
        let drawn = chart.draw_series(LineSeries::new(valid.iter().copied(), orange.stroke_width(2)))?;
        drawn.label("valid").legend(line(orange));
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

impl<M: Model> Hook<M> for Curve {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.open(run.step())
    }

    fn after_step(&mut self, _run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        self.add_step(record);
        Ok(())
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        self.add_evaluation(evaluation);
        run.forgive(self.draw());
        Ok(())
    }

    fn after_run(&mut self, run: &mut Run<M>) -> Result<()> {
        // It can be drawn again from the log.
        run.forgive(self.draw());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::hooks::MetricsLog;
    use crate::trainer::record::tests::{evaluation, record};

    #[test]
    fn a_run_is_drawn_with_both_losses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss.svg");
        let mut curve = Curve::new(&path);
        curve.open(0).unwrap();
        (1..=3000).for_each(|step| curve.add_step(&record(step)));
        [1500, 3000].iter().for_each(|step| curve.add_evaluation(&evaluation(*step)));
        curve.draw().unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        for part in ["<svg", "train", "valid", "polyline", "</svg>"] {
            assert!(picture.contains(part), "{part}");
        }
        assert!(picture.len() < 60_000, "{} bytes", picture.len());
    }

    #[test]
    fn a_resumed_curve_has_the_steps_before() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::new(&metrics);
        log.open(0).unwrap();
        for step in 1..=5 {
            log.flush().unwrap();
            log.add_step(&record(step));
            log.add_evaluation(&evaluation(step)).unwrap();
        }
        drop(log);
        let mut curve = Curve::new(folder.path().join("loss.svg")).with_history(&metrics);
        curve.open(4).unwrap();
        assert_eq!(curve.train.points, (1..=4).map(|step| (step as f64, record(step).report.loss)).collect::<Vec<_>>());
        assert_eq!(curve.valid.points.len(), 4);
    }

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
        let (steps, losses) = extent([(4.0, 2.0)].iter()).unwrap();
        assert!(steps.end > steps.start && losses.start < 2.0 && losses.end > 2.0);
    }

    #[test]
    fn nothing_to_draw_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss.svg");
        Curve::new(&path).draw().unwrap();
        assert!(!path.exists());
    }
}
