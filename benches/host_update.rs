//! What an update in host memory costs: AdamW in one pass against a plain copy of as many bytes.
//!
//! ```text
//! cargo bench --bench host_update [-- --pairs 30]
//! ```
//!
//! Both run over all cores, in turn. Bytes are those that must cross the memory bus: the update reads parameter,
//! gradient and two moments and writes parameter and moments, 7 × 4 bytes an element; the copy reads 14 bytes for each
//! element and writes 14. What caches fetch besides is counted for neither. Burn's own AdamW then takes the same step on
//! Flex tensors of the same size; its time is compared, not its bytes, as it goes over memory many times.

use std::time::{Duration, Instant};

use burn::optim::{AdamWConfig, Optimizer};
use burn::tensor::{DType, Device, Tensor, TensorData};
use epl::offload::{FlatArray, Gradients, HostOptimizer, HostState, Ledger, OnePass, Storage, Update};
use epl_benches::quartiles::{quartiles, show};
use rayon::prelude::*;

const ELEMENTS: usize = 64 << 20;
const BYTES: usize = 7 * 4 * ELEMENTS;
const WARM_UP: usize = 3;
const BURN_STEPS: usize = 5;
const RATE: f64 = 1e-3;

fn values(seed: usize) -> TensorData {
    let value = |at: usize| ((at * 7919 + seed * 104_729) % 10_007) as f32 / 5000.0 - 1.0;
    TensorData::new((0..ELEMENTS).into_par_iter().map(value).collect::<Vec<f32>>(), [ELEMENTS])
}

/// One pass over four arrays.
struct OurStep {
    optimizer: HostOptimizer,
    parameters: FlatArray,
    gradients: FlatArray,
    state: HostState,
}

impl OurStep {
    fn new() -> epl::Result<Self> {
        let settings = serde_json::to_value(AdamWConfig::new()).expect("a configuration is JSON");
        let optimizer = match HostOptimizer::from_settings("AdamW", &settings)? {
            OnePass::Yes(optimizer) => optimizer,
            OnePass::No(reason) => panic!("{reason}"),
        };
        let storage = Storage::host(&Ledger::new());
        let mut arrays = [storage.zeros(ELEMENTS, DType::F32)?, storage.zeros(ELEMENTS, DType::F32)?];
        for (seed, array) in arrays.iter_mut().enumerate() {
            array.set(0, values(seed))?;
        }
        let [parameters, gradients] = arrays;
        // As a model has them: the whole in one piece would be the same.
        let pieces = (0..64).map(|piece| piece * (ELEMENTS / 64)..(piece + 1) * (ELEMENTS / 64)).collect();
        Ok(Self { optimizer, parameters, gradients, state: optimizer.state(&storage, DType::F32, pieces)? })
    }

    fn step(&mut self) -> epl::Result<Duration> {
        let all: Vec<usize> = (0..self.state.pieces().len()).collect();
        let update = Update { rate: RATE, factor: 0.5 };
        let begin = Instant::now();
        self.optimizer.step(&mut self.parameters, Gradients::Array(&self.gradients, &all), &mut self.state, update)?;
        Ok(begin.elapsed())
    }
}

fn copy(to: &mut [u8], from: &[u8]) -> Duration {
    let begin = Instant::now();
    // One piece a thread: `memcpy` writes large pieces past the caches, which is faster by half than many small ones.
    let piece = from.len().div_ceil(rayon::current_num_threads());
    to.par_chunks_mut(piece).zip(from.par_chunks(piece)).for_each(|(to, from)| to.copy_from_slice(from));
    begin.elapsed()
}

/// The last of Burn's steps, and its parameters.
fn burn_steps(steps: usize) -> (Vec<f64>, TensorData) {
    let tensor = |seed| Tensor::<1>::from_data(values(seed), &Device::flex());
    let (optimizer, mut parameters, gradients) = (AdamWConfig::new().build(), tensor(0), tensor(1));
    let (mut state, mut times) = (None, Vec::new());
    for _ in 0..steps {
        let begin = Instant::now();
        let stepped = optimizer.step(RATE, parameters, gradients.clone().mul_scalar(0.5), state);
        (parameters, state) = stepped;
        times.push(begin.elapsed().as_secs_f64());
    }
    (times, parameters.into_data())
}

fn main() -> epl::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == "--pairs");
    let pairs = place.map_or(30, |place| arguments[place + 1].parse().expect("--pairs takes a number"));

    let mut ours = OurStep::new()?;
    let (from, mut to) = (vec![1_u8; BYTES / 2], vec![2_u8; BYTES / 2]);
    let (mut shares, mut updates, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..WARM_UP + pairs {
        if pair == BURN_STEPS {
            // The bench measures the update that the tests know.
            let (_, burns) = burn_steps(BURN_STEPS);
            assert!(ours.parameters.data(0..ELEMENTS)? == burns, "Burn's AdamW computes other bits");
        }
        let (update, copied) = (ours.step()?.as_secs_f64(), copy(&mut to, &from).as_secs_f64());
        if pair >= WARM_UP {
            shares.push(copied / update);
            updates.push(update);
            copies.push(copied);
        }
    }
    let speed = |times: &[f64]| show(quartiles(times.iter().map(|time| BYTES as f64 / time / 1e9).collect()));
    let threads = rayon::current_num_threads();
    println!(
        "AdamW on {ELEMENTS} elements of f32, {BYTES} bytes, {threads} threads, {pairs} pairs; medians (quartiles)"
    );
    println!("one pass          {:>28} GB/s", speed(&updates));
    println!("copy              {:>28} GB/s", speed(&copies));
    println!("one pass ÷ copy   {:>28}", show(quartiles(shares)));
    let (times, _) = burn_steps(BURN_STEPS);
    let [_, one_pass, _] = quartiles(updates);
    let burns = times[1..].iter().map(|time| time / one_pass).collect();
    println!("Burn ÷ one pass   {:>28} times as long ({} steps)", show(quartiles(burns)), BURN_STEPS - 1);
    Ok(())
}
