//! Runs over files that replicas divide: even or not, all ranks end together, and no sample is lost.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use burn::data::dataset::InMemDataset;
use burn::optim::AdamWConfig;
use epl_core::config::Config;
use epl_core::data::{FileSamplerConfig, SlicedFiles, TrainData};
use epl_core::testing::largest_error;
use epl_core::{Epl, Error, Result, TrainerConfig, launch, testing};
use tempfile::tempdir;

use crate::trainer::net::{Net, Pairs, Sizes, lines, message, trainer, values};

/// Files of so many points each.
fn files(folder: &Path, sizes: &[usize]) -> Vec<PathBuf> {
    let mut point = 0..;
    let write = |(file, size): (usize, &usize)| {
        let path = folder.join(format!("{file}.txt"));
        let lines: Vec<String> = point.by_ref().take(*size).map(|number: usize| format!("{number}\n")).collect();
        fs::write(&path, lines.concat()).unwrap();
        path
    };
    sizes.iter().enumerate().map(write).collect()
}

fn points(path: &Path) -> Result<InMemDataset<[f64; 3]>> {
    let text = fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
    let point = |line: &str| [7, 13, 29].map(|prime| (line.parse::<usize>().unwrap() * prime % 31) as f64 / 31.0);
    Ok(InMemDataset::new(text.lines().map(point).collect()))
}

fn sliced(sizes: Sizes, rule: &[&str]) -> Config {
    let config = testing::config(sizes.0, sizes.1, sizes.2);
    rule.iter().fold(config, |config, key| config.with(key, true).unwrap())
}

/// Trains to the end of `epochs` epochs; which files each rank opened goes into `opened`.
fn fit(
    epl: &Epl,
    out: &Path,
    paths: &[PathBuf],
    epochs: u64,
    opened: &Mutex<BTreeSet<(usize, String)>>,
) -> Result<(u64, std::collections::BTreeMap<String, burn::tensor::TensorData>)> {
    let config = TrainerConfig::new(1000).with_out(Some(out.into())).with_micro_batches(2);
    let rank = epl.context().world().rank();
    let files = SlicedFiles::open(paths, epl.config(), epl.context(), |path| {
        opened.lock().unwrap().insert((rank, path.file_name().unwrap().to_string_lossy().into_owned()));
        points(path)
    })?;
    let sampler = FileSamplerConfig::new(6, 9).with_epochs(epochs).init(files.sizes(), files.slices())?;
    let steps = sampler.steps().unwrap();
    let trained = trainer(epl, config)?.fit(&TrainData::new(files, Pairs, sampler)?)?;
    assert_eq!((trained.summary.steps, trained.summary.stopped), (steps, false));
    Ok((trained.summary.position, trained.engine.parameters()?))
}

#[test]
fn even_files_give_one_ranks_parameters_and_each_is_opened_once() {
    let (folder, whole) = (tempdir().unwrap(), tempdir().unwrap());
    let paths = files(folder.path(), &[6; 4]);
    let ignored = Mutex::default();
    let expected = launch(&testing::config(1, 1, 1), |epl| fit(&epl, whole.path(), &paths, 2, &ignored)).unwrap();
    for sizes in [(2, 1, 1), (2, 1, 2)] {
        let (out, opened) = (tempdir().unwrap(), Mutex::default());
        let config = sliced(sizes, &["io.slicing"]);
        let got = launch(&config, |epl| fit(&epl, out.path(), &paths, 2, &opened)).unwrap();
        let (name, error) = largest_error(&got[0].1, &expected[0].1);
        assert!(error <= 1e-4, "{sizes:?}: {name} {error}");
        assert_eq!(values(&lines(out.path()), "samples"), [6.0; 8]);
        let opened: Vec<(usize, String)> = opened.into_inner().unwrap().into_iter().collect();
        assert_eq!(opened, [(0, "0.txt"), (0, "2.txt"), (1, "1.txt"), (1, "3.txt")].map(|(r, f)| (r, f.to_string())));
    }
}

