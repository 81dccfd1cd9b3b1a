//! A run that goes on is the run that never stopped; one that is set up in another way is refused.

use std::fs;
use std::path::Path;

use burn::optim::SgdConfig;
use epl_core::checkpoint::Checkpoint;
use epl_core::config::{Config, Layers};
use epl_core::data::{LengthSamplerConfig, ShuffledSampler, TrainData};
use epl_core::optim::{OptimizerConfig, ParamGroups};
use epl_core::testing::{largest_error, run};
use epl_core::trainer::{Best, Checkpoints, Hook, Run};
use epl_core::{Engine, EngineSettings, Error, Model, Result, Trainer, TrainerConfig, launch, testing};
use tempfile::tempdir;

use crate::trainer::net::{
    Net, Points, SAMPLES, Sizes, config, data, data_from, fit, lines, message, optimizer, trainer, trainer_with, valid,
    values,
};

/// 20 steps at once, and 7 steps, a stop, and 13 more, give the same bits.
fn resumed_equals_whole(sizes: Sizes, sampler: impl Fn() -> Box<dyn Fn() -> TrainData<[f64; 3], Points> + Sync>) {
    let train = |config: TrainerConfig| {
        let data = sampler();
        let all =
            run(sizes, |epl| trainer(&epl, config.clone())?.with_valid(valid()).fit(&data())?.engine.parameters());
        all.into_iter().next().unwrap()
    };
    let (whole, parts) = (tempdir().unwrap(), tempdir().unwrap());
    let expected = train(config(whole.path(), 20));
    train(config(parts.path(), 7));
    let got = train(config(parts.path(), 20).with_resume(true));
    assert_eq!(largest_error(&got, &expected).1, 0.0);
    for key in ["step", "loss", "grad_norm", "lr", "samples"] {
        assert_eq!(values(&lines(parts.path()), key), values(&lines(whole.path()), key), "{key}");
    }
}

#[test]
fn a_resumed_run_gives_the_same_bits_on_one_rank() {
    resumed_equals_whole((1, 1, 1), || Box::new(data));
}

#[test]
fn a_resumed_run_gives_the_same_bits_on_data_2() {
    resumed_equals_whole((2, 1, 1), || Box::new(data));
}

#[test]
fn a_resumed_run_gives_the_same_bits_in_batches_by_length() {
    resumed_equals_whole((2, 1, 1), || {
        Box::new(|| {
            let lengths = (0..SAMPLES).map(|index| 1 + index % 6).collect();
            data_from(LengthSamplerConfig::new(9).with_max_tokens(14).init(lengths).unwrap())
        })
    });
}

#[test]
fn a_run_that_died_after_its_checkpoint_resumes_from_it() {
    let (whole, parts) = (tempdir().unwrap(), tempdir().unwrap());
    fit((1, 1, 1), config(whole.path(), 12));
    fit((1, 1, 1), config(parts.path(), 10));
    // As if it had died in step 11, while it wrote its line: the last whole checkpoint is that of step 6.
    fs::remove_dir_all(parts.path().join("checkpoints/step-10")).unwrap();
    fs::write(parts.path().join("checkpoints/latest"), "step-6\n").unwrap();
    fs::create_dir(parts.path().join("checkpoints/.step-12.partial")).unwrap();
    let metrics = parts.path().join("metrics.jsonl");
    fs::write(&metrics, fs::read_to_string(&metrics).unwrap() + "{\"step\":11,\"lo").unwrap();
    fit((1, 1, 1), config(parts.path(), 12).with_resume(true));
    assert_eq!(values(&lines(parts.path()), "loss"), values(&lines(whole.path()), "loss"));
    let left = fs::read_dir(parts.path().join("checkpoints")).unwrap();
    assert!(left.into_iter().all(|entry| !entry.unwrap().file_name().to_string_lossy().starts_with('.')));
}

