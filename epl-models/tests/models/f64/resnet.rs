//! The layout changes nothing of a ResNet, in f64: neither losses nor gradients, parameters and running statistics.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Device, Tensor, TensorData};
use epl_core::config::{CheckpointType, Config};
use epl_core::data::BatchShard;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{self, largest_error};
use epl_core::{LaidOutModel, Model, Place, Result, launch};
use epl_models::ResNetConfig;
use epl_models::resnet::{ResNet, ResNetLayer};
use epl_models::vision::{ClassLayer, IGNORED, ImageBatch};
use epl_modules::{BatchStatistics, SplitClassifierConfig};

const TOLERANCE: f64 = 1e-10;
pub(super) const CLASSES: usize = 7;
const STEPS: usize = 3;

fn bottleneck() -> ResNetConfig {
    ResNetConfig::new(CLASSES)
        .with_embedding_size(6)
        .with_hidden_sizes(vec![8, 12])
        .with_depths(vec![1, 2])
        .with_label_smoothing(0.1)
}

fn basic() -> ResNetConfig {
    bottleneck().with_layer(ResNetLayer::Basic).with_depths(vec![2, 1])
}

/// The height and width of images.
const SIZE: [usize; 2] = [13, 10];

/// Images that no rule makes alike; every fourth does not count.
pub(super) fn batch(rows: Range<usize>, [height, width]: [usize; 2], device: &Device) -> ImageBatch {
    let shape = [rows.len(), 3, height, width];
    let each = 3 * height * width;
    let pixels = rows.clone().flat_map(|row| (0..each).map(move |i| ((row * 397 + i * i + 1) as f64).sin()));
    let labels = rows.map(|row| if row % 4 == 3 { IGNORED } else { (row * 3 % CLASSES) as i64 }).collect();
    ImageBatch::new(Tensor::from_data(TensorData::new(pixels.collect::<Vec<_>>(), shape), device), labels)
}

/// The losses of some steps of `rows` images, then the gradients of another one, and the parameters.
pub(super) type Outcome = (Vec<f64>, BTreeMap<String, TensorData>);

fn train<C: ClassLayer>(built: LaidOutModel<ResNet<C>>, rows: usize) -> Result<Outcome> {
    train_on(built, rows, SIZE)
}

/// The outcome of a model of images of that size.
pub(super) fn train_on<M: Model<Batch = ImageBatch>>(
    built: LaidOutModel<M>,
    rows: usize,
    size: [usize; 2],
) -> Result<Outcome> {
    train_with(built, (rows, 1), |rows, device| batch(rows, size, device))
}

/// The outcome of a model of what `batch` makes of some rows, in so many micro-batches.
pub(super) fn train_with<M: Model>(
    built: LaidOutModel<M>,
    (rows, micro_batches): (usize, usize),
    batch: impl Fn(Range<usize>, &Device) -> M::Batch,
) -> Result<Outcome> {
    let momentum = MomentumConfig::new().with_dampening(0.0);
    let mut engine = Engine::new(built, &SgdConfig::new().with_momentum(Some(momentum)), EngineSettings::default())?;
    let mine = BatchShard::of(engine.context(), micro_batches)?.rows(rows);
    let micro_batch = |step: usize, device: &Device| {
        let of_rows = |mine: &Range<usize>| {
            let range = step * rows + mine.start..step * rows + mine.end;
            let samples: Vec<u64> = range.clone().map(|sample| sample as u64).collect();
            match range.is_empty() {
                true => MicroBatch::stand_in(batch(0..1, device), [0]),
                false => MicroBatch::new(batch(range, device), samples),
            }
        };
        mine.iter().map(of_rows).collect::<Vec<_>>()
    };
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let micro_batches = micro_batch(step, engine.device());
        losses.push(engine.step(micro_batches, 0.05)?.loss);
    }
    let (report, mut tensors) = engine.gradients(micro_batch(STEPS, engine.device()))?;
    losses.push(report.loss);
    // The gradients' names are those of parameters.
    for (name, data) in engine.parameters()? {
        tensors.insert(format!("{name} itself"), data);
    }
    // What an evaluation finds comes from the running statistics.
    let mine = micro_batch(0, &engine.device().clone().without_autodiff());
    losses.push(engine.evaluate(mine.into_iter().map(Ok))?.loss);
    Ok((losses, tensors))
}

fn outcome(config: &ResNetConfig, mesh: (usize, usize, usize), split: bool, rows: usize) -> Outcome {
    outcome_of(&testing::config(mesh.0, mesh.1, mesh.2), config, split, rows)
}

fn outcome_of(options: &Config, config: &ResNetConfig, split: bool, rows: usize) -> Outcome {
    let outcomes = launch(options, |epl| match split {
        true => train(epl.build(|at| config.init_split(at))?, rows),
        false => train(epl.build(|at| config.init(at))?, rows),
    });
    outcomes.unwrap_or_else(|error| panic!("{error}")).pop().expect("there is a last rank")
}

