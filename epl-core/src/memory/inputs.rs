//! What an estimate is made from: plain numbers, of a plan or on paper.

use super::activations::StoredActivations;
use super::budget::Setting;
use super::kind::Tier;
use crate::config::{Config, OffloadLevel, StateTier, ZeroLevel};

/// Bytes of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementBytes {
    /// Of a parameter.
    pub parameter: u64,
    /// Of its gradient.
    pub gradient: u64,
    /// Of the optimizer's state.
    pub state: u64,
    /// Of what is kept with the state for each element, such as a 32-bit copy of a 16-bit parameter.
    pub master: u64,
}

impl ElementBytes {
    /// What the engine keeps: parameters, gradients and state in 32 bits. Under mixed precision, too, where a segment has
    /// 16-bit copies while it is used.
    pub const F32: Self = Self { parameter: 4, gradient: 4, state: 4, master: 0 };
    /// What ZeRO's paper counts under mixed precision: parameters and gradients in 16 bits; a copy of the parameters, and
    /// the state, in 32.
    pub const ZERO_PAPER: Self = Self { parameter: 2, gradient: 2, state: 4, master: 4 };

    /// All of one type, of so many bytes.
    pub const fn of(size: u64) -> Self {
        Self { parameter: size, gradient: size, state: size, master: 0 }
    }
}

/// One parameter, or many that are alike, as one rank sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamMemory {
    /// Elements that this rank holds where nothing is sharded: its slice.
    pub elements: u64,
    /// Elements of the optimizer's state for all of them.
    pub state: u64,
    /// Bytes of one.
    pub bytes: ElementBytes,
    /// The ranks that hold equal copies, over which ZeRO divides them.
    pub replicas: u64,
    /// Whether it has a gradient.
    pub trainable: bool,
    /// Whether it lies in shards between its uses where parameters do.
    pub parks: bool,
    /// This rank's share of elements and of state; none: an even one.
    pub share: Option<(u64, u64)>,
}

impl ParamMemory {
    /// Trainable f32 elements, with two of state for each, as Adam has them, on one rank.
    pub const fn new(elements: u64) -> Self {
        Self {
            elements,
            state: 2 * elements,
            bytes: ElementBytes::F32,
            replicas: 1,
            trainable: true,
            parks: true,
            share: None,
        }
    }

    /// With so many ranks that hold equal copies.
    #[must_use]
    pub const fn with_replicas(self, replicas: u64) -> Self {
        Self { replicas, ..self }
    }

    /// With so many bytes an element.
    #[must_use]
    pub const fn with_bytes(self, bytes: ElementBytes) -> Self {
        Self { bytes, ..self }
    }

    /// This rank's share of the elements, and of the state.
    pub(super) fn share(&self) -> (u64, u64) {
        let even = |whole: u64| whole.div_ceil(self.replicas.max(1));
        self.share.unwrap_or((even(self.elements), even(self.state)))
    }
}

/// Where the state between uses lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// The parameters.
    pub parameters: Tier,
    /// The gradients.
    pub gradients: Tier,
    /// The optimizer's state.
    pub state: Tier,
}

impl Tiers {
    /// All in one place.
    pub const fn all(tier: Tier) -> Self {
        Self { parameters: tier, gradients: tier, state: tier }
    }

    /// What the options `offload.*` say.
    pub fn from_config(config: &Config) -> Self {
        Self::from_options(config, config.offload.level)
    }

    /// The same, with another `offload.level`.
    pub(crate) fn from_options(config: &Config, level: OffloadLevel) -> Self {
        let (offload, all) = (&config.offload, Self::of(level));
        let tier = |said: Option<StateTier>, all| match said {
            None => all,
            Some(StateTier::Device) => Tier::Device,
            Some(StateTier::Host) => Tier::Host,
            Some(StateTier::File) => Tier::Disk,
        };
        Self {
            parameters: tier(offload.parameters, all.parameters),
            gradients: tier(offload.gradients, all.gradients),
            state: tier(offload.optimizer_state, all.state),
        }
    }

    /// Whether parameters or gradients lie elsewhere than on the device.
    pub(crate) fn puts_away_more_than_state(self) -> bool {
        [self.parameters, self.gradients] != [Tier::Device; 2]
    }

    /// Whether any of it lies there.
    pub fn any(self, tier: Tier) -> bool {
        [self.parameters, self.gradients, self.state].contains(&tier)
    }

