//! Wrong configurations, corpora and checkpoints: one clear error each, exit 1 or 2, no panic.
//!
//! The examples are run as a user runs them; `cargo test` has built them.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::built;

/// A program of `examples/`.
fn example(name: &str) -> Command {
    built::command(built::example(name))
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
    command.arg("--source").arg(source).arg("--target").arg(target).args(["--steps", "2"]);
    if !arguments.contains(&"--vocab") {
        command.args(["--vocab", "300"]);
    }
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
    unknown_option: ["--set", "schedule.warmup=3"] => 1,
        ["unknown option schedule.warmup (command line)", "the nearest is schedule.warmup_steps"];
    unknown_section: ["--set", "trian.seed=3"] => 1, ["unknown option trian.seed", "the nearest is train.seed"];
    wrong_type: ["--set", "train.global_batch_size=many"] => 1,
        ["train.global_batch_size = \"many\"", "allowed: \"none\" or an integer ≥ 1"];
    out_of_range: ["--set", "train.clip_norm=-1"] => 1,
        ["train.clip_norm = \"-1\"", "allowed: \"none\" or a number > 0"];
    not_a_setting: ["--set", "train.seed"] => 1, ["`train.seed` (command line) is no setting", "write key=value"];
    own_clipping_without_a_limit:
        ["--set", "train.clip_norm=none", "--set", "communication.clip_after_allreduce=false"] => 1,
        ["communication.clip_after_allreduce = false (command line) has no effect without train.clip_norm"];
    own_clipping_of_shards:
        ["--data", "2", "--expert", "1", "--set", "train.clip_norm=1", "--set", "communication.clip_after_allreduce=false",
         "--set", "zero.level=v3"] => 1,
        ["communication.clip_after_allreduce = false clips the gradient that each replica has", "set zero.level = v2"];
    no_list_of_files_to_divide: ["--set", "io.slicing=true"] => 1,
        ["io.slicing = true divides input files", "leave io.slicing out"];
    no_loader: ["--set", "io.num_workers=0"] => 1, ["io.num_workers = \"0\"", "allowed: an integer ≥ 1"];
    warm_up_longer_than_schedule: ["--set", "schedule.steps=10", "--set", "schedule.warmup_steps=20"] => 1,
        ["schedule.warmup_steps = 20 exceeds schedule.steps = 10"];
    batch_sizes_disagree:
        ["--set", "train.global_batch_size=10", "--set", "train.micro_batch_size=4",
         "--set", "pipeline.num_micro_batch=3"] => 1,
        ["micro_batch_size 4 × pipeline.num_micro_batch 3 × 2 replicas = 24", "but train.global_batch_size = 10",
         "set train.global_batch_size = 24"];
    no_steps: ["--set", "train.steps=0"] => 1, ["train.steps = \"0\"", "allowed: \"none\" or an integer ≥ 1"];
    unknown_model: ["--model", "moe_t6"] => 1, ["there is no model `moe_t6`", "moe_t5_small"];
    expert_does_not_divide_data: ["--data", "3", "--expert", "2"] => 1,
        ["expert 2 does not divide data 3", "use expert 1, or data 4"];
    experts_do_not_divide: ["--expert", "3"] => 1,
        ["4 experts cannot be divided evenly over 3 expert ranks", "choose an expert axis that divides 4"];
    heads_do_not_divide: ["--tensor", "3"] => 1,
        ["8 heads do not divide over 3 ranks of the tensor axis", "use a tensor size that divides 8"];
    vocabulary_too_small: ["--vocab", "2"] => 1, ["a vocabulary of 2 is too small", "256 bytes need 259"];
    two_ways_to_say_replicas: ["--data", "2", "--ranks", "2"] => 2,
        ["'--data <D>' cannot be used with '--ranks <N>'"];
    missing_configuration: ["--config", "no/such/file.toml"] => 1,
        ["cannot read the configuration file no/such/file.toml"];
    resume_from_nothing: ["--resume"] => 1, ["holds no checkpoint to go on from", "leave --resume out"];
    checks_of_replicas_never: ["--check-replicas", "0"] => 1,
        ["a check of the replicas every 0 steps", "leave the number out"];
}

#[test]
fn wrong_file() {
    let folder = folder("wrong_file");
    let file = folder.join("run.toml");
    fs::write(&file, "[train]\nseed = 1\nsede = 2\n").expect("a file can be written");
    let output = run(example("moe_t5").arg("--plan").arg("--config").arg(&file));
    assert_error(&output, 1, &["unknown option train.sede", "run.toml, line 3", "the nearest is train.seed"]);
    fs::write(&file, "[train\nseed = 1\n").expect("a file can be written");
    let output = run(example("moe_t5").arg("--plan").arg("--config").arg(&file));
    assert_error(&output, 1, &["run.toml, line 1: not valid TOML"]);
}

