//! What is predicted of steps, beside what they take.
//!
//! ```text
//! cargo bench --bench predict -- shaped [--ranks 4 | 8 | 16]         # compute sleeps, links are described; engine, schedules, helpers are real
//! cargo bench --bench predict -- shaped --ranks 4 --fast 2           # the last two ranks are twice as fast
//! cargo bench --bench predict -- moe_t5 | bert | resnet50 | gpt2 .. # all is real: two ranks, threads of this machine
//! ```
//!
//! Costs are measured once, all layouts are predicted and printed, and then measured in a random order, twice, each time some steps
//! after a warm-up. `shaped` shows what waits for what, not what hardware takes: simulation and links share their constants.
//!
//! Of each layout are printed the predicted step, the median of the measured ones with quartiles, and the error; then the mean, the median
//! and the largest error; by how much the two times of a layout differ, on average, as no prediction comes closer than the machine does to
//! itself; how many pairs of layouts are in the predicted order, of those whose medians differ by more than 3 % and than half
//! their quartiles; and what the layout that the search finds takes ÷ the fastest of all that were measured. Layouts are drawn from those
//! whose micro-batches are even. With `--in-turn` what a layout takes is told as if the found one took the same each time, and errors are also
//! told relative to that of the found one: a phase of the machine while costs are measured shifts all predictions alike.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use clap::Parser;
use epl::auto::Sample;
use epl::comm::local;
use epl::cost::Machine;
use epl::prelude::*;
use epl::search::Choice;
use epl::simulate::StepTime;
use epl::{Cluster, Mesh};
use epl_benches::quartiles::quartiles;
use epl_benches::shaped::{Shaped, ShapedLinks};
use epl_benches::sleeping::sleeping;
use epl_benches::steps::{LR, Sizes, WithModel, steps_in_layout};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

