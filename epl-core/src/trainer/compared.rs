//! Several runs in one picture: what their logs say of one number.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::json_lines;
use super::plot::{CurveLine, NamedLine, draw};
use crate::error::{Error, Result};

/// The log in the folder of a run.
const LOG: &str = "metrics.jsonl";
/// What a picture is over.
const STEP: &str = "step";

/// Draws what runs have logged of one number over their steps, each in a color of its own, into one SVG file. A run is its
/// folder, or its `metrics.jsonl`.
///
/// The number is called `key` in the log, such as `loss`, `valid_loss` or `grad_norm`; what is inside an object or a list has
/// both names: `terms/NAME`, `metrics/NAME/0`, as in [`TensorBoard`](super::TensorBoard). Where a log goes back to an earlier
/// step, the run was resumed there, and what it wrote of later steps before is left out.
///
/// ```no_run
/// epl_core::trainer::plot_runs(&["runs/small", "runs/large"], "valid_loss", "valid_loss.svg")?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// When no run is given, one has no log, or its log no such number: those that it has are named; when the new file is not
/// called `.svg`, or cannot be written.
pub fn plot_runs<P: AsRef<Path>>(runs: &[P], key: &str, to: impl AsRef<Path>) -> Result<()> {
    let (runs, to): (Vec<&Path>, &Path) = (runs.iter().map(AsRef::as_ref).collect(), to.as_ref());
    if to.extension().and_then(OsStr::to_str) != Some("svg") {
        return Err(Error::file(to, "a picture is an SVG file; give a name that ends in .svg"));
    }
    if runs.is_empty() {
        return Err(Error::invalid("no run to draw; give the folders of some"));
    }
    let lines: Vec<CurveLine> = runs.iter().map(|run| Ok(line(&logged(run, key)?))).collect::<Result<_>>()?;
    let names = names(&runs);
    let named: Vec<NamedLine<'_>> = names.iter().zip(&lines).map(|(name, line)| (&**name, 1, line)).collect();
    draw(to, key, &named)
}

fn line(values: &BTreeMap<u64, f64>) -> CurveLine {
    let mut line = CurveLine::new();
    values.iter().for_each(|(step, value)| line.push(*step as f64, *value));
    line
}

/// What a run has logged of a number, by step.
fn logged(run: &Path, key: &str) -> Result<BTreeMap<u64, f64>> {
    let file = if run.is_dir() { run.join(LOG) } else { run.to_path_buf() };
    if !file.is_file() {
        return Err(Error::file(
            &file,
            format!("there is no such log; give the folder of a run, in which it is {LOG}"),
        ));
    }
    let (mut values, mut known) = (BTreeMap::new(), BTreeSet::new());
    for line in json_lines::read(&file)? {
        let Some(step) = line.get(STEP).and_then(Value::as_u64) else { continue };
        // From here on these steps were made again.
        drop(values.split_off(&step));
        let numbers = numbers(&line);
        values.extend(numbers.get(key).map(|value| (step, *value)));
        known.extend(numbers.into_keys());
    }
    if values.is_empty() {
        let known = match known.is_empty() {
            true => "no steps yet".to_string(),
            false => known.into_iter().collect::<Vec<_>>().join(", "),
        };
        return Err(Error::file(&file, format!("has no number called {key:?}; it has {known}")));
    }
    Ok(values)
}

/// The numbers of a line of the log, by name.
fn numbers(line: &Map<String, Value>) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    line.iter().filter(|(name, _)| *name != STEP).for_each(|(name, value)| add(name, value, &mut numbers));
    numbers
}

fn add(name: &str, value: &Value, numbers: &mut BTreeMap<String, f64>) {
    match value {
        Value::Number(number) => numbers.extend(number.as_f64().map(|number| (name.to_string(), number))),
        Value::Object(fields) => {
            fields.iter().for_each(|(field, value)| add(&format!("{name}/{field}"), value, numbers));
        }
        Value::Array(values) => match &values[..] {
            [value] => add(name, value, numbers),
            values => {
                values.iter().enumerate().for_each(|(at, value)| add(&format!("{name}/{at}"), value, numbers));
            }
        },
        _ => {}
    }
}

