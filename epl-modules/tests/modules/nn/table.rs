//! The table of layers and strategies.

use std::fmt::Write;

use burn::module::{Module, ModuleDisplay};
use epl_core::Config;
use epl_core::config::HalfDtype;
use epl_core::model::precision::HalfPrecision;
use epl_core::testing::largest_error;

use super::case::{self, Layer};
use super::strategy::{Strategy, gradients, in_half, scoped, trained};
use crate::layers::Outcome;

/// How far from Burn's ([`case::against_burn`]), and how far from one rank.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) burn: f64,
    pub(crate) strategies: f64,
    /// In roundings of 16 bits, how far from f32; twice that for several layers. None where f32 is not what is tested.
    pub(crate) half: Option<f64>,
}

/// What is to be shown of one layer.
pub(crate) struct Line<L> {
    pub(crate) name: &'static str,
    /// The sizes of a row: `[a, b]`.
    pub(crate) row: [usize; 2],
    pub(crate) layer: Layer<L>,
    /// What a strategy is refused with.
    pub(crate) refused: &'static [(Strategy, &'static str)],
    /// Whether it is of several layers.
    pub(crate) deep: bool,
    /// What Burn's kernel is exact to, of f64 too.
    pub(crate) exact: f64,
    /// Whether a micro-batch is computed with the statistics of its rows: then two are compared with two.
    pub(crate) by_micro_batch: bool,
    /// Whether its derivative jumps where numbers of two types may lie on both sides, as at a limit: in 16 bits its loss is
    /// compared, and no gradients.
    pub(crate) jumps: bool,
}

/// What an explicit `split(2)` around a layer alone does to it.
fn expected_in_a_scope(name: &str) -> &'static str {
    const NOTHING: [&str; 10] = [
        "Dropout",
        "Gelu",
        "GaussianNoise",
        "PositionalEncoding",
        "Relu",
        "RotaryEncoding",
        "RRelu",
        "Sigmoid",
        "SiLU",
        "Tanh",
    ];
    const WHOLE: [&str; 14] = [
        "BatchNorm",
        "DeformConv2d",
        "GroupNorm",
        "InstanceNorm",
        "LayerNorm",
        "Normalization",
        "PRelu",
        "RmsNorm",
        "Lstm",
        "BiLstm",
        "Gru",
        "BiGru",
        "Rnn",
        "BiRnn",
    ];
    let is_one_of = |kinds: &[&str]| kinds.contains(&name.split([',', ' ']).next().unwrap_or_default());
    match name {
        "GroupNorm, plain" => "nothing",
        _ if is_one_of(&NOTHING) => "nothing",
        // One column or channel is not cut.
        _ if is_one_of(&WHOLE) || name.ends_with(" to 1") => "refused",
        _ => "cut",
    }
}

/// What the option says that leaves layers whole, where a layer has no slices on two ranks.
const NEVER_CUT: &str = "dist.whole_layers: no layer that may be whole or divided is at `**`";

