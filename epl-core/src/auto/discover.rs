//! Segments of plain layers that can run in slices, found before a layout is measured or built.

use std::sync::Arc;

use super::columns::measuring;
use super::sample::Sample;
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::probe::discover::{DiscoveredModel, DiscoveredModels, agree};
use crate::search;

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
        for tensor in divisions.into_iter().map(|(tensor, _)| tensor).filter(|tensor| *tensor > 1) {
            if known.contains_key(&tensor) {
                continue;
            }
            let found = self.looked_at(tensor, model, sample);
            agree(self.world(), &found.as_ref().map_or_else(|_| "nothing".to_string(), DiscoveredModel::told))?;
            match found {
                Err(why) if !self.config().searches() => return Err(why),
                found => known.insert(tensor, found.map_err(|why| why.to_string())),
            };
        }
        Ok(self.clone().with_discovered(Arc::new(known)))
    }

    /// What can run in so many slices.
    fn looked_at<M: Model>(
        &self,
        tensor: usize,
        model: &mut dyn FnMut(&Place) -> M,
        sample: &mut Sample<'_, M::Batch>,
    ) -> Result<DiscoveredModel> {
        let planned = self.in_thought(measuring(self.config(), tensor, 1)?)?.plan_uncut(model)?;
        if let Some(layout) = &planned.plan().layout {
            return Err(Error::invalid(format!(
                "auto.discover = true cuts a model without scopes, as dist.tensor_parallel_size says, and this one opens some; leave \
                 the option out and call `LazyModel::discover`: {layout}"
            )));
        }
        let batch = sample.batch(sample.rows().clamp(1, ROWS), planned.place.device())?;
        planned.look(&batch)
    }
}