#[test]
fn wrong_environment() {
    let output = run(example("moe_t5").arg("--plan").env("EPL_TRAIN_SEDE", "3"));
    assert_error(&output, 1, &["unknown option EPL_TRAIN_SEDE", "the nearest is EPL_TRAIN_SEED"]);
}

#[test]
fn source_without_target() {
    let output = run(example("moe_t5").args(["--source", "a.en"]));
    assert_error(&output, 2, &["required arguments were not provided", "--target <F>..."]);
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
    assert_error(&on_files(&[&folder.join("no.en")], &[&target]), 1, &["cannot open", "no.en: No such file"]);
    let short = file("short.de", b"ein hund rennt\n");
    assert_error(&on_files(&[&source], &[&short]), 1, &["a.en has 4 lines but", "short.de has 1;"]);
    assert_error(&on_files(&[&source, &source], &[&target]), 1, &["2 source file(s) but 1 target file(s)"]);
    let bytes = file("bytes.de", b"ein\n\xff\xfe\nhund\nkatze\n");
    assert_error(&on_files(&[&source], &[&bytes]), 1, &["bytes.de line 2: not UTF-8", "iconv"]);
    let broken = file("broken.de.gz", b"\x1f\x8b\x08\x00not a gzip file");
    assert_error(&on_files(&[&source], &[&broken]), 1, &["broken.de.gz is not a whole gzip file"]);
    let empty = file("empty", b"");
    assert_error(&on_files(&[&empty], &[&empty]), 1, &["the corpus is empty: no line in"]);
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
fn a_sound_checkpoint_resumes_and_tells_what_has_changed() {
    let output = resumed("sound", &["--resume", "--set", "train.clip_norm=0.25"], |_| {});
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("changed since the checkpoint: `train.clip_norm` 1.0, now 0.25"), "{said}");
    assert!(said.contains("changed since the checkpoint: `train.steps` 2, now 3"), "{said}");
    assert_eq!(said.matches("changed since").count(), 2, "{said}");
}

/// Every file below a folder, with its length and a hash of its bytes.
fn content(folder: &Path) -> BTreeMap<PathBuf, (usize, u64)> {
    let summary = |path: PathBuf| {
        let bytes = fs::read(&path).expect("a file can be read");
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        (path, (bytes.len(), hasher.finish()))
    };
    files(folder).into_iter().map(summary).collect()
}

#[test]
fn a_folder_with_a_run_is_not_overwritten() {
    let mut before = BTreeMap::new();
    let output = resumed("not_overwritten", &[], |out| before = content(out));
    assert_error(&output, 1, &["out holds a run; go on with it by `--out", "--resume`, or choose another folder"]);
    let after = content(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong_input/not_overwritten/out"));
    assert!(before.len() > 6, "{before:?}");
    assert_eq!(before, after);
}

macro_rules! refused_resumes {
    ($($name:ident: $arguments:expr, $damage:expr => $words:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_error(&resumed(stringify!($name), &$arguments, $damage), 1, &$words);
        }
    )*};
}

refused_resumes! {
    another_seed: ["--resume", "--seed", "9"], |_| {} =>
        ["a run with seed 0, and this run has seed 9", "resume with the same seed"];
    another_model: ["--resume", "--model", "moe_t5_numbers"], |_| {} =>
        ["saved with another model: ", "`d_model` 256, now 128", "resume with what it was saved with"];
    another_tokenizer: ["--resume"], swap_tokenizer =>
        ["and with another tokenizer: \"", "bytes with checksum", "resume with what it was saved with"];
    other_batches: ["--resume", "--set", "train.global_batch_size=2"], |_| {} =>
        ["4 samples (16 tokens) by length", "and this run draws 4 samples shuffled", "the same batches"];
    cut_file: ["--resume"], cut_largest =>
        [".safetensors: the file has", "and the index says", "it is damaged; take another checkpoint"];
    flipped_bit: ["--resume"], flip_largest =>
        [".safetensors: tensor `", "has checksum", "it is damaged; take another checkpoint"];
    other_data: ["--resume"], swap_two_pairs =>
        ["saved with another corpus: \"", "bytes with checksum", "resume with what it was saved with"];
    damaged_tokenizer: ["--resume"], damage_tokenizer => ["tokenizer.json is not a usable tokenizer file"];
    missing_tokenizer: ["--resume"], remove_tokenizer => ["cannot open", "tokenizer.json: No such file"];
}