/// Back to an earlier checkpoint, such as where a later one is damaged.
#[test]
fn a_run_goes_on_from_the_step_that_is_named() {
    let (whole, again) = (tempdir().unwrap(), tempdir().unwrap());
    let expected = fit((1, 1, 1), config(whole.path(), 15));
    fit((1, 1, 1), config(again.path(), 15));
    let found = fit((2, 1, 1), config(again.path(), 15).with_resume(true).with_resume_step(Some(12)));
    assert!(largest_error(&found, &expected).1 < 1e-5);
    assert_eq!(values(&lines(again.path()), "step").len(), 15);
    let missing = launch(&testing::config(1, 1, 1), |epl| {
        let config = config(again.path(), 15).with_resume(true).with_resume_step(Some(7));
        trainer(&epl, config)?.with_valid(valid()).fit(&data()).map(|_| ())
    });
    assert!(message(missing).contains("step-12, step-15; give one of these: train.resume_step"));
}

/// Where a run began, and that of one that ends before its first checkpoint.
#[derive(Clone, Copy)]
struct Begun<'a>(&'a std::sync::Mutex<Option<u64>>, bool);

impl<M: Model> Hook<M> for Begun<'_> {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        *self.0.lock().unwrap() = Some(run.begun_at());
        if self.1 { Err(Error::invalid("died")) } else { Ok(()) }
    }
}

/// The step at which a run of two ranks begins; it may die there.
fn begins_at(config: TrainerConfig, dies: bool) -> u64 {
    let begun = std::sync::Mutex::new(None);
    let ran = launch(&testing::config(2, 1, 1), |epl| {
        let trainer = trainer(&epl, config.clone())?.with_valid(valid());
        trainer.with_hook(Begun(&begun, dies)).fit(&data()).map(|_| ())
    });
    assert_eq!(ran.is_err(), dies, "{ran:?}");
    begun.into_inner().unwrap().unwrap()
}

#[test]
fn a_launch_that_went_back_and_is_restarted_goes_on_from_where_it_came() {
    let folder = tempdir().unwrap();
    let back = |steps: u64, step: u64, launch: &str| {
        let config = config(folder.path(), steps).with_resume(true).with_resume_step(Some(step));
        config.with_launch(Some(launch.into()))
    };
    fit((2, 1, 1), config(folder.path(), 18).with_keep_last(9).with_launch(Some("first".into())));
    assert_eq!(begins_at(back(9, 6, "second").with_keep_last(9), false), 6);
    // Another launch that is restarted has not been here yet.
    assert_eq!(begins_at(back(9, 6, "third").with_keep_last(9).with_resume_restarted(true), false), 6);
    let restarted = back(15, 6, "third").with_keep_last(9).with_resume_restarted(true);
    assert_eq!(begins_at(restarted.clone(), false), 9);
    assert_eq!(Checkpoints::new(folder.path(), 9).steps().unwrap(), [6, 9, 12, 15, 18]);
    // One that died before it came to a checkpoint goes back again, and not to what it has left behind.
    assert_eq!(begins_at(back(18, 12, "fourth"), true), 12);
    assert_eq!(begins_at(back(18, 12, "fourth").with_resume_restarted(true), true), 12);
    assert_eq!(begins_at(config(folder.path(), 18).with_auto_resume(true), true), 12);
}

/// Of a run that saves every 6 steps and has gone back, the last two are its own.
#[test]
fn checkpoints_that_a_run_left_behind_are_not_its_last() {
    let folder = tempdir().unwrap();
    fit((2, 1, 1), config(folder.path(), 20).with_keep_last(9).with_save_every(Some(5)));
    let back = config(folder.path(), 16).with_resume(true).with_resume_step(Some(5)).with_save_every(Some(4));
    fit((2, 1, 1), back);
    assert_eq!(Checkpoints::new(folder.path(), 2).steps().unwrap(), [12, 16, 20]);
}

/// One that was removed by hand.
#[test]
fn where_the_latest_is_not_there_a_run_goes_on_from_the_newest_before_and_says_so() {
    struct Told<'a>(&'a std::sync::Mutex<Vec<String>>);
    impl<M: Model> Hook<M> for Told<'_> {
        fn after_warning(&mut self, _run: &mut Run<M>, warning: &str) -> Result<()> {
            self.0.lock().unwrap().push(warning.to_string());
            Ok(())
        }
    }
    let (whole, parts) = (tempdir().unwrap(), tempdir().unwrap());
    let expected = fit((2, 1, 1), config(whole.path(), 15));
    fit((2, 1, 1), config(parts.path(), 12).with_keep_last(9).with_save_every(Some(3)));
    let checkpoints = parts.path().join("checkpoints");
    fs::remove_dir_all(checkpoints.join("step-12")).unwrap();
    fs::remove_file(checkpoints.join("step-9/index.json")).unwrap();
    let told = std::sync::Mutex::new(Vec::new());
    let found = run((2, 1, 1), |epl| {
        let config = config(parts.path(), 15).with_resume(true).with_save(false);
        trainer(&epl, config)?.with_valid(valid()).with_hook(Told(&told)).fit(&data())?.engine.parameters()
    });
    assert_eq!(largest_error(&found[0], &expected).1, 0.0);
    let told = told.into_inner().unwrap();
    let [told] = &told[..] else { panic!("{told:?}") };
    assert!(told.contains("names step-12") && told.contains("goes on from step-6"), "{told}");
    // It saves nothing, and so only looks.
    assert_eq!(fs::read_to_string(checkpoints.join("latest")).unwrap(), "step-12\n");
}

