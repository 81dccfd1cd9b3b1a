//! Wrong configurations, corpora and checkpoints: one clear error each, exit 1 or 2, no panic.
//!
//! The examples are run as a user runs them; `cargo test` has built them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A program of `examples/`.
fn example(name: &str) -> Command {
    let here = std::env::current_exe().expect("a test has a path");
    let examples = here.parent().and_then(Path::parent).expect("tests are built in a folder").join("examples");
    let mut command = Command::new(examples.join(name));
    // Options of the environment the tests run in must not reach the program.
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("EPL_")) {
        command.env_remove(key);
    }
    command
}

/// Where the tests of this binary write; a folder of its own for every test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong_input").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the example was built; run `cargo test`, not this binary alone")
}

/// The program ends with `code` and one error that says all of `words`.
fn assert_error(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    let errors = said.lines().filter(|line| line.starts_with("error")).count();
    assert_eq!(errors, 1, "one error: {said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

/// A corpus of four pairs.
fn corpus(folder: &Path) -> [PathBuf; 2] {
    let (source, target) = (folder.join("a.en"), folder.join("a.de"));
    fs::write(&source, "a dog runs\na cat sleeps\na dog sleeps\na cat runs\n").expect("a file can be written");
    fs::write(&target, "ein hund rennt\neine katze schläft\nein hund schläft\neine katze rennt\n")
        .expect("a file can be written");
    [source, target]
}

/// `moe_t5` with a tiny corpus and these arguments.
fn on_corpus(name: &str, arguments: &[&str]) -> Output {
    let folder = folder(name);
    let [source, target] = corpus(&folder);
    let mut command = example("moe_t5");
    command.arg("--source").arg(source).arg("--target").arg(target).args(["--vocab", "300", "--steps", "2"]);
    command.arg("--out").arg(folder.join("out")).args(arguments);
    run(&mut command)
}

macro_rules! wrong_arguments {
    ($($name:ident: $arguments:expr => $code:literal, $words:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_error(&on_corpus(stringify!($name), &$arguments), $code, &$words);
        }
    )*};
}

wrong_arguments! {
    unknown_option: ["--set", "schedule.warmup=3"] => 1, ["schedule.warmup", "schedule.warmup_steps"];
    unknown_section: ["--set", "trian.seed=3"] => 1, ["trian", "train"];
    wrong_type: ["--set", "train.global_batch_size=many"] => 1, ["train.global_batch_size", "many"];
    out_of_range: ["--set", "train.clip_norm=-1"] => 1, ["train.clip_norm", "-1"];
    not_a_setting: ["--set", "train.seed"] => 1, ["train.seed"];
    not_yet: ["--set", "zero.level=v1"] => 1, ["zero.level", "not"];
    warm_up_longer_than_schedule:
        ["--set", "schedule.steps=10", "--set", "schedule.warmup_steps=20"] => 1, ["10", "20"];
    batch_sizes_disagree:
        ["--set", "train.global_batch_size=10", "--set", "train.micro_batch_size=4",
         "--set", "pipeline.num_micro_batch=3"] => 1, ["10", "4", "3"];
    no_steps: ["--set", "train.steps=0"] => 1, ["train.steps", "0"];
    unknown_model: ["--model", "moe_t6"] => 1, ["moe_t6", "moe_t5_small"];
    expert_does_not_divide_data: ["--data", "3", "--expert", "2"] => 1, ["3", "2"];
    experts_do_not_divide: ["--expert", "3"] => 1, ["4", "3"];
    heads_do_not_divide: ["--tensor", "3"] => 1, ["8", "3"];
    vocabulary_too_small: ["--vocab", "2"] => 2, ["--vocab"];
    two_ways_to_say_replicas: ["--data", "2", "--ranks", "2"] => 2, ["--ranks"];
    missing_configuration: ["--config", "no/such/file.toml"] => 1, ["no/such/file.toml"];
    resume_from_nothing: ["--resume"] => 1, ["tokenizer.json"];
}

#[test]
fn wrong_file() {
    let folder = folder("wrong_file");
    let file = folder.join("run.toml");
    fs::write(&file, "[train]\nseed = 1\nsede = 2\n").expect("a file can be written");
    let output = run(example("moe_t5").arg("--plan").arg("--config").arg(&file));
    assert_error(&output, 1, &["train.sede", "train.seed", "run.toml"]);
    fs::write(&file, "[train\nseed = 1\n").expect("a file can be written");
    let output = run(example("moe_t5").arg("--plan").arg("--config").arg(&file));
    assert_error(&output, 1, &["run.toml"]);
}

#[test]
fn wrong_environment() {
    let output = run(example("moe_t5").arg("--plan").env("EPL_TRAIN_SEDE", "3"));
    assert_error(&output, 1, &["EPL_TRAIN_SEDE", "EPL_TRAIN_SEED"]);
}

#[test]
fn source_without_target() {
    let output = run(example("moe_t5").args(["--source", "a.en"]));
    assert_error(&output, 2, &["--target"]);
}

/// `moe_t5` on files of one's own.
fn on_files(sources: &[&Path], targets: &[&Path]) -> Output {
    let out = sources[0].parent().expect("a file lies in a folder").join("out");
    run(example("moe_t5").arg("--source").args(sources).arg("--target").args(targets).arg("--out").arg(out))
}

#[test]
fn wrong_corpora() {
    let folder = folder("wrong_corpora");
    let [source, target] = corpus(&folder);
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).expect("a file can be written");
        folder.join(name)
    };
    assert_error(&on_files(&[&folder.join("no.en")], &[&target]), 1, &["no.en"]);
    let short = file("short.de", b"ein hund rennt\n");
    assert_error(&on_files(&[&source], &[&short]), 1, &["short.de", "4", "1"]);
    assert_error(&on_files(&[&source, &source], &[&target]), 1, &["2", "1"]);
    let bytes = file("bytes.de", b"ein\n\xff\xfe\nhund\nkatze\n");
    assert_error(&on_files(&[&source], &[&bytes]), 1, &["bytes.de", "line 2"]);
    let broken = file("broken.de.gz", b"\x1f\x8b\x08\x00not a gzip file");
    assert_error(&on_files(&[&source], &[&broken]), 1, &["broken.de.gz"]);
    let empty = file("empty", b"");
    assert_error(&on_files(&[&empty], &[&empty]), 1, &["empty"]);
}

