//! What a program that is run for its plan can tell of a batch: activations, and a step's time.

use super::columns;
use super::sample::Sample;
use super::table::CostTable;
use crate::cost::Machine;
use crate::data::TrainData;
use crate::error::Result;
use crate::launch::{Epl, WantedPlan};
use crate::memory::Activations;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::search::{self, Found};
use crate::topology::cluster::Axis;

impl Epl {
    /// [`auto_parallel`](Self::auto_parallel) for a plan: a search is made, where one is asked for; then all that is known of the
    /// layout is noted.
    pub(super) fn for_plan<M: Model, O: OptimizerConfig, I: 'static>(
        &self,
        wanted: &WantedPlan,
        mut model: impl FnMut(&Place) -> M,
        optimizer: &O,
        data: &TrainData<I, M::Batch>,
    ) -> Result<(Self, Option<Found>)>
    where
        M::Batch: 'static,
    {
        let sample = || Ok::<_, crate::Error>(Sample::of(data)?.on(self.context()));
        if self.config().searches() {
            wanted.note_search(self.config());
        }
        let found = match (wanted.machine(), self.config().searches()) {
            (_, false) => None,
            (None, true) => Some(self.search(&mut model, optimizer, sample()?)?),
            (Some(machine), true) => Some(self.found_on(machine, &mut model, optimizer, &mut sample()?)?),
        };
        let epl = match &found {
            Some(found) => self.with_config(found.best().config().clone())?,
            None => self.clone(),
        };
        let rows = sample()?.rows();
        let activations = epl.activations(&mut model, &mut sample()?);
        wanted.note_activations(activations.map(|known| known.map(|known| (known, rows))));
        let predicted = match (wanted.machine(), &found) {
            (_, Some(found)) => Some(Ok(found.to_string())),
            (Some(machine), None) => Some(epl.predicted_on(machine, &mut model, optimizer, &mut sample()?)),
            (None, None) => None,
        };
        // A layout that is given is planned, whatever is known of its time.
        let told = |why: crate::Error| format!("a step's time is not predicted: {why}");
        predicted.into_iter().for_each(|words| wanted.predict(words.unwrap_or_else(told)));
        Ok((epl, found))
    }

    /// In how many slices layers are, and experts.
    fn division(&self) -> (usize, usize) {
        let mesh = self.context().mesh();
        (mesh.size(Axis::Tensor), mesh.size(Axis::Expert))
    }

    /// What all segments store for backward, where the program counts.
    fn activations<M: Model>(
        &self,
        model: &mut dyn FnMut(&Place) -> M,
        sample: &mut Sample<'_, M::Batch>,
    ) -> Result<Option<Activations>> {
        columns::survey(self, (self.division(), None), model, sample.rows())?.stored(sample)
    }

    /// What a step takes on a cluster that is described, in words: segments take what they take here, collectives what its links let
    /// them.
    fn predicted_on<M: Model, O: OptimizerConfig>(
        &self,
        machine: &Machine,
        model: &mut dyn FnMut(&Place) -> M,
        optimizer: &O,
        sample: &mut Sample<'_, M::Batch>,
    ) -> Result<String> {
        let table = CostTable::measured(self, vec![self.division()], model, optimizer, sample, Some(machine))?;
        Ok(table.explain(self.config())?.to_string())
    }

    /// The best layout there. What does not fit the smallest device is not taken.
    fn found_on<M: Model, O: OptimizerConfig>(
        &self,
        machine: &Machine,
        model: &mut dyn FnMut(&Place) -> M,
        optimizer: &O,
        sample: &mut Sample<'_, M::Batch>,
    ) -> Result<Found> {
        let (mut config, all): (_, Vec<usize>) = (self.config().clone(), (0..self.cluster().world_size()).collect());
        if let (None, Some(bytes)) = (config.offload.device_bytes, machine.devices().together(&all).bytes) {
            config.set("offload.device_bytes", bytes)?;
        }
        let bounded = self.with_config(config)?;
        search::check_search(bounded.config(), sample.rows())?;
        search::check_described(bounded.config())?;
        let divisions = search::divisions(bounded.config(), all.len());
        CostTable::measured(&bounded, divisions, model, optimizer, sample, Some(machine))?
            .with_whole_layers(&bounded, model, optimizer, sample)?
            .search(bounded.config())
    }
}