#[test]
fn uneven_files_end_together_on_all_ranks_and_lose_nothing() {
    for (sizes, rule) in [
        ((2, 1, 1), &["io.slicing", "io.unbalanced_io_slicing"][..]),
        ((3, 1, 1), &["io.slicing", "io.unbalanced_io_slicing"]),
        ((2, 2, 1), &["io.slicing", "io.unbalanced_io_slicing"]),
        ((4, 1, 1), &["io.slicing"]),
        ((2, 1, 1), &[]),
    ] {
        let (folder, out) = (tempdir().unwrap(), tempdir().unwrap());
        // One replica has far more than the others, and is alone at the end.
        let paths = files(folder.path(), &[3, 17, 1, 2, 5]);
        let opened = Mutex::default();
        let ends = launch(&sliced(sizes, rule), |epl| fit(&epl, out.path(), &paths, 2, &opened)).unwrap();
        assert!(ends.iter().all(|(position, _)| *position == 56), "{sizes:?}");
        assert_eq!(values(&lines(out.path()), "samples").iter().sum::<f64>(), 56.0);
        assert!(values(&lines(out.path()), "loss").iter().all(|loss| loss.is_finite()));
    }
}

#[test]
fn a_search_measures_with_what_each_rank_can_read() {
    let folder = tempdir().unwrap();
    let paths = files(folder.path(), &[6; 4]);
    let config =
        ["io.slicing", "auto.auto_parallel"].iter().fold(Config::new(), |config, key| config.with(key, true).unwrap());
    let config = config.with("cluster.ranks", 2).unwrap().with("train.global_batch_size", 6).unwrap();
    let found = launch(&config, |epl| {
        let files = SlicedFiles::open(&paths, epl.config(), epl.context(), points)?;
        let sampler = FileSamplerConfig::new(6, 9).init(files.sizes(), files.slices())?;
        let (_, found) = epl.auto_parallel(Net::new, &AdamWConfig::new(), &TrainData::new(files, Pairs, sampler)?)?;
        Ok(found.unwrap())
    });
    for found in found.unwrap() {
        assert!(
            [found.best()].into_iter().chain(found.next()).all(|choice| choice.words().contains("data 2")),
            "{found}"
        );
        assert!(found.to_string().contains("kept: 2 replicas, as without a search (io.slicing = true"), "{found}");
    }
}

#[test]
fn a_dropped_file_is_not_drawn_from() {
    let (folder, out) = (tempdir().unwrap(), tempdir().unwrap());
    let paths = files(folder.path(), &[4, 4, 9]);
    let opened = Mutex::default();
    let config = sliced((2, 1, 1), &["io.slicing", "io.drop_last_files"]);
    let ends = launch(&config, |epl| fit(&epl, out.path(), &paths, 1, &opened)).unwrap();
    assert_eq!(ends[0].0, 8);
    assert_eq!(opened.into_inner().unwrap().len(), 2);
}

#[test]
fn a_run_that_has_drawn_all_goes_on_with_another_epoch() {
    let (folder, whole, parts) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    let paths = files(folder.path(), &[5, 3]);
    let config = sliced((2, 1, 1), &["io.slicing"]);
    let train = |out: &Path, epochs: u64, resume: bool| {
        launch(&config, |epl| {
            let files = SlicedFiles::open(&paths, epl.config(), epl.context(), points)?;
            let sampler = FileSamplerConfig::new(4, 9).with_epochs(epochs).init(files.sizes(), files.slices())?;
            let settings = TrainerConfig::new(1000).with_out(Some(out.into())).with_resume(resume);
            trainer(&epl, settings)?.fit(&TrainData::new(files, Pairs, sampler)?)?.engine.parameters()
        })
        .unwrap()
    };
    let expected = train(whole.path(), 3, false);
    train(parts.path(), 1, false);
    // Nothing is left to draw.
    train(parts.path(), 1, true);
    let got = train(parts.path(), 3, true);
    assert_eq!(largest_error(&got[0], &expected[0]).1, 0.0);
    assert_eq!(values(&lines(parts.path()), "loss"), values(&lines(whole.path()), "loss"));
}

#[test]
fn files_that_cannot_be_opened_or_are_not_there_are_errors() {
    let folder = tempdir().unwrap();
    let paths = files(folder.path(), &[2, 2]);
    fs::remove_file(&paths[1]).unwrap();
    let open = |paths: &[PathBuf]| {
        message(launch(&sliced((2, 1, 1), &["io.slicing"]), |epl| {
            SlicedFiles::open(paths, epl.config(), epl.context(), points).map(|_| ())
        }))
    };
    assert!(open(&paths).contains("1.txt"), "{}", open(&paths));
    assert!(open(&[]).contains("0 files"), "{}", open(&[]));
}
