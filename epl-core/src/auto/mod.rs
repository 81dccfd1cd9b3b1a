//! The layout, chosen: what a model's segments and this world's collectives take is measured, and [searched](crate::search) with.
//!
//! ```text
//! model, sample ─▶ columns    one for each (tensor, expert): segments run one by one in a world that is only thought of
//! this world    ─▶ calibrate  collectives over bytes, an update, a copy
//!                    │
//!                    ▼ search    the same on all ranks, as what was measured is
//!                  Epl          of the best layout
//! ```
//!
//! All ranks measure at once, so that what they share (the memory of a host, its cores) is shared while it is measured: of
//! segments the total of the slowest one counts, of the rest what takes longest.
//!
//! - `together`: what all ranks do, or none.
//! - `sample`: a batch to measure with.
//! - `calibration`: what was measured, in a file.
//! - `discover`: segments of plain layers that can run in slices.
//! - `columns`: segments.
//! - `whole_layers`: layers that are better left whole.
//! - `calibrate`: collectives.
//! - `rates`: the update, and the rest.
//! - `speeds`: of devices that are not alike.
//! - `describe`: the cluster that is here.
//! - `table`: what was measured, and what is asked of it.
//! - `trial`: layouts that are run.
//! - `for_plan`: what a plan is told, of a program that is run for it.

mod together;
mod sample;
mod calibration;
mod discover;
mod columns;
mod whole_layers;
mod calibrate;
mod rates;
mod speeds;
mod describe;
mod table;
mod trial;
mod for_plan;

use epl_comm::ReduceOp;

use crate::config::Config;
use crate::data::TrainData;
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::search::{self, Choice, Found};
use crate::stable_hash::stable_hash;
use crate::topology::cluster::Axis;

pub use sample::Sample;
pub use table::CostTable;
use together::together;

impl Epl {
    /// The layout in which this world makes a step of a model fastest, as predicted by simulating steps with measured costs: data ×
    /// pipeline × tensor × expert, where stages are cut, micro-batches, schedule, what is run again, ZeRO and offload; on several
    /// hosts, or where devices are not alike, also the order of ranks, and for the latter how rows are divided over replicas. What
    /// the configuration gives is a constraint, but for defaults in a file, as saved configurations have all of them. Collective.
    ///
    /// No layout changes the mathematics, and neither the global batch nor options that lose precision are touched: where layers
    /// take something over the rows of a micro-batch or of a replica, the number of these stays ([`Found::kept`]), and where
    /// `io.slicing` divides files, who reads which.
    ///
    /// `model` is called once for each way to divide its layers, and where tensor ranks may be worth their collectives for each kind of
    /// layers that may be whole ([`Place::self_contained`]); it must make the same model each time. Where `offload.device_bytes` is
    /// given, only layouts are taken whose estimate, with `auto.margin`, fits; activations are counted in it, and run again where they do not
    /// fit, in programs whose allocator counts ([`CountingAllocator`](epl_comm::CountingAllocator)) and on devices in host memory.
    /// State is put away where nothing fits on the device: the optimizer's alone, if that is enough. Moving it is not part of the
    /// predicted time, but for what the update there brings over and back. What is measured is kept in the file
    /// of `auto.calibration`; `auto.measure` has the best layouts run. With `auto.discover` also layers may be divided that know nothing
    /// of it: search in the rank of [`discover`](Self::discover). What is found is built in that rank
    /// [under its configuration](Self::with_config); without that it would still search, and refuses to build.
    ///
    /// # Errors
    ///
    /// When the model opens scopes, which lay it out; when no layout is possible or fits: the one that comes nearest, and with which
    /// setting it would; when a peer fails.
    pub fn search<M: Model, O: OptimizerConfig>(
        &self,
        mut model: impl FnMut(&Place) -> M,
        optimizer: &O,
        sample: Sample<'_, M::Batch>,
    ) -> Result<Found> {
        let checked = search::check_search(self.config(), sample.rows());
        together(self.world(), checked, "search a layout, and says why")??;
        let divisions = search::divisions(self.config(), self.cluster().world_size());
        let mut sample = sample.on(self.context());
        let epl = self.discovering(&mut model, &mut sample)?;
        let table = CostTable::measured(&epl, divisions, &mut model, optimizer, &mut sample, None)?.with_whole_layers(
            &epl,
            &mut model,
            optimizer,
            &mut sample,
        )?;
        let found = together(self.world(), table.found(self.config()), "find a layout, and says why")??;
        self.check_same(&found)?;
        let run = |config: &Config| trial::seconds(&epl, config, &mut model, optimizer, &mut sample);
        found.measured(self.config().auto.measure, run)
    }