#[derive(Parser, Clone)]
struct Args {
    /// shaped, or a model: moe_t5, t5, bert, gpt2, llama, mixtral, vit, resnet50
    what: String,
    /// Ranks; more than two only of `shaped`
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// How many of them, the last ones, are twice as fast; of `shaped`
    #[arg(long, default_value_t = 0)]
    fast: usize,
    /// Steps that count, each time; three before them do not
    #[arg(long, default_value_t = 8)]
    steps: usize,
    /// Layouts at most, drawn from all
    #[arg(long, default_value_t = 24)]
    layouts: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Of layouts whose error is 5 % or more, the parts of a step, predicted and measured; of a model
    #[arg(long)]
    parts: bool,
    /// Each layout is measured behind the one that was found: where a machine has phases, both are in the same one
    #[arg(long)]
    in_turn: bool,
    #[command(flatten)]
    sizes: Sizes,
    /// `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

const WARM_UP: usize = 3;
/// How often each layout is measured.
const TIMES: usize = 2;
/// How many parts a step has.
const PARTS: usize = 8;
/// Hosts of `shaped` have so many ranks.
const ON_HOST: usize = 4;
/// The width between the two layers of each segment: it sleeps forward for as many hundredths of a millisecond and a row, and twice as
/// long backward.
const WIDTHS: [usize; 8] = [120, 200, 200, 280, 200, 200, 160, 240];
const WIDTH: usize = 16;

/// How much faster the fast devices are.
const FASTER: u32 = 2;

/// The links of `shaped`: slow, so that what is really moved takes next to nothing; and its devices.
fn links(Args { ranks, fast, .. }: &Args) -> epl::Result<Machine> {
    let mut hosts = String::new();
    for host in 0..ranks.div_ceil(ON_HOST) {
        let own = ON_HOST.min(ranks - host * ON_HOST);
        let slow = own.min((ranks - fast).saturating_sub(host * ON_HOST));
        let devices = [("slow", slow), ("fast", own - slow)].into_iter().filter(|(_, count)| *count > 0);
        let devices = devices.map(|(class, count)| format!("{{ class = \"{class}\", count = {count} }}"));
        hosts += &format!(
            "[[host]]\ncount = 1\ndevices = [{}]\ninside = {{ alpha_us = 200, gb_per_s = 0.02 }}\n\
             outside = {{ alpha_us = 500, gb_per_s = 0.008 }}\n",
            devices.collect::<Vec<_>>().join(", ")
        );
    }
    for (class, tflops) in [("slow", 1), ("fast", FASTER)] {
        if hosts.contains(&format!("\"{class}\"")) {
            hosts += &format!("[class.{class}]\nmemory_gb = 1\ntflops = {tflops}\nmemory_gb_per_s = 1\n");
        }
    }
    Machine::from_toml(&hosts)
}

#[derive(Module, Debug)]
struct Net {
    parts: Vec<[Linear; 2]>,
}

/// Segments that sleep as long as they have rows, on ranks behind `slow` for a shorter time.
fn chain(at: &Place, slow: usize) -> Chain<Net, Tensor<3>, Tensor<3>> {
    let faster = if at.context().world().rank() < slow { 1 } else { FASTER };
    let part = |width: usize| [(WIDTH, width), (width, WIDTH)].map(|(from, to)| LinearConfig::new(from, to).init(at));
    let parts = WIDTHS.into_iter().map(part).collect();
    let run = move |net: &Net, index: usize, rows: Tensor<3>| {
        let forward = Duration::from_micros((10 * WIDTHS[index] * rows.dims()[0]) as u64) / faster;
        let rows = net.parts[index].iter().fold(rows, |rows, layer| layer.forward(rows));
        sleeping(rows, [forward, 2 * forward], |_| ())
    };
    let first = move |net: &Net, rows: &Tensor<3>| run(net, 0, rows.clone());
    let mut links = Chain::of(Net { parts }).first(&["parts.0"], first);
    for index in 1..WIDTHS.len() {
        links = links.then(&[&format!("parts.{index}")], move |net, rows, _| run(net, index, rows));
    }
    links.mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

impl Args {
    /// Refuses what has no effect.
    fn check(&self) -> epl::Result<()> {
        let refused = |reason: &str| Err(epl::Error::invalid(reason.to_string()));
        let Sizes { set, batch, seq, dtype } = &self.sizes;
        match self.is_shaped() {
            _ if self.steps == 0 || self.layouts == 0 => refused("no steps or no layouts; give at least 1 of both"),
            _ if dtype != "f32" => refused("predictions are of f32; leave --dtype out"),
            true if self.parts => refused("ranks of `shaped` have no trace; leave --parts out"),
            true if !set.is_empty() || *batch != 16 || seq.is_some() => {
                refused("sizes are of models; `shaped` has its own")
            }
            true if self.fast >= self.ranks => refused("the first ranks are slow; give --fast fewer than --ranks"),
            false if self.fast > 0 => refused("the ranks of a model are on this machine; --fast is of `shaped`"),
            false if self.ranks > 2 => {
                refused("this machine is shared by the ranks of a model; give --ranks 2, or `shaped`")
            }
            true => Ok(()),
            false => self.sizes.step(&self.what, 1, 3).check(),
        }
    }

    fn is_shaped(&self) -> bool {
        self.what == "shaped"
    }

    /// Rows of a step.
    fn rows(&self) -> usize {
        if self.is_shaped() { 8 * self.ranks } else { self.sizes.batch }
    }

    fn with_model<W: WithModel>(&self, with: W) -> epl::Result<W::Output> {
        match self.is_shaped() {
            true => with.run(
                |at| chain(at, self.ranks - self.fast),
                |rows, device| Tensor::ones([rows.len(), 4, WIDTH], device),
            ),
            false => self.sizes.step(&self.what, 1, 3).with_model(with),
        }
    }

    /// Runs ranks under a configuration, over the links that are described where these are.
    fn launch<T: Send>(&self, config: &Config, f: impl Fn(Epl) -> epl::Result<T> + Sync) -> epl::Result<Vec<T>> {
        if !self.is_shaped() {
            return epl::launch(config, f);
        }
        let machine = links(self)?;
        let (links, cluster) = (ShapedLinks::new(machine.network()?), machine.cluster()?);
        let on_rank = |world: epl::comm::ProcessGroup| {
            let world = world.decorated(|transport| Shaped::around(transport, links.clone()));
            let (mesh, device) = (Mesh::on_cluster(&cluster, config)?, Device::default().autodiff());
            f(Epl::on_cluster(config.clone(), (Cluster::clone(&cluster), device), mesh, world, None)?)
        };
        // Of a rank that sleeps any number of calls may go on at once: as many as the table has them predicted with.
        local::Launcher::new(self.ranks)
            .lanes(config.communication.num_communicators)
            .run(on_rank)
            .map_err(|(_, error)| error)
    }

    /// Steps of a layout.
    fn run(&self, choice: &Choice) -> epl::Result<LayoutRun> {
        let ranks = self.launch(choice.config(), |epl| self.with_model(Measure { args: self, epl }))?;
        let last = |step: usize| ranks.iter().map(|steps| steps[step].0).fold(0.0, f64::max);
        let parts = ranks[choice.rank()].iter().filter_map(|(_, time)| time.as_ref());
        Ok(LayoutRun {
            seconds: (0..self.steps).map(last).collect(),
            parts: parts.map(|time| time.parts().map(|(_, seconds)| seconds)).collect(),
            found: None,
        })
    }

    /// In which orders ranks lie, and how rows are divided over replicas, where devices are not alike: in the one order each replica has
    /// devices of one kind, in the other each of all.
    fn arrangements(&self, data: usize, stages: usize) -> Vec<(&'static str, String)> {
        if self.fast == 0 || data == 1 {
            return vec![("", String::new())];
        }
        let slow = |replica: usize| (0..stages).all(|stage| replica * stages + stage < self.ranks - self.fast);
        let weight = |replica: usize| if slow(replica) { "1" } else { "2" };
        let weights = (0..data).map(weight).collect::<Vec<_>>().join(",");
        vec![("", String::new()), ("", weights), ("pipeline,data,tensor", String::new())]
    }

    /// Layouts of all kinds, as options.
    fn layouts(&self) -> Vec<Vec<(&'static str, String)>> {
        let mut all = Vec::new();
        let divides = |size: &usize| self.ranks.is_multiple_of(*size);
        for stages in (1..=self.ranks.min(8)).filter(divides) {
            let data = self.ranks / stages;
            for micro_batches in [1, 2, 4, 8] {
                if !self.rows().is_multiple_of(data * micro_batches) || stages > 1 && micro_batches == 1 {
                    continue;
                }
                let orders: &[(&str, usize)] = match stages {
                    1 => &[("PreferBackward", 1)],
                    _ => &[
                        ("PreferBackward", 1),
                        ("PreferForward", 1),
                        ("PreferBackwardOptimizer", 1),
                        ("PreferBackward", 2),
                    ],
                };
                for (strategy, chunks) in orders.iter().filter(|(_, chunks)| stages * chunks <= 8) {
                    for zero in ["", "v1", "v2", "v3"].into_iter().filter(|zero| data > 1 || zero.is_empty()) {
                        for again in ["", "auto"].into_iter().filter(|again| zero != "v3" || again.is_empty()) {
                            for (order, weights) in self.arrangements(data, stages) {
                                all.push(vec![
                                    ("dist.pipeline_parallel_size", stages.to_string()),
                                    ("pipeline.num_micro_batch", micro_batches.to_string()),
                                    ("pipeline.strategy", strategy.to_string()),
                                    ("pipeline.num_chunks", chunks.to_string()),
                                    ("zero.level", zero.to_string()),
                                    ("gradient_checkpoint.type", again.to_string()),
                                    ("dist.order", order.to_string()),
                                    ("io.row_weights", weights),
                                ]);
                            }
                        }
                    }
                }
            }
        }
        // Of both axes at once there is none with two ranks.
        for (axis, micro_batches) in ["dist.tensor_parallel_size", "dist.expert_parallel_size"]
            .into_iter()
            .flat_map(|axis| [(axis, 1), (axis, 2), (axis, 4)])
        {
            let size = [(axis, self.ranks.min(2).to_string()), ("pipeline.num_micro_batch", micro_batches.to_string())];
            all.extend((!self.is_shaped()).then(|| size.to_vec()));
        }
        all
    }
}

/// What costs are measured with, and what they say of each layout and of the one that is searched.
struct Predict<'a> {
    args: &'a Args,
    epl: Epl,
    layouts: &'a [Config],
}

/// A step on a rank: its seconds, and its parts where these are asked for.
type RankStep = (f64, Option<StepTime>);

impl WithModel for Predict<'_> {
    /// The layout that was searched, then those that were drawn; why others are not possible.
    type Output = (Vec<Choice>, Vec<String>);

