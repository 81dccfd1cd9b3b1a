//! Shows how a run goes: a bar, or lines where there is no terminal.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::engine::PeakMemory;
use crate::error::Result;
use crate::model::segment::Model;
use crate::trainer::checkpoint::FailedSave;
use crate::trainer::hook::Hook;
use crate::trainer::record::{Evaluation, StepRecord};
use crate::trainer::run::Run;

/// Shows loss, tokens per second (samples, of a model whose steps have no more tokens than these), rate, gradient norm, the
/// floating-point operations that a rank makes, with `profile.peak_tflops` as a part of these (MFU), the most memory that the first
/// rank had since the line before (a bar: since it last asked, once a second at most), where that is
/// [measured](crate::Engine::take_peak_memory), which takes it, and the time left; with pipeline
/// stages, the fraction in which they waited for each other beside the plan's; and how long a step waited for data where none was
/// loaded.
pub struct Progress {
    view: ProgressView,
    begun: Instant,
    /// How many steps were done when the run began, and after how many it ends.
    done: u64,
    steps: u64,
    /// Tokens or samples per second, smoothed.
    speed: f64,
    /// The bubble that the plan expects.
    expected: Option<f64>,
    /// Floating-point operations per second of all ranks, smoothed.
    flops: Option<f64>,
    ranks: usize,
    /// What a rank can reach of them.
    peak: Option<f64>,
    /// What this rank held at most since it was last shown.
    memory: Option<PeakMemory>,
    /// When that was asked for.
    asked: Option<Instant>,
}

/// How long a bar shows the same memory.
const MEMORY_STAYS: Duration = Duration::from_secs(1);

enum ProgressView {
    /// The bar, in a group of its own because only a group can be wiped from the terminal while something else prints.
    Bar { bar: ProgressBar, group: MultiProgress },
    /// A line every so many steps.
    Lines { every: u64, output: Box<dyn Write> },
}

impl Progress {
    /// A bar if the standard error is a terminal, otherwise a line there every `log_every` steps.
    pub fn new(log_every: u64) -> Self {
        match stderr().is_terminal() {
            true => Self::with(ProgressView::Bar { bar: ProgressBar::hidden(), group: MultiProgress::new() }),
            false => Self::lines(log_every, stderr()),
        }
    }

    /// A line to `output` every `every` steps; 0: only those of evaluations.
    pub fn lines(every: u64, output: impl Write + 'static) -> Self {
        Self::with(ProgressView::Lines { every, output: Box::new(output) })
    }

    fn with(view: ProgressView) -> Self {
        let (begun, ranks) = (Instant::now(), 1);
        Self {
            view,
            begun,
            done: 0,
            steps: 0,
            speed: 0.0,
            expected: None,
            flops: None,
            ranks,
            peak: None,
            memory: None,
            asked: None,
        }
    }

    /// The time that the steps left take, if they take as long as those of this run so far.
    fn left(&self, step: u64) -> Duration {
        let each = self.begun.elapsed().as_secs_f64() / (step - self.done).max(1) as f64;
        Duration::from_secs_f64(each * self.steps.saturating_sub(step) as f64)
    }

    /// What a rank makes of floating-point operations, and which part that is of what it can.
    fn work(&self) -> Option<String> {
        let tera = self.flops? / self.ranks as f64 / 1e12;
        let digits = if tera < 10.0 { 2 } else { 0 };
        let mfu = self.peak.map(|peak| format!(", MFU {:.0} %", 100.0 * tera / peak));
        let of = if self.ranks > 1 { " a rank" } else { "" };
        Some(format!(" · {tera:.digits$} TFLOP/s{of}{}", mfu.unwrap_or_default()))
    }

    /// Whether a step is shown, and not only counted.
    fn is_due(&self, step: u64) -> bool {
        match &self.view {
            ProgressView::Bar { .. } => true,
            ProgressView::Lines { every, .. } => {
                *every > 0 && (step.is_multiple_of(*every) || step == self.steps || step == self.done + 1)
            }
        }
    }