fn check(config: &ResNetConfig, rows: usize, layouts: &[((usize, usize, usize), bool)]) {
    let (losses, expected) = outcome(config, (1, 1, 1), false, rows);
    assert!(losses.iter().all(|loss| loss.is_finite()) && losses[STEPS - 1] != losses[0], "{losses:?}");
    assert!(expected.keys().any(|name| name.ends_with("running_var itself")));
    for (mesh, split) in layouts {
        let (others, found) = outcome(config, *mesh, *split, rows);
        assert_same(&(others, found), &(losses.clone(), expected.clone()), &format!("{mesh:?}, {split}, {rows} rows"));
    }
}

/// Compares what a layout left with what one rank did.
pub(super) fn assert_same((others, found): &Outcome, (losses, expected): &Outcome, what: &str) {
    let same = losses.iter().zip(others).all(|(a, b)| (a / b - 1.0).abs() <= TOLERANCE);
    assert!(same, "{what}: losses {others:?}, not {losses:?}");
    let (name, error) = largest_error(found, expected);
    assert!(error <= TOLERANCE, "{what}: error {error:e} in {name}");
}

#[test]
fn classes_over_the_tensor_axis() {
    epl_testing::in_f64(|| {
        check(&bottleneck(), 5, &[((1, 1, 1), true), ((1, 2, 1), true), ((1, 3, 1), true), ((1, 2, 1), false)]);
    });
}

#[test]
fn images_over_the_data_axis() {
    epl_testing::in_f64(|| {
        let layouts = [((2, 1, 1), false), ((3, 1, 1), false), ((2, 2, 1), true)];
        check(&bottleneck(), 7, &layouts);
        check(&basic(), 7, &layouts);
    });
}

#[test]
fn replicas_without_an_image() {
    epl_testing::in_f64(|| {
        check(&basic(), 2, &[((3, 1, 1), false), ((4, 1, 1), false)]);
    });
}

/// Moments are those of the first run, and the running statistics move once.
#[test]
fn segments_that_are_recomputed() {
    epl_testing::in_f64(|| {
        for (data, tensor, split) in [(1, 1, false), (2, 1, false), (2, 2, true)] {
            let stored = testing::config(data, tensor, 1);
            let mut recomputed = stored.clone();
            recomputed.gradient_checkpoint.r#type = CheckpointType::Collection;
            recomputed.gradient_checkpoint.kept = Some(vec!["1".into(), "2".into()]);
            let [stored, recomputed] = [stored, recomputed].map(|options| outcome_of(&options, &basic(), split, 7));
            assert_eq!(stored, recomputed, "data {data}, tensor {tensor}: to the bit");
        }
    });
}

#[test]
fn images_over_stages() {
    epl_testing::in_f64(|| {
        let (losses, expected) = outcome(&basic(), (1, 1, 1), false, 7);
        for (data, stages) in [(1, 2), (1, 4), (2, 2)] {
            let mut options = testing::config(data, 1, 1);
            options.dist.pipeline_parallel_size = stages;
            let (others, found) = outcome_of(&options, &basic(), false, 7);
            let what = format!("data {data}, {stages} stages");
            assert_same(&(others, found), &(losses.clone(), expected.clone()), &what);
        }
    });
}

/// EPL's `replicate(n)` and `split(n)`, each on devices of its own: a stage of rows and one of classes.
#[test]
fn classes_on_devices_of_their_own() {
    epl_testing::in_f64(|| {
        let classes = SplitClassifierConfig::new(basic().features(), CLASSES);
        for rows in [7, 2] {
            let whole = |at: &Place| basic().init_with(at, |at| classes.init(at));
            let one = launch(&testing::config(1, 1, 1), |epl| train(epl.build(whole)?, rows));
            let (losses, expected) = one.unwrap_or_else(|error| panic!("{error}")).remove(0);
            for (devices, ranks) in [(2, 4), (3, 6), (2, 8)] {
                let mut options = testing::config(ranks, 1, 1);
                (options.dist.data_parallel_size, options.cluster.ranks) = (None, Some(ranks));
                let all = launch(&options, |epl| train(epl.build(|at| basic().init_colocated(devices, at))?, rows));
                for (others, found) in all.unwrap_or_else(|error| panic!("{error}")) {
                    let what = format!("{devices} devices of {ranks}, {rows} rows");
                    assert_same(&(others, found), &(losses.clone(), expected.clone()), &what);
                }
            }
        }
    });
}

#[test]
fn statistics_of_a_replica_alone_depend_on_the_layout() {
    epl_testing::in_f64(|| {
        let config = basic().with_statistics(BatchStatistics::PerReplica);
        let [one, two] = [1, 2].map(|data| outcome(&config, (data, 1, 1), false, 6));
        assert!(
            largest_error(&one.1, &two.1).1 > 1e-3,
            "the other tests would not see a norm that is not synchronised"
        );
        let synchronised = outcome(&basic(), (1, 1, 1), false, 6);
        assert!(largest_error(&one.1, &synchronised.1).1 <= TOLERANCE);
    });
}
