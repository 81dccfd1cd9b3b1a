//! Running statistics of Burn's BatchNorm.

use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use epl_core::testing::config;
use epl_core::{Chain, Config, Engine, MicroBatch, Place, launch};

type Net = Chain<(BatchNorm, Linear), Tensor<2>, Tensor<2>>;

fn net(at: &Place) -> Net {
    Chain::of((BatchNormConfig::new(1).init(at), LinearConfig::new(1, 1).init(at)))
        .first(&["0"], |net: &(BatchNorm, Linear), rows: &Tensor<2>| net.0.forward(rows.clone()))
        .then(&["1"], |net, x, _| net.1.forward(x))
        .mean_loss(|_, x, _| x.powi_scalar(2).mean())
}

/// Two rows around a mean, a distance from it.
fn around(mean: f32, by: f32, device: &Device) -> MicroBatch<Tensor<2>> {
    MicroBatch::new(Tensor::from_data(TensorData::new(vec![mean - by, mean + by], [2, 1]), device), [0, 1])
}

/// Mean and variance on each rank, once it has done `f`.
fn statistics(
    config: &Config,
    f: impl Fn(&mut Engine<Net>, usize, &Device) -> Result<(), epl_core::Error> + Sync,
) -> Vec<[f32; 2]> {
    let ranks = launch(config, |epl| {
        let mut engine = Engine::build(&epl, net, &SgdConfig::new())?;
        f(&mut engine, epl.context().data().rank(), epl.place().device())?;
        let all = engine.parameters()?;
        Ok(["0.running_mean", "0.running_var"].map(|name| all[name].iter::<f32>().next().unwrap()))
    });
    ranks.unwrap_or_else(|error| panic!("{error}"))
}

fn assert_close(found: &[[f32; 2]], expected: [f32; 2]) {
    for found in found {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}, not {expected:?}");
    }
}

#[test]
fn replicas_go_on_from_the_mean_of_their_statistics() {
    // Replica 0: mean 1, variance 4; replica 1: mean 3, variance 0.
    let batch =
        |rank: usize, device: &Device| if rank == 0 { around(1.0, 2.0, device) } else { around(3.0, 0.0, device) };
    let once =
        statistics(&config(2, 1, 1), |engine, rank, device| engine.step(vec![batch(rank, device)], 0.1).map(drop));
    assert_close(&once, [0.1 * 2.0, 0.9 + 0.1 * 2.0]);
    assert_eq!(once[0], once[1]);
    let twice = statistics(&config(2, 1, 1), |engine, rank, device| {
        engine.step(vec![batch(rank, device), batch(rank, device)], 0.1).map(drop)
    });
    assert_close(&twice, [0.19 * 2.0, 0.81 + 0.19 * 2.0]);
    // The same data in a last batch that one replica has no row of.
    let short = statistics(&config(2, 1, 1), |engine, rank, device| {
        let MicroBatch { batch, .. } = around(1.0, 2.0, device);
        let micro_batch = if rank == 0 { around(1.0, 2.0, device) } else { MicroBatch::stand_in(batch * 9.0, [0]) };
        engine.step(vec![micro_batch], 0.1).map(drop)
    });
    assert_close(&short, [0.1, 0.9 + 0.4]);
}

#[test]
fn what_is_run_again_compared_or_measured_moves_nothing() {
    let once = [0.1, 0.9 + 0.4];
    let step = |engine: &mut Engine<Net>, device: &Device| engine.step(vec![around(1.0, 2.0, device)], 0.1).map(drop);
    let mut again = config(1, 1, 1).with("gradient_checkpoint.type", "collection").unwrap();
    again.gradient_checkpoint.kept = Some(vec!["1".to_string()]);
    assert_close(&statistics(&again, |engine, _, device| step(engine, device)), once);
    again.gradient_checkpoint.check_gradients = true;
    assert_close(&statistics(&again, |engine, _, device| step(engine, device)), once);
    let measured = statistics(&config(1, 1, 1), |engine, _, device| {
        engine.profile(&around(7.0, 3.0, device))?;
        step(engine, device)?;
        engine.profile(&around(7.0, 3.0, device))?;
        engine.evaluate([Ok(around(7.0, 3.0, &device.clone().without_autodiff()))]).map(drop)
    });
    assert_close(&measured, once);
}

/// As a checkpoint is written while a run goes on.
#[test]
fn what_is_saved_is_not_a_step_behind() {
    let saved = statistics(&config(1, 1, 1), |engine, _, device| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("saved");
        engine.step(vec![around(1.0, 2.0, device)], 0.1)?;
        engine.save(&folder)?;
        engine.step(vec![around(5.0, 1.0, device)], 0.1)?;
        engine.load(&folder)
    });
    assert_close(&saved, [0.1, 0.9 + 0.4]);
}

/// One replica fails before its norm has moved, the other one behind it; both go on.
#[test]
fn a_step_that_fails_moves_nothing() {
    let moved = statistics(&config(2, 1, 1), |engine, rank, device| {
        let wide = MicroBatch::new(Tensor::ones([2, 2], device), [2, 3]);
        let mut batches = vec![around(9.0, 2.0, device), wide];
        if rank == 0 {
            batches.reverse();
        }
        let text = engine.step(batches, 0.1).unwrap_err().to_string();
        assert!(text.contains("panicked"), "{text}");
        engine.step(vec![around(1.0, 2.0, device)], 0.1).map(drop)
    });
    assert_close(&moved, [0.1, 0.9 + 0.4]);
}

#[test]
fn a_replica_with_a_bad_sample_counts_for_nothing() {
    let moved = statistics(&config(2, 1, 1), |engine, rank, device| {
        let mean = if rank == 0 { 1.0 } else { f32::NAN };
        let text = engine.step(vec![around(mean, 2.0, device)], 0.1).unwrap_err().to_string();
        assert!(text.contains("the norm of the gradients is NaN"), "{text}");
        Ok(())
    });
    assert_close(&moved, [0.1, 0.9 + 0.4]);
    let none = statistics(&config(2, 1, 1), |engine, _, device| {
        assert!(engine.step(vec![around(f32::NAN, 2.0, device)], 0.1).is_err());
        Ok(())
    });
    assert_close(&none, [0.0, 1.0]);
}