    /// Whether memory is asked for at a step that is shown. A GPU answers when it has done what it was given, so that a bar, which
    /// shows each step, does not ask at each.
    fn asks_for_memory(&mut self, step: u64) -> bool {
        let is_fresh = self.asked.is_some_and(|asked| asked.elapsed() < MEMORY_STAYS);
        let stays = matches!(self.view, ProgressView::Bar { .. }) && is_fresh;
        let asks = self.is_due(step) && !stays;
        if asks {
            self.asked = Some(Instant::now());
        }
        asks
    }

    /// Begins to show a run of `steps` steps of which `done` are done.
    pub fn open(&mut self, steps: u64, done: u64) {
        (self.begun, self.done, self.steps, self.speed) = (Instant::now(), done, steps, 0.0);
        if let ProgressView::Bar { bar, group } = &mut self.view {
            let style = ProgressStyle::with_template("{pos}/{len} {bar:24} {msg}");
            let style = style.expect("the template is well-formed");
            *bar = group.add(ProgressBar::new(steps).with_style(style).with_position(done));
        }
    }

    /// Shows a step.
    pub fn show_step(&mut self, record: &StepRecord) {
        let now = match has_tokens(record) {
            true => record.tokens_per_second(),
            false => record.samples_per_second(),
        };
        self.speed = if self.speed == 0.0 { now } else { 0.9 * self.speed + 0.1 * now };
        self.flops = record.flops_per_second().map(|now| self.flops.map_or(now, |before| 0.9 * before + 0.1 * now));
        let (step, steps) = (record.step, self.steps);
        let bubble = record
            .bubble
            .zip(self.expected)
            .map(|(bubble, expected)| format!(" · bubble {:.0} % (plan {:.0} %)", 100.0 * bubble, 100.0 * expected));
        // Before the first step nothing can be.
        let starved = record.data_ahead == 0 && step > self.done + 1;
        let waited = 100.0 * record.data_wait.as_secs_f64() / record.time.as_secs_f64().max(1e-9);
        let starved = if starved { format!(" · no data ahead, waited {waited:.0} %") } else { String::new() };
        let left = short(self.left(step));
        let numbers = numbers(record, self.speed);
        let work = self.work().unwrap_or_default();
        let memory = self.memory.map(|peak| format!(" · {}", shown(peak))).unwrap_or_default();
        let text = format!("{numbers}{work}{memory}{}{starved} · {left} left", bubble.unwrap_or_default());
        let is_due = self.is_due(step);
        match &mut self.view {
            ProgressView::Bar { bar, .. } => {
                bar.set_message(text);
                bar.set_position(step);
            }
            ProgressView::Lines { .. } if is_due => self.print(&format!("step {step}/{steps} · {text}")),
            ProgressView::Lines { .. } => {}
        }
    }

    /// Shows an evaluation.
    pub fn show_evaluation(&mut self, evaluation: &Evaluation) {
        let values: Vec<String> = evaluation.values.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        self.print(&format!("step {} · {} · {}", evaluation.step, values.join(" · "), short(evaluation.time)));
    }

    /// Shows the end, after `step` steps.
    pub fn close(&mut self, step: u64, stopped: bool) {
        if let ProgressView::Bar { bar, .. } = &self.view {
            bar.abandon();
        }
        let (steps, time) = (step - self.done, short(self.begun.elapsed()));
        let ended = if stopped { "stopped" } else { "done" };
        self.print(&format!("{ended} after step {step}: {steps} steps in {time}"));
    }

    /// Shows a line.
    pub fn print(&mut self, line: &str) {
        // Progress that cannot be shown is no reason to end a run.
        match &mut self.view {
            ProgressView::Bar { group, .. } => drop(group.println(line)),
            ProgressView::Lines { output, .. } => drop(writeln!(output, "{line}").and_then(|()| output.flush())),
        }
    }
}

/// The numbers of a step, such as `loss 2.3412 · 12345 tokens/s · rate 1.00e-3 · norm 0.833`.
fn numbers(record: &StepRecord, speed: f64) -> String {
    let (loss, norm) = (record.report.loss, record.report.grad_norm);
    let counted = if has_tokens(record) { "tokens" } else { "samples" };
    format!("loss {loss:.4} · {speed:.0} {counted}/s · rate {:.2e} · norm {norm:.3}", record.rate)
}

