//! Options that are one of a few words, as types.

use std::fmt;

use toml::Value;

use super::setting::{FromSetting, ToSetting};

macro_rules! choices {
    ($(
        $(#[$about:meta])+
        $name:ident { $( $(#[$doc:meta])+ $variant:ident = $word:literal, )+ }
    )+) => {$(
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $( $(#[$doc])+ $variant, )+ }

        impl $name {
            /// The words, as a configuration writes them.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word, as a configuration writes it.
            pub const fn word(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl ToSetting for $name {
            fn to_setting(&self) -> Value {
                self.word().to_setting()
            }
        }

        impl FromSetting for $name {
            fn from_setting(value: &Value) -> Option<Self> {
                match value.as_str()? { $( $word => Some(Self::$variant), )+ _ => None }
            }
        }
    )+};
}

choices! {
    /// In which order a pipeline's stages run forwards and backwards (`pipeline.strategy`).
    PipelineStrategy {
        /// All forwards, then all backwards.
        PreferForward = "PreferForward",
        /// One forward, one backward (1F1B).
        PreferBackward = "PreferBackward",
        /// As `PreferBackward`, with one more forward in flight on all but the last stage.
        PreferBackwardOptimizer = "PreferBackwardOptimizer",
    }
    /// What is kept for backward (`gradient_checkpoint.type`).
    CheckpointType {
        /// Everything: nothing is recomputed.
        Off = "",
        /// The points that the user names.
        Collection = "collection",
        /// The points that the plan chooses.
        Auto = "auto",
    }
    /// What is sharded over the data axis (`zero.level`).
    ZeroLevel {
        /// Nothing.
        Off = "",
        /// Optimizer state.
        V0 = "v0",
        /// And gradients, whole while they accumulate.
        V1 = "v1",
        /// And gradients, reduced and scattered in every micro-batch.
        V2 = "v2",
        /// And parameters.
        V3 = "v3",
    }
    /// What leaves the device between its uses (`offload.level`).
    OffloadLevel {
        /// Nothing.
        Off = "",
        /// Parameters, gradients and optimizer state, to host memory.
        V0 = "v0",
        /// Parameters, gradients and optimizer state, to files.
        V1 = "v1",
    }
    /// Where a kind of state lies between its uses (`offload.parameters` and its like).
    StateTier {
        /// On the device.
        Device = "device",
        /// In host memory.
        Host = "host",
        /// In files that are mapped into memory.
        File = "file",
    }
    /// Mixed precision (`amp.level`).
    AmpLevel {
        /// None.
        Off = "",
        /// 16-bit compute; weights are cast while they are used.
        O1 = "O1",
    }
    /// A 16-bit type: of mixed precision (`amp.dtype`), of gradients on their way (`communication.fp16_dtype`).
    HalfDtype {
        /// IEEE half precision, with 11 significant bits; what is small or large needs a scale.
        F16 = "f16",
        /// bfloat16, with 8 significant bits and the range of f32.
        Bf16 = "bf16",
    }
    /// How gradients are put together (`communication.gradients_reduce_method`).
    ReduceMethod {
        /// The gradient of Σ sum ÷ Σ weight over all micro-batches and replicas.
        Mean = "mean",
        /// The gradient of Σ sum, undivided.
        Sum = "sum",
    }
    /// What carries data between ranks (`communication.transport`).
    TransportChoice {
        /// Threads of this process, or what the launcher of several processes says.
        Auto = "auto",
        /// Threads of this process.
        Threads = "threads",
        /// MPI between processes, whose ranks are threads.
        Mpi = "mpi",
        /// NCCL between GPUs, of one process or of several.
        Nccl = "nccl",
    }
    /// Whether a run goes on from the latest checkpoint in its folder (`train.resume`).
    ResumeMode {
        /// It begins anew.
        Never = "never",
        /// Where there is one; else it begins.
        Auto = "auto",
        /// It does; without one it ends with an error.
        Latest = "latest",
    }
    /// Which mesh axis changes slowest as ranks are numbered (`dist.order`). Tensor is always the
    /// fastest, so that a tensor group's ranks are neighbours.
    RankOrder {
        /// EPL's order: a replica's stages are neighbours.
        DataPipelineTensor = "data,pipeline,tensor",
        /// LiBai's order: a stage's replicas are neighbours.
        PipelineDataTensor = "pipeline,data,tensor",
    }
    /// How the learning rate goes on after its warm-up (`schedule.kind`).
    ScheduleKind {
        /// It stays.
        Constant = "constant",
        /// A straight line down to the smallest rate.
        Linear = "linear",
        /// Half a cosine down to the smallest rate.
        Cosine = "cosine",
        /// Falls with the inverse square root of the step.
        InverseSquareRoot = "inverse_square_root",
        /// A power of what is left of the schedule, down to the smallest rate.
        Polynomial = "polynomial",
        /// Multiplied by `schedule.gamma` every so many steps.
        Step = "step",
        /// Multiplied by `schedule.gamma` at the milestones.
        MultiStep = "multi_step",
        /// Multiplied by `schedule.gamma` in every step.
        Exponential = "exponential",
        /// The Transformer's warm-up and decay, scaled by the model's width.
        Noam = "noam",
    }
}

/// The factor on the loss under mixed precision (`amp.loss_scale`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// Doubled after good steps, halved on a non-finite gradient.
    Dynamic,
    /// Always this.
    Fixed(f64),
}

impl LossScale {
    /// The word for [`LossScale::Dynamic`].
    pub const DYNAMIC: &'static str = "dynamic";
}

impl ToSetting for LossScale {
    fn to_setting(&self) -> Value {
        match self {
            LossScale::Dynamic => Self::DYNAMIC.to_setting(),
            LossScale::Fixed(scale) => scale.to_setting(),
        }
    }
}

impl FromSetting for LossScale {
    fn from_setting(value: &Value) -> Option<Self> {
        match value.as_str() {
            Some(Self::DYNAMIC) => Some(LossScale::Dynamic),
            _ => f64::from_setting(value).map(LossScale::Fixed),
        }
    }
}

impl ZeroLevel {
    /// Whether a rank keeps only its shard of the gradients.
    pub const fn shards_gradients(self) -> bool {
        matches!(self, Self::V1 | Self::V2 | Self::V3)
    }

    /// Whether a rank keeps whole gradients in a step. They `accumulate` where micro-batches are added up, or all is clipped before it
    /// is reduced.
    pub(crate) const fn keeps_whole_gradients(self, accumulate: bool) -> bool {
        match self {
            Self::Off | Self::V0 => true,
            Self::V1 => accumulate,
            Self::V2 | Self::V3 => false,
        }
    }
}
