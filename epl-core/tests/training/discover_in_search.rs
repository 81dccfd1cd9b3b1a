//! Layers that know nothing of the tensor axis, in a layout that is searched or given by options.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdafactorConfig, AdamWConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor, TensorData};
use epl_comm::Split;
use epl_core::auto::Sample;
use epl_core::config::Layers;
use epl_core::cost::Machine;
use epl_core::data::{ShuffledSampler, TrainData};
use epl_core::plan::SplitFinding;
use epl_core::{Axis, Chain, Engine, Epl, Place, Result, WithLoss, launch, launch_dry};

use crate::search_options::config;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

const HIDDEN: usize = 4000;
const ROWS: usize = 4;

type Rows = Tensor<2>;
type Mlp = Chain<Net, Rows, Rows>;

/// A small layer, and an MLP with a residual of so many hidden features.
fn mlp_of(hidden: usize, at: &Place) -> Mlp {
    chain(hidden, at, |net, rows| rows.clone() + net.down.forward(gelu(net.up.forward(net.norm.forward(rows)))))
}

fn mlp(at: &Place) -> Mlp {
    mlp_of(HIDDEN, at)
}

/// With a norm behind, which mixes what would be cut, and a layer whose loss reads it.
fn whole(at: &Place) -> Mlp {
    chain(12, at, |net, rows| net.norm.forward(rows.clone() + net.down.forward(gelu(net.up.forward(rows)))))
}