#[test]
fn the_same_command_begins_goes_on_and_finds_the_end() {
    let (whole, parts) = (tempdir().unwrap(), tempdir().unwrap());
    let expected = fit((2, 1, 1), config(whole.path(), 10));
    for (steps, lines_after) in [(4, 4), (10, 10), (10, 10)] {
        let found = fit((2, 1, 1), config(parts.path(), steps).with_auto_resume(true));
        assert_eq!(lines(parts.path()).len(), lines_after);
        assert_eq!(largest_error(&found, &expected).1 == 0.0, steps == 10, "after {steps} steps");
    }
    // One that was killed between its first checkpoint and the mark.
    fs::remove_file(parts.path().join("checkpoints/latest")).unwrap();
    let found = fit((2, 1, 1), config(parts.path(), 12).with_auto_resume(true));
    assert_eq!((lines(parts.path()).len(), largest_error(&found, &expected).1 > 0.0), (12, true));
    // A folder whose run came to no checkpoint.
    fs::remove_dir_all(parts.path().join("checkpoints")).unwrap();
    let found = fit((1, 1, 1), config(parts.path(), 10).with_auto_resume(true));
    assert!(largest_error(&found, &expected).1 < 1e-5);
    assert_eq!(values(&lines(parts.path()), "step"), values(&lines(whole.path()), "step"));
    // What it had logged before is there.
    let aside = fs::read_to_string(parts.path().join("metrics.1.jsonl")).unwrap();
    assert_eq!(aside.lines().count(), 12);
}

#[test]
fn the_options_say_where_a_run_lies_and_whether_it_goes_on() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let run = |said: &str| {
        let options = [format!("train.out={}", out.display())].into_iter().chain(said.split(' ').map(String::from));
        let options = Layers::new().command_line(options).unwrap().resolve().unwrap();
        let changes = std::sync::Mutex::new(Vec::new());
        launch(&options, |epl| {
            let engine = Engine::new(epl.build(Net::new)?, &optimizer(), EngineSettings::from_config(epl.config()))?;
            Trainer::from_config(engine, epl.config())?.quiet().with_hook(Changes(&changes)).fit(&data()).map(|_| ())
        })?;
        Ok::<_, Error>(changes.into_inner().unwrap())
    };
    let missing = message(run("train.steps=4 train.resume=latest"));
    assert!(missing.contains("no checkpoint is marked in `latest`"), "{missing}");
    run("train.steps=4 train.resume=auto train.save_every=1 train.keep_last=3").unwrap();
    assert_eq!(fs::read_dir(out.join("checkpoints")).unwrap().count(), 4, "three, and `latest`");
    let refused = message(run("train.steps=6"));
    assert!(refused.contains("saved after step 4; resume it (train.resume = auto)"), "{refused}");
    let changes = run("train.steps=6 train.resume=latest train.save_every=1").unwrap();
    // Neither where it lies nor that it goes on is a change.
    assert_eq!(changes, ["`train.keep_last` 3, now 2", "`train.steps` 4, now 6"]);
    assert_eq!(lines(&out).len(), 6);
    let back = "train.steps=6 train.save_every=1 train.resume_step=5 train.resume=";
    assert!(message(run(&format!("{back}auto"))).contains("from step 5"));
    assert!(run(&format!("{back}latest")).unwrap().is_empty());
    let missing = message(run("train.steps=6 train.resume=latest train.resume_step=3"));
    assert!(missing.contains("the folder has step-5, step-6"), "{missing}");
}