/// What a strategy is refused with, if it is.
fn refusal(name: &str, strategy: Strategy, refused: &[(Strategy, &'static str)]) -> Option<&'static str> {
    // That is asked of one rank, which has slices of one column, too.
    let may_be_cut = expected_in_a_scope(name) == "cut" || name.ends_with(" to 1");
    let never_cut = (strategy == Strategy::Whole && !may_be_cut).then_some(NEVER_CUT);
    refused.iter().find(|(refused, _)| *refused == strategy).map(|(_, reason)| *reason).or(never_cut)
}

/// A table that is filled line by line.
pub(crate) struct Table {
    limits: Limits,
    text: String,
}

const WIDTH: usize = 18;

const HALVES: [HalfDtype; 2] = [HalfDtype::Bf16, HalfDtype::F16];

/// How far a number is off at most that is rounded to 16 bits.
fn rounding(half: HalfDtype) -> f64 {
    if half == HalfDtype::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) }
}

/// How far the loss alone is off, of the largest gradient: it is a sum that may cancel.
fn loss_apart(what: &str, found: &Outcome, expected: &Outcome, limit: f64) -> f64 {
    let loss = |all: &Outcome| all["loss"].iter::<f64>().next().expect("one number");
    let scale = expected.values().flat_map(|values| values.iter::<f64>()).map(f64::abs).fold(0.0, f64::max);
    let error = (loss(found) - loss(expected)).abs() / scale;
    assert!(error <= limit, "{what}: the loss is off by {error:e}, limit {limit:e}");
    error
}

impl Table {
    pub(crate) fn new(limits: Limits) -> Self {
        let mut text = format!("\n| {:WIDTH$} | {:9} ", "layer", "Burn");
        text.extend(Strategy::ALL.map(|strategy| format!("| {:10} ", strategy.name())));
        text.extend(HALVES.map(|half| format!("| {:10} ", format!("O1 {half}"))));
        let _ = writeln!(text, "| {:10} |", "split(2)");
        Self { limits, text }
    }

    /// A layer that Burn has too, with the same numbers. The last is what those of Burn's layer are exact to.
    pub(crate) fn line<L, B>(&mut self, line: Line<L>, burns: Layer<B>, exact: f64)
    where
        L: Module + ModuleDisplay + 'static,
        B: Module + ModuleDisplay,
    {
        let limit = self.limits.burn.max(exact).max(line.exact);
        let error = case::against_burn(line.name, line.row, line.layer, burns, limit, line.deep);
        self.cells(line, &format!("{error:.1e}"));
    }

    /// A layer whose random numbers are others than Burn's. It is compared where it draws none, by `line`s of their own.
    pub(crate) fn drawing<L: Module + ModuleDisplay + 'static>(&mut self, line: Line<L>) {
        self.cells(line, "draws");
    }

    fn cells<L: Module + ModuleDisplay + 'static>(&mut self, line: Line<L>, burn: &str) {
        let Line { name, row, layer, refused, exact, by_micro_batch, jumps, deep } = line;
        let reference = |strategy| trained(row, layer, strategy).unwrap_or_else(|error| panic!("{name}: {error}"));
        let one = reference(Strategy::OneRank);
        let two = by_micro_batch.then(|| reference(Strategy::TwoMicroBatches));
        let mut notes = String::new();
        let _ = write!(self.text, "| {name:WIDTH$} | {burn:9} ");
        for strategy in Strategy::ALL {
            let expected = if strategy == Strategy::Accumulate { two.as_ref().unwrap_or(&one) } else { &one };
            let cell = match (trained(row, layer, strategy), refusal(name, strategy, refused)) {
                (Ok(found), None) => {
                    let (tensor, error) = largest_error(&found, expected);
                    let limit = self.limits.strategies.max(exact);
                    assert!(error <= limit, "{name}, {}: `{tensor}` is off by {error:e}", strategy.name());
                    "worked"
                }
                (Err(error), Some(reason)) => {
                    let error = error.to_string();
                    assert!(error.contains(reason), "{name}, {}: {error}", strategy.name());
                    let _ = writeln!(notes, "    {name}, {}: {error}", strategy.name());
                    "refused"
                }
                (Ok(_), Some(_)) => panic!("{name}, {}: it worked", strategy.name()),
                (Err(error), None) => panic!("{name}, {}: {error}", strategy.name()),
            };
            let _ = write!(self.text, "| {cell:10} ");
        }
        self.in_half(name, row, layer, jumps, if deep { 2.0 } else { 1.0 });
        let cell = match scoped(layer) {
            Ok(0) => "nothing",
            Ok(_) => "cut",
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("split(2): none of its parameters is cut"), "{name}: {error}");
                let _ = writeln!(notes, "    {name}, split(2): {}", error.lines().last().unwrap_or_default());
                "refused"
            }
        };
        assert_eq!(cell, expected_in_a_scope(name), "{name}, split(2)");
        let _ = writeln!(self.text, "| {cell:10} |");
        self.text.push_str(&notes);
    }

    /// Mixed precision: 16 bits enter and leave the layer, and loss and gradients are near those of f32.
    fn in_half<L: Module + ModuleDisplay + 'static>(
        &mut self,
        name: &str,
        row: [usize; 2],
        layer: Layer<L>,
        jumps: bool,
        layers: f64,
    ) {
        let full = self.limits.half.map(|limit| (limit, gradients(&Config::new(), row, layer)));
        for half in HALVES {
            let Some((limit, full)) = &full else {
                let _ = write!(self.text, "| {:10} ", "of f32");
                continue;
            };
            let dtype = HalfPrecision::new(half).dtype();
            let failed = |error: &dyn std::fmt::Display| -> ! { panic!("{name}, O1 {half}: {error}") };
            let (expected, _) = full.as_ref().unwrap_or_else(|error| failed(error));
            let found = gradients(&in_half(half), row, layer);
            let (found, seen) = found.unwrap_or_else(|error| failed(&error));
            assert_eq!(seen, [dtype; 2], "{name}: the types of what enters and leaves it");
            let limit = limit * layers * rounding(half);
            let what = format!("{name}, O1 {half}");
            let error = match jumps {
                true => loss_apart(&what, &found, expected, limit),
                false => case::check(&what, &found, expected, limit),
            };
            let of = if jumps { "loss " } else { "" };
            let _ = write!(self.text, "| {:10} ", format!("{of}{:.1} u", error / rounding(half)));
        }
    }

    /// Prints it.
    pub(crate) fn print(self) {
        println!("{}", self.text);
    }
}
