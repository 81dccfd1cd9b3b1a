//! What a run writes, and that it does not depend on the layout.

use std::fs::{self, File};

use epl_core::testing::{largest_error, run};
use epl_core::trainer::Progress;
use epl_core::trainer::learning_rate::{Decay, LrSchedule};
use epl_core::{Engine, EngineSettings, Error, Trainer, TrainerConfig};
use tempfile::tempdir;

use crate::trainer::net::{Net, config, data, fit, lines, optimizer, values};

#[test]
fn a_run_learns_and_writes_what_it_did() {
    let folder = tempdir().unwrap();
    fit((1, 1, 1), config(folder.path(), 30));
    let lines = lines(folder.path());
    assert_eq!(values(&lines, "step"), (1..=30).map(f64::from).collect::<Vec<_>>());
    let losses = values(&lines, "loss");
    assert!(losses[25..].iter().sum::<f64>() < losses[..5].iter().sum::<f64>() / 4.0, "{losses:?}");
    assert_eq!(values(&lines, "lr")[..3], [0.05 / 3.0, 0.05 * (2.0 / 3.0), 0.05]);
    assert!(values(&lines, "tokens").iter().all(|tokens| *tokens == 5.0));
    let evaluated: Vec<u64> =
        lines.iter().filter(|line| line["valid_loss"].is_f64()).map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(evaluated, [4, 8, 12, 16, 20, 24, 28, 30]);
    assert!(fs::read_to_string(folder.path().join("loss.svg")).unwrap().contains("valid"));
    let latest = fs::read_to_string(folder.path().join("checkpoints/latest")).unwrap();
    assert_eq!(latest, "step-30\n");
    assert!(folder.path().join("checkpoints/step-24").is_dir());
    assert!(!folder.path().join("checkpoints/step-18").exists(), "the last two stay");
    assert!(!folder.path().join("tensorboard").exists(), "nobody asked for it");
}

const WIDTH: usize = 1 << 18;
/// Bytes of a net of that width.
const PARAMETERS: usize = (5 * WIDTH + 1) * size_of::<f32>();

/// This program's allocator counts.
#[test]
fn progress_says_how_much_memory_the_rank_had() {
    let folder = tempdir().unwrap();
    let shown = folder.path().join("progress");
    run((1, 1, 1), |epl| {
        let lines = Progress::lines(2, File::create(&shown).map_err(|error| Error::file(&shown, error))?);
        let model = epl.build(|place| Net::of_width(WIDTH, place))?;
        let engine = Engine::new(model, &optimizer(), EngineSettings::default())?;
        let schedule = LrSchedule::new(1e-4, Decay::Linear { steps: 40 });
        Trainer::new(engine, TrainerConfig::new(4), schedule).quiet().with_hook(lines).fit(&data()).map(drop)
    });
    let text = fs::read_to_string(&shown).unwrap();
    let steps: Vec<&str> = text.lines().filter(|line| line.starts_with("step ")).collect();
    // Shown in whole ones, and no other part ends so.
    let mebi = |line: &&str| line.split(" · ").find_map(|part| part.strip_suffix(" MiB")?.parse::<f64>().ok());
    let shown: Vec<f64> = steps.iter().filter_map(mebi).collect();
    assert!(steps.len() == 3 && shown.len() == 3, "{text}");
    // From the first step on, two moments stand beside the parameters.
    let least = 3.0 * PARAMETERS as f64 / f64::from(1_u32 << 20);
    assert!(shown.iter().all(|mebi| *mebi >= least - 1.0), "at least {least} MiB: {text}");
}

#[test]
fn events_of_tensorboard_are_written_where_they_are_asked_for() {
    let folder = tempdir().unwrap();
    fit((2, 1, 1), config(folder.path(), 8).with_tensorboard(true));
    let files: Vec<_> = fs::read_dir(folder.path().join("tensorboard")).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!(files.len(), 1, "the first rank writes");
    let bytes = fs::read(files[0].path()).unwrap();
    // A text of Protocol Buffers: the number of its field, its length, itself.
    let count = |tag: &str| {
        let text = [&[0x0a, tag.len() as u8][..], tag.as_bytes()].concat();
        bytes.windows(text.len()).filter(|window| *window == text).count()
    };
    assert_eq!((count("loss"), count("lr"), count("valid_loss")), (8, 8, 2));
}

