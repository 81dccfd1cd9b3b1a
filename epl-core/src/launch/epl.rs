//! What a rank knows, and how it builds models.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::Device;
use epl_comm::{ProcessGroup, Trace};

use crate::cluster::{Axis, Cluster, Mesh, Placement};
use crate::config::{AmpLevel, CheckpointType, Config};
use crate::context::Context;
use crate::error::{Error, Refusals, Result};
use crate::layout::{Arrangement, Layout};
use crate::memory::{Tier, Tiers};
use crate::params;
use crate::pipeline::Stages;
use crate::place::Place;
use crate::plan::park::{Parked, park, recut, unpark};
use crate::plan::stores::Stores;
use crate::plan::survey::Survey;
use crate::plan::{self, Order, Plan};
use crate::planned::Planned;
use crate::precision::HalfPrecision;
use crate::scopes::Owners;
use crate::segment::Segmented;
use crate::tensors::{self, AssignMap, WholeTensors};

/// What a rank knows: its configuration, its context and its device.
#[derive(Clone, Debug)]
pub struct Epl {
    config: Config,
    cluster: Cluster,
    /// All ranks.
    world: ProcessGroup,
    trace: Option<Trace>,
    place: Place,
}

/// A model that is laid out and whose parameters have values, with its plan.
#[derive(Debug)]
pub struct Built<M> {
    pub(crate) model: M,
    pub(crate) parked: Parked,
    pub(crate) stores: Stores,
    pub(crate) config: Config,
    pub(crate) plan: Plan,
    pub(crate) place: Place,
}

impl<M> Built<M> {
    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The context that the model's layers hold. Where scopes were opened, it is not [`Epl::context`]: they decided the
    /// mesh.
    pub fn context(&self) -> &Context {
        self.place.context()
    }

    /// The ordinary Burn module. With pipeline stages, what other stages hold is empty in it; under ZeRO v3, or with
    /// offloaded parameters, all that lies elsewhere.
    pub fn into_inner(self) -> M {
        self.model
    }

    /// Changes the model, such as by loading a checkpoint into it or freezing a part. Collective.
    ///
    /// A checkpoint brings identifiers of its own; the parameters get back those of the plan. Under ZeRO v3 `f` gets the
    /// whole model, and every rank needs the memory for it.
    ///
    /// # Errors
    ///
    /// When `f` fails, when a parameter is no longer what the plan says, or when ranks froze different parameters.
    pub fn try_map(self, f: impl FnOnce(M, &Plan) -> Result<M>) -> Result<Self>
    where
        M: Segmented,
    {
        let Self { model, parked, stores, config, mut plan, place } = self;
        let device = place.device().clone().without_autodiff();
        let model = unpark(model, &plan, &parked, place.context(), &device)?;
        drop(parked);
        plan.records.iter_mut().for_each(|record| record.parked = false);
        let model = plan::draw::adopt(f(model, &plan)?, &plan.records)?;
        plan.complete(&model, place.context())?;
        let (model, parked) = park(model, &plan, &stores, &device)?;
        Ok(Self { model, parked, stores, config, plan, place })
    }

    /// Fills the model from stored tensors: a folder of Hugging Face, a record of Burn, another run's parameters. Every
    /// rank reads its slices. Collective.
    ///
    /// # Errors
    ///
    /// When something is missing or left over that the map does not allow, or of another shape, before anything is read.
    pub fn assign(self, stored: &impl WholeTensors, map: &AssignMap) -> Result<Self>
    where
        M: Segmented,
    {
        self.try_map(|model, plan| tensors::assign(model, &plan.records, stored, map))
    }
}

impl<M: Segmented> Built<M> {
    /// Divides what is sharded for an optimizer that is `element_wise`, or for one that is not. Collective.
    pub(crate) fn cut_for(self, element_wise: bool) -> Result<Self> {
        if element_wise {
            return Ok(self);
        }
        let Self { model, parked, stores, config, mut plan, place } = self;
        let before = plan.clone();
        plan.pack(place.context(), element_wise);
        let parked = recut(parked, &before, &plan, place.context(), &stores)?;
        Ok(Self { model, parked, stores, config, plan, place })
    }
}

impl Epl {
    /// Joins a rank to a mesh. Collective.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration; when the mesh is not one of the group's ranks; or when the option `profile.trace` is given and no trace: only
    /// `launch` writes that file.
    pub fn new(config: Config, mesh: Mesh, world: ProcessGroup, trace: Option<Trace>) -> Result<Self> {
        let cluster = Cluster::local(world.size())?;
        Self::on_cluster(config, (cluster, Device::default().autodiff()), mesh, world, trace)
    }

