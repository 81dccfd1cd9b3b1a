//! The engine's step against the same model in a plain Burn loop, on one rank.
//!
//! The plain loop also clips the global norm and reads the loss. Both programs are alternated, pair by pair; what
//! is printed is the median of the pairs' ratios, with quartiles. Bounds: 1.02 as one segment, 1.05 in segments.
//!
//! ```text
//! cargo bench --bench trainer_step [-- PAIRS]
//! ```

use burn::module::Module;
use burn::optim::{AdamWConfig, ModuleOptimizer};
use epl::models::t5::{T5, T5Batch};
use epl::testing::run;
use epl::{Engine, EngineSettings, Epl, Loss, LossWeights, MicroBatch, Model, Pass};
use epl_benches::moe::{batch, model};
use epl_benches::pairs;
use epl_benches::plain::{CLIP, update};

const RATE: f64 = 1e-4;

/// The model as one segment.
#[derive(Module, Debug)]
struct Whole {
    model: T5,
}

impl Model for Whole {
    type Batch = T5Batch;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &T5Batch) -> LossWeights {
        self.model.weights(batch)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &T5Batch) -> Loss {
        forward(&self.model, batch)
    }
}

fn forward(model: &T5, batch: &T5Batch) -> Loss {
    let mut carry = None;
    for segment in 0..model.segments() {
        carry = Some(model.forward_segment(segment, carry, batch));
    }
    model.loss(carry.expect("a model has segments"), batch)
}

/// A plain Burn training loop's state.
struct Plain<'a> {
    epl: &'a Epl,
    model: Option<T5>,
    optimizer: ModuleOptimizer,
}

impl Plain<'_> {
    fn step(&mut self, batch: &T5Batch) -> f64 {
        let samples = (0..batch.rows as u64).collect();
        self.epl.context().begin(Pass { step: 0, training: true, samples, empty: false });
        let model = self.model.take().expect("the model is only away during a step");
        let weights = model.weights(batch);
        let scaled = |term: epl::Term| term.value * (term.coefficient / weights.get(term.name, 0).unwrap_or(1.0));
        let terms = forward(&model, batch).terms.into_iter().map(scaled);
        let loss = terms.reduce(|a, b| a + b).expect("a loss has a term");
        let (model, value) = update(model, &mut self.optimizer, loss, RATE);
        self.model = Some(model);
        value
    }
}

fn against_plain<M: Model<Batch = T5Batch>>(what: &str, pairs: usize, wrap: impl Fn(T5) -> M + Sync) {
    run((1, 1, 1), |epl| {
        let optimizer = AdamWConfig::new();
        let settings = EngineSettings { clip_norm: Some(CLIP), ..Default::default() };
        let mut engine = Engine::new(epl.build(|place| wrap(model().init(place)))?, &optimizer, settings)?;
        let plain = epl.build(|place| model().init(place))?.into_inner();
        let mut plain = Plain { epl: &epl, model: Some(plain), optimizer: optimizer.init() };
        let batch = batch(&epl, 0..16);
        let samples: Vec<u64> = (0..batch.rows as u64).collect();
        let ours = || {
            let micro_batch = MicroBatch::new(batch.clone(), samples.clone());
            engine.step(vec![micro_batch], RATE).map(drop).expect("a step of the engine");
        };
        let plain = || assert!(plain.step(&batch).is_finite());
        pairs::alternate(pairs, ours, plain).print(what);
        Ok(())
    });
}

fn main() {
    // `cargo bench` passes `--bench`.
    let pairs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(30);
    against_plain("one segment ÷ plain loop", pairs, |model| Whole { model });
    against_plain("in segments ÷ plain loop", pairs, |model| model);
}
