//! The lengths of the messages of a step that are the same whatever the model is: the engine sends them so.

/// Of a parcel's header: what it is, and how many counts and tensors follow.
pub(crate) const LABEL: usize = 5;
/// Numbers of a parcel's header that travel with its length; most have no more.
pub(crate) const PARCEL_HEAD: usize = 31;
/// Numbers for the samples of a rank, in sums over its replicas.
pub(crate) const OVER_REPLICAS: usize = 2;
/// What goes before these: how many micro-batches there are, and whether weights are refused.
pub(crate) const BEFORE_SAMPLES: usize = 2;
/// Numbers of a digest of what ranks are given, in sums over all ranks.
pub(crate) const OVER_ALL: usize = 6;
/// What is told of the work of each stage.
pub(crate) const OF_STAGE: usize = 3;
