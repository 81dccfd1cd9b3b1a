//! What can be wrong with the sizes of a mesh.

/// Ranks and sizes that do not fit together, with both numbers and the remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Replicas cannot be made of the ranks.
    #[error(
        "{ranks} ranks do not divide into replicas of pipeline {pipeline} × tensor {tensor} = {replica} ranks; \
         use {below}{above} ranks, or sizes whose product divides {ranks}"
    )]
    RanksDoNotDivide {
        /// Ranks that exist.
        ranks: usize,
        /// Stages.
        pipeline: usize,
        /// Slices of split layers.
        tensor: usize,
        /// Ranks of one replica.
        replica: usize,
        /// The number of ranks below that would do, with "or"; empty where there is none.
        below: String,
        /// The number of ranks above that would do.
        above: usize,
    },
    /// All sizes are given, and their product is not the number of ranks.
    #[error(
        "data {data} × pipeline {pipeline} × tensor {tensor} = {product} ranks, but {ranks} exist; \
         use {product} ranks, or leave the data size out"
    )]
    RanksDisagree {
        /// Replicas.
        data: usize,
        /// Stages.
        pipeline: usize,
        /// Slices of split layers.
        tensor: usize,
        /// Their product.
        product: usize,
        /// Ranks that exist.
        ranks: usize,
    },
    /// Expert groups cannot be made of the replicas.
    #[error(
        "expert {expert} does not divide data {data}, whose neighbouring ranks form the expert groups; \
         use expert {smaller}, or data {larger}"
    )]
    ExpertDoesNotDivide {
        /// Expert size.
        expert: usize,
        /// Replicas.
        data: usize,
        /// The largest smaller expert size that divides `data`.
        smaller: usize,
        /// The next larger data size that `expert` divides.
        larger: usize,
    },
    /// Hosts that are not those of the workers.
    #[error("hosts {hosts:?} of {workers} workers; give each worker the number of the first one on its host")]
    NoHosts {
        /// What was given.
        hosts: Vec<usize>,
        /// Workers that exist.
        workers: usize,
    },
    /// Numbers that do not say how rows are divided over the replicas.
    #[error(
        "io.row_weights = {weights:?} of {replicas} replicas; give a number for each, at least one of them above 0"
    )]
    RowWeights {
        /// What was given.
        weights: Vec<usize>,
        /// Replicas that exist.
        replicas: usize,
    },
    /// A size of zero.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// More ranks than a mesh can have.
    #[error("data {data} × pipeline {pipeline} × tensor {tensor} is more than {most} ranks; lower one of them")]
    TooManyRanks {
        /// Replicas.
        data: usize,
        /// Stages.
        pipeline: usize,
        /// Slices of split layers.
        tensor: usize,
        /// The most there can be.
        most: usize,
    },
    /// A worker that is not in the cluster.
    #[error("worker {worker} does not exist; there are {workers} workers, numbered from 0")]
    NoSuchWorker {
        /// The worker asked for.
        worker: usize,
        /// Workers that exist.
        workers: usize,
    },
}

/// A result whose error is a [`ClusterError`].
pub type Result<T> = std::result::Result<T, ClusterError>;