#[test]
fn a_run_that_is_done_has_nothing_to_resume() {
    let folder = tempdir().unwrap();
    let before = fit((1, 1, 1), config(folder.path(), 6));
    let after = fit((1, 1, 1), config(folder.path(), 6).with_resume(true));
    assert_eq!(largest_error(&after, &before).1, 0.0);
    assert_eq!(lines(folder.path()).len(), 6);
}

/// Trains `steps` steps, evaluated after each; an evaluation after `dies_at` steps fails. Returns how often it was
/// evaluated, and the score of the last evaluation.
fn evaluated(out: &Path, steps: u64, resume: bool, dies_at: Option<u64>) -> Result<(usize, Option<f64>)> {
    let ends = launch(&testing::config(2, 1, 1), |epl| {
        let mut count = 0;
        let config = config(out, steps)
            .with_eval_every(Some(1))
            .with_save_every(Some(1))
            .with_resume(resume)
            .with_keep_best(Some(Best::largest("score")));
        let trainer = trainer(&epl, config)?.with_valid(valid()).with_evaluation(|engine: &Engine<_>| {
            if dies_at == Some(engine.steps()) {
                return Err(Error::invalid("died"));
            }
            count += 1;
            Ok(vec![("score".to_string(), 100.0 + engine.steps() as f64)])
        });
        let last = trainer.fit(&data())?.summary.evaluation.and_then(|evaluation| evaluation.get("score"));
        Ok((count, last))
    })?;
    assert_eq!(ends[0], ends[1]);
    Ok(ends[0])
}

#[test]
fn a_run_that_died_in_its_last_evaluation_is_evaluated_on_resume() {
    let (whole, parts) = (tempdir().unwrap(), tempdir().unwrap());
    evaluated(whole.path(), 3, false, None).unwrap();
    assert!(message(evaluated(parts.path(), 3, false, Some(3))).contains("died"));
    assert!(lines(parts.path())[2].get("score").is_none());
    assert_eq!(evaluated(parts.path(), 3, true, None).unwrap(), (1, Some(103.0)));
    for key in ["step", "loss", "valid_loss", "score"] {
        assert_eq!(values(&lines(parts.path()), key), values(&lines(whole.path()), key), "{key}");
    }
    let best = fs::read_to_string(parts.path().join("checkpoints/best.json")).unwrap();
    assert!(best.contains("\"step\":3"), "{best}");
    // Done once, it is not done again, and still known.
    assert_eq!(evaluated(parts.path(), 3, true, None).unwrap(), (0, Some(103.0)));
}

