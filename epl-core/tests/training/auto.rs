//! The layout that is searched, on ranks that measure.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Distribution, Tensor};
use epl_core::auto::Sample;
use epl_core::config::Layers;
use epl_core::optim::ParamGroups;
use epl_core::simulate::StepTime;
use epl_core::{Chain, Config, Engine, Epl, Error, Place, Strategy, launch};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

const LAYERS: usize = 4;
const WIDTH: usize = 16;
const ROWS: usize = 8;

/// Layers, each a segment.
fn chain(at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(at)).collect() };
    let first = Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    let layers = (1..LAYERS).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| net.layers[index].forward(rows).tanh())
    });
    layers.mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

fn config(options: &[(&str, &str)]) -> Config {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    Layers::new().command_line(said).unwrap().resolve().unwrap()
}

const AUTO: [(&str, &str); 3] =
    [("cluster.ranks", "2"), ("auto.auto_parallel", "true"), ("train.global_batch_size", "8")];

fn sample() -> Sample<'static, Tensor<2>> {
    Sample::new(ROWS, |rows, device| Tensor::random([rows, WIDTH], Distribution::Default, device))
}

/// The losses of three steps under a layout.
fn losses(epl: &Epl) -> Result<Vec<f64>, Error> {
    let mut engine = Engine::build(epl, chain, &SgdConfig::new())?;
    let rows = Tensor::<1, burn::tensor::Int>::arange(0..(ROWS * WIDTH) as i64, epl.place().device());
    let rows = rows.float().reshape([ROWS, WIDTH]) / (ROWS * WIDTH) as f32;
    (0..3).map(|_| Ok(engine.train_batch(&rows, 0.1)?.loss)).collect()
}

#[test]
fn what_is_found_is_built_and_computes_what_one_rank_computes() {
    let found = launch(&config(&AUTO), |epl| {
        let found = epl.search(chain, &SgdConfig::new(), sample())?;
        let best = epl.with_config(found.best().config().clone())?;
        // So is what is found for each of these.
        let others = [("dist.pipeline_parallel_size", "2"), ("dist.data_parallel_size", "2"), ("zero.level", "v3")];
        let others = others.map(|given| {
            let epl = epl.with_config(config(&[&AUTO[..], &[given]].concat()))?;
            let found = epl.search(chain, &SgdConfig::new(), sample())?;
            losses(&epl.with_config(found.best().config().clone())?)
        });
        let others = others.into_iter();
        let plan = best.plan(chain)?.plan().to_string();
        let time: &StepTime = found.best().time();
        assert!(time.compute > 0.0 && (time.total() / found.best().seconds() - 1.0).abs() < 1e-9, "{time}");
        let losses = (losses(&best)?, others.collect::<Result<Vec<_>, _>>()?);
        Ok((found.best().settings(), losses, found.to_string(), plan))
    })
    .unwrap();
    let one = launch(&config(&[("train.global_batch_size", "8")]), |epl| losses(&epl)).unwrap().remove(0);
    let close = |losses: &[f64]| losses.iter().zip(&one).all(|(loss, one)| (loss - one).abs() < 1e-5 * one.abs());
    for (settings, (losses, others), told, _) in &found {
        assert_eq!(settings, &found[0].0, "all ranks find the same");
        assert!(close(losses), "{losses:?} {one:?}\n{told}");
        assert!(others.iter().all(|losses| close(losses)), "{others:?} {one:?}");
        assert!(told.contains("predicted step") && told.contains("settings:\nauto.auto_parallel = false"), "{told}");
    }
    // Pasted, they are the layout again.
    let pasted = Layers::new().toml(&found[0].0, Path::new("found.toml")).unwrap().command_line(["cluster.ranks=2"]);
    let plan = |epl: Epl| Ok(epl.plan(chain)?.plan().to_string());
    let again = launch(&pasted.unwrap().resolve().unwrap(), plan).unwrap();
    assert_eq!(again[0], found[0].3);
}

#[test]
fn a_budget_that_no_layout_fits_is_refused_with_the_nearest() {
    let config = config(&[&AUTO[..], &[("offload.device_bytes", "2000")]].concat());
    let error =
        launch(&config, |epl| epl.search(chain, &SgdConfig::new(), sample()).map(|_| ())).unwrap_err().to_string();
    assert!(error.contains("no layout of 2 ranks fits; nearest comes"), "{error}");
    assert!(error.contains("offload.device_bytes = 2000 less auto.margin = 0.09"), "{error}");
}

#[test]
fn parameter_groups_are_no_hindrance() {
    let groups = [("optimizer.weight_decay", "layers.0.bias=0"), ("optimizer.frozen", "layers.1.bias")];
    let found = launch(&config(&[&AUTO[..], &groups].concat()), |epl| {
        let optimizer =
            ParamGroups::new(AdamWConfig::new()).group(["layers.2.bias"], |group| group.with_weight_decay(0.0));
        let found = epl.search(chain, &optimizer, sample())?;
        Ok(epl.with_config(found.best().config().clone())?.plan(chain)?.memory(&optimizer)?.estimate()?.lines.len())
    });
    assert!(found.unwrap()[0] > 0);
}

