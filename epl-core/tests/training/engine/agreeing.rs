//! Ranks that must run the same batch, and were given others, do not train on.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;
use epl_core::testing::run;
use epl_core::{Engine, EngineSettings, Epl, MicroBatch, Place, Result, WithLoss};

use crate::engine::chain::{Chain, micro_batches, rows};

fn layer(at: &Place) -> WithLoss<Linear, Tensor<2>> {
    WithLoss::new(LinearConfig::new(4, 3).init(at), |layer: &Linear, rows: &Tensor<2>| {
        layer.forward(rows.clone()).powi_scalar(2).mean()
    })
}

fn batch(epl: &Epl, rows: usize, value: f64) -> Tensor<2> {
    Tensor::full([rows, 4], value, epl.place().device())
}

/// What each rank is told when it makes a whole step on a batch of its own, after a good one.
fn refusals(sizes: (usize, usize, usize), own: impl Fn(&Epl, usize) -> Tensor<2> + Sync) -> Vec<String> {
    run(sizes, |epl| {
        let mut engine = Engine::build(&epl, layer, &AdamWConfig::new())?;
        engine.train_batch(&batch(&epl, 8, 1.0), 0.1)?;
        let before = (engine.parameters()?, engine.optimizer_state()?, engine.steps());
        let error = engine.train_batch(&own(&epl, epl.context().world().rank()), 0.1).unwrap_err().to_string();
        assert_eq!((engine.parameters()?, engine.optimizer_state()?, engine.steps()), before);
        // The right batch goes on.
        engine.train_batch(&batch(&epl, 8, 1.0), 0.1)?;
        Ok(error)
    })
}

#[test]
fn whole_batches_of_different_lengths_are_refused_with_both_numbers() {
    for found in refusals((2, 1, 1), |epl, rank| batch(epl, 8 + 8 * rank, 1.0)) {
        assert!(found.contains("rank 0 gave a batch of 8 rows") && found.contains("rank 1 one of 16"), "{found}");
        assert!(found.contains("give every rank the same whole batch"), "{found}");
    }
}

#[test]
fn whole_batches_of_different_values_are_refused() {
    // Only the last rank differs, in one value's last bit.
    for found in refusals((3, 1, 1), |epl, rank| batch(epl, 8, if rank == 2 { 1.0 + 1e-7 } else { 1.0 })) {
        assert!(found.contains("rank 0 and rank 2 gave different batches of 8 rows"), "{found}");
    }
}

#[test]
fn equal_whole_batches_pass_whatever_their_length() {
    run((3, 1, 1), |epl| {
        let mut engine = Engine::build(&epl, layer, &SgdConfig::new())?;
        (1..9).try_for_each(|rows| engine.train_batch(&batch(&epl, rows, 0.5), 0.1).map(drop))
    });
}

fn chain(epl: &Epl) -> Result<Engine<Chain>> {
    Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())
}

#[test]
fn ranks_with_slices_of_one_layer_must_run_the_same_samples() {
    let errors = run((2, 2, 1), |epl| {
        let mut engine = chain(&epl)?;
        engine.step(micro_batches(&epl, 1), 0.1)?;
        let before = engine.parameters()?;
        let rank = epl.context().world().rank() as u64;
        // As a program cuts a batch by ranks instead of by replicas.
        let own = MicroBatch::new(rows(0..3, epl.place()), (3 * rank..3 * rank + 3).collect::<Vec<_>>());
        let error = engine.step(vec![own.clone()], 0.1).unwrap_err().to_string();
        assert_eq!(engine.parameters()?, before);
        let evaluated = engine.evaluate([Ok(own)]).unwrap_err().to_string();
        assert_eq!(evaluated, error);
        Ok(error)
    });
    for error in errors {
        assert!(error.contains("rank 0 and rank 1 hold slices of the same layers"), "{error}");
        assert!(error.contains("3 and 3 samples") && error.contains("BatchShard::of"), "{error}");
    }
}

#[test]
fn replicas_with_samples_of_their_own_pass() {
    run((2, 2, 1), |epl| {
        let mut engine = chain(&epl)?;
        (1..5).try_for_each(|count| engine.step(micro_batches(&epl, count), 0.1).map(drop))
    });
}
