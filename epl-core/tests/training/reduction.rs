//! How gradients travel changes nothing: rows instead of the whole, several communicators, 16 bits within a bound.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Int, Tensor, TensorData};
use epl_comm::{EventKind, Trace};
use epl_core::config::HalfDtype;
use epl_core::engine::Compression;
use epl_core::testing::{config, largest_error};
use epl_core::{
    Config, Engine, EngineSettings, Epl, Loss, LossWeights, MicroBatch, Model, Result, launch_dry, launch_traced,
};

const VOCABULARY: usize = 40;
const WIDTH: usize = 6;

#[derive(Module, Debug)]
struct Tagger {
    words: Embedding,
    head: Linear,
}

/// Some words in a row, each with the number it should give.
#[derive(Clone, Debug)]
struct Words(Vec<i64>);

impl Model for Tagger {
    type Batch = Words;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, Words(words): &Words) -> LossWeights {
        LossWeights::new().with("error", words.len() as f64)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), Words(words): &Words) -> Loss {
        let device = self.head.weight.device();
        let target: Vec<f32> = words.iter().map(|word| (word % 7) as f32 / 3.0 - 1.0).collect();
        let target = Tensor::<1>::from_data(TensorData::new(target, [words.len()]), &device);
        let words = Tensor::<2, Int>::from_data(TensorData::new(words.clone(), [1, words.len()]), &device);
        let error = self.head.forward(self.words.forward(words)).flatten::<1>(0, 2) - target;
        Loss::new().with("error", (error.clone() * error).sum(), 1.0)
    }
}

fn build(epl: &Epl) -> Result<Engine<Tagger>> {
    let built = epl.build(|place| Tagger {
        words: EmbeddingConfig::new(VOCABULARY, WIDTH).init(place),
        head: LinearConfig::new(WIDTH, 1).init(place),
    })?;
    Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))
}

type Gradients = BTreeMap<String, TensorData>;

/// The reduced gradients on every rank, and what was started. `words[r]` is rank r's batch; none: a stand-in.
fn gradients(config: &Config, words: &[Vec<i64>]) -> (Vec<Gradients>, Vec<String>) {
    let trace = Trace::new();
    let all = launch_traced(config, Some(trace.clone()), |epl| {
        let mine = words[epl.context().data().rank()].clone();
        let samples: Vec<u64> = vec![epl.context().data().rank() as u64];
        let micro_batch = match mine.is_empty() {
            true => MicroBatch::stand_in(Words(vec![0]), samples),
            false => MicroBatch::new(Words(mine), samples),
        };
        Ok(build(&epl)?.gradients(vec![micro_batch])?.1)
    });
    let marks = trace.events().into_iter().filter_map(|event| match event.kind {
        EventKind::Mark(mark) if event.rank.0 == 0 && mark.starts_with("start") => Some(mark),
        _ => None,
    });
    (all.unwrap(), marks.collect())
}

fn dense(ranks: usize) -> Config {
    config(ranks, 1, 1).with("communication.sparse_as_dense", true).unwrap()
}

