//! Two programs, run in turn.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::quartiles::quartiles;

const WARM_UP: usize = 3;

/// What each of two programs took, pair by pair.
pub struct Pairs(Vec<[Duration; 2]>);

/// Alternates the two programs, so many times after a warm-up.
pub fn alternate(pairs: usize, mut ours: impl FnMut(), mut plain: impl FnMut()) -> Pairs {
    let time = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    Pairs((0..WARM_UP + pairs).map(|_| [time(&mut ours), time(&mut plain)]).skip(WARM_UP).collect())
}

impl Pairs {
    /// Prints the median of the pairs' ratios, the first program's time ÷ the other's, with quartiles, and both medians.
    pub fn print(&self, what: &str) {
        let [low, median, high] = quartiles(self.0.iter().map(|[a, b]| a.as_secs_f64() / b.as_secs_f64()).collect());
        let [ours, plain] =
            [0, 1].map(|at| quartiles(self.0.iter().map(|pair| pair[at].as_secs_f64() * 1e3).collect())[1]);
        let pairs = self.0.len();
        println!(
            "{what}: {median:.3} (quartiles {low:.3}-{high:.3}, {pairs} pairs), {ours:.1} ms against {plain:.1} ms"
        );
    }
}

/// What a line of `key=value` says of a key.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// A number of such a line.
fn number(line: &str, key: &str) -> Option<f64> {
    value(line, key)?.parse().ok()
}

/// The line of a program that says `ms=…`.
fn line_of(command: &mut Command) -> Result<String, String> {
    let ran = command.output().map_err(|error| format!("the program cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&ran.stdout);
    let line = text.lines().find(|line| number(line, "ms").is_some());
    line.map(str::to_string)
        .ok_or_else(|| format!("{command:?} said no time: {text}{}", String::from_utf8_lossy(&ran.stderr)))
}

/// What two programs said, pair by pair: of each run the line that says `ms=…`.
pub struct Lines(Vec<[String; 2]>);

impl Lines {
    /// Runs the two programs in turn, so many times.
    ///
    /// # Errors
    ///
    /// When one cannot be run, or says no time.
    pub fn in_turn(pairs: usize, ours: impl Fn() -> Command, peer: impl Fn() -> Command) -> Result<Self, String> {
        (0..pairs).map(|_| Ok([line_of(&mut ours())?, line_of(&mut peer())?])).collect::<Result<_, _>>().map(Self)
    }

    /// The values of a key on one side: ours are 0, the peer's 1.
    fn all(&self, side: usize, key: &str) -> Vec<f64> {
        self.0.iter().filter_map(|pair| number(&pair[side], key)).collect()
    }

    /// The median of a key on one side, not a number where no line says it.
    pub fn median(&self, side: usize, key: &str) -> f64 {
        let values = self.all(side, key);
        if values.is_empty() { f64::NAN } else { quartiles(values)[1] }
    }

    /// The median over the pairs of the peer's value ÷ ours, with quartiles around it.
    pub fn ratio(&self, key: &str) -> [f64; 3] {
        quartiles(self.all(1, key).iter().zip(self.all(0, key)).map(|(peer, ours)| peer / ours).collect())
    }

    /// Whether both said the same of a key in each pair.
    pub fn agree(&self, key: &str) -> bool {
        self.0.iter().all(|[ours, peer]| value(ours, key).is_some() && value(ours, key) == value(peer, key))
    }
}
