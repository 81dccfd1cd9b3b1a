//! What a trace says of memory: what its bytes are for, that they come and go with forward and backward, and that they are all
//! that there are.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use epl_comm::{EventKind, Trace};
use epl_core::{Config, Engine, MicroBatch, Place, Result, WithLoss, launch_traced};

use crate::ALLOCATOR;
use crate::layers::chain;

const LAYERS: usize = 4;
const WIDTH: usize = 96;
const ROWS: usize = 32;
const PARAMETERS: u64 = (LAYERS * WIDTH * WIDTH * size_of::<f32>()) as u64;
/// Before what is looked at.
const MARK: &str = "the last step";

/// Bytes by kind.
type Kinds = BTreeMap<String, u64>;

/// What a rank's memory was behind the mark, one count after the other.
fn counted(trace: &Trace, rank: usize) -> Vec<Kinds> {
    let own = trace.events().into_iter().filter(|event| event.rank.0 == rank);
    let last = own.skip_while(|event| event.kind != EventKind::Mark(MARK.to_string()));
    let counts = last.filter_map(|event| match event.kind {
        EventKind::Counter { amounts, .. } => Some(amounts.into_iter().collect()),
        _ => None,
    });
    counts.collect()
}

/// Trains on two replicas; what the first rank's memory was in the third step, and what of it lay on the host.
fn train(settings: &[(&str, &str)]) -> (Vec<Kinds>, u64) {
    let config = Config::new().with("dist.data_parallel_size", 2).unwrap();
    let config = settings.iter().fold(config, |config, (key, value)| config.with(key, *value).unwrap());
    let trace = Trace::new();
    let host = launch_traced(&config, Some(trace.clone()), |epl| {
        let mut engine = Engine::build(&epl, |at| chain(LAYERS, WIDTH, at), &AdamWConfig::new())?;
        let rank = epl.context().world().rank() as u64;
        for step in 0..3 {
            if step == 2 {
                epl.context().mark(|| MARK.to_string());
            }
            let rows = Tensor::<2>::ones([ROWS, WIDTH], epl.place().device());
            let first = (2 * step + rank) * ROWS as u64;
            let samples: Vec<u64> = (first..first + ROWS as u64).collect();
            engine.step(vec![MicroBatch::new(rows, samples)], 0.01)?;
        }
        Ok(engine.memory_usage().host)
    });
    (counted(&trace, 0), host.unwrap()[0])
}

fn kinds(bytes: &[(&str, u64)]) -> Kinds {
    bytes.iter().map(|(kind, bytes)| (kind.to_string(), *bytes)).collect()
}

fn track(counts: &[Kinds], kind: &str) -> Vec<u64> {
    counts.iter().map(|kinds| kinds[kind]).collect()
}

#[test]
fn bytes_rise_over_forward_and_fall_over_backward() {
    let (counts, _) = train(&[("zero.level", "v1")]);
    let between = kinds(&[
        ("parameters", PARAMETERS),
        ("gradients", 0),
        // Two moments of half of the parameters.
        ("optimizer state", PARAMETERS),
        ("activations", 0),
        ("buffers", 0),
    ]);
    assert_eq!((counts.first(), counts.last()), (Some(&between), Some(&between)));
    let activations = track(&counts, "activations");
    let most = *activations.iter().max().unwrap();
    let top = activations.iter().position(|bytes| *bytes == most).unwrap();
    assert!(activations[..=top].is_sorted() && activations[top..].iter().rev().is_sorted(), "{activations:?}");
    // Of each layer what leaves it, at least.
    assert!(most >= (LAYERS * ROWS * WIDTH * size_of::<f32>()) as u64, "{activations:?}");
    let (gradients, buffers) = (track(&counts, "gradients"), track(&counts, "buffers"));
    assert!(gradients.contains(&(PARAMETERS / 2)), "this rank's shards, reduced: {gradients:?}");
    assert!(gradients[..top].iter().chain(&buffers[..top]).all(|bytes| *bytes == 0), "none before a backward");
    assert!(buffers.iter().any(|bytes| *bytes > 0), "buckets on their way: {buffers:?}");
}

