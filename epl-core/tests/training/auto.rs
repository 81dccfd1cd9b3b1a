//! The layout that is searched, on ranks that measure.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::path::Path;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use epl_core::auto::Sample;
use epl_core::config::Layers;
use epl_core::cost::Machine;
use epl_core::memory::Tier;
use epl_core::optim::ParamGroups;
use epl_core::simulate::StepTime;
use epl_core::{Chain, Config, Engine, Epl, Error, Place, Strategy, WithLoss, launch, launch_dry};

use crate::ALLOCATOR;
use crate::search_options::config;

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

const AUTO: [(&str, &str); 3] =
    [("cluster.ranks", "2"), ("auto.auto_parallel", "true"), ("train.global_batch_size", "8")];

fn sample() -> Sample<'static, Tensor<2>> {
    Sample::new(ROWS, |rows, device| epl_testing::tensor(0, [rows, WIDTH], device))
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

/// A small layer, and a large one.
#[derive(Module, Debug)]
struct Uneven {
    small: Linear,
    large: Linear,
}

#[test]
fn a_refusal_tells_what_helps_the_stage_that_is_too_large() {
    let uneven = |at: &Place| {
        let layer = |width: usize| LinearConfig::new(3, width).init(at);
        Chain::of(Uneven { small: layer(3), large: layer(3000) })
            .first(&["small"], |net: &Uneven, rows: &Tensor<2>| net.small.forward(rows.clone()))
            .then(&["large"], |net: &Uneven, rows, _| net.large.forward(rows))
            .mean_loss(|_, rows, _| rows.mean())
    };
    let options = [
        ("cluster.ranks", "4"),
        ("auto.auto_parallel", "true"),
        ("dist.pipeline_parallel_size", "2"),
        ("offload.device_bytes", "170000"),
        ("zero.level", ""),
        ("offload.level", ""),
    ];
    let told = launch_dry(&config(&options), 0, |epl| {
        let rows = |rows: usize, device: &Device| Tensor::<2>::ones([rows, 3], device);
        epl.search(uneven, &AdamWConfig::new(), Sample::new(4, rows)).map(|_| ())
    });
    let told = told.unwrap_err().to_string();
    assert!(told.contains("no layout of 4 ranks fits"), "{told}");
    // What it needs with the setting that is told: the large layer's parameters at least, of 12,000 elements.
    let remedy = told.rsplit(" needs ").next().unwrap_or_default();
    let needed = remedy.trim_start_matches("at least ").split(' ').next().and_then(|bytes| bytes.parse::<u64>().ok());
    assert!(needed.is_some_and(|bytes| bytes >= 48_000), "{told}");
}

#[test]
fn where_one_rank_refuses_all_do_and_none_waits() {
    // Each rank goes on behind its error, and meets the others.
    type Search<'a> = dyn Fn(&Epl, usize) -> Result<(), Error> + Sync + 'a;
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().join("costs.json");
    let kept = config(&[&AUTO[..], &[("auto.calibration", keep.to_str().unwrap())]].concat());
    let told_with = |config: &Config, search: &Search<'_>| {
        let told = launch(config, |epl| {
            let rank = epl.context().world().rank();
            let told = search(&epl, rank).unwrap_err().to_string();
            epl.context().world().barrier()?;
            Ok(told)
        });
        <[String; 2]>::try_from(told.unwrap()).unwrap()
    };
    let told = |search: &Search<'_>| told_with(&config(&AUTO), search);
    // Rows of another batch than the option says.
    let [first, second] = told(&|epl, rank| {
        let rows = |rows: usize, device: &Device| Tensor::<2>::ones([rows, WIDTH], device);
        epl.search(chain, &SgdConfig::new(), Sample::new(ROWS + rank, rows)).map(drop)
    });
    assert!(first.contains("another rank could not search a layout, and says why"), "{first}");
    assert!(second.contains("steps of 9 rows"), "{second}");
    // A model that cannot be measured.
    let [first, second] = told(&|epl, rank| {
        let model = |at: &Place| match rank {
            1 => at.default_strategy(Strategy::replicate(1), chain),
            _ => chain(at),
        };
        epl.search(model, &SgdConfig::new(), sample()).map(drop)
    });
    assert!(first.contains("another rank could not measure it"), "{first}");
    assert!(second.contains("a model without scopes"), "{second}");
    // Settings that no optimizer can be made of.
    let decays =
        |epl: &Epl, decay: f32| epl.search(chain, &AdamWConfig::new().with_weight_decay(decay), sample()).map(drop);
    let one_decays = |epl: &Epl, rank: usize| decays(epl, if rank == 1 { f32::NAN } else { 0.0 });
    // Also where the other rank's settings were measured before.
    launch(&kept, |epl| decays(&epl, 0.0)).unwrap();
    for [first, second] in [told(&one_decays), told_with(&kept, &one_decays)] {
        assert!(first.contains("another rank could not measure an update, and says why"), "{first}");
        assert!(second.contains("weight_decay = NaN"), "{second}");
    }
}

