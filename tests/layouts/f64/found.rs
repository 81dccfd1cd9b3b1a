//! What a search finds equals one rank, whatever it finds.
#![allow(clippy::unwrap_used)] // Also in what the tests share.

use std::collections::BTreeSet;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use epl::auto::{CostTable, Sample};
use epl::config::{Config, Layers};
use epl::cost::Machine;
use epl::models::t5::T5Batcher;
use epl::models::{ImageBatch, ResNetConfig};
use epl::{Result, launch_dry};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::parity::{Case, assert_same, dense, layout, moe, train, train_as};

/// Links of some speed between these ranks, on one host or on two, perhaps of unequal devices.
fn links(ranks: usize, numbers: &mut ChaCha8Rng) -> Result<Machine> {
    let hosts = *[1, 2].choose(numbers).unwrap_or(&1);
    let mut link = || {
        let (alpha_us, exponent) = (numbers.random_range(0.0..500.0), numbers.random_range(-4.0..1.0));
        format!("{{ alpha_us = {alpha_us}, gb_per_s = {} }}", 10_f64.powf(exponent))
    };
    let (inside, outside) = (link(), link());
    // Half of the devices of a host are faster, or all are alike.
    let slow = ranks / hosts / 2;
    let speed = if numbers.random_bool(0.5) { 1.0 } else { numbers.random_range(1.2..4.0) };
    let (others, class) = match slow {
        0 => (String::new(), ""),
        _ => (
            format!(", {{ class = \"slow\", count = {slow} }}"),
            "[class.slow]\nmemory_gb = 1\ntflops = 1\nmemory_gb_per_s = 1\n",
        ),
    };
    Machine::from_toml(&format!(
        "[[host]]\ncount = {hosts}\ninside = {inside}\noutside = {outside}\n\
         devices = [{{ class = \"fast\", count = {} }}{others}]\n\
         {class}[class.fast]\nmemory_gb = 1\ntflops = {speed}\nmemory_gb_per_s = {speed}\n",
        ranks / hosts - slow,
    ))
}

/// Replicas of which half are faster, over links that take next to nothing.
fn unequal(ranks: usize) -> Result<(Machine, Config)> {
    let (slow, seed) = (ranks / 2, layout(1, 1, 1, 1).config().train.seed);
    let machine = Machine::from_toml(&format!(
        "[[host]]\ncount = 1\ninside = {{ alpha_us = 0, gb_per_s = 100 }}\noutside = {{ alpha_us = 0, gb_per_s = 100 }}\n\
         devices = [{{ class = \"fast\", count = {} }}, {{ class = \"slow\", count = {slow} }}]\n\
         [class.slow]\nmemory_gb = 1\ntflops = 1\nmemory_gb_per_s = 1\n\
         [class.fast]\nmemory_gb = 1\ntflops = 4\nmemory_gb_per_s = 4\n",
        ranks - slow
    ))?;
    let said = ["cluster.ranks", "dist.data_parallel_size"].map(|key| format!("{key}={ranks}"));
    let said = said.into_iter().chain([format!("train.seed={seed}")]);
    Ok((machine, Layers::new().command_line(said)?.resolve()?))
}

/// Some options that are given.
fn given(ranks: usize, numbers: &mut ChaCha8Rng) -> Result<Config> {
    let stages = [1, 2, 4].into_iter().filter(|stages| *stages <= ranks).collect::<Vec<_>>();
    let stages = stages.choose(numbers).copied().unwrap_or(1);
    let seed = layout(1, 1, 1, 1).config().train.seed;
    let mut said = vec![format!("cluster.ranks={ranks}"), format!("train.seed={seed}")];
    // Of offloaded parameters every segment is run again, and which ones is not chosen.
    let either = ["gradient_checkpoint.type=auto", "offload.level=v0", "offload.optimizer_state=host"].choose(numbers);
    let mut maybe = |option: String| said.extend(numbers.random_bool(0.4).then_some(option));
    maybe(format!("dist.pipeline_parallel_size={stages}"));
    maybe("pipeline.num_micro_batch=3".to_string());
    maybe("zero.level=v2".to_string());
    maybe(either.unwrap_or(&"").to_string());
    if stages > 1 {
        maybe("pipeline.strategy=PreferForward".to_string());
    }
    Ok(Layers::new().command_line(said)?.resolve()?)
}