/// Such as on another host, whose file system shows a new file late.
#[test]
fn a_rank_that_cannot_see_the_note_of_an_evaluation_knows_it_from_the_first() {
    let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
    let to = other.path().join("checkpoints/step-6");
    fit((2, 1, 1), config(folder.path(), 6));
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(folder.path().join("checkpoints/step-6")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    fs::remove_file(to.join("evaluation.json")).unwrap();
    let ends = launch(&testing::config(2, 1, 1), |epl| {
        let out = if epl.context().world().rank() == 0 { folder.path() } else { other.path() };
        let trained = trainer(&epl, config(out, 6).with_resume(true))?.with_valid(valid()).fit(&data())?;
        Ok(trained.summary.evaluation.map(|evaluation| (evaluation.step, evaluation.get("valid_loss"))))
    })
    .unwrap();
    assert!(ends[0].is_some_and(|(step, loss)| step == 6 && loss.is_some()) && ends[0] == ends[1], "{ends:?}");
}

#[test]
fn a_run_that_died_in_an_evaluation_on_its_way_is_evaluated_before_it_goes_on() {
    let folder = tempdir().unwrap();
    assert!(message(evaluated(folder.path(), 5, false, Some(2))).contains("died"));
    assert_eq!(evaluated(folder.path(), 5, true, None).unwrap(), (4, Some(105.0)));
    assert_eq!(values(&lines(folder.path()), "score"), [101.0, 102.0, 103.0, 104.0, 105.0]);
}

#[test]
fn another_seed_or_order_is_refused_with_both() {
    let folder = tempdir().unwrap();
    fit((1, 1, 1), config(folder.path(), 2));
    let resume = |sizes: Sizes, seed: u64, batch_seed: u64| {
        let mut mesh = testing::config(sizes.0, sizes.1, sizes.2);
        mesh.train.seed = seed;
        let sampler = || ShuffledSampler::new(SAMPLES, 5, batch_seed).unwrap();
        message(launch(&mesh, |epl| {
            let config = config(folder.path(), 9).with_resume(true);
            trainer(&epl, config)?.with_valid(valid()).fit(&data_from(sampler())).map(|_| ())
        }))
    };
    let seed = resume((1, 1, 1), 43, 9);
    assert!(seed.contains("seed 42") && seed.contains("seed 43"), "{seed}");
    let order = resume((1, 1, 1), 42, 10);
    assert!(order.contains("23 samples shuffled with seed 9") && order.contains("seed 10"), "{order}");
}

#[test]
fn a_checkpoint_that_is_missing_or_damaged_is_named() {
    let folder = tempdir().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let resume = || {
        message(launch(&testing::config(1, 1, 1), |epl| {
            trainer(&epl, config(folder.path(), 9).with_resume(true))?.with_valid(valid()).fit(&data()).map(|_| ())
        }))
    };
    assert!(resume().contains("no checkpoint"), "{}", resume());
    fit((1, 1, 1), config(folder.path(), 6));

    let model = checkpoints.join("step-6/rank-00000.safetensors");
    let good = fs::read(&model).unwrap();
    fs::write(&model, &good[..good.len() / 2]).unwrap();
    assert!(resume().contains("rank-00000") && resume().contains("damaged"), "{}", resume());
    fs::remove_file(&model).unwrap();
    assert!(resume().contains("rank-00000"), "{}", resume());
    fs::write(&model, good).unwrap();

    let index = checkpoints.join("step-6/index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("\"format\":2", "\"format\":7")).unwrap();
    assert!(resume().contains("index.json") && resume().contains("damaged"), "{}", resume());
    fs::write(&index, &text[..40]).unwrap();
    assert!(resume().contains("index.json"), "{}", resume());
    fs::write(&index, text).unwrap();

    fs::write(checkpoints.join("latest"), "step-5").unwrap();
    assert!(resume().contains("step-5") && resume().contains("the folder has step-6"), "{}", resume());
}

#[test]
fn an_earlier_run_is_not_overwritten_unasked() {
    let folder = tempdir().unwrap();
    fit((1, 1, 1), config(folder.path(), 6));
    let again = |config: TrainerConfig| {
        launch(&testing::config(1, 1, 1), |epl| {
            trainer(&epl, config.clone())?.with_valid(valid()).fit(&data()).map(|_| ())
        })
    };
    let refused = message(again(config(folder.path(), 3)));
    assert!(refused.contains("saved after step 6"), "{refused}");
    again(config(folder.path(), 3).with_replace(true)).unwrap();
    assert_eq!(lines(folder.path()).len(), 3);
    assert!(!folder.path().join("checkpoints/step-6").exists());
    assert!(!folder.path().join("metrics.1.jsonl").exists());
}

/// Resumes the run in `out` with a trainer that says more.
fn resume_with<'a>(
    out: &Path,
    steps: u64,
    say: impl Fn(Trainer<'a, Net>) -> Result<Trainer<'a, Net>> + Sync,
) -> Result<()> {
    launch(&testing::config(1, 1, 1), |epl| {
        let config = config(out, steps).with_resume(out.join("checkpoints").exists());
        say(trainer(&epl, config)?.with_valid(valid()))?.fit(&data()).map(|_| ())
    })
    .map(|_| ())
}

#[test]
fn another_optimizer_or_other_settings_of_it_are_refused_with_both() {
    fn run<O: OptimizerConfig + Sync>(out: &Path, steps: u64, optimizer: &O) -> Result<()> {
        launch(&testing::config(1, 1, 1), |epl| {
            let config = config(out, steps).with_resume(out.join("checkpoints").exists());
            trainer_with(&epl, config, optimizer)?.with_valid(valid()).fit(&data()).map(|_| ())
        })
        .map(|_| ())
    }
    let folder = tempdir().unwrap();
    run(folder.path(), 2, &optimizer()).unwrap();
    let other = message(run(folder.path(), 4, &SgdConfig::new()));
    assert!(other.contains("step 2 was saved with another optimizer: \"AdamW\", now \"SGD\";"), "{other}");
    let set = message(run(folder.path(), 4, &optimizer().with_beta_2(0.98)));
    assert!(set.contains("another optimizer's settings: `beta_2` 0.999, now 0.98; resume with"), "{set}");
    run(folder.path(), 4, &optimizer()).unwrap();
    assert_eq!(lines(folder.path()).len(), 4);
}

