//! The table of layers and strategies.

use std::fmt::Write;

use burn::module::{Module, ModuleDisplay};
use epl_core::testing::largest_error;

use super::case::{self, Layer};
use super::strategy::{Strategy, trained};

/// How far from Burn's, and how far from one rank.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) burn: f64,
    /// Of several layers behind each other.
    pub(crate) deep: f64,
    pub(crate) strategies: f64,
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
}

/// A table that is filled line by line.
pub(crate) struct Table {
    limits: Limits,
    text: String,
}

const WIDTH: usize = 18;

impl Table {
    pub(crate) fn new(limits: Limits) -> Self {
        let mut text = format!("\n| {:WIDTH$} | {:9} ", "layer", "Burn");
        text.extend(Strategy::ALL.map(|strategy| format!("| {:10} ", strategy.name())));
        text.push_str("|\n");
        Self { limits, text }
    }

    /// A layer that Burn has too, with the same numbers. The last is what those of Burn's layer are exact to.
    pub(crate) fn line<L, B>(&mut self, line: Line<L>, burns: Layer<B>, exact: f64)
    where
        L: Module + ModuleDisplay + 'static,
        B: Module + ModuleDisplay,
    {
        let limit = if line.deep { self.limits.deep } else { self.limits.burn };
        case::against_burn(line.name, line.row, line.layer, burns, limit.max(exact).max(line.exact));
        self.cells(line, "the same");
    }

    /// A layer whose random numbers are others than Burn's. It is compared where it draws none, by `line`s of their own.
    pub(crate) fn drawing<L: Module + ModuleDisplay + 'static>(&mut self, line: Line<L>) {
        self.cells(line, "draws");
    }

    fn cells<L: Module + ModuleDisplay + 'static>(&mut self, line: Line<L>, burn: &str) {
        let Line { name, row, layer, refused, exact, by_micro_batch, .. } = line;
        let reference = |strategy| trained(row, layer, strategy).unwrap_or_else(|error| panic!("{name}: {error}"));
        let one = reference(Strategy::OneRank);
        let two = by_micro_batch.then(|| reference(Strategy::TwoMicroBatches));
        let mut notes = String::new();
        let _ = write!(self.text, "| {name:WIDTH$} | {burn:9} ");
        for strategy in Strategy::ALL {
            let expected = if strategy == Strategy::Accumulate { two.as_ref().unwrap_or(&one) } else { &one };
            let refusal = refused.iter().find(|(refused, _)| *refused == strategy);
            let cell = match (trained(row, layer, strategy), refusal) {
                (Ok(found), None) => {
                    let (tensor, error) = largest_error(&found, expected);
                    let limit = self.limits.strategies.max(exact);
                    assert!(error <= limit, "{name}, {}: `{tensor}` is off by {error:e}", strategy.name());
                    "worked"
                }
                (Err(error), Some((_, reason))) => {
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
        self.text.push_str("|\n");
        self.text.push_str(&notes);
    }

    /// Prints it.
    pub(crate) fn print(self) {
        println!("{}", self.text);
    }
}
