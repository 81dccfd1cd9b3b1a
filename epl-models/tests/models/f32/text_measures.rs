//! Measures of texts are those of one thread over all of them, under every layout.

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl_core::data::ValidData;
use epl_core::evaluate::{Evaluator, Values};
use epl_core::testing::run;
use epl_core::{Engine, EngineSettings, Epl, Loss, LossWeights, Model, Result};
use epl_models::text::{Bleu, CorpusBleu, Judged, MeanScore, Pair, PairBatcher, normalized, token_f1};

/// A model that is not asked: what it would write is in the data.
#[derive(Module, Debug)]
struct Mute {
    linear: Linear,
}

impl Model for Mute {
    type Batch = Tensor<2>;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &Tensor<2>) -> LossWeights {
        LossWeights::new().with("error", batch.dims()[0] as f64)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &Tensor<2>) -> Loss {
        Loss::new().with("error", self.linear.forward(batch.clone()).sum(), 1.0)
    }
}

/// Answers of different lengths, and of different worth.
fn pair(index: usize) -> Pair {
    let words = ["the", "cat", "sat", "on", "a", "mat", "Today,", "and", "slept"];
    let text = |from: usize, count: usize| {
        (from..from + count).map(|word| words[word % words.len()]).collect::<Vec<_>>().join(" ")
    };
    let source = if index % 4 == 3 { text(index, 4) } else { text(index, 3 + index % 5) + " again" };
    Pair { source, target: text(index, 4 + index % 3) }
}

fn engine(epl: &Epl) -> Result<Engine<Mute>> {
    let built = epl.build(|place| Mute { linear: LinearConfig::new(2, 1).init(place) })?;
    Engine::new(built, &SgdConfig::new(), EngineSettings::default())
}

fn measured(epl: &Epl, samples: usize, batch: usize) -> Result<Values> {
    let pairs = InMemDataset::new((0..samples).map(pair).collect());
    let write = |_: &Engine<Mute>, pairs: &Vec<Pair>| {
        Ok(pairs.iter().map(|pair| Judged::new(&pair.source, &pair.target)).collect::<Vec<_>>())
    };
    Evaluator::by(ValidData::new(pairs, PairBatcher, batch)?, write)
        .with(CorpusBleu)
        .with(MeanScore::equal().named("equal"))
        .with(MeanScore::exact_match())
        .with(MeanScore::token_f1())
        .measure(&engine(epl)?)
}

#[test]
fn text_measures_are_those_of_one_thread_under_every_layout() {
    for (samples, batch) in [(7, 2), (7, 1), (23, 3)] {
        let pairs: Vec<Pair> = (0..samples).map(pair).collect();
        let percent = |score: &dyn Fn(&Pair) -> f64| 100.0 * pairs.iter().map(score).sum::<f64>() / samples as f64;
        let expected = [
            Bleu::of(pairs.iter().map(|pair| (&pair.source, &pair.target))).score,
            percent(&|pair| f64::from(u8::from(pair.source == pair.target))),
            percent(&|pair| f64::from(u8::from(normalized(&pair.source) == normalized(&pair.target)))),
            percent(&|pair| token_f1(&pair.source, &pair.target)),
        ];
        assert!(expected.iter().all(|value| *value > 0.0 && *value < 100.0), "the test can tell: {expected:?}");
        for sizes in [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 2, 1)] {
            for values in run(sizes, |epl| measured(&epl, samples, batch)) {
                let got: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
                // Sums of whole numbers are equal to the bit.
                assert_eq!(got[..3], expected[..3], "{samples} samples by {batch} on {sizes:?}");
                assert!((got[3] - expected[3]).abs() <= 1e-12 * expected[3], "{sizes:?}: {got:?} {expected:?}");
            }
        }
    }
}