    fn run<M: Model>(
        self,
        model: impl Fn(&Place) -> M,
        batch: impl Fn(Range<usize>, &Device) -> M::Batch,
    ) -> epl::Result<Self::Output> {
        let rows = self.args.rows();
        let sample = Sample::new(rows, |count, device: &Device| batch(0..count, device));
        let mut table = self.epl.cost_table(model, &AdamWConfig::new(), sample)?;
        if self.args.is_shaped() {
            table = table.over_links(&links(self.args)?)?;
        }
        let found = table.search(self.epl.config())?;
        let (mut predicted, mut refused) = (Vec::new(), Vec::new());
        for config in [found.best().config()].into_iter().chain(self.layouts) {
            match table.explain(config) {
                Ok(choice) => predicted.push(choice),
                Err(error) => refused.push(error.to_string()),
            }
        }
        Ok((predicted, refused))
    }
}

/// Each step on a rank.
struct Measure<'a> {
    args: &'a Args,
    epl: Epl,
}

impl WithModel for Measure<'_> {
    type Output = Vec<RankStep>;

    fn run<M: Model>(
        self,
        model: impl Fn(&Place) -> M,
        batch: impl Fn(Range<usize>, &Device) -> M::Batch,
    ) -> epl::Result<Vec<RankStep>> {
        let (sizes, mut steps) = ((self.args.rows(), WARM_UP + self.args.steps), Vec::new());
        steps_in_layout(&self.epl, (model, batch), sizes, |engine, step| {
            if self.args.parts {
                engine.measure_step();
            }
            let begin = Instant::now();
            engine.step(step, LR)?;
            steps.push((begin.elapsed().as_secs_f64(), engine.step_time().copied()));
            Ok(())
        })?;
        Ok(steps.split_off(WARM_UP))
    }
}