/// Word lists, one a rank, and whether rows are fewer bytes for them.
fn cases() -> [(&'static str, [Vec<i64>; 3], bool); 5] {
    let all: Vec<i64> = (0..VOCABULARY as i64).collect();
    [
        ("repeated rows", [vec![3, 3, 7, 3], vec![7, 7], vec![39, 0, 3]], true),
        ("no rows on one rank", [vec![1, 2], vec![], vec![2, 5, 5]], true),
        ("no rows at all", [vec![], vec![], vec![]], true),
        ("all rows on one rank", [all.clone(), vec![1], vec![4, 4]], true),
        ("all rows", [all.clone(), all.clone(), all], false),
    ]
}

#[test]
fn rows_are_as_good_as_the_whole() {
    for (name, words, rows) in cases() {
        let (expected, marks) = gradients(&dense(3), &words);
        assert!(!marks.iter().any(|mark| mark.contains("rows")), "{name}: {marks:?}");
        let (sparse, marks) = gradients(&config(3, 1, 1), &words);
        assert_eq!(marks.iter().any(|mark| mark.contains("rows")), rows, "{name}: {marks:?}");
        for (sparse, expected) in sparse.iter().zip(&expected) {
            assert_eq!(sparse["words.weight"].shape().as_slice(), [VOCABULARY, WIDTH]);
            // The order of the additions is the same, and 0 + x is x.
            assert_eq!(sparse, expected, "{name}");
        }
    }
}

/// Two micro-batches a rank: the rows of both travel, once.
#[test]
fn rows_are_those_of_all_micro_batches() {
    let step = |config: &Config| {
        let gradients = epl_core::launch(config, |epl| {
            let rank = epl.context().data().rank() as i64;
            let batch = |words: Vec<i64>| MicroBatch::new(Words(words), [rank as u64]);
            Ok(build(&epl)?.gradients(vec![batch(vec![rank, 9]), batch(vec![9, 20 + rank, 30])])?.1)
        });
        gradients.unwrap()
    };
    assert_eq!(step(&config(2, 1, 1)), step(&dense(2)));
    let used = &step(&config(2, 1, 1))[0]["words.weight"];
    let rows: Vec<f64> = used.iter::<f64>().collect();
    let used: Vec<usize> = (0..VOCABULARY).filter(|row| rows[row * WIDTH] != 0.0).collect();
    assert_eq!(used, [0, 1, 9, 20, 21, 30]);
}

/// A NaN on one rank must reach all of them: its row is not taken for zeros.
#[test]
fn a_row_that_is_no_number_travels() {
    let nans = epl_core::launch(&config(2, 1, 1), |epl| {
        let built = epl.build(|place| Tagger {
            words: EmbeddingConfig::new(VOCABULARY, WIDTH).init(place),
            head: LinearConfig::new(WIDTH, 1).init(place),
        })?;
        let rank = epl.context().data().rank();
        let built = built.try_map(|mut net, _| {
            // A table that differs between the ranks: on rank 1 the word 5 is no number.
            let poison = |table: Tensor<2>| {
                let row = table.clone().slice([5..6, 0..WIDTH]) * f32::NAN;
                let table = table.inner().slice_assign([5..6, 0..WIDTH], row.inner());
                Tensor::from_inner(table).require_grad()
            };
            if rank == 1 {
                net.words.weight = net.words.weight.clone().map(poison);
            }
            Ok(net)
        })?;
        let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let (_, gradients) = engine.gradients(vec![MicroBatch::new(Words(vec![5, 6]), [rank as u64])])?;
        Ok(gradients["words.weight"].iter::<f64>().map(f64::is_nan).collect::<Vec<bool>>())
    });
    for nans in nans.unwrap() {
        // Each word has an error of its own.
        assert!(nans[5 * WIDTH] && !nans[6 * WIDTH] && !nans[7 * WIDTH]);
    }
}

#[test]
fn the_number_of_communicators_changes_nothing() {
    let words = [vec![3, 3, 7, 3], vec![7, 7], vec![39, 0, 3]];
    let one = config(3, 1, 1).with("communication.num_communicators", 1).unwrap();
    let (expected, order) = gradients(&one, &words);
    for number in [2, 3, 8] {
        let several = config(3, 1, 1).with("communication.num_communicators", number).unwrap();
        assert_eq!(gradients(&several, &words), (expected.clone(), order.clone()));
    }
}

#[test]
fn sixteen_bits_are_within_their_bound() {
    for (name, words, _) in cases() {
        let (whole, _) = gradients(&dense(3), &words);
        for sparse_as_dense in [true, false] {
            for (dtype, epsilon) in [("f16", 2.0_f64.powi(-10)), ("bf16", 2.0_f64.powi(-7))] {
                let mut config = config(3, 1, 1);
                config.set("communication.sparse_as_dense", sparse_as_dense).unwrap();
                config.set("communication.fp16", true).unwrap();
                config.set("communication.fp16_dtype", dtype).unwrap();
                let (ours, _) = gradients(&config, &words);
                for (ours, whole) in ours.iter().zip(&whole) {
                    let (name_of, error) = largest_error(ours, whole);
                    // Against the largest element, to which Σ|gradients| of three ranks is at most three times.
                    assert!(error <= 3.0 * epsilon, "{name}, {dtype}: {name_of} is off by {error}");
                    assert!(error > 0.0 || words.iter().all(Vec::is_empty), "{name}, {dtype}: nothing was rounded");
                }
            }
        }
    }
}

#[test]
fn a_scale_that_is_too_large_is_named() {
    let mut config = config(2, 1, 1);
    config.set("communication.fp16", true).unwrap();
    config.set("communication.fp16_scale", 1e9).unwrap();
    let error = epl_core::launch(&config, |epl| {
        assert_eq!(
            EngineSettings::from_config(epl.config()).compression,
            Some(Compression { dtype: HalfDtype::F16, scale: 1e9 })
        );
        let mut engine = build(&epl)?;
        assert!(engine.plan().to_string().contains("communication.fp16 = true (f16, scale 1000000000)"));
        engine.step(vec![MicroBatch::new(Words(vec![1, 2, 3]), [0])], 0.1).map(drop)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("communication.fp16_scale from 1000000000"), "{error}");
}

#[test]
fn a_step_of_four_thousand_ranks_is_counted_on_one() -> Result<()> {
    let config = config(4096, 1, 1).with("communication.max_splits", 1)?;
    let (_, traffic) = launch_dry(&config, 17, |epl| {
        let mut engine = build(&epl)?;
        engine.step(vec![MicroBatch::new(Words(vec![3, 3, 7]), [0])], 0.1)
    })?;
    let entries = traffic.entries();
    let sent = |group: &str, collective: &str| {
        let entry =
            entries.iter().find(|entry| (entry.group.as_str(), entry.operation.as_str()) == (group, collective));
        let entry = entry.unwrap_or_else(|| panic!("{group} {collective}:\n{traffic}"));
        (entry.ranks, entry.calls, entry.sent)
    };
    // The head's weights and bias in f32, twice around the ring.
    assert_eq!(sent("data 0", "all_reduce(sum)"), (4096, 1, 2 * 4 * (WIDTH as u64 + 1) * 4095 / 4096));
    Ok(())
}
