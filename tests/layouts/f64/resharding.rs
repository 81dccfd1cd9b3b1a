//! What one layout saves, any other loads: the same bits, and the run goes on as if it had never stopped.
//!
//! With dropout, jitter and accumulation. Low-rank factors are in `lora_f64`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use burn::data::dataset::InMemDataset;
use burn::optim::{AdafactorConfig, RmsPropConfig, SgdConfig, momentum::MomentumConfig};
use burn::tensor::Tensor;
use epl::config::PipelineStrategy::{PreferBackward, PreferForward};
use epl::config::StateTier::{Device as OnDevice, File, Host};
use epl::config::ZeroLevel::{V0, V1, V2, V3};
use epl::data::{BatchShard, ShuffledSampler, TrainData, micro_batches};
use epl::models::t5::T5Batcher;
use epl::optim::OptimizerConfig;
use epl::trainer::learning_rate::Decay;
use epl::trainer::{Hook, Run as Training};
use epl::{
    Chain, Config, Engine, EngineSettings, Epl, LrSchedule, Model, Result, Strategy, Trainer, TrainerConfig, WithLoss,
};

use crate::checkpoints::{RATE, Run, State, T5Run, adam_w, assert_same, matrix, on_ranks, saved, t5};
use crate::parity::{Layout, dense, layout, moe};
use crate::scopes::{self, Scoped};
use crate::widths::{self, Case as Widths, Net, Tied};

/// One of each kind, and several together.
fn layouts() -> Vec<Layout> {
    let (two, three) = (layout(2, 1, 1, 4), layout(3, 1, 1, 1));
    vec![
        layout(1, 1, 1, 1),
        two,
        layout(1, 2, 1, 1),
        layout(2, 2, 1, 4),
        layout(2, 1, 2, 1),
        layout(4, 1, 2, 4),
        layout(1, 1, 1, 4).stages(2, 1, PreferForward),
        layout(2, 1, 1, 4).stages(2, 1, PreferBackward),
        three.zero(V0),
        two.zero(V1),
        three.zero(V2),
        two.zero(V3),
        layout(2, 2, 1, 1).zero(V3),
        layout(4, 1, 2, 1).zero(V3),
        layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V3),
        two.offload(Host),
        three.zero(V3).offload(Host),
        two.zero(V1).offload(File),
        layout(1, 2, 1, 4).tiers(OnDevice, OnDevice, Host),
        layout(1, 2, 1, 4).whole(&["**"]),
        layout(2, 2, 1, 1).zero(V3).whole(&["decoder.**.feed_forward"]),
    ]
}

#[test]
fn every_layout_loads_what_others_saved() {
    epl_testing::in_f64(|| {
        // No number divides the number of layouts, so that each meets others of several kinds.
        assert_eq!(matrix(&t5(&moe(), &layouts()), &adam_w(), &[1, 5, 8, 13]), 105);
    });
}

#[test]
fn with_momentum_alone() {
    epl_testing::in_f64(|| {
        let optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        let layouts = [layout(1, 2, 1, 1), layout(3, 1, 1, 1).zero(V3), layout(2, 1, 1, 1).offload(Host)];
        matrix(&t5(&dense(), &layouts), &optimizer, &[1]);
    });
}

/// Burn keeps what it divides by; away from the device it follows from the rest.
#[test]
fn with_mean_squares_centered_or_not() {
    epl_testing::in_f64(|| {
        for centered in [false, true] {
            let optimizer = RmsPropConfig::new().with_centered(centered).with_epsilon(1e-4);
            let (alone, two) = (layout(1, 1, 1, 1), layout(2, 1, 1, 1));
            let layouts = [alone, two.offload(Host), alone.offload(File), two.zero(V1).tiers(OnDevice, OnDevice, File)];
            matrix(&t5(&dense(), &layouts), &optimizer, &[1]);
        }
    });
}

/// Rows and columns of whole tensors, wherever their owner is.
#[test]
fn with_an_optimizer_that_looks_at_whole_tensors() {
    epl_testing::in_f64(|| {
        let two = layout(2, 1, 1, 4);
        let layouts =
            [layout(1, 1, 1, 1), two.zero(V0), layout(3, 1, 1, 1).zero(V3), two.tiers(OnDevice, OnDevice, Host)];
        matrix(&t5(&dense(), &layouts), &AdafactorConfig::new(), &[1, 2]);
    });
}