fn chain(hidden: usize, at: &Place, block: impl Fn(&Net, Rows) -> Rows + Send + Sync + 'static) -> Mlp {
    let linear = |from, to| LinearConfig::new(from, to).init(at);
    let net = Net {
        first: linear(3, 3),
        norm: LayerNormConfig::new(3).init(at),
        up: linear(3, hidden),
        down: linear(hidden, 3),
    };
    Chain::of(net)
        .first(&["first"], |net: &Net, rows: &Rows| net.first.forward(rows.clone()).tanh())
        .then(&["norm", "up", "down"], move |net, rows, _| block(net, rows))
        .mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

#[derive(Clone, Debug)]
struct ByRule;

impl Batcher<usize, Rows> for ByRule {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Rows {
        let number = |at: usize| ((at * 7919 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
        let values: Vec<f64> = items.iter().flat_map(|item| (0..3).map(move |at| number(3 * item + at))).collect();
        Tensor::from_data(TensorData::new(values, [items.len(), 3]), device)
    }
}

fn data() -> TrainData<usize, Rows> {
    let items = InMemDataset::new((0..ROWS).collect());
    TrainData::new(items, ByRule, ShuffledSampler::new(ROWS, ROWS, 1).unwrap()).unwrap()
}

fn sample() -> Sample<'static, Rows> {
    Sample::new(ROWS, |rows, device| ByRule.batch((0..rows).collect(), device))
}

const RANKS: (&str, &str) = ("cluster.ranks", "2");
const SEARCH: (&str, &str) = ("auto.auto_parallel", "true");
const DISCOVER: (&str, &str) = ("auto.discover", "true");
const TENSOR: (&str, &str) = ("dist.tensor_parallel_size", "2");

fn links() -> Result<Machine> {
    Machine::from_toml(&epl_testing::one_host(2))
}

/// What `f` says of ranks with these options, which is an error.
fn refused<T: Send>(options: &[(&str, &str)], f: impl Fn(Epl) -> Result<T> + Sync) -> String {
    launch(&config(options), f).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn what_no_device_holds_is_cut_where_the_search_may_look() {
    // Parameters, gradients and moments of the MLP are 448,000 bytes, and half of that in slices. Nothing else makes it smaller.
    let tight = [RANKS, SEARCH, ("offload.device_bytes", "420000"), ("zero.level", ""), ("offload.level", "")];
    let optimizer = AdamWConfig::new();
    let found = launch(&config(&[&tight[..], &[DISCOVER]].concat()), |epl| {
        // What slices send counts, over links that are described: what is measured of so few bytes may be nothing.
        let described = epl.cost_table(mlp, &optimizer, sample())?.over_links(&links()?)?.search(epl.config())?;
        assert!(described.best().config().auto.discover && described.best().time().layers > 1e-5, "{described}");
        let (epl, found) = epl.auto_parallel(mlp, &optimizer, &data())?;
        let engine = Engine::build(&epl, mlp, &optimizer)?;
        let split = engine.plan().findings().iter().filter(|found| matches!(found, SplitFinding::Split(_))).count();
        assert_eq!(engine.model().model.up.weight.val().dims(), [3, HIDDEN / 2]);
        Ok((found.unwrap(), split))
    });
    for (found, split) in found.unwrap() {
        let (best, settings) = (found.best(), found.best().settings());
        assert!(settings.contains("dist.tensor_parallel_size = 2\n") && !settings.contains("auto.discover"), "{found}");
        assert!(best.config().auto.discover && split == 1, "{found}");
    }
    let without = refused(&tight, |epl| epl.search(mlp, &optimizer, sample()));
    assert!(without.contains("no layout of 2 ranks fits"), "{without}");
}

#[test]
fn a_division_that_is_refused_says_what_helps() {
    let search = |options: &[(&str, &str)], model: fn(&Place) -> Mlp| {
        refused(&[&[RANKS, SEARCH, TENSOR], options].concat(), |epl| epl.search(model, &AdamWConfig::new(), sample()))
    };
    let option = search(&[], mlp);
    assert!(option.contains("no layer is divided over tensor ranks; auto.discover = true looks"), "{option}");
    let reason = search(&[DISCOVER], whole);
    assert!(reason.contains("and no plain segment can be: first is whole: no extent of its matrices"), "{reason}");
    // Factors of whole tensors cannot be updated in slices.
    let factors = refused(&[RANKS, SEARCH, TENSOR, DISCOVER], |epl| epl.search(mlp, &AdafactorConfig::new(), sample()));
    assert!(factors.contains("a rank has a slice of `up.weight`"), "{factors}");
}

#[test]
fn a_layout_that_is_given_is_cut_as_discover_cuts_it() {
    let given = [RANKS, TENSOR, DISCOVER, ("pipeline.num_micro_batch", "2")];
    let plans = launch(&config(&given), |epl| {
        let (own, found) = epl.auto_parallel(mlp, &AdamWConfig::new(), &data())?;
        assert!(found.is_none());
        let table = epl.cost_table(mlp, &AdamWConfig::new(), sample())?.over_links(&links()?)?;
        let explained = table.explain(epl.config())?;
        assert!(explained.time().layers > 1e-5, "{explained}");
        epl.explain(mlp, &AdamWConfig::new(), sample())?;
        let plain = epl.with_config(config(&[given[0], given[1], given[3]]))?;
        let batch = ByRule.batch((0..ROWS).collect(), epl.place().device());
        let by_hand = plain.plan(mlp)?.discover(&batch)?.plan().to_string();
        Ok((own.plan(mlp)?.plan().to_string(), by_hand))
    });
    for (own, by_hand) in plans.unwrap() {
        assert!(own == by_hand && own.contains("runs in slices: extent 4000"), "{own}\n{by_hand}");
    }
}

#[test]
fn who_did_not_look_is_told() {
    let given = [RANKS, TENSOR, DISCOVER];
    let build = refused(&given, |epl| Engine::build(&epl, mlp, &AdamWConfig::new()).map(|_| ()));
    assert!(build.contains("for the 2 tensor ranks") && build.contains("call `Epl::auto_parallel`"), "{build}");
    let other = refused(&given, |epl| epl.discover(mlp, sample())?.build(|at| mlp_of(16, at)).map(|_| ()));
    assert!(other.contains("`up.weight` [3, 4000]") && other.contains("`up.weight` [3, 16]"), "{other}");
    let scoped = |at: &Place| {
        let head = at.split(2, |at| at.split_param([3, 4], &[(Axis::Tensor, 1)], Initializer::Zeros));
        WithLoss::new(head, |_: &Param<Tensor<2>>, rows: &Rows| rows.clone().mean())
    };
    let scoped = refused(&given, |epl| epl.discover(scoped, sample()));
    assert!(scoped.contains("a model without scopes"), "{scoped}");
    // Without ranks to cut for, the option says nothing.
    let error = Layers::new().command_line(["auto.discover=true"]).unwrap().resolve().unwrap_err().to_string();
    assert!(error.contains("auto.discover") && error.contains("dist.tensor_parallel_size above 1"), "{error}");
    let (table, _) = launch_dry(&config(&[RANKS, SEARCH]), 0, |epl| {
        epl.cost_table(|at| mlp_of(16, at), &AdamWConfig::new(), sample())
    })
    .unwrap();
    let error = table.search(&config(&[RANKS, SEARCH, DISCOVER])).unwrap_err().to_string();
    assert!(error.contains("auto.discover = true, and these costs were measured with false"), "{error}");
}

/// A layer that divides itself, before a plain MLP.
#[derive(Module, Debug)]
struct Mixed {
    scale: Param<Tensor<1>>,
    mlp: (Linear, Linear),
}

fn mixed(at: &Place) -> Chain<Mixed, Rows, Rows> {
    let (group, linear) = (at.context().tensor().clone(), |from, to| LinearConfig::new(from, to).init(at));
    let scale = at.child("scale").split_param([3], &[(Axis::Tensor, 0)], Initializer::Ones);
    Chain::of(Mixed { scale, mlp: (linear(3, 16), linear(16, 3)) })
        .first(&["scale"], move |net: &Mixed, rows: &Rows| {
            let scale = Split::from_local(net.scale.val(), 0, 3, &group).all_gather();
            rows.clone() * scale.unsqueeze()
        })
        .then(&["mlp"], |net, rows, _| net.mlp.1.forward(net.mlp.0.forward(rows).tanh()))
        .mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

/// How many columns a file of one program has.
fn columns(file: &Path) -> usize {
    let known: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    known.as_object().unwrap().values().next().unwrap()["segments"].as_object().unwrap().len()
}

#[test]
fn slices_that_are_found_are_measured_beside_those_of_layers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    let keep = ("auto.calibration", file.to_str().unwrap());
    let search = |options: &[(&str, &str)]| {
        let options = config(&[&[RANKS, SEARCH, TENSOR, keep], options].concat());
        let found = launch(&options, |epl| epl.search(mixed, &AdamWConfig::new(), sample()));
        found.unwrap()[0].best().time().layers
    };
    let [own, found] = [search(&[]), search(&[DISCOVER])];
    // What layers send, and beside it what segments in slices do.
    assert!(own > 0.0 && found > own, "{own} {found}");
    assert_eq!(columns(&file), 2);
}

#[test]
fn what_was_measured_in_slices_is_read_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    let keep = ("auto.calibration", file.to_str().unwrap());
    let model = |at: &Place| mlp_of(16, at);
    let search = |options: &[(&str, &str)]| {
        let options = [&[RANKS, SEARCH, keep], options].concat();
        let found = launch(&config(&options), |epl| epl.auto_parallel(model, &AdamWConfig::new(), &data()));
        found.unwrap().swap_remove(0)
    };
    let columns = || columns(&file);
    let (_, first) = search(&[DISCOVER, TENSOR]);
    assert_eq!(columns(), 1);
    let (_, again) = search(&[DISCOVER, TENSOR, ("auto.measure", "1")]);
    let (first, again) = (first.unwrap(), again.unwrap());
    assert_eq!((first.best().seconds(), columns()), (again.best().seconds(), 1));
    // It was run in slices.
    assert!(first.best().measured().is_none() && again.best().measured().is_some(), "{again}");
    // Where another layout is chosen, nothing is looked for in it.
    let (epl, found) = search(&[DISCOVER, ("dist.data_parallel_size", "2")]);
    assert!(found.unwrap().best().settings().contains("auto.discover = false\n") && !epl.config().auto.discover);
    assert_eq!(columns(), 2, "whole, beside the slices that are known");
}

#[test]
fn what_was_found_is_read_and_confirmed() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("costs.json");
    let keep = ("auto.calibration", keep.to_str().unwrap());
    // Its parameters are the same with the norm before the block, which can be cut, and behind it.
    let model = |(is_before, is_bounded): (bool, bool)| {
        move |at: &Place| {
            chain(16, at, move |net, rows| {
                RUNS.fetch_add(1, Ordering::Relaxed);
                let block = |rows: Rows| match (net.down.forward(gelu(net.up.forward(rows))), is_bounded) {
                    (out, true) => out.clamp(-50.0, 50.0),
                    (out, false) => out,
                };
                match is_before {
                    true => rows.clone() + block(net.norm.forward(rows)),
                    false => net.norm.forward(rows.clone() + block(rows)),
                }
            })
        }
    };
    // How often the block runs, and whether it is cut.
    let look = |is: (bool, bool), first: usize| {
        let sample =
            || Sample::new(ROWS, |rows, device: &Device| ByRule.batch((first..first + rows).collect(), device));
        RUNS.store(0, Ordering::Relaxed);
        let cut = launch(&config(&[RANKS, SEARCH, TENSOR, DISCOVER, keep]), |epl| {
            let found = epl.discover(model(is), sample())?;
            let planned = found.with_config(config(&[RANKS, TENSOR, DISCOVER]))?.plan(model(is))?;
            Ok(matches!(planned.plan().findings()[1], SplitFinding::Split(_)))
        });
        (RUNS.load(Ordering::Relaxed), cut.unwrap() == [true; 2])
    };
    let [(all, is_cut), (again, is_cut_again)] = [look((true, false), 0), look((true, false), 0)];
    assert!(is_cut && is_cut_again && 2 * again < all, "{again} runs of {all}");
    // Other values may say something else.
    let (runs, is_cut) = look((true, false), 1);
    assert!(is_cut && 2 * runs > all, "{runs} runs of {all}");
    // Another function is no longer cut, though nothing that is kept tells it from the first one.
    assert!(!look((false, false), 0).1);
    // A bound shows where numbers are large.
    assert!(!look((true, true), 0).1);
}