/// Whether the weight of the loss counts something of which a sample has several.
fn has_tokens(record: &StepRecord) -> bool {
    record.tokens > record.samples as f64
}

/// Bytes such as `412 MiB`, and those that were moved away from the device.
fn shown(PeakMemory { device, host, files }: PeakMemory) -> String {
    let away = [(host, "on the host"), (files, "in files")].into_iter().filter(|(bytes, _)| *bytes > 0);
    let away: String = away.map(|(bytes, place)| format!(", {} {place}", binary(bytes))).collect();
    format!("{}{away}", binary(device))
}

/// Bytes such as `3.2 MiB`, `412 MiB` or `17.0 GiB`.
fn binary(bytes: u64) -> String {
    let mebi = bytes as f64 / (1_u64 << 20) as f64;
    match mebi {
        0.0..10.0 => format!("{mebi:.1} MiB"),
        10.0..10_240.0 => format!("{mebi:.0} MiB"),
        _ => format!("{:.1} GiB", mebi / 1024.0),
    }
}

/// A time such as `1h02m`, `2m05s` or `9s`.
fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

impl<M: Model> Hook<M> for Progress {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.open(run.steps(), run.step());
        self.expected = run.engine().plan().expected_bubble();
        (self.ranks, self.peak) = (run.context().world().size(), run.engine().plan().settings.peak_tflops);
        if run.engine().logs_types() {
            run.engine().plan().types().for_each(|line| self.print(&line));
        }
        run.changes().iter().for_each(|change| self.print(&format!("changed since the checkpoint: {change}")));
        Ok(())
    }

    fn after_step(&mut self, run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        if let (Some(profile), true) = (run.engine().profiled(), record.step == self.done + 1) {
            self.print(&format!("{profile}"));
            let plan = run.engine().plan();
            let again: Vec<String> = plan.recompute.iter().map(|run| plan.segments[run.clone()].join(", ")).collect();
            self.print(&format!(
                "run again in backward: {}",
                if again.is_empty() { "nothing".into() } else { again.join("; ") }
            ));
        }
        if self.asks_for_memory(record.step) {
            self.memory = run.engine().take_peak_memory();
        }
        self.show_step(record);
        Ok(())
    }

    fn after_skipped_step(&mut self, run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        if let (Some(scaler), Some(scale)) = (run.engine().loss_scaler(), record.report.loss_scale) {
            self.print(&format!(
                "skipped the step after {}: its gradients are not finite; loss scale {scale}, now {}; skipped so far: {}",
                record.step,
                scaler.scale(),
                scaler.state().skipped
            ));
        }
        Ok(())
    }

    fn after_warning(&mut self, _run: &mut Run<M>, warning: &str) -> Result<()> {
        self.print(&format!("training goes on: {warning}"));
        Ok(())
    }

    fn after_failed_save(&mut self, _run: &mut Run<M>, failed: &FailedSave) -> Result<()> {
        self.print(&format!(
            "the checkpoint of step {} could not be written, and the one before stands: {}",
            failed.step, failed.reason
        ));
        Ok(())
    }

    fn before_evaluation(&mut self, _run: &mut Run<M>) -> Result<()> {
        // The evaluation may print, such as translations.
        if let ProgressView::Bar { group, .. } = &self.view {
            let _ = group.clear();
        }
        Ok(())
    }

    fn after_evaluation(&mut self, _run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        self.show_evaluation(evaluation);
        Ok(())
    }

    fn after_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.close(run.step(), run.is_ended());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::record::tests::{evaluation, record};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn without_a_terminal_every_nth_step_is_a_line() {
        let output = Output::default();
        let mut progress = Progress::lines(4, output.clone());
        progress.open(9, 0);
        progress.print("changed");
        (1..=9).for_each(|step| progress.show_step(&record(step)));
        progress.show_evaluation(&evaluation(9));
        progress.close(9, false);
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let steps: Vec<&str> = text.lines().map(|line| line.split(" · ").next().unwrap()).collect();
        assert_eq!(steps[0], "changed");
        assert_eq!(steps[1..6], ["step 1/9", "step 4/9", "step 8/9", "step 9/9", "step 9"]);
        assert!(
            text.contains("step 8/9 · loss 1.0000 · 2000 tokens/s · rate 1.00e-3 · norm 0.333 · 0s left"),
            "{text}"
        );
        assert!(!text.contains("bubble"), "{text}");
        assert!(text.contains("step 9 · valid_loss 1.0000 · bleu 9.0000 · 1s"), "{text}");
        assert!(text.ends_with("done after step 9: 9 steps in 0s\n"), "{text}");
    }

    #[test]
    fn a_model_whose_rows_are_samples_shows_these() {
        let output = Output::default();
        let mut progress = Progress::lines(1, output.clone());
        progress.show_step(&StepRecord { tokens: 16.0, ..record(1) });
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains(" · 64 samples/s · "), "{text}");
    }

    #[test]
    fn operations_stand_beside_what_a_rank_can_reach() {
        let output = Output::default();
        let mut progress = Progress { ranks: 2, peak: Some(4.0), ..Progress::lines(1, output.clone()) };
        let report = crate::engine::StepReport { flops: Some(1.5e12), ..record(1).report };
        progress.show_step(&StepRecord { report, ..record(1) });
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        // In a quarter of a second, by two ranks.
        assert!(text.contains(" · 3.00 TFLOP/s a rank, MFU 75 % · "), "{text}");
    }

    #[test]
    fn memory_stands_there_where_it_is_measured() {
        let output = Output::default();
        let mut progress = Progress::lines(1, output.clone());
        progress.show_step(&record(1));
        progress.memory = Some(PeakMemory { device: 412 << 20, host: 0, files: 0 });
        progress.show_step(&record(2));
        progress.memory = Some(PeakMemory { device: 3 << 19, host: 17 << 30, files: 96 << 20 });
        progress.show_step(&record(3));
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(!lines[0].contains("MiB"), "{text}");
        assert!(lines[1].contains(" · 412 MiB · "), "{text}");
        assert!(lines[2].contains(" · 1.5 MiB, 17.0 GiB on the host, 96 MiB in files · "), "{text}");
    }

    #[test]
    fn a_bar_asks_for_memory_once_a_second_and_lines_each_time() {
        let view = ProgressView::Bar { bar: ProgressBar::hidden(), group: MultiProgress::new() };
        let mut bar = Progress::with(view);
        assert_eq!([1, 2].map(|step| bar.asks_for_memory(step)), [true, false]);
        bar.asked = Instant::now().checked_sub(MEMORY_STAYS);
        assert_eq!([3, 4].map(|step| bar.asks_for_memory(step)), [true, false]);
        let mut lines = Progress { steps: 9, ..Progress::lines(2, Output::default()) };
        assert_eq!([1, 2, 3, 4].map(|step| lines.asks_for_memory(step)), [true, true, false, true]);
    }

    #[test]
    fn the_bubble_stands_beside_the_expected_one() {
        let output = Output::default();
        let mut progress = Progress { expected: Some(0.25), ..Progress::lines(1, output.clone()) };
        progress.show_step(&StepRecord { bubble: Some(0.314), ..record(1) });
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains(" · bubble 31 % (plan 25 %) · "), "{text}");
    }

    #[test]
    fn a_step_that_waits_for_data_says_so_but_for_the_first() {
        let output = Output::default();
        let mut progress = Progress::lines(1, output.clone());
        for (step, data_ahead) in [(1, 0), (2, 1), (3, 0)] {
            let data_wait = Duration::from_millis(100);
            progress.show_step(&StepRecord { data_ahead, data_wait, ..record(step) });
        }
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let said: Vec<bool> = text.lines().map(|line| line.contains(" · no data ahead, waited 40 % · ")).collect();
        assert_eq!(said, [false, false, true], "{text}");
    }

    #[test]
    fn times_are_short() {
        let texts = [9, 125, 3720].map(|seconds| short(Duration::from_secs(seconds)));
        assert_eq!(texts, ["9s", "2m05s", "1h02m"]);
    }
}