#[test]
fn chunks_of_an_interleaved_schedule() {
    epl_testing::in_f64(|| {
        let case = moe().deep();
        let chunks = layout(1, 1, 1, 4).stages(2, 2, PreferBackward);
        matrix(&t5(&case, &[chunks, layout(2, 1, 1, 1), chunks.zero(V3)]), &adam_w(), &[1, 2]);
    });
}

impl Run for Widths {
    type Model = Chain<Net, widths::Batch, Tensor<2>>;

    fn config(&self) -> Config {
        Widths::config(self)
    }

    fn engine<O: OptimizerConfig>(&self, epl: &Epl, optimizer: &O) -> Result<Engine<Self::Model>> {
        Engine::build(epl, |at| self.net(at), optimizer)
    }

    fn step(&self, _epl: &Epl, engine: &mut Engine<Self::Model>, number: u64) -> Result<()> {
        let first = number as usize * self.rows;
        let batch = widths::rows(first..first + self.rows, engine.device());
        let share = BatchShard::of(engine.context(), self.micro_batches)?;
        engine.step(micro_batches(&batch, share, first as u64)?, RATE).map(|_| ())
    }
}

/// A body on all rows, and a class layer of which each of these devices holds some classes.
#[derive(Clone, Copy, Debug)]
struct Colocated {
    devices: usize,
    ranks: usize,
}

/// Of nine classes two ranks hold five and four: they hold as much of the body, and not of the rest.
const CLASSES: scopes::Case = scopes::case(9, 7, 1, true);

impl Run for Colocated {
    type Model = WithLoss<Scoped, scopes::Rows>;

    fn config(&self) -> Config {
        scopes::config(self.ranks)
    }

    fn engine<O: OptimizerConfig>(&self, epl: &Epl, optimizer: &O) -> Result<Engine<Self::Model>> {
        let built = scopes::scoped(epl, self.devices, CLASSES, Scoped::mean_loss)?;
        Engine::new(built, optimizer, EngineSettings::default())
    }

    fn step(&self, _epl: &Epl, engine: &mut Engine<Self::Model>, number: u64) -> Result<()> {
        let batches = scopes::batches(engine, CLASSES, number as usize);
        engine.step(batches, RATE).map(|_| ())
    }
}

#[test]
fn scopes_that_divide_unevenly() {
    epl_testing::in_f64(|| {
        let runs = [(1, 1), (2, 2), (3, 3), (2, 4)].map(|(devices, ranks)| Colocated { devices, ranks });
        assert_eq!(matrix(&runs, &adam_w(), &[1, 2]), 12);
    });
}

/// Stages of several devices each, beside one rank: a body that sees rows, and a rest that sees rows or slices of layers.
fn widths(rows: usize, micro_batches: usize) -> Vec<Widths> {
    let (replicate, split) = (Strategy::replicate, Strategy::split);
    let (two_to_one, to_slices) = ([replicate(2), replicate(1)], [replicate(2), split(2)]);
    vec![
        Widths::new(1, &[], rows, micro_batches),
        Widths::new(3, &two_to_one, rows, micro_batches),
        Widths::new(4, &to_slices, rows, micro_batches),
        Widths::new(5, &[replicate(1), replicate(4)], rows, micro_batches),
        Widths { zero: V1, ..Widths::new(6, &two_to_one, rows, micro_batches) },
        Widths { zero: V3, ..Widths::new(8, &to_slices, rows, micro_batches) },
    ]
}

#[test]
fn stages_of_other_widths() {
    epl_testing::in_f64(|| {
        let (replicate, split) = (Strategy::replicate, Strategy::split);
        let mut all = widths(11, 3);
        all.push(Widths::new(5, &[split(2), split(3)], 11, 3));
        all.push(Widths::new(7, &[replicate(2), split(2), replicate(3)], 11, 3));
        assert_eq!(matrix(&all, &adam_w(), &[1, 3, 6]), 32);
        let tied: Vec<Widths> =
            widths(11, 3).into_iter().map(|case| Widths { tied: Some(Tied::Linear), ..case }).collect();
        matrix(&tied, &adam_w(), &[1]);
    });
}

#[test]
fn running_statistics() {
    epl_testing::in_f64(|| {
        let with_norm: Vec<Widths> = widths(7, 1).into_iter().map(|case| Widths { norm: true, ..case }).collect();
        let folder = tempfile::tempdir().expect("a folder for a moment");
        let (then, _) = saved(&with_norm[1], &adam_w(), folder.path());
        let statistics = then.parameters.iter().filter(|(name, _)| name.contains("running"));
        let statistics: Vec<Vec<f64>> = statistics.map(|(_, data)| data.iter::<f64>().collect()).collect();
        assert_eq!(statistics.len(), 2, "a mean and a variance: {:?}", then.parameters.keys());
        assert!(statistics.iter().flatten().all(|value| *value != 0.0 && *value != 1.0), "they are of what was seen");
        assert_eq!(matrix(&with_norm, &adam_w(), &[1, 2, 4]), 24);
    });
}

