//! Burn's supervised learner over ranks: metrics and parameters of one rank, by a line of strategy.

// Their own `main` is not called here.
#[path = "../../examples/learner/digits.rs"]
mod digits;
#[path = "../../examples/learner/words.rs"]
mod words;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use epl::Config;

/// Ranks, and what is another than on one.
const LAYOUTS: [&[(&str, &str)]; 4] = [
    &[("cluster.ranks", "1")],
    &[("cluster.ranks", "2"), ("pipeline.num_micro_batch", "2")],
    &[("cluster.ranks", "2"), ("zero.level", "v2"), ("pipeline.num_micro_batch", "2")],
    &[("cluster.ranks", "3"), ("zero.level", "v0"), ("offload.level", "v0")],
];

fn config(options: &[(&str, &str)]) -> Config {
    Config::load(None, options.iter().map(|(key, value)| format!("{key}={value}"))).expect("valid options")
}

/// All numbers in a run's files of metrics, by the path of the file.
fn metrics(folder: &Path) -> BTreeMap<String, Vec<f64>> {
    fn read(folder: &Path, path: &str, found: &mut BTreeMap<String, Vec<f64>>) {
        for entry in fs::read_dir(folder).expect("a folder of metrics") {
            let entry = entry.expect("a file of metrics");
            let path = format!("{path}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                read(&entry.path(), &path, found);
            } else if path.ends_with(".log") {
                let text = fs::read_to_string(entry.path()).expect("text");
                let numbers = text.split(|c: char| c == ',' || c.is_whitespace()).filter_map(|word| word.parse().ok());
                found.insert(path, numbers.collect());
            }
        }
    }
    let mut found = BTreeMap::new();
    read(folder, "", &mut found);
    found
}

fn parameters<M: Module>(model: &M) -> Vec<f64> {
    struct Values(Vec<f64>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f64>());
        }
    }
    let mut values = Values(Vec::new());
    model.visit(&mut values);
    values.0
}

fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance * expected.abs().max(1.0), "{what} {at}: {found} is not {expected}");
    }
}

/// Whether a run left what another did: the same files of metrics with the same numbers, and the same parameters.
fn assert_same<M: Module>(what: &str, (folder, model): (&Path, &M), (other, expected): (&Path, &M), tolerance: f64) {
    let (found, known) = (metrics(folder), metrics(other));
    assert_eq!(found.keys().collect::<Vec<_>>(), known.keys().collect::<Vec<_>>(), "{what}");
    for (path, numbers) in &found {
        assert_close(&format!("{what}{path}"), numbers, &known[path], tolerance);
    }
    assert_close(&format!("{what}, parameters,"), &parameters(model), &parameters(expected), tolerance);
}

macro_rules! same_as_burns {
    ($test:ident, $program:ident, $epochs:literal, $files:literal) => {
        #[test]
        fn $test() {
            // The generator that it seeds is the whole process's.
            epl_testing::alone(|| {
                let device = Device::default().autodiff();
                device.seed(1);
                let (net, out) = ($program::Net::new(&device), tempfile::tempdir().expect("a folder"));
                let run = |name: &str, epochs, resume| {
                    let folder = out.path().join(name);
                    $program::Run { folder, net: net.clone(), epochs, resume }
                };
                let burn = $program::plain(run("burn", $epochs, None));
                assert!(burn.error.is_none());
                let alone = out.path().join("burn");
                assert_eq!(metrics(&alone).len(), $files);
                for (number, layout) in LAYOUTS.iter().enumerate() {
                    let name = format!("{number}");
                    let found = $program::parallel(run(&name, $epochs, None), &config(layout)).expect("valid options");
                    assert!(found.error.is_none(), "{layout:?}: {:?}", found.error);
                    // One rank does what Burn does, to the bit.
                    let tolerance = if number == 0 { 0.0 } else { 1e-6 };
                    let folder = out.path().join(&name);
                    assert_same(&format!("{layout:?}"), (&folder, &found.model), (&alone, &burn.model), tolerance);
                }
            });
        }
    };
}

same_as_burns!(digits_are_learned_as_on_one_rank, digits, 2, 10);
same_as_burns!(texts_are_learned_as_on_one_rank, words, 2, 10);

/// The lines of a function's body that say something: no brackets alone, no comments.
fn body<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let start = source.find(&format!("\npub fn {name}(")).expect("the function is there");
    let lines = source[start + 1..].lines().skip(1).take_while(|line| *line != "}").map(str::trim);
    lines.filter(|line| line.chars().any(char::is_alphanumeric) && !line.starts_with("//")).collect()
}

#[test]
fn two_lines_are_added_to_burns_program() {
    for source in [include_str!("../../examples/learner/digits.rs"), include_str!("../../examples/learner/words.rs")] {
        let mut plain: HashMap<String, usize> = HashMap::new();
        body(source, "plain").into_iter().for_each(|line| *plain.entry(line.to_string()).or_default() += 1);
        let mut added: Vec<&str> = Vec::new();
        for line in body(source, "parallel") {
            // The result is one that may be an error.
            let line_in_plain = line.strip_prefix("Ok(").and_then(|line| line.strip_suffix(')')).unwrap_or(line);
            match plain.get_mut(line_in_plain) {
                Some(count) if *count > 0 => *count -= 1,
                _ => added.push(line),
            }
        }
        added.extend(source.lines().filter(|line| line.starts_with("epl::") || line.starts_with("use epl")));
        assert_eq!(added.len(), 3, "strategy, batch, and what is imported: {added:#?}");
        assert!(plain.values().all(|count| *count == 0), "nothing is taken away: {plain:?}");
    }
}