fn cut_largest(out: &Path) {
    change_largest(out, |bytes| bytes.truncate(bytes.len() / 2));
}

fn flip_largest(out: &Path) {
    change_largest(out, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
    });
}

/// Changes the largest file of the checkpoint.
fn change_largest(out: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let largest = files(&out.join("checkpoints")).remove(0);
    let mut bytes = fs::read(&largest).expect("a file can be read");
    change(&mut bytes);
    fs::write(&largest, bytes).expect("a file can be written");
}

fn damage_tokenizer(out: &Path) {
    fs::write(out.join("tokenizer.json"), "{").expect("a file can be written");
}

fn remove_tokenizer(out: &Path) {
    fs::remove_file(out.join("tokenizer.json")).expect("a file can be removed");
}

/// As many pairs as before, of the same lengths.
fn swap_two_pairs(out: &Path) {
    for side in ["a.en", "a.de"] {
        let path = out.with_file_name(side);
        let text = fs::read_to_string(&path).expect("a file can be read");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.swap(0, 3);
        fs::write(path, lines.join("\n") + "\n").expect("a file can be written");
    }
}

/// Puts a tokenizer with other pieces in the place of the run's own.
fn swap_tokenizer(out: &Path) {
    assert!(on_corpus("tokenizer_of_another_run", &["--vocab", "290"]).status.success());
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong_input/tokenizer_of_another_run/out/tokenizer.json");
    fs::copy(other, out.join("tokenizer.json")).expect("a file can be copied");
}

/// The run of the number words is replaced by the next one, but not by a command that cannot run.
#[test]
fn a_command_that_is_refused_leaves_the_tokenizer_of_an_earlier_run() {
    let folder = folder("kept_tokenizer");
    let tokenizer = folder.join("out/moe_t5-numbers/tokenizer.json");
    fs::create_dir_all(tokenizer.with_file_name("checkpoints")).expect("a folder can be made");
    fs::write(&tokenizer, "of an earlier run").expect("a file can be written");
    for (arguments, word) in [
        (&["--model", "moe_t6"][..], "there is no model `moe_t6`"),
        (&["--data", "3", "--expert", "2"], "expert 2 does not divide data 3"),
        (&["--expert", "3"], "4 experts cannot be divided evenly"),
        (&["--check-replicas", "0"], "a check of the replicas every 0 steps"),
    ] {
        let output = run(example("moe_t5").current_dir(&folder).args(["--vocab", "200"]).args(arguments));
        assert_error(&output, 1, &[word]);
        let kept = fs::read_to_string(&tokenizer).expect("it is there");
        assert!(kept == "of an earlier run", "{arguments:?} has replaced it");
    }
}

/// `bert_squad` on a copy of the sample, as a file of one's own.
fn bert_squad(folder: &Path) -> (PathBuf, Command) {
    let data = folder.join("questions.json");
    if !data.exists() {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/squad/sample.json");
        fs::copy(sample, &data).expect("a file can be copied");
    }
    let mut command = example("bert_squad");
    command.arg("--data").arg(&data).args(["--length", "192"]).arg("--out").arg(folder.join("out"));
    (data, command)
}

/// 70 rows, 14 of which are a step, twice.
#[test]
fn two_epochs_are_counted_in_steps_of_all_replicas_and_micro_batches() {
    let (_, mut command) = bert_squad(&folder("epochs"));
    let settings = [
        "train.global_batch_size=none",
        "train.micro_batch_size=7",
        "pipeline.num_micro_batch=1",
        "dist.data_parallel_size=2",
        "schedule.warmup_steps=1000",
    ];
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    assert_error(&run(&mut command), 1, &["schedule.warmup_steps = 1000 exceeds schedule.steps = 10;"]);
}

