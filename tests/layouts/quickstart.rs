//! The quick start: three lines more than plain Burn, the same losses.

// Its own `main` is not called here.
#[allow(dead_code)]
#[path = "../../examples/quickstart.rs"]
mod example;

use std::collections::HashMap;

const SOURCE: &str = include_str!("../../examples/quickstart.rs");

/// The lines of a function's body that say something: no brackets alone, no comments.
fn body(name: &str) -> Vec<&'static str> {
    let start = SOURCE.find(&format!("\npub fn {name}(")).expect("the function is there");
    let lines = SOURCE[start + 1..].lines().skip(1).take_while(|line| *line != "}").map(str::trim);
    lines.filter(|line| line.chars().any(char::is_alphanumeric) && !line.starts_with("//")).collect()
}

#[test]
fn three_lines_are_added_to_plain_burn() {
    let mut plain: HashMap<&str, usize> = HashMap::new();
    body("plain").into_iter().for_each(|line| *plain.entry(line).or_default() += 1);
    assert!(plain.len() >= 7, "the plain program is there: {plain:?}");
    let mut added = Vec::new();
    for line in body("parallel") {
        match plain.get_mut(line) {
            Some(count) if *count > 0 => *count -= 1,
            _ => added.push(line),
        }
    }
    assert!(added.len() <= 3, "{added:#?}");
    assert!(!SOURCE.contains("use epl"), "an import would be a line more");
}

#[test]
fn the_losses_are_those_of_plain_burn() {
    // The generator that it seeds is the whole process's.
    epl_testing::alone(|| {
        let device = burn::tensor::Device::default().autodiff();
        // Other first values can have a larger loss than what is asked for below.
        device.seed(1);
        let net = example::Net::new(&device);
        let alone = example::plain(net.clone());
        assert_eq!(alone.len(), 10);
        assert!(alone.iter().all(|loss| (1.0..5.0).contains(loss)), "ten classes, guessed: {alone:?}");
        assert_eq!(example::parallel(1, &net).expect("it trains"), core::slice::from_ref(&alone), "to the bit");
        for losses in example::parallel(2, &net).expect("it trains") {
            for (found, expected) in losses.iter().zip(&alone) {
                assert!((found - expected).abs() <= 1e-6 * expected, "{found} is not {expected}");
            }
        }
    });
}