    /// [`new`](Self::new) where ranks are spread over several workers, and this one drives `device`. Collective.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn on_cluster(
        config: Config,
        (cluster, device): (Cluster, Device),
        mesh: Mesh,
        world: ProcessGroup,
        trace: Option<Trace>,
    ) -> Result<Self> {
        config.validate()?;
        if let (None, false) = (&trace, config.profile.trace.is_empty()) {
            return Err(Error::invalid(format!(
                "profile.trace = {:?} is written by `launch`; give a `Trace` here and write it by `profile::write_trace`, \
                 or leave the option out",
                config.profile.trace
            )));
        }
        let (given, ranks) = ([cluster.world_size(), mesh.world_size()], world.size());
        if given.iter().any(|size| *size != ranks) {
            return Err(Error::invalid(format!(
                "a group of {ranks} ranks, for a cluster of {} and a mesh of {}; make all three of the same ranks",
                given[0], given[1]
            )));
        }
        let world = match &trace {
            Some(trace) => world.traced(trace),
            None => world,
        };
        // What most models that are colocated need; others are laid out again.
        let split_axis = if config.cluster.colocate_split_and_replicate { Axis::Expert } else { Axis::Tensor };
        let context = Context::with_split_axis(world.clone(), mesh, config.train.seed, trace.clone(), split_axis)?;
        let place = Place::new(device, context);
        Ok(Self { config, cluster, world, trace, place })
    }

    /// The workers and devices that exist.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The rank's context, by the options `dist.*`. Scopes in a model may decide another: [`Built::context`].
    pub fn context(&self) -> &Context {
        self.place.context()
    }

    /// The root place of a model on this rank's device.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Builds a model: the plan is made from lazy shapes, then every parameter is drawn from (seed, path).
    ///
    /// Flex has one generator of random numbers for all threads of a process: what another thread draws meanwhile, by
    /// [`Tensor::random`](burn::tensor::Tensor::random) say, changes what parameters begin with.
    /// Collective.
    ///
    /// Where `model` opens scopes that need another mesh than the options `dist.*` give, it is called a second time, in
    /// that mesh; it must make the same model again.
    ///
    /// # Errors
    ///
    /// When the model cannot be laid out as asked, before anything is drawn.
    pub fn build<M: Segmented>(&self, model: impl FnMut(&Place) -> M) -> Result<Built<M>> {
        self.draw(self.plan(model)?)
    }

    /// Draws a model that is planned. Collective.
    ///
    /// # Errors
    ///
    /// When ranks do not agree on the model, or there is no room away from the device.
    pub fn draw<M: Segmented>(&self, planned: Planned<M>) -> Result<Built<M>> {
        let Planned { model, mut plan, place, .. } = planned;
        let stores = Stores::from_config(&self.config)?;
        let trainable: Vec<bool> = plan.records.iter().map(|record| record.trainable).collect();
        let (model, parked) = plan::draw::draw(model, &plan, place.context(), &stores, place.device())?;
        plan.complete(&model, place.context())?;
        let other =
            plan.records.iter().zip(trainable).find(|(record, before)| record.held && record.trainable != *before);
        if let Some((record, before)) = other.filter(|_| plan.parks()) {
            return Err(Error::Parameter {
                name: record.name.clone(),
                reason: format!(
                    "asks for a gradient: {before} as it was declared, and {} when it was drawn; freeze it where its layer is \
                     made, before it is drawn",
                    record.trainable
                ),
            });
        }
        Ok(Built { model, parked, stores, config: self.config.clone(), plan, place })
    }

    /// Lays a model out as [`build`](Self::build) does, and draws nothing: what it would need, of any size, in a world of
    /// any size ([`launch_dry`](crate::launch_dry)). Collective.
    ///
    /// What a layer freezes when its parameters are drawn is not known yet.
    ///
    /// # Errors
    ///
    /// When the model cannot be laid out as asked: all that is known to be in the way.
    pub fn plan<M: Segmented>(&self, mut model: impl FnMut(&Place) -> M) -> Result<Planned<M>> {
        let Laid { model, layout, owners, place } = self.lay(&mut model)?;
        let (context, config) = (place.context(), &self.config);
        let mut survey = plan::survey::survey(&model, context, &owners, Place::device(&place))?;
        let half = (config.amp.level == AmpLevel::O1).then(|| HalfPrecision::new(config.amp.dtype));
        let tiers = Tiers::from_config(config);
        let recomputes =
            config.gradient_checkpoint.r#type != CheckpointType::Off || plan::parks(config.zero.level, tiers);
        let mut refusals = Refusals::default();
        survey.check(context, config.train.allow_unseeded_layers, recomputes, half.is_some(), &mut refusals);
        survey.records.iter_mut().for_each(|record| record.half &= half.is_some());
        // Rows are not scattered.
        let is_each = config.zero.level.shards_gradients() || tiers.gradients != Tier::Device;
        if config.communication.sparse_as_dense || is_each {
            survey.records.iter_mut().for_each(|record| record.sparse = false);
        }
        let names: Vec<String> = (0..model.segments()).map(|segment| model.segment_name(segment)).collect();
        let found = self.stages(&mut survey, &names, layout.as_ref(), context, &mut refusals);
        refusals.into_result()?;
        let Staged { stages, recompute, schedule, micro_batches } = found.expect("what is not there was refused");
        let mut plan = Plan {
            mesh: context.mesh().clone(),
            placement: Placement::of(&self.cluster, context.mesh()),
            coordinate: context.coordinate(),
            layout,
            device: format!("{:?}", place.device()),
            segments: names,
            recompute,
            recompute_budget: config.gradient_checkpoint.budget,
            stages,
            schedule,
            micro_batches,
            records: survey.records,
            zero: config.zero.level,
            tiers,
            half,
            buckets: Vec::new(),
            tied: Vec::new(),
            frozen: Vec::new(),
            max_splits: config.communication.max_splits,
            exceptions: exceptions(config),
            unseeded_layers: survey.unseeded_layers,
            batch_norms: survey.batch_norms,
        };
        plan.pack(context, true);
        Ok(Planned { model, plan, place, config: config.clone() })
    }

    /// Gives the segments to stages, and says in which order a stage runs them; none where something is refused.
    fn stages(
        &self,
        survey: &mut Survey,
        names: &[String],
        layout: Option<&Layout>,
        context: &Context,
        refusals: &mut Refusals,
    ) -> Option<Staged> {
        let (config, count) = (&self.config, context.mesh().stages());
        let micro_batches = refusals.of(config.num_micro_batch(context.replicas()));
        let schedule = micro_batches.and_then(|number| refusals.of(Order::from_config(config, count, number)));
        let stages = refusals.of(plan::stages::stages(&survey.records, names.len(), count, layout, config))?;
        survey.records.iter_mut().for_each(|record| record.place(&stages, &context.coordinate()));
        if context.mesh().is_bridged() {
            refusals.of(params::record::check_bridged(&survey.records))?;
        }
        let recompute = refusals.of(plan::kept::runs(&survey.records, names, &stages, config))?;
        Some(Staged { stages, recompute, schedule: schedule?, micro_batches: micro_batches? })
    }

    /// How the scopes in a model lay it out over the ranks; none where it opens no scope. Nothing is drawn.
    ///
    /// # Errors
    ///
    /// When the scopes cannot be laid out.
    pub fn layout<M: Module>(&self, model: impl FnOnce(&Place) -> M) -> Result<Option<Layout>> {
        let place = self.place.clone();
        place.context().forget_model();
        epl_comm::catch(|| model(&place))?;
        Ok(self.resolve(place.context())?.0)
    }

    /// Makes the model in the mesh that its scopes ask for.
    fn lay<M: Module>(&self, model: &mut impl FnMut(&Place) -> M) -> Result<Laid<M>> {
        let mut place = self.place.clone();
        place.context().forget_model();
        let mut made = epl_comm::catch(|| model(&place))?;
        let (mut layout, mut owners) = self.resolve(place.context())?;
        let context = place.context();
        let other = layout.as_ref().map(|layout| (layout.mesh().clone(), layout.split_axis()));
        if let Some((mesh, axis)) = other.filter(|other| *other != (context.mesh().clone(), context.split_axis())) {
            // Its layers were made for the mesh of `dist.*`.
            drop(made);
            let (world, seed) = (self.world.clone(), self.config.train.seed);
            let context = Context::with_split_axis(world, mesh, seed, self.trace.clone(), axis)?;
            place = Place::new(place.device().clone(), context);
            made = epl_comm::catch(|| model(&place))?;
            let (again, new_owners) = self.resolve(place.context())?;
            if again != layout {
                let shown = |layout: &Option<Layout>| layout.as_ref().map_or("none".to_string(), Layout::to_string);
                return Err(Error::invalid(format!(
                    "the model opens other scopes when it is made a second time; open the same, at the place that the \
                     closure is given\nfirst: {}\nsecond: {}",
                    shown(&layout),
                    shown(&again)
                )));
            }
            (layout, owners) = (again, new_owners);
        }
        Ok(Laid { model: made, layout, owners, place })
    }

    /// What the scopes that were opened since the last time come to.
    fn resolve(&self, context: &Context) -> Result<(Option<Layout>, Owners)> {
        let (graphs, owners) = context.scopes(std::mem::take).task_graphs();
        if graphs.is_empty() {
            return Ok((None, owners));
        }
        let layout = Layout::new(graphs, &self.cluster, Arrangement::from_config(&self.config))?;
        layout.check_agrees(&self.config)?;
        for graph in 0..layout.task_graphs().len() {
            let own = owners.graphs.iter().filter(|(_, owner)| **owner == graph);
            let is_cut = |id| context.sharding(id).is_some_and(|sharding| !sharding.cuts.is_empty());
            layout.check_cut(graph, own.map(|(id, _)| is_cut(*id)))?;
        }
        Ok((Some(layout), owners))
    }
}

/// A model that was made in its mesh.
struct Laid<M> {
    model: M,
    layout: Option<Layout>,
    owners: Owners,
    place: Place,
}

/// Which stage runs what, and when.
struct Staged {
    stages: Stages,
    recompute: Vec<Range<usize>>,
    schedule: Order,
    micro_batches: usize,
}

/// The options by which the layout changes the mathematics.
fn exceptions(config: &Config) -> Vec<String> {
    let communication = &config.communication;
    let fp16 = format!("communication.fp16 = true ({}, scale {})", communication.fp16_dtype, communication.fp16_scale);
    if communication.fp16 { vec![fp16] } else { Vec::new() }
}
