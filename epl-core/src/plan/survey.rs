//! Reads names, shapes and layers from a lazy model; draws nothing.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Flag, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};
use epl_comm::shard_range;

use super::burn_layers::BurnLayers;
use super::finding::SplitFinding;
use crate::error::{Error, Refusals, Result};
use crate::model::context::{BuildContext, Context, Sharding};
use crate::model::decay::{AverageDecay, MovingAverage};
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::params::{Cut, ParamOrigin, ParamRecord};
use crate::pattern::{self, Pattern};
use crate::stable_hash::stable_hash;
use crate::topology::scopes::Owners;

/// What a survey of a model found.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub records: Vec<ParamRecord>,
    pub burn_layers: BurnLayers,
    /// What layers take over all rows of a micro-batch.
    pub over_micro_batch: Vec<&'static str>,
    /// What of it they take over the rows of one replica.
    pub over_replica: Vec<&'static str>,
    /// The paths of layers that are divided over the tensor axis or whole, as an option says.
    pub self_contained: Vec<String>,
    /// What discovery found of each segment; nothing before it has looked.
    pub findings: Arc<[SplitFinding]>,
}

/// The field of a layer, Burn's or another, whose type's name ends with `Embedding`: a table of rows.
const TABLE: &str = "weight";

/// Surveys a model: one record a parameter, in the module's order. All lie on the place's device.
pub(crate) fn survey<M: Model>(model: &M, place: &Place, owners: &Owners) -> Result<Survey> {
    let context = place.context();
    let mut surveyor = Surveyor {
        context,
        build: place.build(),
        owners,
        device: place.device(),
        path: Vec::new(),
        table: None,
        records: Vec::new(),
        names_by_id: HashMap::new(),
        averages: Vec::new(),
        refusals: Refusals::default(),
    };
    model.visit(&mut surveyor);
    let Surveyor { mut records, names_by_id, averages, mut refusals, .. } = surveyor;
    for (number, of, decay) in averages {
        let name = &records[number].name;
        records[number].average = refusals.of(average(name, names_by_id.get(&of), decay));
    }
    let lost = place.build().take_shardings().into_iter().filter(|(id, _)| !names_by_id.contains_key(id));
    let is_cut = |sharding: &Sharding| sharding.cuts.iter().any(|(axis, _)| context.axis(*axis).size() > 1);
    if let Some((_, sharding)) = lost.into_iter().find(|(_, sharding)| is_cut(sharding)) {
        refusals.add(Error::invalid(format!(
            "a divided parameter of shape {:?} was declared at `{}` and is not in the model; load checkpoints after \
             `build`, by `LaidOutModel::try_map`",
            sharding.shape, sharding.path
        )));
    }
    for record in &mut records {
        record.segments = refusals.of(segments_of(model, &record.name)).unwrap_or_default();
    }
    refusals.of(check_owned(&records, &owners.graphs));
    let self_contained = place.build().self_contained();
    refusals.of(check_whole(context.whole_layers().patterns(), &self_contained));
    refusals.into_result()?;
    let burn_layers = BurnLayers::of(model, &records);
    if !burn_layers.batch_norms.is_empty() {
        place.build().declare_over_replica("the statistics of batch norms");
    }
    let (over_micro_batch, over_replica) = (place.build().over_micro_batch(), place.build().over_replica());
    Ok(Survey { records, burn_layers, over_micro_batch, over_replica, self_contained, findings: Arc::default() })
}

/// Refuses to leave a layer whole that is not there, or on whose slices others count.
fn check_whole(patterns: &[Pattern], self_contained: &[String]) -> Result<()> {
    let paths: Vec<&str> = self_contained.iter().map(String::as_str).collect();
    for said in patterns {
        pattern::covered(&said.to_string(), &paths, ("dist.whole_layers", "layer that may be whole or divided"))?;
    }
    Ok(())
}

/// What a parameter is a moving average of, if that is in the model.
fn average(name: &str, of: Option<&String>, decay: AverageDecay) -> Result<MovingAverage> {
    let average = of.map(|of| MovingAverage { of: of.clone(), decay });
    average.ok_or_else(|| Error::Parameter {
        name: name.to_string(),
        reason: "is a moving average of a parameter that is not in the model; hold the part that it follows beside it"
            .to_string(),
    })
}

/// Where some parameters are in scopes, all are: EPL would not know where to put the others.
fn check_owned(records: &[ParamRecord], owners: &HashMap<ParamId, usize>) -> Result<()> {
    match records.iter().find(|record| record.task_graph.is_none()) {
        Some(record) if !owners.is_empty() => Err(Error::Parameter {
            name: record.name.clone(),
            reason: "is in no scope, and others are; make it in one, or make the whole model under a default strategy"
                .to_string(),
        }),
        _ => Ok(()),
    }
}

