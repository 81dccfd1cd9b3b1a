//! What a segment stores and costs.

/// One segment's measures, for one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentMemory {
    /// Bytes that its forward leaves stored for its backward.
    pub activation_bytes: u64,
    /// Bytes of the carry that enters it: what is kept of a run that begins here.
    pub carry_bytes: u64,
    /// Cost of its forward, in any unit: what recomputing it adds.
    pub forward_cost: f64,
}
