//! The printed table.

use std::fmt;

use super::estimate::MemoryEstimate;
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
        let head = ["kind", "tier", "bytes", "GB", "GiB", "source", "when", "what"];
        write_row(f, head.map(str::to_string))?;
        for line in &self.estimate.lines {
            let [bytes, gb, gib] = line.bytes.map_or_else(|| ["?", "?", "?"].map(str::to_string), numbers);
            let (kind, tier, source) = (line.kind.to_string(), line.tier.to_string(), line.source.to_string());
            write_row(f, [kind, tier, bytes, gb, gib, source, line.when.to_string(), line.why.clone()])?;
        }
        for tier in Tier::ALL.into_iter().filter(|tier| self.estimate.lines.iter().any(|line| line.tier == *tier)) {
            let least = if self.estimate.unknown().any(|line| line.tier == tier) { ", at least" } else { "" };
            let peak = format!("{}{least}", self.estimate.moment(tier));
            self.write_sum(f, tier, self.estimate.between_steps(tier), ["between", "between steps"])?;
            self.write_sum(f, tier, self.estimate.peak(tier), ["peak", &peak])?;
        }
        Ok(())
    }
}

impl Table<'_> {
    fn write_sum(&self, f: &mut fmt::Formatter<'_>, tier: Tier, bytes: u64, [when, what]: [&str; 2]) -> fmt::Result {
        let [own, gb, gib] = numbers(bytes);
        let all = match self.ranks {
            1 => String::new(),
            ranks => format!("; {ranks} ranks: {}", Amount(bytes * ranks)),
        };
        let (kind, tier, what) = ("all".to_string(), tier.to_string(), format!("{what}{all}"));
        write_row(f, [kind, tier, own, gb, gib, String::new(), when.to_string(), what])
    }
}

fn numbers(bytes: u64) -> [String; 3] {
    let of = |unit: f64| format!("{:.3}", bytes as f64 / unit);
    [bytes.to_string(), of(1e9), of((1_u64 << 30) as f64)]
}

fn write_row(f: &mut fmt::Formatter<'_>, row: [String; 8]) -> fmt::Result {
    let [kind, tier, bytes, gb, gib, source, when, what] = row;
    writeln!(f, "{kind:<15}  {tier:<6}  {bytes:>16}  {gb:>10}  {gib:>10}  {source:<12}  {when:<11}  {what}")
}