#[test]
fn a_run_on_questions_is_not_gone_on_with_on_others() {
    let folder = folder("questions");
    let (data, mut command) = bert_squad(&folder);
    let output = run(command.args(["--steps", "1"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&data).expect("a file can be read");
    assert!(text.contains("Where"), "the sample asks where");
    fs::write(&data, text.replace("Where", "Whose").replace("where", "whose")).expect("a file can be written");
    let (_, mut command) = bert_squad(&folder);
    let output = run(command.args(["--steps", "2", "--resume", "--vocab"]).arg(folder.join("out/vocab.txt")));
    assert_error(&output, 1, &["saved with another file of questions: \"", "bytes with checksum"]);
}

#[test]
fn folders_of_hugging_face() {
    let folder = folder("hugging_face");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transformers/t5");
    let check = |folder: &Path| run(example("hf_parity").arg(folder));
    assert_eq!(check(&fixture).status.code(), Some(0));
    assert_eq!(check(&folder.join("none")).status.code(), Some(1));
    copy(&fixture, &folder);
    let config = folder.join("config.json");
    let keys = fs::read_to_string(&config).expect("a file can be read");
    fs::write(&config, keys.replace("\"model_type\": \"t5\"", "\"model_type\": \"of_tomorrow\""))
        .expect("a file can be written");
    assert_eq!(check(&folder).status.code(), Some(3), "an architecture that is not supported");
    fs::write(&config, keys).expect("a file can be written");
    let weights = folder.join("model.safetensors");
    let bytes = fs::read(&weights).expect("a file can be read");
    fs::write(&weights, &bytes[..bytes.len() - 100]).expect("a file can be written");
    let output = check(&folder);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("model.safetensors is damaged or of another format"),
        "{output:?}"
    );
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
}

/// What can be wrong before a weight is read is said before: this folder has none that fit.
#[test]
fn generation_says_what_is_wrong_before_it_loads() {
    let folder = folder("generation");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transformers");
    let header = b"{}";
    let weights = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    fs::write(folder.join("model.safetensors"), weights).expect("a file can be written");
    let config = |of: &str| {
        fs::copy(fixture.join(of).join("config.json"), folder.join("config.json")).expect("the fixture is there");
    };
    let say = |arguments: &[&str]| run(example("generate").arg(&folder).args(arguments));
    config("llama-reversed");
    let ids = ["--ids", "11,25", "--longest", "8"];
    assert_error(&say(&[&ids[..], &["--top-k", "3"]].concat()), 1, &["`top_k` has no effect without `sample`"]);
    assert_error(&say(&[&ids[..], &["--sample", "--temperature", "1e-39"]].concat()), 1, &["1.2e-38 to 3.4e38"]);
    for wrong in ["", "1,,2", "1,x"] {
        let expected = format!("--ids {wrong:?}: give numbers of tokens with commas between, such as 11,25,36,1");
        assert_error(&say(&["--ids", wrong]), 1, &[&expected]);
    }
    assert_error(&say(&["--prompt", "Once"]), 1, &["tokenizer.json"]);
    assert_error(&say(&["--ids", "11,40"]), 1, &["prompt 0 has token 40; the tokens are 0 to 39"]);
    assert_error(&say(&["--ids", "11,25", "--longest", "64"]), 1, &["has 2 tokens, and 64 may", "at most 63"]);
    assert_error(&say(&ids), 1, &["do not fit the model", "missing: "]);
    config("switch");
    assert_error(&say(&ids), 1, &["do not fit the model", "missing: "]);
    config("vit");
    let expected = "is a `vit`, which does not write text here; supported are t5, switch_transformers, gpt2, llama, qwen3, mixtral, ";
    assert_error(&say(&ids), 1, &[expected]);
}

#[test]
fn images_that_are_none() {
    let folder = folder("images");
    let vit = |arguments: &[&str]| run(example("vit").args(arguments).arg("train.steps=1"));
    let given = folder.to_str().expect("it is text");
    assert_error(&vit(&["--cifar10", given]), 1, &["data_batch_1.bin", "check the path"]);
    assert_error(&vit(&["--mnist", given]), 1, &["has none of the files train-images-idx3-ubyte.gz"]);
    assert_error(&vit(&["--mnist", given, "--cifar10", given]), 2, &["cannot be used with"]);
    assert_error(&vit(&["--mnist", given, "--size", "32"]), 2, &["cannot be used with '--size <N>'"]);
    assert_error(&vit(&["--augment", "all"]), 2, &["possible values: none, crop, rand, mix"]);
    assert_error(&vit(&["--resmlp", "--model", "b/16"]), 1, &["there is no ResMLP `b/16`; there are shapes, s12"]);
    fs::write(folder.join("test_batch.bin"), [0; 5]).expect("a file can be written");
    (1..=5).for_each(|part| {
        fs::write(folder.join(format!("data_batch_{part}.bin")), [0; 3073]).expect("a file can be written");
    });
    assert_error(&vit(&["--cifar10", given]), 1, &["test_batch.bin has 5 bytes and should have a multiple of 3073"]);
}
