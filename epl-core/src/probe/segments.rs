//! What each segment of a model stores and costs.

use std::fmt;
use std::time::Duration;

/// One segment, on one micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentProfile {
    /// What the model calls it.
    pub name: String,
    /// The stage that runs it.
    pub stage: usize,
    /// Elements of the parameters that it uses, tied ones too.
    pub parameters: usize,
    /// Floating-point operations of the products in its forward, for the rows of one rank: two for a multiplication and its
    /// addition. Layers of epl-modules tell theirs: attention scores too, every expert's for its own rows, and a head tied
    /// to an embedding. Of other layers, a matrix is taken to be multiplied with every row of what leaves the segment,
    /// and an embedding to be looked up; what their activations are multiplied with is not known. None where another
    /// layer has a parameter of more dims, such as a kernel, or an embedding that several segments use, and where a model
    /// of one segment computes all in its loss, which is not measured.
    pub flops: Option<f64>,
    /// Bytes of what enters it.
    pub carry_bytes: u64,
    /// Bytes that are stored from its forward to its backward, of what enters too; none where nobody counts.
    pub activation_bytes: Option<u64>,
    /// Bytes of what its collectives gave: they are kept where it is run again.
    pub result_bytes: u64,
    /// The time of its forward.
    pub forward: Duration,
    /// The time of its backward.
    pub backward: Duration,
}

/// All segments, in the order of the model.
///
/// Printed, it is a table; the last column is what a forward has stored after each segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile(pub Vec<SegmentProfile>);

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|segment| segment.name.len()).max().unwrap_or(0).max("segment".len());
        write!(
            f,
            "{:width$}  stage  parameters      MFLOP       enters       stores  forward ms  backward ms  stored so far",
            "segment"
        )?;
        let mut stored = Some(0);
        let known = |bytes: Option<u64>| bytes.map_or("?".to_string(), |bytes| bytes.to_string());
        for segment in &self.0 {
            let SegmentProfile { name, stage, parameters, flops, carry_bytes, activation_bytes, .. } = segment;
            stored = stored.zip(*activation_bytes).map(|(stored, bytes)| stored + bytes);
            write!(
                f,
                "\n{name:width$}  {stage:>5}  {parameters:>10}  {:>9}  {carry_bytes:>11}  {:>11}  {:>10.2}  {:>11.2}  {:>13}",
                flops.map_or("?".to_string(), |flops| format!("{:.2}", flops / 1e6)),
                known(*activation_bytes),
                segment.forward.as_secs_f64() * 1e3,
                segment.backward.as_secs_f64() * 1e3,
                known(stored),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_tells_what_is_stored_so_far() {
        let segment = |name: &str, bytes: Option<u64>| SegmentProfile {
            name: name.into(),
            stage: 0,
            parameters: 12,
            flops: bytes.map(|_| 2.5e6),
            carry_bytes: 40,
            activation_bytes: bytes,
            result_bytes: 0,
            forward: Duration::from_micros(1500),
            backward: Duration::from_micros(3250),
        };
        let text = Profile(vec![segment("embedding", Some(100)), segment("head", Some(50))]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("embedding      0          12       2.50"), "{text}");
        assert!(lines[2].ends_with("        1.50         3.25            150"), "{text}");
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
        let unknown = Profile(vec![segment("head", None)]).to_string();
        assert!(unknown.ends_with('?') && unknown.matches('?').count() == 3, "{unknown}");
    }
}
