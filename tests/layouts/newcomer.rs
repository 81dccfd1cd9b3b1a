//! Programs of somebody new to the library: models of Burn's own layers, as one writes them for Burn, under all that was once
//! refused, wrong or not to be said.
//!
//! What each layer promises alone is tested in `epl-core/tests/training/ordinary`, and that models of them learn as on one
//! rank; here they are together, with masks, structs as batches, and programs of more than a loop.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, Lstm,
    LstmConfig,
};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::activation::{relu, tanh};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use epl::data::{Rows, ShuffledSampler, TrainData, ValidData};
use epl::evaluate::{Evaluator, Measure, Values};
use epl::models::t5::{self, T5};
use epl::optim::ParamGroups;
use epl::prelude::*;
use epl::trainer::{Evaluation, Hook, Run};

fn config(options: &[&str]) -> Config {
    Config::load(None, options).unwrap_or_else(|error| panic!("{error}"))
}

/// Numbers between -0.5 and 0.5, by rule.
fn number(at: usize) -> f32 {
    ((at * 7919 + 17) as f32 * 0.618_034).fract() - 0.5
}

/// The losses of steps over four batches in turn.
fn losses<M: Model<Batch: Rows>>(
    options: &[&str],
    model: impl Fn(&Place) -> M + Sync,
    batch: impl Fn(u64, &Device) -> M::Batch + Sync,
    steps: u64,
) -> Vec<f64> {
    let all = epl::launch(&config(options), |epl| {
        let mut net = Engine::build(&epl, &model, &AdamWConfig::new())?;
        (0..steps).map(|step| Ok(net.train_batch(&batch(step % 4, epl.place()), 0.02)?.loss)).collect()
    });
    let mut all: Vec<Vec<f64>> = all.unwrap_or_else(|error| panic!("{options:?}: {error}"));
    assert!(all.iter().all(|losses| *losses == all[0]), "every rank is told the same");
    all.remove(0)
}

/// A model learns, and does the same a second time.
fn assert_learns<M: Model<Batch: Rows>>(
    options: &[&str],
    model: impl Fn(&Place) -> M + Sync,
    batch: impl Fn(u64, &Device) -> M::Batch + Sync,
) {
    let found = losses(options, &model, &batch, 40);
    let of = |steps: &[f64]| steps.iter().sum::<f64>() / 4.0;
    assert!(of(&found[36..]) < 0.6 * of(&found[..4]), "{options:?}: {found:?}");
    assert_eq!(losses(options, &model, &batch, 8), found[..8], "{options:?}, a second time");
}

/// A CNN with all that Burn's tutorials have in one.
#[derive(Module, Debug)]
struct Cnn {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    drop: Dropout,
    head: Linear,
}

#[derive(Clone, Debug)]
struct Images {
    pixels: Tensor<4>,
    classes: Tensor<1, Int>,
}

epl::batch!(Images { pixels, classes });

impl Cnn {
    fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([3, 6], [3, 3]).init(device),
            norm: BatchNormConfig::new(6).init(device),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            drop: DropoutConfig::new(0.2).init(),
            head: LinearConfig::new(54, 4).init(device),
        }
    }

    fn features(&self, pixels: Tensor<4>) -> Tensor<4> {
        self.pool.forward(relu(self.norm.forward(self.conv.forward(pixels))))
    }

    fn logits(&self, features: Tensor<4>) -> Tensor<2> {
        self.head.forward(self.drop.forward(features.flatten(1, 3)))
    }

    fn loss(&self, batch: &Images) -> Tensor<1> {
        cross_entropy(self.logits(self.features(batch.pixels.clone())), batch.classes.clone())
    }
}

fn cross_entropy(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes)
}

/// Whose features have another number of dims than its logits.
fn cnn_in_segments(at: &Place) -> Chain<Cnn, Images, Tensor<2>> {
    Chain::of(Cnn::new(at))
        .first(&["conv", "norm"], |net: &Cnn, batch: &Images| net.features(batch.pixels.clone()))
        .then(&["drop", "head"], |net, features, _| net.logits(features))
        .mean_loss(|_, logits, batch| cross_entropy(logits, batch.classes.clone()))
}

/// Images of four classes: one colour is bright, or none.
fn images(step: u64, device: &Device) -> Images {
    let rows = 12;
    let pixel = |at: usize| {
        let (row, colour) = (at / 192, at / 64 % 3);
        number(at + 1000 * step as usize) + if row % 4 == colour { 1.0 } else { 0.0 }
    };
    let pixels: Vec<f32> = (0..rows * 192).map(pixel).collect();
    let classes: Vec<i64> = (0..rows as i64).map(|row| row % 4).collect();
    Images {
        pixels: Tensor::from_data(TensorData::new(pixels, [rows, 3, 8, 8]), device),
        classes: Tensor::from_ints(classes.as_slice(), device),
    }
}