fn main() -> epl::Result<()> {
    let args = Args::parse();
    args.check()?;
    let mut random = ChaCha8Rng::seed_from_u64(args.seed);
    let mut layouts = args.layouts();
    layouts.shuffle(&mut random);
    layouts.truncate(args.layouts);
    let config = |options: &Vec<(&'static str, String)>| {
        let said = options.iter().filter(|(_, value)| !value.is_empty());
        let config = said.map(|(key, value)| format!("{key}={value}"));
        let said = config.chain([format!("cluster.ranks={}", args.ranks)]);
        Ok(epl::config::Layers::new().command_line(said)?.resolve()?)
    };
    let layouts: Vec<Config> = layouts.iter().map(config).collect::<epl::Result<_>>()?;
    let predict = |epl: Epl| args.with_model(Predict { args: &args, epl, layouts: &layouts });
    let (mut predicted, refused) = match args.is_shaped() {
        // By one rank alone, of a world that is only thought of.
        true => epl::launch_dry(&Config::new().with("cluster.ranks", args.ranks)?, 0, predict)?.0,
        false => epl::launch(&Config::new().with("cluster.ranks", args.ranks)?, predict)?.swap_remove(0),
    };
    let mut known = BTreeSet::new();
    predicted.retain(|choice| known.insert(choice.config().to_toml()));
    println!("{} predictions, made before anything is measured:", predicted.len());
    predicted.iter().for_each(|choice| println!("  {:.1} ms  {}", choice.seconds() * 1e3, choice.words()));
    refused.iter().for_each(|reason| println!("not possible: {reason}"));
    let mut measured = vec![Vec::new(); predicted.len()];
    for _ in 0..TIMES {
        let mut order: Vec<usize> = (0..predicted.len()).collect();
        order.shuffle(&mut random);
        for index in order {
            let found = args.in_turn.then(|| args.run(&predicted[0])).transpose()?;
            let run = args.run(&predicted[index])?;
            measured[index].push(LayoutRun { found: found.map(|found| median(&found.seconds)), ..run });
            print!(".");
            let _ = std::io::stdout().flush();
        }
    }
    println!();
    if args.in_turn {
        as_if_even(&mut measured);
    }
    report(&args, &predicted, &measured);
    Ok(())
}

/// What was measured of a layout, one of the times.
#[derive(Clone, Debug)]
struct LayoutRun {
    /// Of each step, until the last rank is done.
    seconds: Vec<f64>,
    /// Of each step the parts on the rank whose parts are predicted, where these are asked for.
    parts: Vec<[f64; PARTS]>,
    /// The median of the found layout's steps just before, where it was run.
    found: Option<f64>,
}

fn median(seconds: &[f64]) -> f64 {
    quartiles(seconds.to_vec())[1]
}

/// All times of layouts behind which the found one was run, as if that had taken as long each time as it typically does.
fn as_if_even(all: &mut [Vec<LayoutRun>]) {
    let typical = median(&all.iter().flatten().filter_map(|run| run.found).collect::<Vec<_>>());
    for LayoutRun { seconds, parts, found } in all.iter_mut().flatten() {
        if let Some(found) = found {
            let all = seconds.iter_mut().chain(parts.iter_mut().flatten());
            all.for_each(|seconds| *seconds *= typical / *found);
        }
    }
}

