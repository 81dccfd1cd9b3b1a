//! Layers that take less where each tensor rank computes them whole than where they are divided, and send.
//!
//! A layer that takes and gives whole tensors ([`Place::self_contained`]) is either, whatever the others are, so that each kind of
//! layers is looked at by itself: what its collectives take bounds what can be won, and is known before it is timed.

use std::collections::BTreeSet;

use epl_comm::{Operation, ReduceOp};

use super::calibration::Calibration;
use super::columns::{self, SurveyedModel};
use super::sample::Sample;
use super::together::all;
use crate::cost::Network;
use crate::error::Result;
use crate::launch::Epl;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::search::{Column, Columns, SegmentCost, is_fixed};
use crate::simulate::Members;
use crate::topology::cluster::{Axis, Mesh, MeshSizes};

/// Layers are looked at whose collectives are more than this part of what all segments take.
const LEAST_SHARE: f64 = 0.01;

/// How many tensor and expert ranks divide layers.
type Division = (usize, usize);

/// What is compared: one micro-batch on each replica of a layout with one stage.
#[derive(Clone, Copy)]
struct Compared<'a> {
    epl: &'a Epl,
    network: &'a Network,
    /// Of a step.
    rows: usize,
}

impl Compared<'_> {
    fn mesh(&self, (tensor, expert): Division) -> Result<Mesh> {
        let (cluster, config) = (self.epl.cluster(), self.epl.config());
        let sizes = MeshSizes::new(cluster.world_size() / tensor, 1, tensor, expert)?;
        Ok(Mesh::over(cluster, sizes, config.dist.order, config.cluster.device_place_prefer_intra_node)?)
    }

    /// Rows of a replica.
    fn own_rows(&self, (tensor, _): Division) -> usize {
        self.rows.div_ceil(self.epl.cluster().world_size() / tensor).max(1)
    }

    /// Seconds of all segments, both ways, and of their collectives.
    fn seconds(&self, division: Division, column: &Column) -> Result<[f64; 2]> {
        let (mesh, rows) = (self.mesh(division)?, self.own_rows(division));
        let calls = (&mesh, mesh.first(), self.network);
        let all = column.costs(rows, Some(calls)).iter().map(SegmentCost::seconds).sum();
        Ok([all, column.layers(rows, calls).iter().flatten().sum()])
    }

    /// Seconds of the collectives of a model that is not timed.
    fn sent<M: Model>(&self, division: Division, surveyed: &SurveyedModel<M>) -> Result<f64> {
        let (mesh, rows) = (self.mesh(division)?, self.own_rows(division));
        surveyed.seconds_of_calls(rows, (&mesh, mesh.first(), self.network))
    }

    /// Seconds of a sum of all gradients over replicas.
    fn reduced(&self, division: Division, column: &Column) -> Result<f64> {
        let mesh = self.mesh(division)?;
        let bytes: f64 = column.costs(self.own_rows(division), None).iter().flat_map(|cost| cost.parameters).sum();
        let members = Members::Axis(Axis::Data).of(&mesh, mesh.first());
        Ok(self.network.seconds(Operation::AllReduce(ReduceOp::Sum), bytes as u64, &members))
    }

    /// Whether replicas alone may be taken, and take less than a division computes, whatever that sends.
    fn is_hopeless(&self, measured: &Columns, (divided, computed): (&Column, f64)) -> Result<bool> {
        let config = self.epl.config();
        let said = [
            "dist.tensor_parallel_size",
            "dist.pipeline_parallel_size",
            "dist.data_parallel_size",
            "pipeline.cuts",
            "io.slicing",
            "communication.clip_after_allreduce",
            "offload.device_bytes",
        ];
        // What is taken over rows may leave the number of replicas as it is.
        if said.iter().any(|key| is_fixed(config, key)) || !divided.builder.over_micro_batch().is_empty() {
            return Ok(false);
        }
        for (division, column) in measured.iter().filter(|((tensor, _), _)| *tensor == 1) {
            if let Ok(column) = column
                && self.seconds(*division, column)?[0] + self.reduced(*division, column)? <= computed
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The paths of layers, of which numbers are any: each kind of layers once. What has no path cannot be named.
fn kinds(paths: &[String]) -> BTreeSet<String> {
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let any = |path: &String| {
        path.split('.').map(|name| if is_number(name) { "*" } else { name }).collect::<Vec<_>>().join(".")
    };
    paths.iter().filter(|path| !path.is_empty()).map(any).collect()
}

/// Whether a search may choose which layers are whole: where that is not given, layers may be divided, and it is known what they send.
pub(super) fn may_be_chosen(epl: &Epl, measured: &Columns, network: &Network) -> bool {
    let is_divided = measured.keys().any(|(tensor, _)| *tensor > 1);
    is_divided && network.is_known() && !is_fixed(epl.config(), "dist.whole_layers")
}

/// Measures each division over tensor ranks once more, with those layers whole that take less so; none where nothing is won.
/// Collective.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn look<M: Model, O: OptimizerConfig>(
    epl: &Epl,
    (measured, network): (&mut Columns, &Network),
    model: &mut dyn FnMut(&Place) -> M,
    optimizer: &O,
    (sample, known): (&mut Sample<'_, M::Batch>, &mut Calibration),
) -> Result<()> {
    let compared = Compared { epl, network, rows: sample.rows() };
    let divisions: Vec<Division> = measured.keys().copied().filter(|(tensor, _)| *tensor > 1).collect();
    for division in divisions {
        let Some(Ok(divided)) = measured.get(&division) else { continue };
        let [mut least, mut sent] = compared.seconds(division, divided)?;
        let is_hopeless = sent < LEAST_SHARE * least || compared.is_hopeless(measured, (divided, least - sent))?;
        // What is sent may be of a rank's own rows: all look, or none does.
        if !all(epl.world(), !is_hopeless)? {
            continue;
        }
        let (mut whole, mut best): (Vec<String>, Option<Column>) = Default::default();
        for kind in kinds(divided.builder.self_contained()) {
            let tried = [&whole[..], &[kind]].concat();
            let surveyed = columns::survey(epl, (division, Some(&tried)), model, sample.rows())
                .and_then(|surveyed| surveyed.laid_for(optimizer, sample, true));
            // No more can be won, as each rank computes more.
            let rest = surveyed.as_ref().ok().and_then(|surveyed| compared.sent(division, surveyed).ok());
            if !all(epl.world(), rest.is_some_and(|rest| sent - rest > LEAST_SHARE * least))? {
                continue;
            }
            let (Ok(column), _) = columns::measure(epl.world(), surveyed, sample, known)? else { continue };
            let [seconds, of_calls] = compared.seconds(division, &column)?;
            if all(epl.world(), seconds < least)? {
                (least, sent, whole, best) = (seconds, of_calls, tried, Some(column));
            }
        }
        if let Some(Ok(column)) = measured.get_mut(&division) {
            column.with_whole_layers = best.map(Box::new);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_whose_paths_differ_in_numbers_are_of_one_kind() {
        let paths = ["", "layers.0.mlp", "layers.11.mlp", "layers.0.parts.2", "head", "conv1"].map(String::from);
        let found: Vec<String> = kinds(&paths).into_iter().collect();
        assert_eq!(found, ["conv1", "head", "layers.*.mlp", "layers.*.parts.*"]);
    }
}