fn segments_of<M: Model>(model: &M, name: &str) -> Result<Vec<usize>> {
    let mut segments = model.segments_of(name);
    segments.sort_unstable();
    segments.dedup();
    let reason = match segments.iter().find(|segment| **segment >= model.segments()) {
        Some(segment) => format!("segment {segment} of a model that has {} segments", model.segments()),
        None if segments.is_empty() => {
            "no segment uses it; name it in the one that does (`segments_of`, or the fields of a `Chain`)".to_string()
        }
        None => return Ok(segments),
    };
    Err(Error::Parameter { name: name.to_string(), reason })
}

struct Surveyor<'a> {
    context: &'a Context,
    build: &'a BuildContext,
    owners: &'a Owners,
    device: &'a Device,
    path: Vec<String>,
    /// The path's length inside an embedding's table.
    table: Option<usize>,
    records: Vec<ParamRecord>,
    names_by_id: HashMap<ParamId, String>,
    /// The numbers of the records of moving averages, and what they follow.
    averages: Vec<(usize, ParamId, AverageDecay)>,
    refusals: Refusals,
}

impl Surveyor<'_> {
    /// A parameter on a device without autodiff would never learn; on another device it could not be used.
    fn check_device<const D: usize>(&self, name: &str, param: &Param<Tensor<D>>) -> Result<()> {
        let (found, expected) = (param.lazy_device(), self.device);
        if found == *expected && found.is_autodiff() == expected.is_autodiff() {
            return Ok(());
        }
        Err(Error::Parameter {
            name: name.to_string(),
            reason: format!(
                "lies on {found:?}, and this rank trains on {expected:?}; make its layer at the place that the closure of \
                 `build` is given, which is that device"
            ),
        })
    }

    fn record<const D: usize>(&self, name: String, param: &Param<Tensor<D>>) -> Result<ParamRecord> {
        let held: Vec<usize> = param.lazy_shape().to_vec();
        let table = D == 2 && self.table == Some(self.path.len());
        let sharding = self.build.sharding(param.id);
        let global_shape = sharding.as_ref().map_or_else(|| held.clone(), |sharding| sharding.shape.clone());
        let cuts: Vec<Cut> = sharding
            .iter()
            .flat_map(|sharding| &sharding.cuts)
            .filter(|(axis, _)| self.context.axis(*axis).size() > 1)
            .map(|&(axis, dim)| {
                let group = self.context.axis(axis);
                Cut {
                    axis,
                    dim,
                    parts: group.size(),
                    range: shard_range(global_shape[dim], group.size(), group.rank()),
                }
            })
            .collect();
        let dtype = match param.is_initialized() {
            true => param.base().dtype(),
            false => DType::from(param.lazy_device().settings().float_dtype),
        };
        let record = ParamRecord {
            id: ParamId::from(stable_hash(&name)),
            name,
            global_shape,
            cuts,
            dtype,
            trainable: is_trainable(param),
            origin: if param.is_initialized() { ParamOrigin::Broadcast } else { ParamOrigin::Drawn },
            segments: Vec::new(),
            stages: Vec::new(),
            held: true,
            task_graph: self.owners.graphs.get(&param.id).copied(),
            layer_idx: self.owners.layers.get(&param.id).copied(),
            table,
            sparse: table,
            declared: sharding.is_some(),
            half: dtype == DType::F32 && !self.build.is_full_precision(param.id),
            average: None,
            counted: false,
            parked: false,
            shard: None,
        };
        if record.shape() != held {
            return Err(Error::Parameter {
                reason: format!(
                    "holds {held:?}, but its layer declared {:?} of {:?}",
                    record.shape(),
                    record.global_shape
                ),
                name: record.name,
            });
        }
        Ok(record)
    }
}

impl ModuleVisitor for Surveyor<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push(name.to_string());
        if container_type.ends_with("Embedding") && name == TABLE {
            self.table = Some(self.path.len());
        }
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.table = None;
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        if let Some(other) = self.names_by_id.insert(param.id, name.clone()) {
            self.refusals.add(Error::Parameter {
                name,
                reason: format!(
                    "is the same parameter as `{other}`, and would be updated twice; hold it once and use it in both"
                ),
            });
            return;
        }
        let record = self.check_device(&name, param).and_then(|()| self.record(name, param));
        let Some(record) = self.refusals.of(record) else { return };
        self.averages.extend(self.build.average(param.id).map(|(of, decay)| (self.records.len(), of, decay)));
        self.records.push(record);
    }

    fn visit_flag(&mut self, _flag: &Param<Flag>) {}
}

/// Whether a parameter asks for a gradient; it need not be drawn. Of a lazy one only what is loaded into it tells.
fn is_trainable<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    match param.is_initialized() {
        true => param.base().is_require_grad(),
        false => {
            let nothing = Tensor::empty([0; D], &param.lazy_device());
            param.clone().transform_for_load(nothing, param.id).base().is_require_grad()
        }
    }
}