/// Keeps the state of a run where it begins and where it is saved, by the number of steps.
struct Watch<'a>(&'a Mutex<BTreeMap<u64, State>>);

impl Watch<'_> {
    fn keep<M: Model>(&self, run: &Training<M>) -> Result<()> {
        let state = State::of(run.engine())?;
        if run.is_first_rank() {
            self.0.lock().expect("nobody panicked").insert(run.step(), state);
        }
        Ok(())
    }
}

impl<M: Model> Hook<M> for Watch<'_> {
    fn before_run(&mut self, run: &mut Training<M>) -> Result<()> {
        self.keep(run)
    }

    fn before_save(&mut self, run: &mut Training<M>) -> Result<()> {
        self.keep(run)
    }
}

/// A run of four steps that is saved every second one, while it goes on, or goes on from the second one.
fn trained(run: &T5Run<'_>, out: &Path, resume: bool) -> BTreeMap<u64, State> {
    let states = Mutex::default();
    on_ranks(run, |epl| {
        let settings = TrainerConfig::new(4).with_micro_batches(run.layout.accumulation).with_async_save(true);
        let settings = settings.with_save_every(Some(2)).with_out(Some(out.into()));
        let settings = settings.with_resume(resume).with_resume_step(resume.then_some(2));
        let pairs = InMemDataset::new(run.case.pairs.clone());
        let sampler = ShuffledSampler::new(run.case.pairs.len(), 5, 3)?;
        let data = TrainData::new(pairs, T5Batcher::new(&run.case.model), sampler)?;
        let schedule = LrSchedule::new(RATE, Decay::Linear { steps: 10 });
        let trainer = Trainer::new(run.engine(epl, &adam_w())?, settings, schedule).quiet();
        trainer.with_hook(Watch(&states)).fit(&data).map(|_| ())
    });
    states.into_inner().expect("nobody panicked")
}

#[test]
fn what_is_written_while_training_goes_on() {
    epl_testing::in_f64(|| {
        let (case, two) = (moe(), layout(2, 1, 1, 4));
        let pairs = [
            (layout(1, 1, 1, 1), two.zero(V3)),
            (two, two),
            (two.zero(V1), layout(4, 1, 2, 1)),
            (layout(2, 2, 1, 1), layout(2, 1, 1, 4).stages(2, 1, PreferBackward)),
            (layout(1, 1, 1, 4).stages(2, 1, PreferForward), layout(3, 1, 1, 1).zero(V2)),
            (two.offload(Host), layout(1, 2, 1, 1)),
            (layout(3, 1, 1, 1).zero(V3).offload(Host), two.zero(V1).offload(File)),
        ];
        for (from, to) in pairs {
            let out = tempfile::tempdir().expect("a folder for a moment");
            let [from, to] = [from, to].map(|layout| T5Run { case: &case, layout });
            let (whole, resumed) = (trained(&from, out.path(), false), trained(&to, out.path(), true));
            let steps = |states: &BTreeMap<u64, State>| states.keys().copied().collect::<Vec<_>>();
            assert_eq!((steps(&whole), steps(&resumed)), (vec![0, 2, 4], vec![2, 4]));
            assert_same(&resumed[&2], &whole[&2], 0.0, &format!("{from:?} to {to:?}, when it was loaded"));
            let bound = if format!("{from:?}") == format!("{to:?}") { 0.0 } else { 1e-10 };
            assert_same(&resumed[&4], &whole[&4], bound, &format!("{from:?} to {to:?}, at the end"));
        }
    });
}

/// Burn would begin anew without a word.
#[test]
fn state_that_the_optimizer_does_not_know_is_refused() {
    epl_testing::in_f64(|| {
        let folder = tempfile::tempdir().expect("a folder for a moment");
        let (case, layout) = (dense(), layout(1, 1, 1, 1));
        let alone = T5Run { case: &case, layout };
        saved(&alone, &adam_w().with_amsgrad(true), folder.path());
        let message = on_ranks(&alone, |epl| {
            let refused = alone.engine(epl, &adam_w())?.load(folder.path()).expect_err("a third moment is stored");
            Ok(refused.to_string())
        });
        assert!(message.contains("max_moment_2") && message.contains("this optimizer keeps"), "{message}");
    });
}