#[test]
fn what_cannot_be_searched_is_refused() {
    let build = launch(&config(&AUTO), |epl| epl.build(chain).map(|_| ())).unwrap_err().to_string();
    assert!(build.contains("call `Epl::auto_parallel`"), "{build}");
    let scoped = |at: &Place| at.default_strategy(Strategy::replicate(1), chain);
    let scopes = launch(&config(&AUTO), |epl| epl.search(scoped, &SgdConfig::new(), sample()).map(|_| ()));
    let scopes = scopes.unwrap_err().to_string();
    assert!(scopes.contains("a model without scopes"), "{scopes}");
    let micro = [("cluster.ranks", "2"), ("auto.auto_parallel", "true"), ("train.micro_batch_size", "2")];
    let micro = launch(&config(&micro), |epl| epl.search(chain, &SgdConfig::new(), sample()).map(|_| ()));
    let micro = micro.unwrap_err().to_string();
    let other = [&AUTO[..2], &[("train.global_batch_size", "9")]].concat();
    let other = launch(&config(&other), |epl| epl.search(chain, &SgdConfig::new(), sample()).map(|_| ()));
    let other = other.unwrap_err().to_string();
    assert!(other.contains("global_batch_size = 9") && other.contains("steps of 8 rows"), "{other}");
    let stages = [&AUTO[..], &[("pipeline.num_stages", "2")]].concat();
    let stages = launch(&config(&stages), |epl| epl.search(chain, &SgdConfig::new(), sample()).map(|_| ()));
    assert!(stages.unwrap_err().to_string().contains("give dist.pipeline_parallel_size = 2"));
    let margin = [&AUTO[..], &[("auto.margin", "0.2")]].concat();
    let margin = launch(&config(&margin), |epl| epl.search(chain, &SgdConfig::new(), sample()).map(|_| ()));
    assert!(margin.unwrap_err().to_string().contains("give offload.device_bytes"));
    assert!(micro.contains("train.micro_batch_size = 2") && micro.contains("train.global_batch_size"), "{micro}");
}

#[test]
fn where_stages_are_cut_and_what_is_run_again_can_be_said() {
    let plan = |options: &[(&str, &str)]| {
        let plans = launch(&config(options), |epl| Ok(epl.plan(chain)?.plan().clone()));
        plans.map(|mut plans| plans.remove(0)).map_err(|error| error.to_string())
    };
    let (two, chunks) = (("dist.pipeline_parallel_size", "2"), ("pipeline.num_chunks", "2"));
    assert_eq!(plan(&[two, ("pipeline.cuts", "1")]).unwrap().stages.parts(), [0..1, 1..4]);
    assert_eq!(plan(&[two, chunks, ("pipeline.cuts", "1,2,3")]).unwrap().stages.parts(), [0..1, 1..2, 2..3, 3..4]);
    for (options, told) in [
        (&[two, ("pipeline.cuts", "1,2")][..], "2 cuts make 3 parts"),
        (&[two, ("pipeline.cuts", "4")], "a model of 4 segments"),
        (&[two, ("pipeline.cuts", "0")], "between 1 and 3"),
        (&[("pipeline.cuts", "1")], "room for 1 (pipeline stages"),
        (&[chunks, ("pipeline.cuts", "2")], "there is 1 stage"),
        (&[two, ("pipeline.cuts", "1"), ("dist.custom_pipeline_stage_id", "0,0,1,1")], "leave one of both out"),
    ] {
        let error = plan(options).unwrap_err();
        assert!(error.contains(told), "{options:?}: {error}");
    }
    let again = |runs| [("gradient_checkpoint.type", "collection"), ("gradient_checkpoint.runs", runs)];
    assert_eq!(plan(&again("0..1,1..3")).unwrap().recompute, [0..1, 1..3]);
    // A run ends where a stage does.
    assert_eq!(plan(&[&again("0..3")[..], &[two]].concat()).unwrap().recompute, [0..2, 2..3]);
    for runs in ["2..4", "1..3,2..3", "x", "2..1"] {
        let error = plan(&again(runs)).unwrap_err();
        assert!(error.contains("whose last segment is always stored"), "{runs}: {error}");
    }
    let kept = [&again("0..1")[..], &[("gradient_checkpoint.kept", "2")]].concat();
    assert!(plan(&kept).unwrap_err().contains("leave one of both out"));
    let off = plan(&[("gradient_checkpoint.runs", "0..1")]).unwrap_err();
    assert!(off.contains("gradient_checkpoint.runs = [\"0..1\"] needs gradient_checkpoint.type = collection"), "{off}");
}
