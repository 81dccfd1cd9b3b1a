//! What programs say of models and clusters that are not there.

use crate::built;

/// What an example prints.
fn printed(example: &str, arguments: &[&str]) -> String {
    let output = built::command(built::example(example)).args(arguments).output().expect("the example is built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn zero_s_example_is_reproduced() {
    let text = printed("memory", &["--paper", "zero-7.5b"]);
    let paper = text.split("as the engine").next().unwrap_or_default();
    for (level, gigabytes) in [("nothing", "120.0 GB"), ("v0", "31.4 GB"), ("v1, v2", "16.6 GB"), ("v3", "1.9 GB")] {
        let line = paper.lines().find(|line| line.trim_start().starts_with(level));
        assert!(line.is_some_and(|line| line.ends_with(gigabytes)), "{level}: {text}");
    }
}

/// Layers, embedding and head of a T5, planned in worlds that do not exist.
#[test]
fn a_model_is_planned_for_any_world() {
    let sizes = ["--model", "hf_t5_small", "--data", "4096", "--zero", "v3", "--rows", "2", "--tokens", "16"];
    let text = printed("memory", &sizes);
    assert!(text.contains("60506624 parameters") && text.contains("4096 ranks = data 4096"), "{text}");
    assert!(text.contains("measured") && !text.contains("unknown"), "{text}");
}

/// The size of an axis in the layout that is found, which is the second line.
fn size(text: &str, axis: &str) -> usize {
    let layout = text.lines().nth(1).unwrap_or_default();
    let mut words = layout.split([' ', ',']);
    words.find(|word| *word == axis).and_then(|_| words.next()?.parse().ok()).unwrap_or(1)
}

/// The most bytes of a device that a stage needs.
fn largest_stage(text: &str) -> u64 {
    let bytes = |line: &str| line.strip_prefix("stage ")?.split(' ').nth(1)?.parse::<u64>().ok();
    text.lines().filter_map(bytes).max().expect("a stage needs something")
}

#[test]
fn gpt_3_is_divided_inside_hosts_and_staged_between_them() {
    let text = printed("plan", &["--model", "gpt-175b"]);
    let [data, stages, tensor] = ["data", "stages", "tensor"].map(|axis| size(&text, axis));
    assert_eq!(data * stages * tensor, 1024, "{text}");
    // As in the paper, whose 8 × 8 the sizes come near.
    assert!(tensor == 8 && (8..=16).contains(&stages), "{text}");
    assert!(largest_stage(&text) <= 80_000_000_000, "{text}");
    // Beside its report: 105 of the model's own products, where a forward is run again that fits here.
    let flops = text.lines().find_map(|line| line.split_once(" teraFLOP/s of the model's own").map(|(flops, _)| flops));
    let flops: f64 = flops.and_then(|flops| flops.parse().ok()).unwrap_or_default();
    assert!((105.0..140.0).contains(&flops), "{text}");
}

#[test]
fn zero_s_example_needs_no_sharding_where_layers_and_stages_are_divided() {
    let text = printed("plan", &["--model", "zero-7.5b"]);
    assert_eq!(["data", "stages", "tensor"].map(|axis| size(&text, axis)).iter().product::<usize>(), 64, "{text}");
    assert!(largest_stage(&text) <= 32_000_000_000, "{text}");
    // The paper's own way is found where replicas alone are given.
    let replicas = ["--set", "dist.tensor_parallel_size=1", "--set", "dist.pipeline_parallel_size=1"];
    let text = printed("plan", &[&["--model", "zero-7.5b"][..], &replicas].concat());
    assert!(text.contains("\ndata 64, ") && text.contains("zero v3"), "{text}");
}

#[test]
fn ten_trillion_parameters_lie_in_host_memory() {
    let text = printed("plan", &["--model", "moe-10t"]);
    let layout = text.lines().nth(1).unwrap_or_default();
    assert!(layout.contains("zero v3") && layout.contains("offload v0") && size(&text, "expert") >= 64, "{text}");
    assert!(largest_stage(&text) <= 32_000_000_000, "{text}");
}
