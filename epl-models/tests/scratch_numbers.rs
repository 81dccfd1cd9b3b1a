use std::time::Instant;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::optim::AdamWConfig;
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::run;
use epl_models::text::*;
use epl_models::t5::*;

fn env(name: &str, or: f64) -> f64 { std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or) }

#[test]
fn numbers() {
    let split = NumberPairsConfig::new().init().unwrap();
    let texts: Vec<String> = split.training.texts().collect();
    let vocab = env("VOCAB", 0.0) as usize;
    let tokenizer = if vocab == 0 { Tokenizer::characters(texts.iter()).unwrap() } else { BpeConfig::new(vocab).train(texts.iter()).unwrap() };
    let (train, _) = TokenPairs::up_to(200, &split.training, &tokenizer).unwrap();
    let held = TokenPairs::all(&split.held_out, &tokenizer).unwrap();
    println!("vocab {} train {} mean target {}", tokenizer.vocab_size(), train.len(), (0..1000).map(|i| train.lengths(i).target).sum::<usize>() as f64 / 1000.0);
    let steps = env("STEPS", 300.0) as usize;
    let rows = env("ROWS", 128.0) as usize;
    let lr = env("LR", 2e-3);
    run((2, 1, 2), |epl| {
        let config = T5Config::preset("moe_t5_numbers").unwrap().with_vocab(tokenizer.vocab_size());
        let built = epl.build(|at| config.init(at))?;
        if epl.context().world().rank() == 0 { println!("params {}", built.plan().num_params()); }
        let mut engine = Engine::new(built, &AdamWConfig::new().with_weight_decay(0.0), EngineSettings { clip_norm: Some(1.0), ..Default::default() })?;
        let batcher = T5Batcher::new(&config);
        let rank = epl.context().data().rank();
        let begin = Instant::now();
        for step in 0..steps {
            let mine = shard_range(rows, 2, rank);
            let ids: Vec<u64> = mine.map(|i| ((step * rows + i) % train.len()) as u64).collect();
            let items = ids.iter().map(|i| train.get(*i as usize).unwrap()).collect();
            let batch = batcher.batch(items, engine.device());
            let rate = lr * ((step + 1) as f64 / 50.0).min(1.0) * (1.0 - step as f64 / steps as f64).max(0.02).sqrt();
            let report = engine.step(vec![MicroBatch::new(batch, ids)], rate)?;
            if rank == 0 && step % 50 == 0 { println!("{step} loss {:.4} {:?} {:.1}s", report.loss, report.terms, begin.elapsed().as_secs_f64()); }
        }
        let n = 400;
        let mine = shard_range(n, 2, rank);
        let t = Instant::now();
        let pairs: Vec<_> = mine.clone().map(|i| held.get(i).unwrap()).collect();
        let sources: Vec<Vec<i64>> = pairs.iter().map(|p| p.source.clone()).collect();
        let out = engine.model().generate(&sources, 100)?;
        let hits = out.iter().zip(&pairs).filter(|(o, p)| **o == p.target[..p.target.len() - 1]).count();
        println!("rank {rank}: {hits} of {} exact, generation {:.1}s, total {:.1}s", pairs.len(), t.elapsed().as_secs_f64(), begin.elapsed().as_secs_f64());
        if rank == 0 { for i in 0..5 { println!("{} -> {}", tokenizer.decode(&pairs[i].source).unwrap(), tokenizer.decode(&out[i]).unwrap()); } }
        Ok(())
    });
}
