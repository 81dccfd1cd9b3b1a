//! The best checkpoint.

use std::fs;

use epl_core::testing::{largest_error, run};
use epl_core::trainer::{Best, CheckpointId};
use epl_core::{Engine, Trained, launch, testing};
use tempfile::tempdir;

use crate::trainer::net::{Net, config, data, message, trainer, valid};

#[test]
fn the_best_checkpoint_stays_and_can_be_loaded() {
    let folder = tempdir().unwrap();
    let scores = [1.0, 5.0, 3.0, 4.0, 2.0, 0.0];
    let kept = run((2, 1, 1), |epl| {
        let mut number = 0;
        let mut at_best = None;
        let config = config(folder.path(), 6)
            .with_eval_every(Some(1))
            .with_save_every(None)
            .with_keep_last(1)
            .with_keep_best(Some(Best::largest("score")));
        let first = epl.context().world().rank() == 0;
        let trainer = trainer(&epl, config)?.with_evaluation(|engine: &Engine<Net>| {
            number += 1;
            let parameters = engine.parameters()?;
            if number == 2 {
                at_best = Some(parameters);
            }
            // The other ranks' opinion does not count.
            Ok(if first { vec![("score".to_string(), scores[number - 1])] } else { vec![] })
        });
        let mut trained: Trained<_> = trainer.fit(&data())?;
        trained.load(CheckpointId::Best)?;
        assert_eq!(trained.engine.steps(), 2);
        let best = trained.engine.parameters()?;
        trained.load(CheckpointId::Latest)?;
        assert_ne!(trained.engine.parameters()?, best);
        drop(trained);
        Ok(largest_error(&best, &at_best.unwrap()).1)
    });
    assert_eq!(kept, [0.0, 0.0]);
    let mut names: Vec<String> = fs::read_dir(folder.path().join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["best.json", "latest", "step-2", "step-6"]);
}

#[test]
fn a_metric_that_no_evaluation_returns_is_named() {
    let folder = tempdir().unwrap();
    let config = config(folder.path(), 4).with_keep_best(Some(Best::largest("bleu")));
    let failed = launch(&testing::config(2, 1, 1), |epl| {
        trainer(&epl, config.clone())?.with_valid(valid()).fit(&data()).map(|_| ())
    });
    let text = message(failed);
    assert!(text.contains("`bleu`") && text.contains("valid_loss"), "{text}");
}