#[test]
fn how_collectives_are_made_is_no_hindrance_to_a_budget() {
    let options = [
        ("offload.device_bytes", "10000000"),
        ("communication.num_communicators", "4"),
        ("communication.max_splits", "8"),
    ];
    let found = launch(&config(&[&AUTO[..], &options].concat()), |epl| {
        epl.search(chain, &SgdConfig::new(), sample()).map(|found| found.best().seconds())
    });
    assert!(found.unwrap()[0] > 0.0);
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
    let budget = [("gradient_checkpoint.type", "auto"), ("gradient_checkpoint.budget", "1000")];
    let budget = [&AUTO[..], &budget].concat();
    let budget = launch(&config(&budget), |epl| epl.search(chain, &SgdConfig::new(), sample()).map(|_| ()));
    let budget = budget.unwrap_err().to_string();
    assert!(budget.contains("gradient_checkpoint.budget = 1000 has the first step choose"), "{budget}");
    let margin = [&AUTO[..], &[("auto.margin", "0.2")]].concat();
    let margin = launch(&config(&margin), |epl| epl.search(chain, &SgdConfig::new(), sample()).map(|_| ()));
    assert!(margin.unwrap_err().to_string().contains("give offload.device_bytes"));
    assert!(micro.contains("train.micro_batch_size = 2") && micro.contains("train.global_batch_size"), "{micro}");
}

