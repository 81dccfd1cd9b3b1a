//! What a run writes, and that it does not depend on the layout.

use std::fs;

use epl_core::testing::largest_error;
use tempfile::tempdir;

use crate::trainer::net::{config, fit, lines, values};

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
