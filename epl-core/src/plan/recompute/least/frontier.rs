//! The choices, boundary by boundary, that no other beats in both bytes and cost.

use std::ops::Range;

use super::chain::{CostChain, Hop};
use super::price::Bound;

/// One choice for the segments before a boundary.
#[derive(Debug, Clone, Copy)]
struct Label {
    kept: u64,
    cost: u64,
    /// Whether its last step was a run.
    run: bool,
    /// The boundary before its last step, and the label there.
    from: (usize, usize),
}

impl Label {
    fn after(&self, step: &Hop, from: (usize, usize)) -> Self {
        Self { kept: self.kept + step.kept, cost: self.cost + step.cost, run: step.run, from }
    }
}

/// The labels of every boundary, 0 to n.
pub(super) struct Frontier {
    labels: Vec<Vec<Label>>,
    made: usize,
}

impl Frontier {
    /// All choices that the bound allows and that may cost as little as `best`; none where there are more than `most`.
    pub(super) fn of(chain: &CostChain, bound: &Bound, best: u64, most: usize) -> Option<Self> {
        let mut labels = vec![Vec::new(); chain.len() + 1];
        labels[0].push(Label { kept: 0, cost: 0, run: false, from: (0, 0) });
        let mut made = 0;
        for start in 0..chain.len() {
            let here = unbeaten(std::mem::take(&mut labels[start]));
            for step in chain.steps(start, bound.cap) {
                let next = here.iter().enumerate().map(|(index, label)| label.after(&step, (start, index)));
                let before = labels[step.end].len();
                labels[step.end].extend(next.filter(|label| bound.allows(step.end, label.kept, label.cost, best)));
                made += labels[step.end].len() - before;
                if made > most {
                    return None;
                }
            }
            labels[start] = here;
        }
        Some(Self { labels, made })
    }

    /// How many labels it took.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// The least cost, with the fewest bytes kept, and its runs.
    pub(super) fn cheapest(&self) -> Option<(u64, Vec<Range<usize>>)> {
        let last = self.labels.len() - 1;
        let cheapest = self.labels[last].iter().min_by_key(|label| (label.cost, label.kept))?;
        Some((cheapest.cost, self.runs(last, cheapest)))
    }

    fn runs<'a>(&'a self, mut end: usize, mut label: &'a Label) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        while end > 0 {
            let (start, index) = label.from;
            if label.run {
                runs.push(start..end);
            }
            (end, label) = (start, &self.labels[start][index]);
        }
        runs.reverse();
        runs
    }
}

/// Without those that another matches or beats in both.
fn unbeaten(mut labels: Vec<Label>) -> Vec<Label> {
    labels.sort_by_key(|label| (label.kept, label.cost));
    let mut least = None;
    labels.retain(|label| {
        let better = least.is_none_or(|least| label.cost < least);
        least = if better { Some(label.cost) } else { least };
        better
    });
    labels
}