/// What the segments of a case take in a world of so many ranks.
fn table(case: &Case, ranks: usize) -> CostTable {
    let batcher = T5Batcher::new(&case.model);
    let config = Config::new().with("cluster.ranks", ranks).unwrap();
    let (table, _) = launch_dry(&config, 0, |epl| {
        let rows = |count: usize, device: &Device| {
            batcher.batch(case.pairs.iter().cycle().take(count).cloned().collect(), device)
        };
        epl.cost_table(|at| case.init(at), &AdamWConfig::new(), Sample::new(case.pairs.len(), rows))
    })
    .unwrap();
    table
}

/// Trains so many layouts that were found for each case in each of these worlds, as one rank is trained.
fn all_equal_one_rank(cases: &[Case], worlds: &[usize], each: usize) {
    let mut numbers = ChaCha8Rng::seed_from_u64(5);
    let mut words = BTreeSet::new();
    for case in cases {
        let expected = train(case, layout(1, 1, 1, 1));
        for ranks in worlds.iter().copied() {
            let table = table(case, ranks);
            for number in 0..each {
                let (links, given) = match number {
                    0 => unequal(ranks).unwrap(),
                    _ => (links(ranks, &mut numbers).unwrap(), given(ranks, &mut numbers).unwrap()),
                };
                let found = table.clone().over_links(&links).and_then(|table| table.search(&given)).unwrap();
                let best = found.best();
                let replicas = best.config().dist.data_parallel_size.unwrap_or(1);
                let accumulation = best.config().num_micro_batch(replicas).unwrap();
                println!("{}", best.words());
                let got = train_as(case, layout(replicas, 1, 1, accumulation), best.config());
                assert_same(layout(replicas, 1, 1, accumulation), &got, &expected, 1e-10);
                words.insert(best.words().to_string());
            }
        }
    }
    // Not all of them are the same one.
    assert!(words.len() > 2 * cases.len(), "{words:?}");
    // Unequal devices have unequal rows.
    assert!(words.iter().any(|words| words.contains(", rows ")), "{words:?}");
}

#[test]
fn what_batch_norms_send_between_replicas_is_part_of_a_step() {
    let model = ResNetConfig::new(4).with_embedding_size(8).with_hidden_sizes(vec![8; 4]).with_depths(vec![1; 4]);
    // Links are described: a dry world's calls take no time that could be measured.
    let layers = |ranks: usize| {
        let config = Config::new().with("cluster.ranks", ranks).unwrap();
        let machine = Machine::from_toml(&epl_testing::one_host(ranks)).unwrap();
        let (table, _) = launch_dry(&config, 0, |epl| {
            let images =
                |rows: usize, device: &Device| ImageBatch::new(Tensor::ones([rows, 3, 32, 32], device), vec![1; rows]);
            epl.cost_table(|at| model.init(at), &AdamWConfig::new(), Sample::new(4, images))
        })
        .unwrap();
        table.over_links(&machine).and_then(|table| table.explain(&config)).unwrap().time().layers
    };
    // Two sums at least for each of the convolutions' norms, forward and backward, of twice the latency each.
    assert!(layers(2) > 2.0 * 2.0 * 1e-5);
    assert_eq!(layers(1), 0.0);
}

#[test]
fn layouts_that_are_found_equal_one_rank() {
    epl_testing::in_f64(|| all_equal_one_rank(&[moe()], &[4], 4));
}

#[test]
#[ignore = "takes some minutes: `cargo test --workspace --test layouts -- --ignored found`"]
fn a_hundred_layouts_that_are_found_equal_one_rank() {
    epl_testing::in_f64(|| all_equal_one_rank(&[moe(), dense()], &[2, 4], 25));
}
