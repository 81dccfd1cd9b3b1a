//! What this rank keeps of a run: its share of a checkpoint.
//!
//! ```text
//!                       rank 0           rank 1
//! alike on replicas   [ a a a ] [ c ]    [ b b b b ]           each writes some, so that all write as much
//! the largest, alike  [ d d d d · · · ·][ · · · · d d d d ]    cut evenly: each writes a part
//! in shards           [ e e e e e ]      [           e e e ]   each writes its own
//! ```

use std::collections::HashMap;
use std::ops::Range;

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use epl_comm::shard_range;

use super::restore::{EngineState, half_name};
use super::state::ModelState;
use super::states::StateOf;
use crate::checkpoint::{Region, Scalar, Snapshot, SnapshotPiece, TensorValues, names};
use crate::error::{Error, Result};
use crate::json::json;
use crate::model::context::Context;
use crate::model::segment::Model;
use crate::params::ParamRecord;
use crate::params::store::FlatPart;
use crate::params::walk::{self, At, Visit};
use crate::plan::Plan;
use crate::topology::cluster::Axis;

impl<M: Model> ModelState<M> {
    /// This rank's share of a checkpoint: see [`Engine::snapshot`](super::Engine::snapshot).
    pub fn snapshot(&self, plan: &Plan, context: &Context) -> Result<Snapshot<'_>> {
        let (mut snapshot, is_first) = (Snapshot::default(), context.world().rank() == 0);
        let shares = shares(plan, context);
        let flat = self.params.kept(&plan.params);
        let mut copy = Copy { plan, is_first, shares: &shares, flat, pieces: Vec::new() };
        walk::visit(self.params.model(), plan.records(), &mut copy)?;
        snapshot.pieces = copy.pieces;
        (0..shares.len()).try_for_each(|number| self.add_state(plan, number, &shares[number], &mut snapshot))?;
        if is_first {
            let state = EngineState {
                steps: self.steps,
                drawn: self.drawn,
                optimizer: self.optimizer_settings.0.to_string(),
                half: half_name(plan),
                loss_scale: self.scaler.as_ref().map(|scaler| scaler.state().clone()),
            };
            snapshot.state.insert("engine".to_string(), json("state of the engine", &state)?);
        }
        Ok(snapshot)
    }

    /// Adds the optimizer's state of a parameter.
    fn add_state<'a>(
        &'a self,
        plan: &Plan,
        number: usize,
        share: &WriteShare,
        snapshot: &mut Snapshot<'a>,
    ) -> Result<()> {
        let record = &plan.records()[number];
        let along = plan.coordinate.along(record.reduced_over());
        let kept = record.own_range();
        let (range, is_first) = match &record.shard {
            Some(shard) => (kept.clone(), shard.sizes.iter().position(|size| *size > 0) == Some(along)),
            None => (share.range.clone(), share.is_first),
        };
        if !is_writer(record, plan) || (range.is_empty() && !is_first) {
            return Ok(());
        }
        let StateOf { tensors, scalars } = self.state_of(number, record);
        let has_none = tensors.is_empty() && scalars.is_empty();
        let named = |field: &str| names::of_state(&record.name, field);
        for (field, values) in tensors {
            let (name, shape) = (named(&field), values.shape());
            if record.updates(&shape) {
                snapshot.pieces.extend(piece(name, record, range.clone(), kept.start, values)?);
            } else if is_first {
                snapshot.pieces.push(SnapshotPiece { name, region: Region::all(&shape), from: 0, values });
            }
        }
        if is_first && has_none && self.untouched.contains(&number) {
            snapshot.scalars.insert(named(names::NO_GRADIENT), Scalar::Uint(1));
        }
        // A number is of the whole parameter.
        snapshot.scalars.extend(scalars.into_iter().filter(|_| is_first).map(|(field, value)| (named(&field), value)));
        Ok(())
    }
}

/// What one of the replicas that keep a parameter alike writes of it.
#[derive(Clone, Debug)]
struct WriteShare {
    /// Elements of the rank's slice.
    range: Range<usize>,
    /// Whether it writes what is not of single elements.
    is_first: bool,
}

