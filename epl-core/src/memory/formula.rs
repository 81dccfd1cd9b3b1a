//! From inputs to lines.
//!
//! What a step needs beside parameters, gradients and state, as the engine goes about it:
//!
//! ```text
//! backward    [ gradients of a bucket ][ one flat copy of it ] ──reduce──▶ [ the same, or this rank's shard ]
//! update      [ temporary results, of the largest tensor ][ this rank's new shard, twice ] ──gather──▶ [ new values ]
//! ```
//!
//! Gathered parameters and scattered sums lie in memory that is used again for the next ones: what a step made is still
//! there in the next one. A sum that every rank keeps whole lies in the flat copy.

use super::estimate::{MemoryEstimate, MemoryLine, When};
use super::inputs::{MemoryInputs, ParamMemory};
use super::kind::{FigureSource, MemoryKind, Tier};
use crate::config::ZeroLevel;

/// Tensors as large as a parameter that an optimizer such as Adam makes and drops while it updates that one.
const TEMPORARY: u64 = 3;

impl MemoryInputs {
    /// The bytes of one rank.
    pub fn estimate(&self) -> MemoryEstimate {
        let tiers = self.tiers;
        let mut lines = vec![
            line(MemoryKind::Parameters, tiers.parameters, When::Always, self.parameter_bytes(), self.why_parameters()),
            line(
                MemoryKind::Gradients,
                tiers.gradients,
                When::FromBackward,
                self.gradient_bytes(),
                self.why_gradients(),
            ),
            line(MemoryKind::OptimizerState, tiers.state, When::Always, self.state_bytes(), self.why_state()),
        ];
        lines.extend(self.activations());
        let buffers = self.buffers().into_iter().filter(|(_, bytes, _)| *bytes > 0);
        lines.extend(buffers.map(|(when, bytes, why)| line(MemoryKind::Buffers, Tier::Device, when, bytes, why)));
        if let (Some(resident), true) = (self.resident, tiers.any(Tier::Disk)) {
            let why = "files that are in memory, at most".to_string();
            lines.push(line(MemoryKind::Buffers, Tier::Host, When::Always, resident, why));
        }
        MemoryEstimate { lines }
    }

    fn activations(&self) -> Vec<MemoryLine> {
        let of = |when, bytes| MemoryLine {
            kind: MemoryKind::Activations,
            tier: Tier::Device,
            bytes,
            when,
            source: self.activations.source,
            why: self.activations.why.clone(),
        };
        let mut lines = vec![of(When::Forward, self.activations.first)];
        if self.accumulates() && self.activations.later != Some(0) {
            lines.push(of(When::Backward, self.activations.later));
        }
        lines
    }

    /// Whether segments get their parameters one after the other.
    pub(super) fn takes_turns(&self) -> bool {
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
        self.zero.keeps_whole_gradients(self.accumulates() || self.clips_own)
    }

    /// What is on its way, or left of what was.
    fn buffers(&self) -> Vec<(When, u64, String)> {
        let replicas = self.replicas();
        // Offloaded, they are on the device as long as they travel; and what has no replica does not.
        let travel = |param: &&ParamMemory| param.replicas > 1 && self.tiers.gradients == Tier::Device;
        let shards = self.trained().filter(travel).map(|param| param.share().0 * param.bytes.gradient).sum();
        let bucket = if self.zero == ZeroLevel::V3 { self.segment } else { self.bucket };
        let is_cut = self.zero != ZeroLevel::Off && replicas > 1;
        let (scatters, gathers) = (is_cut && self.zero != ZeroLevel::V0, is_cut && self.zero != ZeroLevel::V3);
        let unit = if self.zero == ZeroLevel::V3 { "a segment" } else { "the largest bucket" };
        // Gradients that are kept whole are those of the bucket, too.
        let parts = if scatters && !self.keeps_whole_gradients() { 1 } else { 0 };
        let two = if self.takes_turns() { self.two_segments } else { 0 };
        // Under v3 those of all buckets of a segment come at once.
        let before = match self.zero {
            ZeroLevel::V3 => (self.two_segments / 2).min(self.whole_gradients()).max(bucket),
            _ => bucket,
        };
        let (update, why) = self.update(bucket, replicas);
        vec![
            (When::Passes, two, "the parameters of two segments, the one that is used and the next".to_string()),
            (When::Passes, self.casts, "16-bit copies of the parameters of segments, until their backward".to_string()),
            (When::Passes, bucket, format!("a flat copy of the gradients of {unit}")),
            (When::Passes, parts * before, format!("the gradients of {unit}, before")),
            (
                if self.keeps_whole_gradients() { When::Passes } else { When::Forward },
                if scatters { shards } else { 0 },
                "this rank's shards of the step before, whose memory is used again".to_string(),
            ),
            (
                When::Step,
                if gathers && self.tiers.parameters == Tier::Device { 2 * self.bucket } else { 0 },
                "parameters of two buckets that were gathered before, whose memory is used again".to_string(),
            ),
            (When::Update, update, why),
        ]
    }

    /// What the update needs beside the gradients that are kept: its own, or that of clipping before it.
    fn update(&self, bucket: u64, replicas: u64) -> (u64, String) {
        let shard = bucket.div_ceil(replicas);
        let (tensor, shards) = match self.zero {
            ZeroLevel::Off => (self.largest, 0),
            ZeroLevel::V0 | ZeroLevel::V1 | ZeroLevel::V2 if replicas == 1 => (self.largest, 0),
            _ if self.whole_tensors => (self.largest, 2 * shard),
            _ => (self.largest.min(shard), 2 * shard),
        };
        let updating = TEMPORARY * tensor + shards;
        let clipping = if self.clips { self.reduced_gradients() } else { 0 };
        match clipping > updating {
            true => (clipping, "a copy of the gradients, when they are clipped".to_string()),
            false => {
                let of_shards = if shards > 0 { ", and new shards of a bucket, twice" } else { "" };
                (updating, format!("{TEMPORARY} temporary results as large as the largest tensor{of_shards}"))
            }
        }
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

fn line(kind: MemoryKind, tier: Tier, when: When, bytes: u64, why: String) -> MemoryLine {
    MemoryLine { kind, tier, bytes: Some(bytes), when, source: FigureSource::Formula, why }
}

#[cfg(test)]
mod tests;