#[test]
fn a_division_that_cannot_be_is_not_run() {
    let unkept = config(&[&AUTO[..], &[("auto.calibration", "")]].concat());
    let asked = launch(&unkept, |epl| {
        let asked = Cell::new(0);
        let rows = |rows: usize, device: &Device| {
            asked.set(asked.get() + 1);
            Tensor::<2>::ones([rows, WIDTH], device)
        };
        let found = epl.search(chain, &SgdConfig::new(), Sample::new(ROWS, rows))?;
        assert_eq!(found.refused().len(), 2, "two tensor ranks, and two that share experts: {found}");
        Ok(asked.get())
    });
    // One number of rows after another, of the plain model alone.
    assert_eq!(asked.unwrap(), [3, 3]);
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

#[test]
fn what_was_measured_is_read_by_the_next_search() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    let keep = ("auto.calibration", file.to_str().unwrap());
    let found = |options: &[(&str, &str)]| {
        let found = launch(&config(&[&AUTO[..], &[keep], options].concat()), |epl| {
            Ok(epl.search(chain, &SgdConfig::new(), sample())?.best().clone())
        });
        found.map(|found| found[0].clone()).map_err(|error| error.to_string())
    };
    let first = found(&[]).unwrap();
    assert!(first.config().auto.calibration.is_empty(), "a layout that was found searches no more");
    let text = std::fs::read_to_string(&file).unwrap();
    let again = found(&[]).unwrap();
    assert_eq!((again.seconds(), again.words()), (first.seconds(), first.words()));
    // It is what was measured that is read.
    let mut slower: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of = slower.as_object().unwrap().keys().next().unwrap().clone();
    for segments in slower[&of]["segments"].as_object_mut().unwrap().values_mut() {
        for time in segments["times"].as_array_mut().unwrap() {
            for point in time["forward"].as_array_mut().unwrap() {
                point[1] = (point[1].as_f64().unwrap() + 1.0).into();
            }
        }
    }
    let slow = slower.to_string();
    std::fs::write(&file, &slow).unwrap();
    let slower = found(&[]).unwrap();
    assert!(slower.seconds() > first.seconds() + 1.0, "{} {}", slower.seconds(), first.seconds());
    // Another model is measured, and what is known stays.
    let count = || {
        let known: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        known[&of]["segments"].as_object().unwrap().len()
    };
    let before = count();
    let other = found(&[("optimizer.frozen", "layers.1.bias")]).unwrap();
    assert!(other.seconds() < 1.0 && count() > before, "{} {before}", other.seconds());
    // Of another program everything is measured anew, and what is known of that one stays.
    let another = format!("another {of}");
    std::fs::write(
        &file,
        slow.replacen(&serde_json::to_string(&of).unwrap(), &serde_json::to_string(&another).unwrap(), 1),
    )
    .unwrap();
    assert!(found(&[]).unwrap().seconds() < 1.0);
    let known: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(known.get(&another).is_some() && known.get(&of).is_some());
    // What is no such file is not overwritten, and a folder that is not there is told before anything is measured.
    std::fs::write(&file, "steps,loss\n1,2\n").unwrap();
    let error = found(&[]).unwrap_err();
    assert!(error.contains("costs.json") && error.contains("name another file"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "steps,loss\n1,2\n");
    let nowhere = folder.path().join("none").join("costs.json");
    let error = found(&[("auto.calibration", nowhere.to_str().unwrap())]).unwrap_err();
    assert!(error.contains("none"), "{error}");
}

#[test]
fn an_update_in_host_memory_is_measured_where_state_may_lie_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    let keep = ("auto.calibration", file.to_str().unwrap());
    let found = |options: &[(&str, &str)]| {
        let config = config(&[&AUTO[..], &[keep], options].concat());
        launch(&config, |epl| Ok(epl.search(chain, &SgdConfig::new(), sample())?.best().time().update)).unwrap()[0]
    };
    // What an element takes in host memory, as measured with each of these options.
    let known = || {
        let known: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let rates = known.as_object().unwrap().values().next().unwrap()["rates"].as_object().unwrap().clone();
        let of = |rates: &serde_json::Value| ["of_state", "of_more"].map(|key| rates["host_updates"][key].as_f64());
        rates.into_iter().map(|(key, rates)| (key, of(&rates))).collect::<Vec<_>>()
    };
    found(&[("offload.level", "")]);
    assert!(known().len() == 1 && known()[0].1 == [None; 2], "{:?}", known());
    // It is not put away where there is room.
    found(&[]);
    assert_eq!(known().len(), 1);
    // The state alone, and also all.
    for (may, count) in [(("offload.optimizer_state", "host"), 1), (("offload.device_bytes", "1000000"), 2)] {
        let before = known();
        found(&[may]);
        let after = known();
        let new: Vec<_> = after.iter().filter(|rates| !before.contains(rates)).collect();
        let measured: Vec<f64> = new[0].1.into_iter().map_while(|seconds| seconds).collect();
        assert!(new.len() == 1 && measured.len() == count, "{may:?}: {after:?}");
        assert!(measured.iter().all(|seconds| *seconds > 0.0), "{may:?}: {after:?}");
    }
    // It is read, and counts.
    let mut slower: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for rates in
        slower.as_object_mut().unwrap().values_mut().next().unwrap()["rates"].as_object_mut().unwrap().values_mut()
    {
        rates["host_updates"] = serde_json::json!({ "of_state": 1.0, "of_more": 2.0 });
    }
    std::fs::write(&file, slower.to_string()).unwrap();
    assert!(found(&[("offload.optimizer_state", "host")]) > 1.0);
    // It is of state that lies as it did: of nothing else that is put away.
    let bounded = ("offload.device_bytes", "1000000");
    let updates = launch(&config(&[&AUTO[..], &[keep, bounded]].concat()), |epl| {
        let table = epl.cost_table(chain, &SgdConfig::new(), sample())?;
        let of = |options: &[(&'static str, &'static str)]| {
            let plain = [("cluster.ranks", "2"), ("train.global_batch_size", "8"), bounded];
            Ok::<_, Error>(table.explain(&config(&[&plain[..], options].concat()))?.time().update)
        };
        let state = ("offload.optimizer_state", "host");
        Ok([of(&[("offload.level", "v0")])?, of(&[state])?, of(&[state, ("offload.gradients", "host")])?])
    });
    let [all, state, other] = updates.unwrap()[0];
    assert!(state > 1.0 && all > 1.5 * state && other < 1.0, "{all} {state} {other}");
}

