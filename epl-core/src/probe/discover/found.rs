//! What was found of a model, and the model cut so.

use core::convert::Infallible;
use core::ops::Range;
use std::collections::BTreeMap;

use burn::module::Param;
use burn::tensor::{Device, Shape, Tensor};
use epl_comm::ProcessGroup;

use super::trial::cut_records;
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::params::ParamRecord;
use crate::params::averages::averages;
use crate::params::walk::{self, At, Change};
use crate::plan::split::SliceOf;
use crate::plan::{Plan, SplitFinding};
use crate::probe::planned::LazyModel;

/// What was found of a model's segments, and of which model: any rank that makes the same one cuts it so.
#[derive(Clone, Debug)]
pub(crate) struct DiscoveredModel {
    /// Its segments, and its parameters with their shapes and where they are used, one a line.
    model: Vec<String>,
    findings: Vec<SplitFinding>,
}

/// What was found of a model by the number of tensor ranks, or why nobody could look.
pub(crate) type DiscoveredModels = BTreeMap<usize, Result<DiscoveredModel, String>>;

impl DiscoveredModel {
    /// Of a model that has these parameters, of which nothing is cut yet.
    pub(super) fn of(plan: &Plan, records: &[ParamRecord], findings: Vec<SplitFinding>) -> Self {
        Self { model: lines(plan, records), findings }
    }

    /// What was found, by segment.
    pub(crate) fn findings(&self) -> &[SplitFinding] {
        &self.findings
    }

    /// How each segment runs, without the reasons of those that stay whole: these may have another number on another processor.
    pub(crate) fn told(&self) -> String {
        let told = self.findings.iter().map(|finding| match finding {
            SplitFinding::Split(split) => format!("{split:?}"),
            SplitFinding::Whole(_) => "whole".to_string(),
        });
        told.collect::<Vec<_>>().join("; ")
    }
}

/// What tells one model from another one.
fn lines(plan: &Plan, records: &[ParamRecord]) -> Vec<String> {
    let segments = plan.segments.iter().map(|name| format!("segment {name}"));
    let parameter = |record: &ParamRecord| {
        format!("parameter `{}` {:?} of segments {:?}", record.name, record.global_shape, record.segments)
    };
    segments.chain(records.iter().map(parameter)).collect()
}

impl<M: Model> LazyModel<M> {
    /// The model, cut as was found of one that is made the same.
    ///
    /// # Errors
    ///
    /// When it is another one.
    pub(crate) fn cut_as(self, found: &DiscoveredModel) -> Result<Self> {
        let Self { model, builder, plan, place } = self;
        let own = lines(&plan, builder.parameters());
        if let Some(at) = (0..own.len().max(found.model.len())).find(|at| own.get(*at) != found.model.get(*at)) {
            let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "nothing more".to_string());
            return Err(Error::invalid(format!(
                "segments that can run in slices were looked for in another model, which has {}, and this one has {}; build the one \
                 that `Epl::auto_parallel` was given, or give it this one",
                line(&found.model),
                line(&own)
            )));
        }
        let group = place.context().tensor();
        let (mut findings, of) = (found.findings.clone(), SliceOf { rank: group.rank(), ranks: group.size() });
        let records = cut_alike(builder.parameters(), &mut findings, of);
        let Ok(model) = walk::change(model, &records, &mut CutLazily);
        let builder = builder.with_findings(findings, records);
        let plan = builder.plan()?;
        Ok(Self { model, builder, plan, place })
    }
}

/// The records, cut as was found. Segments of a moving average and of what it follows stay whole where the two would be cut
/// otherwise, as each rank moves what it has.
pub(super) fn cut_alike(records: &[ParamRecord], findings: &mut [SplitFinding], of: SliceOf) -> Vec<ParamRecord> {
    loop {
        let mut cut = records.to_vec();
        for (segment, finding) in findings.iter().enumerate() {
            if let SplitFinding::Split(split) = finding {
                cut = cut_records(&cut, (segment, split.extent), of);
            }
        }
        let split_of = |numbers: [usize; 2]| {
            let segments = numbers.into_iter().flat_map(|number| cut[number].segments.clone());
            segments.filter(|segment| matches!(findings[*segment], SplitFinding::Split(_))).collect::<Vec<_>>()
        };
        let differing = averages(&cut).into_iter().find_map(|(average, followed)| {
            let split = split_of([average, followed]);
            (cut[average].cuts != cut[followed].cuts && !split.is_empty()).then_some((average, followed, split))
        });
        let Some((average, followed, split)) = differing else { return cut };
        for segment in split {
            findings[segment] = SplitFinding::Whole(format!(
                "`{}` is a moving average of `{}`, and of their segments one alone can run in slices, or by another extent; cut the \
                 chain alike around both",
                cut[average].name, cut[followed].name
            ));
        }
    }
}

/// Refuses that ranks have found different things, by what each [tells](DiscoveredModel::told). Collective.
///
/// # Errors
///
/// Which two differ, on all; when a peer fails.
pub(crate) fn agree(world: &ProcessGroup, told: &str) -> Result<()> {
    let said = world.all_gather_texts(told)?;
    match said.iter().position(|other| *other != said[0]) {
        None => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "ranks 0 and {other} do not find the same segments to run in slices; give all of them the same batch\nrank 0: {}\n\
             rank {other}: {}",
            said[0], said[other]
        ))),
    }
}

/// Cuts the parameters that have no values as their records say: they are drawn whole, and cut at once.
struct CutLazily;

impl Change for CutLazily {
    type Error = Infallible;

    fn float<const D: usize>(
        &mut self,
        At { record, .. }: At<'_>,
        param: Param<Tensor<D>>,
    ) -> Result<Param<Tensor<D>>, Infallible> {
        let ranges: Option<[Range<usize>; D]> = record.ranges().try_into().ok();
        let Some(ranges) = ranges.filter(|_| record.is_cut_unknown() && !param.is_initialized()) else {
            return Ok(param);
        };
        let (id, device, trainable) = (param.id, param.lazy_device(), record.trainable);
        let draw = move |device: &Device, require_grad: bool| {
            let whole = param.into_value();
            let whole = if whole.is_autodiff() { whole.inner() } else { whole };
            // Through the host, so that the slice does not keep the whole alive.
            Tensor::from_data(whole.slice(ranges).into_data(), device).set_require_grad(require_grad)
        };
        Ok(Param::uninitialized(id, draw, device, trainable, Shape::from(record.shape())))
    }
}