/// The parts that are off by a hundredth of the step and more, from the largest on: what they took, and what was predicted.
fn parts_that_are_off(choice: &Choice, runs: &[LayoutRun]) -> String {
    /// As a part of the step.
    const OFF: f64 = 0.01;
    let took = |part: usize| {
        median(&runs.iter().flat_map(|run| run.parts.iter().map(|parts| parts[part])).collect::<Vec<_>>())
    };
    let parts = choice.time().parts().into_iter().enumerate();
    let parts = parts.map(|(part, (what, predicted))| (what, predicted, took(part)));
    let mut parts: Vec<_> =
        parts.filter(|(_, predicted, took)| (took - predicted).abs() >= OFF * choice.seconds()).collect();
    parts.sort_by(|(_, one, took), (_, other, second)| (second - other).abs().total_cmp(&(took - one).abs()));
    let told =
        parts.into_iter().map(|(what, predicted, took)| format!("{what} {:.1} for {:.1}", took * 1e3, predicted * 1e3));
    told.collect::<Vec<_>>().join(", ")
}

/// Prints all layouts from the fastest on, and how good the predictions were.
fn report(args: &Args, predicted: &[Choice], all: &[Vec<LayoutRun>]) {
    /// From which error on parts are printed.
    const TOLD: f64 = 0.05;
    let apart = |runs: &Vec<LayoutRun>| 100.0 * (median(&runs[1].seconds) / median(&runs[0].seconds) - 1.0).abs();
    let apart = all.iter().map(apart).sum::<f64>() / all.len() as f64;
    let seconds = |runs: &Vec<LayoutRun>| quartiles(runs.iter().flat_map(|run| run.seconds.clone()).collect());
    let measured: Vec<[f64; 3]> = all.iter().map(seconds).collect();
    let mut order: Vec<usize> = (0..predicted.len()).collect();
    order.sort_by(|one, other| measured[*one][1].total_cmp(&measured[*other][1]));
    let error = |index: usize| predicted[index].seconds() / measured[index][1] - 1.0;
    for index in &order {
        let choice = &predicted[*index];
        let [low, median, high] = measured[*index].map(|seconds| seconds * 1e3);
        println!(
            "{median:8.1} ms ({low:.1}-{high:.1}), predicted {:8.1} ({:+5.1} %)  {}",
            choice.seconds() * 1e3,
            100.0 * error(*index),
            choice.words()
        );
        if error(*index).abs() >= TOLD && all[*index].iter().any(|run| !run.parts.is_empty()) {
            let off = parts_that_are_off(choice, &all[*index]);
            println!("            {}", if off.is_empty() { "none of its parts alone" } else { &off });
        }
    }
    let errors: Vec<f64> = order.iter().map(|index| 100.0 * error(*index).abs()).collect();
    let (mut pairs, mut kept) = (0, 0);
    for (place, one) in order.iter().enumerate() {
        for other in &order[place + 1..] {
            let [before, after] = [measured[*one], measured[*other]];
            let wide = [before, after].map(|[low, _, high]| (high - low) / 2.0).into_iter().fold(0.0, f64::max);
            if after[1] - before[1] > wide.max(0.03 * before[1]) {
                pairs += 1;
                kept += usize::from(predicted[*one].seconds() < predicted[*other].seconds());
            }
        }
    }
    let regret = measured[0][1] / measured[order[0]][1];
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().copied().fold(0.0, f64::max);
    if args.in_turn && order.len() > 1 {
        let beside = |index: usize| 100.0 * ((1.0 + error(index)) / (1.0 + error(0)) - 1.0).abs();
        let beside: Vec<f64> = (1..order.len()).map(beside).collect();
        let mean = beside.iter().sum::<f64>() / beside.len() as f64;
        let worst = beside.iter().copied().fold(0.0, f64::max);
        println!("relative to the found layout: mean_error={mean:.1} % worst_error={worst:.1} %");
    }
    println!(
        "name={} ranks={} layouts={} mean_error={mean:.1} % median_error={:.1} % worst_error={worst:.1} % \
         twice_apart={apart:.1} % pairs_in_order={kept}/{pairs} chosen_over_best={regret:.3}",
        args.what,
        args.ranks,
        order.len(),
        quartiles(errors)[1],
    );
}