#[test]
fn curves_of_all_layouts_lie_on_each_other() {
    let curve = |sizes, micro_batches| {
        let folder = tempdir().unwrap();
        let config = config(folder.path(), 8).with_micro_batches(micro_batches);
        let parameters = fit(sizes, config);
        let lines = lines(folder.path());
        let valid = lines.iter().filter_map(|line| line["valid_loss"].as_f64()).collect::<Vec<_>>();
        (parameters, [values(&lines, "loss"), values(&lines, "grad_norm"), valid].concat())
    };
    let expected = curve((1, 1, 1), 1);
    for (sizes, micro_batches) in [((1, 1, 1), 4), ((2, 1, 1), 1), ((2, 1, 2), 3), ((3, 1, 1), 2), ((4, 1, 1), 4)] {
        let got = curve(sizes, micro_batches);
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
        assert!(got.1.iter().zip(&expected.1).all(close), "{sizes:?} {micro_batches}: {:?} {:?}", got.1, expected.1);
        let (name, error) = largest_error(&got.0, &expected.0);
        assert!(error <= 1e-4, "{sizes:?} {micro_batches}: {name} {error}");
    }
}

/// Two of them would rename each other's checkpoints.
#[test]
fn a_folder_has_one_run_at_a_time() {
    use super::net::{data, trainer};
    use epl_core::{Error, TrainerConfig, checkpoint::Checkpoint, launch, testing};

    let out = tempdir().unwrap();
    let told = config(out.path(), 8).with_eval_every(None);
    let resumed = TrainerConfig { steps: 9, ..told.clone().with_resume(true) };
    fit((1, 1, 1), told.clone());
    let files = || {
        let entries = fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_file() && !path.ends_with("lock")).map(|path| (fs::read(&path).unwrap(), path))
    };
    let before: Vec<_> = files().collect();
    let lock = fs::File::options().write(true).open(out.path().join("lock")).unwrap();
    lock.try_lock().expect("the run is over");
    for sizes in [(1, 1, 1), (2, 1, 1)] {
        for told in [resumed.clone(), told.clone().with_replace(true)] {
            let refused = launch(&testing::config(sizes.0, sizes.1, sizes.2), |epl| {
                let error = trainer(&epl, told.clone())?.fit(&data()).err().expect("it should fail");
                // All ranks are told the same.
                assert!(matches!(error, Error::InUse { .. }), "{error}");
                Ok(error.to_string())
            });
            for error in refused.unwrap() {
                let name = out.path().display().to_string();
                assert!(error.starts_with(&name) && error.contains("is in use by"), "{error}");
            }
        }
    }
    assert_eq!(files().collect::<Vec<_>>(), before);
    // Who only reads does not ask.
    Checkpoint::open(out.path().join("checkpoints/step-8")).unwrap().verify().unwrap();
    drop(lock);
    fit((1, 1, 1), resumed);
}

/// It may still read the run's checkpoints, and write beside them.
#[test]
fn a_folder_is_in_use_until_what_fit_returned_is_dropped() {
    use super::net::{data, trainer};
    use epl_core::{TrainerConfig, launch, testing, trainer::CheckpointId};

    let out = tempdir().unwrap();
    let told = config(out.path(), 8).with_eval_every(None);
    let resumed = TrainerConfig { steps: 9, ..told.clone().with_resume(true) };
    let ran = launch(&testing::config(2, 1, 1), |epl| {
        let mut trained = trainer(&epl, told.clone())?.fit(&data())?;
        let error = trainer(&epl, resumed.clone())?.fit(&data()).err().expect("the first is still there");
        assert!(error.to_string().contains("this very process: drop what its earlier `fit` has returned"), "{error}");
        trained.load(CheckpointId::Latest)?;
        drop(trained);
        Ok(trainer(&epl, resumed.clone())?.fit(&data())?.summary.steps)
    });
    assert_eq!(ran.unwrap(), [9, 9]);
}
