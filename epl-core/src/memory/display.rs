//! The printed table.

use std::fmt;

use super::estimate::{Lasts, MemoryEstimate};
use super::kind::Tier;

/// Bytes, printed with their GB (10⁹) and GiB (2³⁰).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub u64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        write!(f, "{} bytes ({:.2} GB, {:.2} GiB)", self.0, bytes / 1e9, bytes / (1_u64 << 30) as f64)
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Table { estimate: self, ranks: 1 }.fmt(f)
    }
}

/// An estimate as a table, whose sums are also told for so many ranks like it.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// What one rank needs.
    pub estimate: &'a MemoryEstimate,
    /// How many ranks need it.
    pub ranks: u64,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["kind", "tier", "bytes", "GB", "GiB", "source", "what"];
        write_row(f, head.map(str::to_string))?;
        for line in &self.estimate.lines {
            let why = match line.lasts {
                Lasts::Always => line.why.clone(),
                Lasts::InStep => format!("{}; inside a step", line.why),
            };
            let [bytes, gb, gib] = line.bytes.map_or_else(|| ["?", "?", "?"].map(str::to_string), numbers);
            let row = [line.kind.to_string(), line.tier.to_string(), bytes, gb, gib, line.source.to_string(), why];
            write_row(f, row)?;
        }
        for tier in Tier::ALL.into_iter().filter(|tier| self.estimate.lines.iter().any(|line| line.tier == *tier)) {
            let known = match self.estimate.unknown().any(|line| line.tier == tier) {
                true => "at the peak of a step, at least",
                false => "at the peak of a step",
            };
            self.write_sum(f, tier, self.estimate.between_steps(tier), "between steps")?;
            self.write_sum(f, tier, self.estimate.peak(tier), known)?;
        }
        Ok(())
    }
}

impl Table<'_> {
    fn write_sum(&self, f: &mut fmt::Formatter<'_>, tier: Tier, bytes: u64, when: &str) -> fmt::Result {
        let [own, gb, gib] = numbers(bytes);
        let all = match self.ranks {
            1 => String::new(),
            ranks => format!("; {ranks} ranks: {}", Amount(bytes * ranks)),
        };
        let row = ["all".to_string(), tier.to_string(), own, gb, gib, String::new(), format!("{when}{all}")];
        write_row(f, row)
    }
}

fn numbers(bytes: u64) -> [String; 3] {
    let of = |unit: f64| format!("{:.3}", bytes as f64 / unit);
    [bytes.to_string(), of(1e9), of((1_u64 << 30) as f64)]
}

fn write_row(f: &mut fmt::Formatter<'_>, row: [String; 7]) -> fmt::Result {
    let [kind, tier, bytes, gb, gib, source, why] = row;
    writeln!(f, "{kind:<15}  {tier:<6}  {bytes:>16}  {gb:>10}  {gib:>10}  {source:<12}  {why}")
}