#[test]
fn longer_samples_are_measured_anew() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    let known = |length: usize| {
        let keep = ("auto.calibration", file.to_str().unwrap());
        let net = |at: &Place| {
            let loss = |layer: &Linear, rows: &Tensor<3>| layer.forward(rows.clone()).mean();
            WithLoss::new(LinearConfig::new(WIDTH, WIDTH).init(at), loss)
        };
        let rows = move |rows: usize, device: &Device| Tensor::<3>::ones([rows, length, WIDTH], device);
        launch(&config(&[&AUTO[..], &[keep]].concat()), |epl| {
            epl.search(net, &SgdConfig::new(), Sample::new(ROWS, rows)).map(drop)
        })
        .unwrap();
        let known: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        known.as_object().unwrap().values().map(|of| of["segments"].as_object().unwrap().len()).sum::<usize>()
    };
    // Nothing of that is sent from one segment to another.
    assert_eq!([2, 3, 2].map(known), [1, 2, 2]);
}

#[test]
fn the_best_layouts_are_run_where_that_is_asked_for() {
    let found = launch(&config(&[&AUTO[..], &[("auto.measure", "3")]].concat()), |epl| {
        epl.search(chain, &SgdConfig::new(), sample())
    });
    for found in found.unwrap() {
        let run: Vec<f64> =
            [found.best()].into_iter().chain(found.next()).filter_map(|choice| choice.measured()).collect();
        assert_eq!(run.len(), 3);
        assert!(run.is_sorted() && found.best().measured() == Some(run[0]), "{run:?}");
        assert!(found.best().config().auto.measure == 0 && found.to_string().contains("measured step"), "{found}");
        assert!(found.best().settings().ends_with("# without auto.measure, which is of a search\n"), "{found}");
    }
}

#[test]
fn ones_own_layout_is_explained() {
    let own = [("cluster.ranks", "2"), ("zero.level", "v1"), ("pipeline.num_micro_batch", "2")];
    let told = launch(&config(&own), |epl| {
        let choice = epl.explain(chain, &SgdConfig::new(), sample())?;
        let table = epl.cost_table(chain, &SgdConfig::new(), sample())?;
        let links = |ranks: usize, gb_per_s: f64| {
            Machine::from_toml(&format!(
                "[[host]]\ncount = 1\ndevices = [{{ class = \"c\", count = {ranks} }}]\n\
                 inside = {{ alpha_us = 1, gb_per_s = {gb_per_s} }}\noutside = {{ alpha_us = 1, gb_per_s = 1 }}\n\
                 [class.c]\nmemory_gb = 1\ntflops = 1\nmemory_gb_per_s = 1\n"
            ))
        };
        let over = |gb_per_s| table.clone().over_links(&links(2, gb_per_s)?)?.explain(epl.config());
        let [slow, fast] = [over(1e-6)?.seconds(), over(1e3)?.seconds()];
        assert!(!over(1e3)?.to_string().contains("not counted: collectives"));
        let three = table.clone().over_links(&links(3, 1.0)?).unwrap_err().to_string();
        let tight = config(&[&own[..], &[("offload.device_bytes", "2000")]].concat());
        let unbounded = table.explain(&tight).unwrap_err().to_string();
        assert!(
            unbounded.contains("offload.device_bytes = 2000") && unbounded.contains("measured without"),
            "{unbounded}"
        );
        for (option, told) in [
            (("train.global_batch_size", "9"), "steps of 8 rows"),
            (("auto.auto_parallel", "true"), "call `search`"),
            (("auto.measure", "2"), "call `Epl::search`"),
        ] {
            let other = config(&[&own[..], &[("auto.auto_parallel", "true"), option]].concat());
            let error = match option.0 {
                "auto.measure" => table.search(&other).unwrap_err(),
                _ => table.explain(&other).unwrap_err(),
            };
            assert!(error.to_string().contains(told), "{option:?}: {error}");
        }
        let tight = epl.with_config(tight)?.explain(chain, &SgdConfig::new(), sample()).unwrap_err().to_string();
        Ok((choice, [slow, fast], three, tight))
    });
    let (choice, [slow, fast], three, tight) = told.unwrap().swap_remove(0);
    assert_eq!(choice.words(), "data 2, 2 micro-batches, zero v1");
    assert!(choice.seconds() > 0.0 && choice.time().compute > 0.0, "{choice}");
    // Gradients of 4,352 bytes, reduced and gathered, at 1,000 bytes a second.
    assert!(slow > fast + 4.0, "{slow} {fast}");
    assert!(three.contains("3 devices") && three.contains("2 ranks"), "{three}");
    assert!(tight.contains("there are 2000") || tight.contains("2000 bytes"), "{tight}");
}