    /// Where `offload.level` puts it: on the device, in host memory (v0), in files (v1).
    pub const fn of(level: OffloadLevel) -> Self {
        Self::all(match level {
            OffloadLevel::Off => Tier::Device,
            OffloadLevel::V0 => Tier::Host,
            OffloadLevel::V1 => Tier::Disk,
        })
    }
}

/// What an estimate is made from: one rank's part of a model, and the settings.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryInputs {
    /// What this rank holds.
    pub parameters: Vec<ParamMemory>,
    /// What is sharded over the replicas.
    pub zero: ZeroLevel,
    /// Where state lies.
    pub tiers: Tiers,
    /// Host memory that files may take while they are used; none: it is not bounded, and not counted.
    pub resident: Option<u64>,
    /// Bytes of the largest bucket of gradients, where a bucket is several segments (below v3).
    pub bucket: u64,
    /// Bytes of the gradients that are reduced as one under v3: those of one segment.
    pub segment: u64,
    /// Bytes of the parameters of the two neighbouring segments that have the most: the one that is used, and the next.
    pub two_segments: u64,
    /// Bytes of the largest tensor that is trained.
    pub largest: u64,
    /// Whether the optimizer looks at whole tensors, so that these have owners in place of shards.
    pub whole_tensors: bool,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// Whether gradients are clipped once they are reduced.
    pub clips: bool,
    /// Whether each replica clips its own, which are whole until then.
    pub clips_own: bool,
    /// Bytes of 16-bit copies of parameters that are alive at once.
    pub casts: u64,
    /// What is stored for backward.
    pub activations: StoredActivations,
    /// The same where segments are run again (`gradient_checkpoint.type = auto`); none: they are already, or cannot be.
    pub recomputed: Option<StoredActivations>,
}

impl MemoryInputs {
    /// Of these parameters, in one segment, with nothing sharded or offloaded, one micro-batch and unknown activations.
    pub fn new(parameters: Vec<ParamMemory>) -> Self {
        let bytes = |bytes: fn(&ParamMemory) -> u64| parameters.iter().map(bytes).sum::<u64>();
        let gradients = bytes(|param| if param.trainable { param.elements * param.bytes.gradient } else { 0 });
        let all = bytes(|param| param.elements * param.bytes.parameter);
        Self {
            zero: ZeroLevel::Off,
            tiers: Tiers::all(Tier::Device),
            resident: None,
            bucket: gradients,
            segment: gradients,
            two_segments: all,
            largest: parameters.iter().map(|param| param.elements * param.bytes.parameter).max().unwrap_or(0),
            whole_tensors: false,
            micro_batches: 1,
            clips: false,
            clips_own: false,
            casts: 0,
            activations: StoredActivations::unknown("give the bytes that are stored for backward"),
            recomputed: None,
            parameters,
        }
    }

    /// Ranks that hold equal copies of what is not divided among them in some way.
    pub fn replicas(&self) -> u64 {
        self.parameters.iter().map(|param| param.replicas).max().unwrap_or(1)
    }

    /// The same with other settings; none where they say nothing new, or cannot be. Shards are even then.
    ///
    /// Under ZeRO v3 and with offloaded parameters segments are run again anyway: recomputation cannot be asked for besides.
    pub fn with(&self, settings: &[Setting]) -> Option<Self> {
        let mut new = self.clone();
        for setting in settings {
            match *setting {
                Setting::Recompute => new.activations = new.recomputed.take()?,
                // The words are in the order of the levels.
                Setting::Zero(level) if level.word() > new.zero.word() => {
                    new.zero = level;
                    new.parameters.iter_mut().for_each(|param| param.share = None);
                }
                Setting::Offload(level) if Tiers::of(level).state > new.tiers.state => new.tiers = Tiers::of(level),
                Setting::Replicas(replicas) if replicas > new.replicas() => {
                    let before = new.replicas();
                    for param in &mut new.parameters {
                        (param.replicas, param.share) = (param.replicas * replicas / before, None);
                    }
                }
                Setting::Zero(_) | Setting::Offload(_) | Setting::Replicas(_) => return None,
            }
        }
        match (self.takes_turns(), new.takes_turns()) {
            (_, true) if settings.contains(&Setting::Recompute) => return None,
            (false, true) => new.activations = new.recomputed.take().unwrap_or(new.activations),
            _ => {}
        }
        Some(new)
    }
}