#[test]
fn a_cnn_with_everything_at_once() {
    epl_testing::alone(|| {
        let o1 =
            ["cluster.ranks=2", "pipeline.num_micro_batch=2", "train.clip_norm=1", "amp.level=O1", "amp.dtype=bf16"];
        let whole = |at: &Place| WithLoss::new(Cnn::new(at), Cnn::loss);
        assert_learns(&[&o1[..], &["zero.level=v1", "offload.optimizer_state=host"]].concat(), whole, images);
        assert_learns(&[&o1[..], &["zero.level=v3", "offload.level=v0"]].concat(), cnn_in_segments, images);
        let stages = ["auto.auto_parallel=true", "pipeline.num_stages=2", "gradient_checkpoint.type=auto"];
        assert_learns(&[&o1[..], &stages].concat(), cnn_in_segments, images);
    });
}

/// What is said of a batch of which one pixel is no number, after a good step.
fn bad_image<M: Model<Batch = Images>>(options: &[&str], model: impl Fn(&Place) -> M + Sync) -> String {
    let failed = epl::launch(&config(options), |epl| {
        let mut net = Engine::build(&epl, &model, &AdamWConfig::new())?;
        let good = images(0, epl.place());
        net.train_batch(&good, 0.02)?;
        let bad = Tensor::full([1, 1, 1, 1], f32::NAN, &good.pixels.device());
        let pixels = good.pixels.slice_assign([7..8, 1..2, 3..4, 3..4], bad);
        net.train_batch(&Images { pixels, classes: good.classes }, 0.02)
    });
    failed.expect_err("one pixel is no number").to_string()
}