#[test]
fn a_world_that_is_only_thought_of_says_that_collectives_are_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("costs.json");
    let keep = [("auto.calibration", file.to_str().unwrap()), ("dist.data_parallel_size", "2")];
    let words = "not counted: collectives";
    let searched = |epl: &Epl| Ok(epl.search(chain, &SgdConfig::new(), sample())?.to_string());
    let given = config(&[&AUTO[..], &keep].concat());
    let (told, _) = launch_dry(&given, 0, |epl| searched(&epl)).unwrap();
    assert!(told.contains(words) && told.contains("CostTable::over_links"), "{told}");
    // What ranks measure that are there is their own.
    let told = launch(&given, |epl| searched(&epl)).unwrap();
    assert!(!told[0].contains(words), "{}", told[0]);
    let known: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let calls = known.as_object().unwrap().values().map(|of| of["calls"].as_array().map_or(0, Vec::len));
    let mut calls: Vec<usize> = calls.collect();
    calls.sort_unstable();
    assert!(calls.len() == 2 && calls[0] == 0 && calls[1] > 0, "{calls:?}");
    let explained = |ranks: &str| {
        let own = config(&[("cluster.ranks", ranks)]);
        launch_dry(&own, 0, |epl| Ok(epl.explain(chain, &SgdConfig::new(), sample())?.to_string())).unwrap().0
    };
    assert!(explained("2").contains(words) && !explained("1").contains(words));
}

const WIDE: usize = 320;
const WIDE_LAYERS: usize = 6;
const WIDE_ROWS: usize = 256;

/// Wide layers and many rows, so that what tensors take is nearly all.
fn wide(at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..WIDE_LAYERS).map(|_| LinearConfig::new(WIDE, WIDE).init(at)).collect() };
    let run = |net: &Net, index: usize, rows: Tensor<2>| net.layers[index].forward(rows).tanh();
    let first = Chain::of(net).first(&["layers.0"], move |net: &Net, rows: &Tensor<2>| run(net, 0, rows.clone()));
    let layers = (1..WIDE_LAYERS).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| run(net, index, rows))
    });
    layers.mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

/// The most bytes that all ranks hold in a step of a configuration.
fn most_in_a_step(config: &Config, rows: impl Fn(usize, &Device) -> Tensor<2> + Sync) -> i64 {
    let before = ALLOCATOR.live();
    let most = launch(config, |epl| {
        let all = epl.context().world().clone();
        let mut engine = Engine::build(&epl, wide, &AdamWConfig::new())?;
        let batch = rows(WIDE_ROWS, epl.place().device());
        engine.train_batch(&batch, 1e-3)?;
        all.barrier()?;
        ALLOCATOR.look_anew();
        all.barrier()?;
        engine.train_batch(&batch, 1e-3)?;
        all.barrier()?;
        Ok(ALLOCATOR.most() - before)
    });
    most.unwrap()[0]
}

