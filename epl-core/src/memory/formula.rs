//! From inputs to lines.
//!
//! What a step needs beside parameters, gradients and state, as the engine goes about it:
//!
//! ```text
//! backward    [ gradients of a bucket ][ one flat copy of it ] ──reduce──▶ [ sum, or this rank's shard ]
//! update      [ temporary results, of the largest tensor ][ this rank's new shard, twice ] ──gather──▶ [ new values ]
//! ```
//!
//! Results of collectives between threads lie in memory that is used again for the next ones: what a step reduces to, or
//! gathers, is still there in the next one.

use super::display::Amount;
use super::estimate::{Lasts, MemoryEstimate, MemoryLine};
use super::inputs::{MemoryInputs, ParamMemory};
use super::kind::{Kind, Source, Tier};
use crate::config::ZeroLevel;

/// Tensors as large as a parameter that an optimizer such as Adam makes and drops while it updates that one.
const TEMPORARY: u64 = 3;

impl MemoryInputs {
    /// The bytes of one rank.
    pub fn estimate(&self) -> MemoryEstimate {
        let tiers = self.tiers;
        let always = |kind, tier, bytes, why: String| line(kind, tier, Lasts::Always, bytes, why);
        let in_step = |kind, tier, bytes, why: String| line(kind, tier, Lasts::InStep, bytes, why);
        let mut lines = vec![
            always(Kind::Parameters, tiers.parameters, self.parameter_bytes(), self.why_parameters()),
            in_step(Kind::Gradients, tiers.gradients, self.gradient_bytes(), self.why_gradients()),
            always(Kind::OptimizerState, tiers.state, self.state_bytes(), self.why_state()),
            MemoryLine {
                kind: Kind::Activations,
                tier: Tier::Device,
                bytes: self.activations.bytes,
                lasts: Lasts::InStep,
                source: self.activations.source,
                why: self.activations.why.clone(),
            },
        ];
        if self.takes_turns() {
            let why = "the parameters of two segments, the one that is used and the next".to_string();
            lines.push(in_step(Kind::Buffers, Tier::Device, self.two_segments, why));
        }
        if self.casts > 0 {
            let why = "16-bit copies of the parameters of segments, until their backward".to_string();
            lines.push(in_step(Kind::Buffers, Tier::Device, self.casts, why));
        }
        let (work, why) = self.work();
        lines.push(in_step(Kind::Buffers, Tier::Device, work, why));
        if let (Some(resident), true) = (self.resident, tiers.has(Tier::Disk)) {
            lines.push(always(Kind::Buffers, Tier::Host, resident, "files that are in memory, at most".to_string()));
        }
        MemoryEstimate { lines }
    }

    /// Whether segments get their parameters one after the other.
    fn takes_turns(&self) -> bool {
        self.zero == ZeroLevel::V3 || self.tiers.parameters != Tier::Device
    }

    fn parameter_bytes(&self) -> u64 {
        let elements = |param: &ParamMemory| match self.zero == ZeroLevel::V3 && param.parks {
            true => param.share().0,
            false => param.elements,
        };
        self.parameters.iter().map(|param| elements(param) * param.bytes.parameter).sum()
    }

    fn gradient_bytes(&self) -> u64 {
        match self.keeps_whole_gradients() {
            true => self.whole_gradients(),
            false => self.trained().map(|param| param.share().0 * param.bytes.gradient).sum(),
        }
    }

    fn whole_gradients(&self) -> u64 {
        self.trained().map(|param| param.elements * param.bytes.gradient).sum()
    }

    fn state_bytes(&self) -> u64 {
        let bytes = |param: &ParamMemory| {
            let (elements, state) = match self.zero {
                ZeroLevel::Off => (param.elements, param.state),
                _ => param.share(),
            };
            state * param.bytes.state + elements * param.bytes.master
        };
        self.trained().map(bytes).sum()
    }

    fn trained(&self) -> impl Iterator<Item = &ParamMemory> {
        self.parameters.iter().filter(|param| param.trainable)
    }

    fn accumulates(&self) -> bool {
        self.micro_batches > 1
    }