/// What the legend calls the runs: the names of their folders, where these differ.
fn names(runs: &[&Path]) -> Vec<String> {
    let folder = |run: &&Path| match run.file_name() {
        Some(name) if name == LOG => run.parent().map(Path::to_path_buf).unwrap_or_default(),
        _ => run.to_path_buf(),
    };
    // The folder that one is in has no name of its own where it is not written out.
    let written = |folder: PathBuf| match folder.file_name() {
        Some(_) => folder,
        None => Path::new(".").join(&folder).canonicalize().unwrap_or(folder),
    };
    let folders: Vec<PathBuf> = runs.iter().map(folder).map(written).collect();
    let short: Vec<Option<&OsStr>> = folders.iter().map(|folder| folder.file_name()).collect();
    let differ = short.iter().collect::<BTreeSet<_>>().len() == short.len();
    let shown = |(folder, short): (&PathBuf, &Option<&OsStr>)| match short.filter(|_| differ) {
        Some(name) => name.display().to_string(),
        None => folder.display().to_string(),
    };
    folders.iter().zip(&short).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::trainer::hooks::MetricsLog;
    use crate::trainer::record::tests::{evaluation, record};

    /// A run whose log has these steps and losses.
    fn run(folder: &Path, name: &str, losses: &[(u64, f64)]) -> PathBuf {
        let run = folder.join(name);
        fs::create_dir_all(&run).unwrap();
        let line = |(step, loss): &(u64, f64)| format!("{{\"step\":{step},\"loss\":{loss}}}\n");
        fs::write(run.join(LOG), losses.iter().map(line).collect::<String>()).unwrap();
        run
    }

    #[test]
    fn runs_of_any_length_are_lines_of_one_picture() {
        let folder = tempfile::tempdir().unwrap();
        let long: Vec<(u64, f64)> = (1..=3000).map(|step| (step, 1.0 / step as f64)).collect();
        let runs = [run(folder.path(), "long", &long), run(folder.path(), "short & fast", &long[..20])];
        let picture = folder.path().join("both.svg");
        plot_runs(&runs, "loss", &picture).unwrap();
        let drawn = fs::read_to_string(&picture).unwrap();
        for part in ["<svg", "long", "short &amp; fast", "loss", "#1F77B4", "#FF7F0E", "</svg>"] {
            assert!(drawn.contains(part), "{part}");
        }
        assert!(drawn.len() < 60_000, "{} bytes", drawn.len());
    }

    #[test]
    fn a_resumed_run_is_what_it_became() {
        let folder = tempfile::tempdir().unwrap();
        let losses = [(1, 9.0), (2, 8.0), (3, 7.0), (4, 6.0), (3, 5.0)];
        let run = run(folder.path(), "resumed", &losses);
        let expected = BTreeMap::from([(1, 9.0), (2, 8.0), (3, 5.0)]);
        assert_eq!(
            logged(&run, "loss").unwrap(),
            expected,
            "of a step that is there twice the later; none of those behind it"
        );
        assert_eq!(logged(&run.join(LOG), "loss").unwrap(), expected, "by its file");
    }

    #[test]
    fn any_number_can_be_drawn_and_of_another_those_that_there_are_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOG);
        let mut log = MetricsLog::new(&path);
        log.open(0).unwrap();
        log.add_step(&record(1));
        log.add_evaluation(&evaluation(1)).unwrap();
        drop(log);
        let values = [
            ("loss", record(1).report.loss),
            ("valid_loss", evaluation(1).get("valid_loss").unwrap()),
            ("terms/auxiliary", 0.1),
            ("metrics/tokens_per_expert/1", 5.0),
        ];
        for (key, value) in values {
            assert_eq!(logged(folder.path(), key).unwrap(), BTreeMap::from([(1, value)]), "{key}");
        }
        // One that is null without stages, what the picture is over, and a slip of the finger.
        for key in ["bubble", "step", "los"] {
            let error = logged(folder.path(), key).unwrap_err().to_string();
            assert!(error.contains(&format!("has no number called {key:?}; it has ")), "{error}");
            assert!(
                error.contains("grad_norm, loss, lr, metrics/tokens_per_expert/0, ") && !error.contains("step,"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let run = run(folder.path(), "run", &[]);
        let picture = folder.path().join("a.svg");
        let failed = |runs: &[&Path], to: &Path| plot_runs(runs, "loss", to).unwrap_err().to_string();
        assert!(failed(&[&run], &picture).contains("it has no steps yet"));
        assert!(failed(&[folder.path()], &picture).contains("give the folder of a run, in which it is metrics.jsonl"));
        assert!(failed(&[&run.join("none")], &picture).contains("there is no such log"));
        assert!(failed(&[&run], Path::new("a.png")).contains("ends in .svg"));
        assert!(failed(&[], &picture).contains("no run to draw"));
        assert!(!picture.exists());
    }

    #[test]
    fn the_legend_has_names_that_differ() {
        let of = |runs: &[&str]| names(&runs.iter().map(Path::new).collect::<Vec<_>>());
        assert_eq!(of(&["out/a", "out/b/metrics.jsonl"]), ["a", "b"]);
        assert_eq!(of(&["one/out", "two/out"]), ["one/out", "two/out"]);
        let here = std::env::current_dir().unwrap();
        let here = here.file_name().unwrap().to_str().unwrap();
        assert_eq!(of(&[LOG, "out/a"]), [here, "a"], "of the folder that one is in");
        assert_eq!(of(&["."]), [here]);
    }
}