/// Of 12 rows the second replica has the last six; the samples of the step before are counted.
#[test]
fn a_bad_image_is_told_with_rank_samples_and_parameter() {
    epl_testing::alone(|| {
        let whole = |at: &Place| WithLoss::new(Cnn::new(at), Cnn::loss);
        let of_replica = "on rank 1 the loss of samples 18, 19, 20, 21, 22, 23 of those drawn";
        let of_stage = "on rank 1 the loss of samples 12, 13, 14, 15, 16, 17, 18, 19, … (12 in all) of those drawn";
        let stages = ["cluster.ranks=2", "auto.auto_parallel=true", "pipeline.num_stages=2"];
        for (expected, text) in [
            (of_replica, bad_image(&["cluster.ranks=2"], whole)),
            (of_replica, bad_image(&["cluster.ranks=2", "zero.level=v3"], cnn_in_segments)),
            (of_replica, bad_image(&["cluster.ranks=2", "offload.level=v0"], cnn_in_segments)),
            (of_stage, bad_image(&stages, cnn_in_segments)),
        ] {
            for part in ["NaN at step 2", expected, "the gradient of `head.bias` is the first"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    });
}

/// A text classifier of Burn's encoder, whose Dropout nobody can replace.
#[derive(Module, Debug)]
struct Classifier {
    embed: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

#[derive(Clone, Debug)]
struct Texts {
    ids: Tensor<2, Int>,
    padding: Tensor<2, Bool>,
    classes: Tensor<1, Int>,
}

epl::batch!(Texts { ids, padding, classes });

/// A segment for each layer, by nested paths.
fn classifier(at: &Place, dropout: f64) -> Chain<Classifier, Texts, Tensor<2>> {
    let net = Classifier {
        embed: EmbeddingConfig::new(16, 8).init(at),
        encoder: TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(dropout).init(at),
        head: LinearConfig::new(8, 2).init(at),
    };
    let layer = |index: usize| {
        move |net: &Classifier, x: Tensor<3>, batch: &Texts| {
            net.encoder.layers[index].forward(x, Some(batch.padding.clone()), None)
        }
    };
    Chain::of(net)
        .first(&["embed"], |net: &Classifier, batch: &Texts| net.embed.forward(batch.ids.clone()))
        .then(&["encoder.layers.0"], layer(0))
        .then(&["encoder.layers.1"], layer(1))
        .then(&["head"], |net, x, _| net.head.forward(x.mean_dim(1).squeeze_dim::<2>(1)))
        .mean_loss(|_, logits, batch| cross_entropy(logits, batch.classes.clone()))
}

/// Texts of six tokens, every second of which is padded; the class is whether the first token is in the upper half.
fn texts(step: u64, device: &Device) -> Texts {
    let rows = 12;
    let ids: Vec<i64> = (0..rows * 6).map(|at| ((number(at + 500 * step as usize) + 0.5) * 16.0) as i64).collect();
    let padding: Vec<bool> = (0..rows * 6).map(|at| at / 6 % 2 == 1 && at % 6 > 3).collect();
    let classes: Vec<i64> = ids.chunks(6).map(|row| row[0] / 8).collect();
    Texts {
        ids: Tensor::from_data(TensorData::new(ids, [rows, 6]), device),
        padding: Tensor::from_data(TensorData::new(padding, [rows, 6]), device),
        classes: Tensor::from_ints(classes.as_slice(), device),
    }
}

const TEXT_LAYOUTS: [&[&str]; 5] = [
    &["cluster.ranks=2", "pipeline.num_micro_batch=2"],
    &["cluster.ranks=2", "zero.level=v3"],
    &["cluster.ranks=2", "gradient_checkpoint.type=auto"],
    &["offload.level=v0"],
    &["cluster.ranks=2", "auto.auto_parallel=true", "pipeline.num_stages=2", "pipeline.num_micro_batch=2"],
];

#[test]
fn a_text_classifier_without_dropout_is_the_same_in_every_layout() {
    let train = |options: &[&str]| losses(options, |at| classifier(at, 0.0), texts, 6);
    let one = train(&[]);
    for options in TEXT_LAYOUTS {
        for (found, expected) in train(options).iter().zip(&one) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{options:?}: {found} is not {expected}");
        }
    }
}

#[test]
fn a_text_classifier_with_burns_dropout_learns_in_every_layout() {
    epl_testing::alone(|| {
        for options in TEXT_LAYOUTS {
            let o1 = [options, &["amp.level=O1", "amp.dtype=bf16"]].concat();
            assert_learns(&o1, |at| classifier(at, 0.1), texts);
        }
    });
}

/// A series and what follows it. In one segment with the LSTM, which makes f32 of its own.
#[derive(Module, Debug)]
struct Forecast {
    lstm: Lstm,
    head: Linear,
}

impl Forecast {
    fn new(device: &Device) -> Self {
        Self { lstm: LstmConfig::new(1, 8, true).init(device), head: LinearConfig::new(8, 1).init(device) }
    }

    fn loss(&self, (series, next): &(Tensor<3>, Tensor<2>)) -> Tensor<1> {
        let outputs = self.head.forward(self.lstm.forward(series.clone(), None).1.hidden);
        MseLoss::new().forward(outputs, next.clone(), Reduction::Mean)
    }
}

#[test]
fn a_forecast_learns_in_16_bits() {
    let batch = |step: u64, device: &Device| {
        let value = |row: usize, at: usize| ((row + 12 * step as usize) as f32 + 0.5 * at as f32).sin();
        let series: Vec<f32> = (0..72).map(|at| value(at / 6, at % 6)).collect();
        let next: Vec<f32> = (0..12).map(|row| value(row, 6)).collect();
        (
            Tensor::from_data(TensorData::new(series, [12, 6, 1]), device),
            Tensor::from_data(TensorData::new(next, [12, 1]), device),
        )
    };
    let o1 = ["cluster.ranks=2", "pipeline.num_micro_batch=2", "train.clip_norm=1", "zero.level=v2", "amp.level=O1"];
    for dtype in ["amp.dtype=bf16", "amp.dtype=f16"] {
        assert_learns(&[&o1[..], &[dtype]].concat(), |at| WithLoss::new(Forecast::new(at), Forecast::loss), batch);
    }
}

/// A sine, learned with a rate, groups, a measure and an end of the program's own.
mod own_run {
    use super::*;

    #[derive(Module, Debug)]
    pub struct Curve {
        body: Linear,
        head: Linear,
    }

    type Points = (Tensor<2>, Tensor<2>);
    type Net = Chain<Curve, Points, Tensor<2>>;

    fn net(at: &Place) -> Net {
        Chain::of(Curve { body: LinearConfig::new(1, 32).init(at), head: LinearConfig::new(32, 1).init(at) })
            .whole(|net: &Curve, (x, _): &Points| net.head.forward(tanh(net.body.forward(x.clone()))))
            .mean_loss(|_, outputs, (_, y)| (outputs - y.clone()).powi_scalar(2).mean())
    }

    #[derive(Clone)]
    struct Columns;

    impl Batcher<(f32, f32), Points> for Columns {
        fn batch(&self, points: Vec<(f32, f32)>, device: &Device) -> Points {
            let (x, y): (Vec<f32>, Vec<f32>) = points.into_iter().unzip();
            let column = |values: Vec<f32>| Tensor::<1>::from_floats(values.as_slice(), device).unsqueeze_dim(1);
            (column(x), column(y))
        }
    }

    /// The mean absolute error.
    struct Mae;

    impl Measure<Tensor<2>> for Mae {
        fn sums(&self) -> usize {
            2
        }

        fn add(&self, errors: &Tensor<2>, sums: &mut [f64]) -> epl::Result<()> {
            sums[0] += errors.clone().abs().sum().into_data().iter::<f64>().sum::<f64>();
            sums[1] += errors.dims()[0] as f64;
            Ok(())
        }

        fn values(&self, sums: &[f64]) -> epl::Result<Values> {
            Ok(vec![("mae".to_string(), sums[0] / sums[1])])
        }
    }

    /// Ends the run once that is small enough.
    struct GoodEnough;

    impl<M: Model> Hook<M> for GoodEnough {
        fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> epl::Result<()> {
            if evaluation.get("mae").is_some_and(|mae| mae < 0.1) {
                run.request_end();
            }
            Ok(())
        }
    }

    fn points(count: usize) -> InMemDataset<(f32, f32)> {
        let x = (0..count).map(|i| 2.0 * i as f32 / count as f32 - 1.0);
        InMemDataset::new(x.map(|x| (x, (3.0 * x).sin())).collect())
    }

    /// After how many steps it ended, and the error then.
    pub fn run(ranks: usize) -> epl::Result<(u64, f64)> {
        let triangle = |step: u64| 0.02 * (1.0 - (step as f64 / 150.0 - 1.0).abs()).max(0.01);
        let config = Config::new().with("cluster.ranks", ranks)?.with("train.steps", 300)?;
        let mut ended = epl::launch(&config, |epl| {
            let optimizer =
                ParamGroups::new(AdamWConfig::new()).group(["**.bias"], |group| group.with_weight_decay(0.0));
            let train = TrainData::new(points(400), Columns, ShuffledSampler::new(400, 40, epl.config().train.seed)?)?;
            let valid = ValidData::new(points(37), Columns, 10)?;
            let evaluator = Evaluator::new(valid, |_: &Net, outputs, (_, y): &Points| Ok(outputs - y.clone()));
            let trained = Trainer::build(&epl, net, &optimizer)?
                .with_learning_rate(triangle)
                .with_evaluator(evaluator.with(Mae))
                .with_hook(GoodEnough)
                .with_settings(|settings| settings.with_eval_every(Some(20)))
                .quiet()
                .fit(&train)?;
            let mae = trained.summary.evaluation.and_then(|evaluation| evaluation.get("mae"));
            Ok::<_, Error>((trained.summary.steps, mae.unwrap_or(f64::INFINITY)))
        })?;
        Ok(ended.remove(0))
    }
}

#[test]
fn a_run_with_rate_groups_measure_and_end_of_its_own() -> epl::Result<()> {
    let (alone, together) = (own_run::run(1)?, own_run::run(2)?);
    assert!(alone.0 < 300 && alone.1 < 0.1, "{alone:?}");
    assert!(together.0 == alone.0 && (together.1 - alone.1).abs() < 1e-3 * alone.1, "{together:?} is not {alone:?}");
    Ok(())
}

/// README's program for weights of Hugging Face.
#[test]
fn weights_are_loaded_used_and_exported_without_training() -> Result<(), Box<dyn std::error::Error>> {
    let exported = tempfile::tempdir()?;
    let run = |folder: &std::path::Path, options: &[&str]| -> Result<_, Box<dyn std::error::Error>> {
        let (folder, shape) = t5::open(folder)?;
        let ranks = epl::launch(&config(options), |epl| {
            let load = |model, plan: &epl::Plan| Ok(t5::load(model, plan.records(), &folder)?);
            let built = epl.build(|at| shape.init(at))?.try_map(load)?;
            let parameters = built.parameters()?;
            let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
            assert_eq!(engine.parameters()?, parameters, "{options:?}");
            Ok::<_, Error>((parameters, T5::generate(&engine, &[vec![5, 9, 7, 1]], 6)?))
        })?;
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{options:?}");
        let (parameters, generated) = ranks.into_iter().next().ok_or("no rank ran")?;
        t5::export(&shape, &parameters, exported.path())?;
        Ok((parameters, generated))
    };
    let fixture = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers/t5"));
    let one = run(fixture, &[])?;
    for options in [
        &["dist.tensor_parallel_size=2"][..],
        &["cluster.ranks=2", "zero.level=v3"],
        &["cluster.ranks=2", "auto.auto_parallel=true", "pipeline.num_stages=2"],
    ] {
        assert_eq!(run(fixture, options)?, one, "{options:?}");
        assert_eq!(run(exported.path(), &[])?, one, "what was exported under {options:?}");
    }
    Ok(())
}