    fn keeps_whole_gradients(&self) -> bool {
        match self.zero {
            ZeroLevel::Off | ZeroLevel::V0 => true,
            ZeroLevel::V1 => self.accumulates(),
            ZeroLevel::V2 | ZeroLevel::V3 => false,
        }
    }

    /// What reducing or updating needs beside the gradients that are kept, whichever is more.
    fn work(&self) -> (u64, String) {
        let replicas = self.replicas();
        let reduced = replicas > 1;
        let bucket = if self.zero == ZeroLevel::V3 { self.segment } else { self.bucket };
        // Which results of collectives are neither gradients that are kept nor parameters.
        let (left_of_reducing, left_of_gathering) = match self.zero {
            _ if !reduced => (0, 0),
            ZeroLevel::Off | ZeroLevel::V0 if self.accumulates() => (self.whole_gradients(), 0),
            ZeroLevel::V1 | ZeroLevel::V2 => (0, 2 * bucket),
            ZeroLevel::Off | ZeroLevel::V0 | ZeroLevel::V3 => (0, 0),
        };
        let copies = if reduced { 2 } else { 1 };
        let reducing = copies * bucket + left_of_reducing + left_of_gathering;
        let shards = if self.zero == ZeroLevel::Off { 0 } else { 2 * bucket.div_ceil(replicas) };
        let updated = match self.zero == ZeroLevel::Off || self.whole_tensors {
            true => self.largest,
            false => self.largest.min(bucket.div_ceil(replicas)),
        };
        let updating = TEMPORARY * updated + shards + left_of_gathering;
        let clipping = if self.clips { self.reduced_gradients() + left_of_gathering } else { 0 };
        let left = match left_of_reducing + left_of_gathering {
            0 => String::new(),
            bytes => format!(", and {} of results that the next collectives use again", Amount(bytes)),
        };
        let of_bucket = |what: &str| format!("{what} the largest bucket, {}{left}", Amount(bucket));
        let what = match copies {
            1 => of_bucket("a flat copy of"),
            _ => of_bucket("the gradients and a flat copy of"),
        };
        let updates = format!("temporary results of an update of the largest tensor, {}{left}", Amount(updated));
        let clips = format!("a copy of the gradients when they are clipped{left}");
        let most = reducing.max(updating).max(clipping);
        (
            most,
            if most == reducing {
                what
            } else if most == updating {
                updates
            } else {
                clips
            },
        )
    }

    /// The gradients that are kept when all are reduced.
    fn reduced_gradients(&self) -> u64 {
        match self.zero {
            ZeroLevel::Off | ZeroLevel::V0 => self.whole_gradients(),
            _ => self.trained().map(|param| param.share().0 * param.bytes.gradient).sum(),
        }
    }

    fn why_parameters(&self) -> String {
        let elements: u64 = self.parameters.iter().map(|param| param.elements).sum();
        match self.zero {
            ZeroLevel::V3 => format!("this rank's shards of {elements} elements"),
            _ => format!("{elements} elements"),
        }
    }

    fn why_gradients(&self) -> String {
        match (self.keeps_whole_gradients(), self.zero) {
            (true, ZeroLevel::V1) => "whole while they accumulate".to_string(),
            (true, _) => "whole".to_string(),
            (false, _) => "this rank's shards".to_string(),
        }
    }

    fn why_state(&self) -> String {
        let state: u64 = self.trained().map(|param| param.state).sum();
        let master = match self.trained().any(|param| param.bytes.master > 0) {
            true => ", and the parameters in 32 bits",
            false => "",
        };
        match self.zero {
            ZeroLevel::Off => format!("{state} elements{master}"),
            _ => format!("this rank's shards of {state} elements{master}"),
        }
    }
}

impl super::inputs::Tiers {
    fn has(self, tier: Tier) -> bool {
        [self.parameters, self.gradients, self.state].contains(&tier)
    }
}

fn line(kind: Kind, tier: Tier, lasts: Lasts, bytes: u64, why: String) -> MemoryLine {
    MemoryLine { kind, tier, bytes: Some(bytes), lasts, source: Source::Formula, why }
}

#[cfg(test)]
mod tests;
