//! What recomputation saves, and what it costs: the activation peak and the step time of a 12-layer BERT.
//!
//! ```text
//! cargo bench --bench activations [-- --pairs 30]
//! ```
//!
//! The same step on one rank: all stored, as EPL chooses (`auto`), everything run again segment by segment, and as little
//! as a third of what is stored allows. The programs are alternated; the peak is what the step holds at most above what
//! lies between steps, gradients included (38 MB). `extra` is the step's time above that of the stored one, over the time
//! of the forwards that are run again, as measured in the same pair.

use std::time::{Duration, Instant};

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use epl::comm::{CountingAllocator, ThreadMemory};
use epl::models::BertConfig;
use epl::models::bert::{
    BertBatch, BertBatcher, BertForSequenceClassification, BertHead, BertItem, SequenceClassification,
};
use epl::prelude::*;
use epl_benches::quartiles::{quartiles, show};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const ROWS: u64 = 16;
const TOKENS: usize = 128;
const WARM_UP: usize = 2;

fn model() -> BertConfig {
    BertConfig::new(1000).with_d_model(256).with_d_ff(1024).with_heads(4)
}

type Model = BertForSequenceClassification;

fn micro_batch(epl: &Epl) -> MicroBatch<BertBatch<<SequenceClassification as BertHead>::Labels>> {
    let token = |row: u64, at: usize| 1 + (row as usize * 7919 + at * 104_729) as i64 % 999;
    let row = |row: u64| (0..TOKENS).map(|at| token(row, at)).collect::<Vec<_>>();
    let items = (0..ROWS).map(|number| BertItem::new(row(number), vec![0; TOKENS], number as i64 % 2)).collect();
    MicroBatch::new(
        BertBatcher::<SequenceClassification>::new(&model()).batch(items, epl.place().device()),
        (0..ROWS).collect::<Vec<_>>(),
    )
}

/// One step: how long it took, and the most that it held.
fn step(epl: &Epl, engine: &mut Engine<Model>) -> epl::Result<(Duration, u64)> {
    let batch = vec![micro_batch(epl)];
    let before = ThreadMemory::now().expect("the allocator counts").live;
    ThreadMemory::look_anew();
    let begin = Instant::now();
    engine.step(batch, 1e-4)?;
    let most = ThreadMemory::now().expect("the allocator counts").most;
    Ok((begin.elapsed(), (most - before) as u64))
}

/// The forwards of the segments that an engine runs again.
fn forwards_again(epl: &Epl, engine: &Engine<Model>) -> epl::Result<f64> {
    let profile = engine.profile(&micro_batch(epl))?;
    let again = engine.plan().recompute.iter().flat_map(Clone::clone);
    Ok(again.map(|segment| profile.0[segment].forward.as_secs_f64()).sum())
}

/// An engine of another configuration on the same rank.
fn engine(beside: &Epl, config: &Config) -> epl::Result<(Epl, Engine<Model>)> {
    let world = beside.context().world().clone();
    let epl = Epl::new(config.clone(), epl::Mesh::from_config(config)?, world, None)?;
    let engine = Engine::build(&epl, |at| model().init_classification(at), &SgdConfig::new())?;
    Ok((epl, engine))
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == "--pairs");
    let pairs = place.map_or(30, |place| arguments[place + 1].parse().expect("--pairs takes a number"));
    let ran = epl::launch(&Config::new(), |epl| compare(&epl, pairs));
    ran.unwrap_or_else(|error| panic!("{error}"));
}

fn compare(stored_epl: &Epl, pairs: usize) -> epl::Result<()> {
    let (_, mut stored) = engine(stored_epl, &Config::new())?;
    let most = (0..WARM_UP).map(|_| Ok(step(stored_epl, &mut stored)?.1)).collect::<epl::Result<Vec<_>>>()?;
    let peak = most[WARM_UP - 1];
    let auto = || Config::new().with("gradient_checkpoint.type", "auto");
    let every: Vec<String> = (0..=model().layers).map(|segment| segment.to_string()).collect();
    let mut each = Config::new().with("gradient_checkpoint.type", "collection")?;
    each.gradient_checkpoint.kept = Some(every);
    let cases = [
        ("auto", auto()?),
        ("each segment", each),
        ("a third of it", auto()?.with("gradient_checkpoint.budget", peak / 3)?),
    ];
    println!("stored: {peak} bytes at most");
    println!(
        "{:14} {:>9} {:>12} {:>10} {:>24} {:>24}",
        "run again", "segments", "peak, bytes", "÷ stored", "step ÷ stored", "extra ÷ forwards"
    );
    for (name, config) in cases {
        let (epl, mut again) = engine(stored_epl, &config)?;
        let (mut ratios, mut extras, mut highest) = (Vec::new(), Vec::new(), 0);
        for pair in 0..WARM_UP + pairs {
            let (long, most) = step(&epl, &mut again)?;
            let (short, _) = step(stored_epl, &mut stored)?;
            let forwards = forwards_again(&epl, &again)?;
            if pair >= WARM_UP {
                let (long, short) = (long.as_secs_f64(), short.as_secs_f64());
                ratios.push(long / short);
                extras.push((long - short) / forwards);
                highest = highest.max(most);
            }
        }
        let segments: usize = again.plan().recompute.iter().map(ExactSizeIterator::len).sum();
        println!(
            "{name:14} {segments:>9} {highest:>12} {:>10.2} {:>24} {:>24}",
            peak as f64 / highest as f64,
            show(quartiles(ratios)),
            show(quartiles(extras))
        );
    }
    Ok(())
}