/// What this rank writes of each parameter that its replicas keep alike: the next largest goes to the one that has the least
/// so far, and what is more than an even share of all is cut evenly. The same plan on all replicas.
fn shares(plan: &Plan, context: &Context) -> Vec<WriteShare> {
    let bytes = |number: &usize| plan.params.records[*number].numel() * plan.params.records[*number].dtype.size();
    let mut order: Vec<usize> =
        (0..plan.params.records.len()).filter(|number| plan.params.records[*number].held).collect();
    order.sort_by_key(|number| std::cmp::Reverse(bytes(number)));
    // Replicas along an axis hold the same of what is reduced over it, and may hold other slices of the rest.
    let mut totals: HashMap<Axis, usize> = HashMap::new();
    for number in &order {
        *totals.entry(plan.params.records[*number].reduced_over()).or_default() += bytes(number);
    }
    let mut loads: HashMap<Axis, Vec<usize>> = HashMap::new();
    let mut shares = vec![WriteShare { range: 0..0, is_first: false }; plan.params.records.len()];
    for number in order {
        let (axis, numel) = (plan.params.records[number].reduced_over(), plan.params.records[number].numel());
        let (own, ranks) = (plan.coordinate.along(axis), context.axis(axis).size());
        let loads = loads.entry(axis).or_insert_with(|| vec![0; ranks]);
        shares[number] = if bytes(&number) > totals[&axis].div_ceil(ranks) {
            loads.iter_mut().for_each(|load| *load += bytes(&number) / ranks);
            WriteShare { range: shard_range(numel, ranks, own), is_first: own == 0 }
        } else {
            let least = (0..ranks).min_by_key(|rank| loads[*rank]).unwrap_or(0);
            loads[least] += bytes(&number);
            WriteShare { range: if least == own { 0..numel } else { 0..0 }, is_first: least == own }
        };
    }
    shares
}

/// Whether this rank, or one of its replicas, writes a parameter: they are of the first stage that holds it, and the first
/// along every other axis over which there are copies.
fn is_writer(record: &ParamRecord, plan: &Plan) -> bool {
    let is_first_stage = record.stages.first() == Some(&plan.stage());
    let others = record.replicated_over().into_iter().filter(|axis| *axis != record.reduced_over());
    record.held && is_first_stage && others.into_iter().all(|axis| plan.coordinate.along(axis) == 0)
}

/// A range of this rank's slice of a parameter, of which `values` are those from `start` on; none where it is empty.
fn piece<'a>(
    name: String,
    record: &ParamRecord,
    range: Range<usize>,
    start: usize,
    values: TensorValues<'a>,
) -> Result<Option<SnapshotPiece<'a>>> {
    // What has no element at all must be known, too.
    if range.is_empty() && record.numel() > 0 {
        return Ok(None);
    }
    let region = Region::of(&record.global_shape, &record.ranges())?.part(range.clone());
    Ok(Some(SnapshotPiece { name, region, from: range.start - start, values }))
}

/// Copies parameters.
struct Copy<'a, 's> {
    plan: &'s Plan,
    /// Whether this is the first rank.
    is_first: bool,
    shares: &'s [WriteShare],
    /// What lies beside the model, by the numbers of the records.
    flat: HashMap<usize, FlatPart<'a>>,
    pieces: Vec<SnapshotPiece<'a>>,
}

impl<'a> Copy<'a, '_> {
    fn copied<const D: usize>(&self, number: usize, param: &Param<Tensor<D>>) -> Result<Option<SnapshotPiece<'a>>> {
        let (plan, record) = (self.plan, &self.plan.records()[number]);
        if !is_writer(record, plan) {
            return Ok(None);
        }
        let (share, flat) = (&self.shares[number], self.flat.get(&number));
        let range = flat.filter(|flat| flat.is_shard).map_or(&share.range, |flat| &flat.range).clone();
        if range.is_empty() && record.numel() > 0 {
            return Ok(None);
        }
        // Of what this rank keeps, only what it writes.
        let values = match flat {
            Some(flat) => flat.values(range.start - flat.range.start..range.end - flat.range.start),
            None => TensorValues::of(param.base().inner().reshape([record.numel()]).slice([range.clone()])),
        };
        piece(names::of_parameter(&record.name), record, range.clone(), range.start, values)
    }
}

impl Visit for Copy<'_, '_> {
    type Error = Error;

    fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<()> {
        let piece = self.copied(at.number, param)?;
        self.pieces.extend(piece);
        Ok(())
    }

    /// Every rank has it whole.
    fn other(&mut self, path: &str, values: &dyn Fn() -> TensorData) -> Result<()> {
        if self.is_first {
            let data = values();
            let (name, region) = (names::of_parameter(path), Region::all(&data.shape().to_vec()));
            self.pieces.push(SnapshotPiece { name, region, from: 0, values: TensorValues::Data(data) });
        }
        Ok(())
    }
}
