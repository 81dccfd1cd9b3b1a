//! What every rank does: build, train, judge.

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use epl::comm::{ReduceOp, catch, shard_range};
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::models::ResNetConfig;
use epl::models::resnet::{ClassLayer, ResNet};
use epl::models::vision::{ImageBatcher, TopHits};
use epl::trainer::{Trainer, TrainerConfig};
use epl::{Built, Engine, EngineSettings, Epl, Error, LearningRate, Result};

use crate::args::Args;
use crate::task::{Images, Task};

/// Images that one replica judges at a time.
const BATCH: usize = 100;

/// Trains on one rank. The first rank returns the last line of the run.
pub fn rank(epl: &Epl, task: &Task, model: &ResNetConfig, args: &Args) -> Result<Option<String>> {
    train(epl, epl.build(|place| model.init(place))?, task, args)
}

fn train<C: ClassLayer>(epl: &Epl, built: Built<ResNet<C>>, task: &Task, args: &Args) -> Result<Option<String>> {
    let (model, replicas) = (built.model().config().clone(), epl.context().data().size());
    let optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_dampening(0.0)))
        .with_weight_decay(Some(WeightDecayConfig::new(5e-4)));
    let engine = Engine::new(built, &optimizer, EngineSettings::from_config(epl.config()))?;
    let batcher = ImageBatcher::new(task.classes.len());
    let batch = epl.config().batch(replicas)?.global_batch_size;
    let sampler = ShuffledSampler::new(task.train.len(), batch, epl.config().train.seed)?;
    let data = TrainData::new(task.train.clone(), batcher.clone(), sampler)?;
    let config =
        TrainerConfig::from_config(epl.config(), replicas)?.with_out(args.out.clone()).with_resume(args.resume);
    let mut trainer = Trainer::new(engine, config, LearningRate::from_config(&epl.config().schedule)?)
        .with_run_config(epl.config())?
        .with_invariant("model", &model)?
        .with_invariant("classes", &task.classes)?;
    if let Some(valid) = &task.valid {
        trainer =
            trainer.with_valid(ValidData::new(valid.clone(), batcher.clone(), BATCH)?).with_evaluation(|engine| {
                let hits = judge(engine, valid, &batcher)?;
                Ok(vec![("top1".to_string(), TopHits::top1(&hits)), ("top5".to_string(), TopHits::top5(&hits))])
            });
    }
    let summary = trainer.fit(&data)?.summary;
    let found = summary.evaluation.filter(|_| epl.context().world().rank() == 0);
    Ok(found.and_then(|found| Some(format!("top-1: {:.1}%, top-5: {:.1}%", found.get("top1")?, found.get("top5")?))))
}

/// Judges images, each replica its share; the counts of all together. Collective.
fn judge<C: ClassLayer>(engine: &Engine<ResNet<C>>, images: &Images, batcher: &ImageBatcher) -> Result<Vec<f64>> {
    let data = engine.context().data().clone();
    let device = engine.device().clone().without_autodiff();
    let model = engine.inference();
    // Every replica takes part in the same number of rounds: the first replica has the largest share.
    let rounds = shard_range(images.len(), data.size(), 0).len().div_ceil(BATCH);
    let mine = shard_range(images.len(), data.size(), data.rank());
    let mut hits = TopHits::new();
    for round in 0..rounds {
        let start = (mine.start + round * BATCH).min(mine.end);
        let rows = start..(start + BATCH).min(mine.end);
        // A replica that has no image left runs one that does not count.
        let indices = if rows.is_empty() { vec![0] } else { rows.clone().collect() };
        let items = images.get_many(indices).map_err(|error| Error::invalid(error.to_string()))?;
        let batch = batcher.batch(items, &device);
        let logits = catch(|| model.forward(batch.pixels))?.into_data().convert::<f32>();
        let logits: Vec<f32> = logits.iter().collect();
        let classes = logits.len() / batch.host_labels.len();
        for (row, label) in batch.host_labels.iter().enumerate().take(rows.len()) {
            hits.add(&logits[row * classes..(row + 1) * classes], *label as usize);
        }
    }
    Ok(data.all_reduce_values(&hits.values(), ReduceOp::Sum)?)
}