    /// What a step of a model takes in this world, in the layout that the configuration says: its time in parts, and the bytes of each
    /// stage, as [`search`](Self::search) predicts them. In a world that is only thought of ([`launch_dry`](crate::launch_dry))
    /// collectives are not counted, as it says. Collective.
    ///
    /// # Errors
    ///
    /// When the model opens scopes; when the layout cannot be, or needs more than `offload.device_bytes`; when a peer fails.
    pub fn explain<M: Model, O: OptimizerConfig>(
        &self,
        mut model: impl FnMut(&Place) -> M,
        optimizer: &O,
        sample: Sample<'_, M::Batch>,
    ) -> Result<Choice> {
        let mesh = self.context().mesh();
        let own = (mesh.size(Axis::Tensor), mesh.size(Axis::Expert));
        let mut sample = sample.on(self.context());
        let epl = self.discovering(&mut model, &mut sample)?;
        CostTable::measured(&epl, vec![own], &mut model, optimizer, &mut sample, None)?.explain(self.config())
    }

    /// What a model's segments, where its layers are divided in each way that the configuration allows, an optimizer and this world's
    /// collectives take; in a world that is only thought of ([`launch_dry`](crate::launch_dry)) without collectives, for links that
    /// are [described](CostTable::over_links). Collective.
    ///
    /// # Errors
    ///
    /// When a peer fails, or the optimizer's settings cannot be read.
    pub fn cost_table<M: Model, O: OptimizerConfig>(
        &self,
        mut model: impl FnMut(&Place) -> M,
        optimizer: &O,
        sample: Sample<'_, M::Batch>,
    ) -> Result<CostTable> {
        let divisions = search::divisions(self.config(), self.cluster().world_size());
        let mut sample = sample.on(self.context());
        let epl = self.discovering(&mut model, &mut sample)?;
        CostTable::measured(&epl, divisions, &mut model, optimizer, &mut sample, None)?.with_whole_layers(
            &epl,
            &mut model,
            optimizer,
            &mut sample,
        )
    }

    /// Compares what ranks found: what they measure is made the same, but for samples that differ.
    fn check_same(&self, found: &Found) -> Result<()> {
        // All that are run, too.
        let run = [found.best()].into_iter().chain(found.next()).take(self.config().auto.measure.max(1));
        let hash = stable_hash(&run.map(Choice::settings).collect::<String>());
        let halves = [(hash >> 32) as f64, (hash & 0xffff_ffff) as f64];
        let [least, most] = [ReduceOp::Min, ReduceOp::Max].map(|op| self.world().all_reduce_values(&halves, op));
        match least? == most? {
            true => Ok(()),
            false => Err(Error::invalid(
                "ranks found different layouts, as their samples differ; make the same batch of as many rows on all of them",
            )),
        }
    }

    /// This rank in the layout that [`search`](Self::search) finds, and what it found, where `auto.auto_parallel` asks for that without
    /// `pipeline.num_stages`; else as it is. What is built in the rank that this returns is laid out so, and cut as `auto.discover` says
    /// ([`discover`](Self::discover)), whether a layout is searched or given. In a program
    /// that is run for its plan its activations are measured, and on a cluster that is described a step's time is predicted. Collective.
    ///
    /// ```
    /// # use burn::{nn::Linear, optim::AdamWConfig, tensor::Tensor};
    /// # use epl_core::{Epl, Place, Result, Trainer, WithLoss, data::TrainData};
    /// # type Net = WithLoss<Linear, Tensor<2>>;
    /// # fn example(epl: Epl, net: impl Fn(&Place) -> Net, data: TrainData<u8, Tensor<2>>) -> Result<()> {
    /// let (epl, found) = epl.auto_parallel(|at| net(at), &AdamWConfig::new(), &data)?;
    /// if let Some(found) = found {
    ///     println!("{found}");
    /// }
    /// Trainer::build(&epl, |at| net(at), &AdamWConfig::new())?.fit(&data)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`search`](Self::search).
    pub fn auto_parallel<M: Model, O: OptimizerConfig, I: 'static>(
        &self,
        mut model: impl FnMut(&Place) -> M,
        optimizer: &O,
        data: &TrainData<I, M::Batch>,
    ) -> Result<(Self, Option<Found>)>
    where
        M::Batch: 'static,
    {
        let sample = || together(self.world(), Sample::of(data), "read a batch, and says why")?;
        let epl = match self.config().auto.discover {
            true => self.discovering(&mut model, &mut sample()?.on(self.context()))?,
            false => self.clone(),
        };
        if let Some(wanted) = epl.wanted() {
            return epl.for_plan(wanted, model, optimizer, data);
        }
        if !epl.config().searches() {
            return Ok((epl, None));
        }
        let found = epl.search(model, optimizer, sample()?)?;
        Ok((epl.with_config(found.best().config().clone())?, Some(found)))
    }
}