#[test]
fn other_parameter_groups_are_refused_and_the_same_go_on() {
    let run = |out: &Path, steps: u64, options: &[(&str, &str)], factor: f64| {
        let set = |config: Config, (key, item): &(&str, &str)| config.with(key, vec![*item]).unwrap();
        let options = options.iter().fold(testing::config(1, 1, 1), set);
        let groups = ParamGroups::new(optimizer()).group(["up"], |group| group.with_rate_factor(factor));
        let mut all = launch(&options, |epl| {
            let config = config(out, steps).with_resume(out.join("checkpoints").exists());
            trainer_with(&epl, config, &groups)?.with_valid(valid()).fit(&data())?.engine.parameters()
        })?;
        Ok::<_, epl_core::Error>(all.swap_remove(0))
    };
    let (folder, whole) = (tempdir().unwrap(), tempdir().unwrap());
    let options = [("optimizer.weight_decay", "**.bias=0"), ("optimizer.frozen", "down.bias")];
    run(folder.path(), 2, &options, 0.5).unwrap();
    let other = message(run(folder.path(), 4, &options, 0.25));
    assert!(other.contains("another optimizer's settings"), "{other}");
    assert!(other.contains("0.5") && other.contains("0.25"), "{other}");
    let none = message(run(folder.path(), 4, &options[1..], 0.5));
    assert!(none.contains("another optimizer's settings"), "{none}");
    let resumed = run(folder.path(), 4, &options, 0.5).unwrap();
    assert_eq!(resumed, run(whole.path(), 4, &options, 0.5).unwrap(), "to the bit");
}

#[test]
fn an_invariant_that_a_resume_says_nothing_of_is_refused() {
    let folder = tempdir().unwrap();
    resume_with(folder.path(), 2, |trainer| trainer.with_invariant("model", &"small")).unwrap();
    let nothing = message(resume_with(folder.path(), 4, Ok));
    assert!(nothing.contains("a certain model, of which this run says nothing"), "{nothing}");
}

#[test]
fn settings_that_no_file_can_hold_are_refused() {
    let folder = tempdir().unwrap();
    let keys = std::collections::BTreeMap::from([((1, 2), 3)]);
    let text = message(resume_with(folder.path(), 2, |trainer| trainer.with_invariant("table", &keys)));
    assert!(text.contains("the table cannot be kept in a checkpoint"), "{text}");
}

/// Remembers what a run was told of its configuration.
struct Changes<'a>(&'a std::sync::Mutex<Vec<String>>);

impl<M: Model> Hook<M> for Changes<'_> {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.0.lock().unwrap().extend_from_slice(run.changes());
        Ok(())
    }
}

#[test]
fn the_configuration_is_saved_and_what_changes_is_told() {
    let folder = tempdir().unwrap();
    let changes = std::sync::Mutex::new(Vec::new());
    let with = |steps: u64, config: &Config| {
        resume_with(folder.path(), steps, |trainer| Ok(trainer.with_run_config(config)?.with_hook(Changes(&changes))))
            .unwrap();
    };
    let first = Config::new().with("train.clip_norm", 1.0).unwrap().with("schedule.rate", 0.05).unwrap();
    with(2, &first);
    let checkpoint = Checkpoint::open(folder.path().join("checkpoints/step-2")).unwrap();
    let state = &checkpoint.index().state["run"];
    assert_eq!(state["config"]["train"]["clip_norm"], 1.0);
    let saved: Config = serde_json::from_value(state["config"].clone()).unwrap();
    assert_eq!(saved, first, "read back, it is the same configuration");
    with(3, &first);
    assert!(changes.lock().unwrap().is_empty(), "{changes:?}");
    with(4, &first.with("train.clip_norm", 0.5).unwrap().with("train.save_every", 3).unwrap());
    assert_eq!(*changes.lock().unwrap(), ["`train.clip_norm` 1.0, now 0.5", "`train.save_every` \"none\", now 3"]);
}
