//! Plain layers of Burn in a layout that a search chose, with `auto.discover`, equal one rank.
#![allow(clippy::unwrap_used)]

use core::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use epl::comm::Trace;
use epl::config::{Config, Layers};
use epl::data::{ShuffledSampler, TrainData};
use epl::plan::SplitFinding;
use epl::search::Found;
use epl::{Chain, Engine, EngineSettings, Epl, LazyModel, MicroBatch, Model, Place, Result};

use super::discovered::{self, ROWS};
use crate::checkpoints::adam_w;
use crate::parity::{Outcome, assert_same, launched, layout, program, share, three_steps};

#[derive(Module, Debug)]
struct Pictures {
    convs: Vec<Conv2d>,
    head: Linear,
}

type PictureBatch = (Tensor<4>, Tensor<2>);

/// Two convolutions, between which channels can be cut, and a head.
fn pictures(at: &Place) -> Chain<Pictures, PictureBatch, Tensor<2>> {
    let conv = |channels| Conv2dConfig::new(channels, [2, 2]).init(at);
    let net = Pictures { convs: vec![conv([1, 6]), conv([6, 2])], head: LinearConfig::new(2 * 3 * 3, 4).init(at) };
    Chain::of(net)
        .first(&["convs"], |net: &Pictures, (images, _): &PictureBatch| {
            net.convs[1].forward(tanh(net.convs[0].forward(images.clone())))
        })
        .then(&["head"], |net, hidden, _| net.head.forward(tanh(hidden).flatten::<2>(1, 3)))
        .mean_loss(|_, outputs, (_, targets)| {
            // A mean by a product: Burn's own rounds to f32.
            (outputs - targets.clone()).powi_scalar(2).sum() * (1.0 / targets.shape().num_elements() as f64)
        })
}

/// Pictures of 5 × 5 by rule.
fn picture_rows(range: Range<usize>, device: &Device) -> PictureBatch {
    let number = |at: usize| ((at * 7919 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
    let values = |width: usize| (range.start * width..range.end * width).map(number).collect::<Vec<f64>>();
    (
        Tensor::from_data(TensorData::new(values(25), [range.len(), 1, 5, 5]), device),
        Tensor::from_data(TensorData::new(values(4), [range.len(), 4]), device),
    )
}

/// Batches of as many rows, from the first on.
#[derive(Clone, Debug)]
struct FirstRows<B>(fn(Range<usize>, &Device) -> B);

impl<B: Send + Sync + 'static> Batcher<usize, B> for FirstRows<B> {
    fn batch(&self, items: Vec<usize>, device: &Device) -> B {
        (self.0)(0..items.len(), device)
    }
}

/// A model with its batches, and how many of its segments can run in slices.
struct Case<M: Model> {
    model: fn(&Place) -> M,
    rows: fn(Range<usize>, &Device) -> M::Batch,
    in_slices: usize,
}

/// A layout that was chosen.
struct Laid {
    config: Config,
    settings: String,
    plan: String,
}

impl<M: Model> Case<M>
where
    M::Batch: Clone + Send + Sync + 'static,
{
    /// This rank in the layout that is found or given.
    fn laid(&self, epl: &Epl) -> Result<(Epl, Option<Found>)> {
        let items = InMemDataset::new((0..ROWS).collect());
        let data = TrainData::new(items, FirstRows(self.rows), ShuffledSampler::new(ROWS, ROWS, 1)?)?;
        epl.auto_parallel(self.model, &adam_w(), &data)
    }

    fn batches(&self, epl: &Epl, step: u64, micro_batches: usize) -> Vec<MicroBatch<M::Batch>> {
        let (first, device) = (step as usize * ROWS, epl.place().device());
        share(epl, ROWS, (step, micro_batches), |own| (self.rows)(first + own.start..first + own.end, device))
    }

    /// Three steps, and in which layout.
    fn steps(&self, epl: &Epl) -> Result<(Outcome, Laid)> {
        let (epl, found) = self.laid(epl)?;
        let engine = Engine::build(&epl, self.model, &adam_w())?;
        let micro_batches = engine.plan().micro_batches;
        let plan = engine.plan().to_string();
        let split = engine.plan().findings().iter().filter(|found| matches!(found, SplitFinding::Split(_))).count();
        assert_eq!(split, if epl.context().tensor().size() > 1 { self.in_slices } else { 0 }, "{plan}");
        let settings = found.map(|found| found.best().settings()).unwrap_or_default();
        Ok((
            three_steps(engine, |step| self.batches(&epl, step, micro_batches))?,
            Laid { config: epl.config().clone(), settings, plan },
        ))
    }

    /// All ranks, and what the first one was laid out as.
    fn run(&self, said: &[&str], settings: &str, trace: &Trace) -> (Outcome, Vec<program::Traced>, Laid) {
        let layers = Layers::new().toml(settings, Path::new("found.toml")).unwrap();
        let config = layers.command_line(said.iter().map(ToString::to_string)).unwrap().resolve().unwrap();
        let laid = Mutex::new(None);
        let steps = |epl: Epl| {
            let (outcome, own) = self.steps(&epl)?;
            if epl.context().world().rank() == 0 {
                *laid.lock().unwrap() = Some(own);
            }
            Ok(outcome)
        };
        let (outcome, traced) = launched(layout(1, 1, 1, 1), (&config, trace), steps);
        (outcome, traced, laid.into_inner().unwrap().unwrap())
    }

    /// What is found for four ranks equals one rank, makes the calls of its list, and is given by its settings; what it measures is kept
    /// in a file.
    fn check(&self, file: &Path) {
        let common = ["train.seed=42", "train.clip_norm=0.5", "train.global_batch_size=7"];
        let given = [
            &common[..],
            &["cluster.ranks=4", "dist.tensor_parallel_size=2", "dist.expert_parallel_size=1", "auto.discover=true"],
        ]
        .concat();
        let trace = Trace::new();
        let (alone, ..) = self.run(&common, "", &Trace::new());
        let keep = format!("auto.calibration={}", file.display());
        let searched = [&given[..], &["auto.auto_parallel=true", &keep]].concat();
        let (outcome, traced, found) = self.run(&searched, "", &trace);
        assert_same(layout(1, 2, 1, 1), &outcome, &alone, 1e-10);
        // The list is written from a model that is cut by hand.
        let by_hand = found.config.with("auto.discover", false).unwrap();
        let lay = |lazy: LazyModel<M>, config: &Config| {
            let batch = (self.rows)(0..ROWS, &Device::default().autodiff());
            lazy.discover(&batch)?.for_optimizer(&adam_w(), EngineSettings::from_config(config))
        };
        let step = program::Step { config: &by_hand, trace: &trace, rows: ROWS, has_experts: false };
        program::check(&traced, step, self.model, lay, |epl| self.batches(epl, 2, traced[0].micro_batches()));
        let (again, _, pasted) = self.run(&given, &found.settings, &Trace::new());
        assert_eq!(pasted.plan, found.plan);
        assert_same(layout(1, 2, 1, 1), &again, &alone, 1e-10);
    }
}

#[test]
fn chains_of_mlps_and_of_convolutions() {
    epl_testing::in_f64(|| {
        // The second one reads what the first one measured of collectives: of four ranks on two cores that takes long.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("costs.json");
        Case { model: discovered::chain, rows: discovered::rows, in_slices: 4 }.check(&file);
        Case { model: pictures, rows: picture_rows, in_slices: 2 }.check(&file);
    });
}
