//! Segments of plain layers that can run in slices, found before a layout is measured or built.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::calibration::Calibration;
use super::columns::{measuring, parameters};
use super::sample::Sample;
use super::together::together;
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::probe::discover::{DiscoveredModel, DiscoveredModels, agree};
use crate::probe::planned::LazyModel;
use crate::search;
use crate::stable_hash::stable_hash;

/// Rows of the batch that segments are run on: few, as they are run often, and several, so that they differ.
const ROWS: usize = 8;

impl Epl {
    /// This rank, where `auto.discover` asks for it knowing which segments of a model can run in slices over the tensor
    /// axis ([`LazyModel::discover`](crate::LazyModel::discover)), for each number of tensor ranks that the
    /// configuration allows; else as it is. What is planned and built in the rank that this returns is cut so, also
    /// under another configuration ([`with_config`](Self::with_config)); it must be the same model.
    /// [`auto_parallel`](Self::auto_parallel) calls this itself. Collective.
    ///
    /// The sample is asked for a few rows. Each rank looks by itself, in a world that is only thought of, and all
    /// compare what they found.
    ///
    /// # Errors
    ///
    /// When the model opens scopes, which lay it out; when it does not run on the sample under the layout that is given
    /// (in a search, a number of tensor ranks under which it does not is refused with the reason); when ranks find
    /// different things, or a peer fails.
    pub fn discover<M: Model>(&self, mut model: impl FnMut(&Place) -> M, sample: Sample<'_, M::Batch>) -> Result<Self> {
        self.discovering(&mut model, &mut sample.on(self.context()))
    }

    /// [`discover`](Self::discover), of which what is known already is not looked for again.
    pub(super) fn discovering<M: Model>(
        &self,
        model: &mut dyn FnMut(&Place) -> M,
        sample: &mut Sample<'_, M::Batch>,
    ) -> Result<Self> {
        if !self.config().auto.discover {
            return Ok(self.clone());
        }
        let divisions = search::divisions(self.config(), self.cluster().world_size());
        let mut known = DiscoveredModels::clone(self.discovered());
        let unknown: BTreeSet<usize> = divisions
            .into_iter()
            .map(|(tensor, _)| tensor)
            .filter(|tensor| *tensor > 1 && !known.contains_key(tensor))
            .collect();
        if unknown.is_empty() {
            return Ok(self.clone());
        }
        let mut file = Calibration::read(self)?;
        for tensor in unknown {
            match self.looked_at(tensor, model, sample, &mut file)? {
                Err(why) if !self.config().searches() => return Err(why),
                found => known.insert(tensor, found.map_err(|why| why.to_string())),
            };
        }
        // Of a cluster that is described nothing is kept.
        if self.wanted().is_none_or(|wanted| wanted.machine().is_none()) {
            file.write(self.world())?;
        }
        Ok(self.clone().with_discovered(Arc::new(known)))
    }

    /// What can run in so many slices, as all ranks find it, and remembered; or why this one cannot look, as no other one can.
    /// Collective.
    fn looked_at<M: Model>(
        &self,
        tensor: usize,
        model: &mut dyn FnMut(&Place) -> M,
        sample: &mut Sample<'_, M::Batch>,
        file: &mut Calibration,
    ) -> Result<Result<DiscoveredModel>> {
        let world = self.world();
        let uncut = self.uncut(tensor, model, sample);
        let key = match file.is_on() {
            true => {
                let own = uncut.as_ref().ok().and_then(|(planned, batch)| key(planned, batch));
                let all = world.all_gather_texts(&own.unwrap_or_default())?;
                // One for all, as replicas may have other rows.
                all.iter().all(|key| !key.is_empty()).then(|| format!("{:016x}", stable_hash(&all.concat())))
            }
            false => None,
        };
        let found = uncut.and_then(|(planned, batch)| {
            let known = key.as_ref().and_then(|key| file.findings(key, planned.plan().segments.len()));
            planned.look(&batch, known)
        });
        let found = match together(world, found, "look for what runs in slices, and says why")? {
            Ok(found) => found,
            refused => return Ok(refused),
        };
        agree(world, &found.told())?;
        if let Some(key) = key {
            file.remember_findings(key, found.findings());
        }
        Ok(Ok(found))
    }

    /// The model of which nothing is cut yet for so many ranks, and a batch to look at it with.
    fn uncut<M: Model>(
        &self,
        tensor: usize,
        model: &mut dyn FnMut(&Place) -> M,
        sample: &mut Sample<'_, M::Batch>,
    ) -> Result<(LazyModel<M>, M::Batch)> {
        let planned = self.in_thought(measuring(self.config(), tensor, 1)?)?.plan_uncut(model)?;
        if let Some(layout) = &planned.plan().layout {
            return Err(Error::invalid(format!(
                "auto.discover = true cuts a model without scopes, as dist.tensor_parallel_size says, and this one opens some; leave \
                 the option out and call `LazyModel::discover`: {layout}"
            )));
        }
        let batch = sample.batch(sample.rows().clamp(1, ROWS), planned.place.device())?;
        Ok((planned, batch))
    }
}

/// What is found is the same where this is: a model's segments and parameters, the values of what it is run on, and the options. Of
/// a batch that tells none of its tensors nothing is kept.
fn key<M: Model>(planned: &LazyModel<M>, batch: &M::Batch) -> Option<String> {
    let batch = planned.model.batch_tensors().hash(batch)?;
    let (segments, parameters) = (&planned.plan().segments, parameters(&planned.builder));
    let config = planned.builder.config.to_toml();
    Some(format!("{:016x}", stable_hash(&format!("{segments:?} {parameters:?} {batch} {config}"))))
}