#[test]
fn what_is_found_within_a_budget_stays_within_it() {
    epl_testing::alone(|| {
        let rows = |count: usize, device: &Device| Tensor::<2>::ones([count, WIDE], device);
        let sample = || Sample::new(WIDE_ROWS, rows);
        let plain = [("cluster.ranks", "2"), ("train.global_batch_size", "256")];
        let bounded = |bytes: i64| config(&[&plain[..], &[("offload.device_bytes", &*bytes.to_string())]].concat());
        let explained = launch(&bounded(1 << 40), |epl| epl.explain(wide, &AdamWConfig::new(), sample()));
        let needed = explained.unwrap()[0].memory()[0].peak(Tier::Device) as f64;
        // What a process needs once.
        most_in_a_step(&config(&plain), rows);
        let (mut fitting, mut refused) = (0, 0);
        for part in [0.3, 0.7, 1.2] {
            let budget = (part * needed) as i64;
            // State that is put away lies in the same memory here.
            let options = [("auto.auto_parallel", "true"), ("offload.level", "")];
            let bytes = budget.to_string();
            let given = config(&[&plain[..], &options, &[("offload.device_bytes", &*bytes)]].concat());
            match launch(&given, |epl| Ok(epl.search(wide, &AdamWConfig::new(), sample())?.best().clone())) {
                Ok(found) => {
                    let most = most_in_a_step(found[0].config(), rows);
                    // Beside what a step needs each rank has the whole batch, and its micro-batches.
                    let batches = 4 * (WIDE_ROWS * WIDE * size_of::<f32>()) as i64;
                    println!("{part} of {needed}: {most} of {} bytes, {}", 2 * budget, found[0]);
                    assert!(most - batches <= 2 * budget, "{most} bytes of 2 × {budget}: {}", found[0]);
                    assert!(
                        most > WIDE_LAYERS as i64 * (WIDE * WIDE * size_of::<f32>()) as i64,
                        "{most}: no model was seen"
                    );
                    fitting += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("no layout of 2 ranks fits; nearest comes"), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(fitting >= 2 && refused >= 1, "{fitting} fit, {refused} were refused");
    });
}

#[test]
fn speeds_that_are_given_divide_rows_and_are_not_remembered() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("costs.json").display().to_string();
    let found = |speeds: &[(&'static str, &'static str)]| {
        let given = [("auto.calibration", &*file), ("dist.data_parallel_size", "2"), ("zero.level", "")];
        let options = [&AUTO[..], &given, speeds].concat();
        launch(&config(&options), |epl| {
            let found = epl.search(chain, &SgdConfig::new(), sample())?;
            let best = epl.with_config(found.best().config().clone())?;
            Ok((found.best().config().io.row_weights.clone(), losses(&best)?))
        })
    };
    // The first rank so fast that the other one is best given a row.
    let (weights, losses_of) = found(&[("auto.speeds", "100,1")]).unwrap().remove(0);
    assert_eq!(weights, Some(vec![7, 1]));
    let one = launch(&config(&[("train.global_batch_size", "8")]), |epl| losses(&epl)).unwrap().remove(0);
    assert!(
        losses_of.iter().zip(&one).all(|(loss, one)| (loss - one).abs() < 1e-5 * one.abs()),
        "{losses_of:?} {one:?}"
    );
    // Threads of one process are alike, whatever was said before: what was measured is kept, for the next run measures no segment.
    let kept: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let speeds: Vec<&serde_json::Value> = kept.as_object().unwrap().values().map(|of| &of["speeds"]).collect();
    assert_eq!(speeds, [&serde_json::json!([1.0, 1.0])]);
    assert_eq!(found(&[]).unwrap().remove(0).0, None);
    for speeds in ["1", "0,1"] {
        let error = found(&[("auto.speeds", speeds)]).unwrap_err().to_string();
        assert!(error.contains("of 2 ranks; give a number above 0 for each"), "{error}");
    }
}

/// With stages of a pipeline asked for, which several micro-batches would keep busy.
#[test]
fn micro_batches_stay_as_they_are_where_a_layer_takes_all_their_rows() {
    let pipeline = [("dist.pipeline_parallel_size", "2")];
    let found = |declares: bool, options: &[(&str, &str)]| {
        let model = move |at: &Place| {
            if declares {
                at.declare_over_micro_batch("the mean of rows");
            }
            chain(at)
        };
        let found = launch(&config(&[&AUTO[..], &pipeline, options].concat()), |epl| {
            let found = epl.search(model, &SgdConfig::new(), sample())?;
            let all = found.next().iter().chain([found.best()]).map(|choice| choice.config().pipeline.num_micro_batch);
            let plan = epl.with_config(found.best().config().clone())?.plan(model)?.plan().to_string();
            Ok((all.collect::<Vec<_>>(), plan))
        });
        found.unwrap().swap_remove(0)
    };
    let (free, _) = found(false, &[]);
    assert!(free.iter().any(|number| *number > 1), "{free:?}");
    let (kept, plan) = found(true, &[]);
    assert!(kept.iter().all(|number| *number == 1), "{kept:?}");
    assert!(!plan.contains("the mean of rows"), "{plan}");
    let (kept, plan) = found(true, &[("pipeline.num_micro_batch", "4")]);
    assert!(kept.iter().all(|number| *number == 4), "{kept:?}");
    assert!(plan.contains("the mean of rows: over each of the 4 micro-batches by itself"), "{plan}");
}