/// A run of two steps whose checkpoint the tests below copy and damage.
fn finished_run() -> &'static Path {
    static RUN: OnceLock<PathBuf> = OnceLock::new();
    RUN.get_or_init(|| {
        let output = on_corpus("finished_run", &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong_input/finished_run")
    })
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("the folder can be read").flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a file can be copied")),
        }
    }
}

/// Goes on with a copy of the finished run, after `damage` was done to its folder.
fn resumed(name: &str, arguments: &[&str], damage: impl FnOnce(&Path)) -> Output {
    let folder = folder(name);
    copy(finished_run(), &folder);
    damage(&folder.join("out"));
    let mut command = example("moe_t5");
    command.arg("--source").arg(folder.join("a.en")).arg("--target").arg(folder.join("a.de"));
    command.arg("--out").arg(folder.join("out")).args(["--steps", "3"]).args(arguments);
    run(&mut command)
}

/// The files below a folder, largest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be read").flatten() {
        match entry.path().is_dir() {
            true => all.extend(files(&entry.path())),
            false => all.push(entry.path()),
        }
    }
    all.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).map_or(0, |metadata| metadata.len())));
    all
}

#[test]
fn a_sound_checkpoint_resumes() {
    let output = resumed("sound", &["--resume"], |_| {});
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_folder_with_a_run_is_not_overwritten() {
    assert_error(&resumed("not_overwritten", &[], |_| {}), 1, &["resume"]);
}

#[test]
fn a_checkpoint_of_another_layout_is_refused() {
    let output = resumed("another_layout", &["--resume", "--data", "1"], |_| {});
    assert_error(&output, 1, &["data 2", "data 1"]);
}

#[test]
fn a_checkpoint_of_another_seed_is_refused() {
    assert_error(&resumed("another_seed", &["--resume", "--seed", "9"], |_| {}), 1, &["0", "9"]);
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let output = resumed("another_model", &["--resume", "--model", "moe_t5_numbers"], |_| {});
    assert_error(&output, 1, &["model"]);
}

#[test]
fn a_cut_checkpoint_is_refused() {
    let output = resumed("cut", &["--resume"], |out| {
        let largest = files(&out.join("checkpoints")).remove(0);
        let bytes = fs::read(&largest).expect("a file can be read");
        fs::write(&largest, &bytes[..bytes.len() / 2]).expect("a file can be written");
    });
    assert_error(&output, 1, &["checkpoints"]);
}

#[test]
fn a_checkpoint_with_a_flipped_bit_is_refused() {
    let output = resumed("flipped", &["--resume"], |out| {
        let largest = files(&out.join("checkpoints")).remove(0);
        let mut bytes = fs::read(&largest).expect("a file can be read");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(&largest, bytes).expect("a file can be written");
    });
    assert_error(&output, 1, &["checkpoints"]);
}

#[test]
fn a_damaged_tokenizer_is_refused() {
    let output = resumed("tokenizer", &["--resume"], |out| {
        fs::write(out.join("tokenizer.json"), "{").expect("a file can be written");
    });
    assert_error(&output, 1, &["tokenizer.json"]);
}

#[test]
fn folders_of_hugging_face() {
    let folder = folder("hugging_face");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transformers/t5");
    let check = |folder: &Path| run(example("hf_parity").arg(folder));
    assert_eq!(check(&fixture).status.code(), Some(0));
    assert_eq!(check(&folder.join("none")).status.code(), Some(1));
    assert_eq!(check(&fixture.join("../llama")).status.code(), Some(3), "an architecture that is not supported");
    copy(&fixture, &folder);
    let weights = folder.join("model.safetensors");
    let bytes = fs::read(&weights).expect("a file can be read");
    fs::write(&weights, &bytes[..bytes.len() - 100]).expect("a file can be written");
    let output = check(&folder);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("model.safetensors"), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
}