#[test]
fn what_is_offloaded_is_counted_where_it_lies() {
    let (counts, host) = train(&[("offload.level", "v0")]);
    let away = [
        ("parameters (host)", PARAMETERS),
        ("gradients (host)", PARAMETERS),
        ("optimizer state (host)", 2 * PARAMETERS),
    ];
    let on_device = ["parameters", "gradients", "optimizer state", "activations", "buffers"].map(|kind| (kind, 0));
    assert_eq!(counts.last(), Some(&kinds(&[&on_device[..], &away[..]].concat())));
    assert_eq!(away.iter().map(|(_, bytes)| bytes).sum::<u64>(), host, "all that there is on the host");
    let gathered = track(&counts, "buffers");
    let layer = PARAMETERS / LAYERS as u64;
    assert!(gathered.iter().any(|bytes| *bytes >= layer), "parameters that are gathered for a layer: {gathered:?}");
}

/// Two layers, of which a batch may leave the second alone.
#[derive(Module, Debug)]
struct Late {
    first: Linear,
    second: Linear,
}

#[test]
fn state_that_begins_late_is_counted() {
    let trace = Trace::new();
    let layer = |at: &Place| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(at);
    let loss = |net: &Late, (rows, both): &(Tensor<2>, bool)| {
        let hidden = net.first.forward(rows.clone());
        if *both { net.second.forward(hidden).mean() } else { hidden.mean() }
    };
    let found = launch_traced(&Config::new(), Some(trace.clone()), |epl| {
        let built = |at: &Place| WithLoss::new(Late { first: layer(at), second: layer(at) }, loss);
        let mut engine = Engine::build(&epl, built, &AdamWConfig::new())?;
        epl.context().mark(|| MARK.to_string());
        let of_step = |step: u64| {
            let rows = Tensor::<2>::ones([2, WIDTH], epl.place().device());
            engine.step(vec![MicroBatch::new((rows, step >= 4), [2 * step, 2 * step + 1])], 0.01)?;
            Ok(track(&counted(&trace, 0), "optimizer state").pop().unwrap())
        };
        (0..6).map(of_step).collect::<Result<Vec<u64>>>()
    });
    // Two moments of a layer, then of both.
    let moments = 2 * PARAMETERS / LAYERS as u64;
    assert_eq!(found.unwrap()[0], [1, 1, 1, 1, 2, 2].map(|layers| layers * moments));
}

/// On one rank, so that all of the process is the rank's.
#[test]
fn the_kinds_together_are_what_the_allocator_counts() {
    let train = |trace: &Trace| {
        launch_traced(&Config::new(), Some(trace.clone()), |epl| {
            let built = || Engine::build(&epl, |at| chain(8, 512, at), &AdamWConfig::new());
            let batch = |step: u64| {
                let rows = Tensor::<2>::ones([2, 512], epl.place().device());
                vec![MicroBatch::new(rows, [2 * step, 2 * step + 1])]
            };
            // What threads keep after their first products.
            built()?.step(batch(0), 0.01)?;
            let before = ALLOCATOR.live();
            let mut engine = built()?;
            (0..2).try_for_each(|step| engine.step(batch(step), 0.01).map(drop))?;
            epl.context().mark(|| MARK.to_string());
            engine.take_peak_memory();
            ALLOCATOR.look_anew();
            let is_all = |when: &str, counted: u64, allocated: i64| {
                let (counted, allocated) = (counted as f64, (allocated - before) as f64);
                assert!((counted / allocated - 1.0).abs() < 0.03, "{when}: {counted} of {allocated} bytes");
            };
            let held = || counted(trace, 0).pop().unwrap().values().sum::<u64>();
            let accumulated = engine.accumulate(batch(2))?;
            is_all("with gradients", held(), ALLOCATOR.live());
            engine.apply(accumulated, 0.01)?;
            is_all("between steps", held(), ALLOCATOR.live());
            let peak = engine.take_peak_memory().unwrap();
            is_all("at most", peak.device, ALLOCATOR.most());
            assert_eq!((peak.host, peak.files), (0, 0));
            assert!(engine.take_peak_memory().unwrap().device < peak.device, "since it was last asked");
            Result::Ok(())
        })
    };
    epl_testing::alone(|| {
        train(&Trace::new()).unwrap();
    });
}
