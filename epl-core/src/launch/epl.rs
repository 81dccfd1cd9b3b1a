//! What a rank knows, and how it builds models.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use epl_comm::{ProcessGroup, Trace};

use super::fusion::one_block_at_a_time;
use super::plan_only::WantedPlan;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::context::{Context, WholeLayers};
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::model::whole_layers::whole_layers;
use crate::optim::OptimizerConfig;
use crate::params::init;
use crate::params::storage::StateStorage;
use crate::params::store::{ParamStore, freeze};
use crate::plan::builder::PlanBuilder;
use crate::plan::{self, EngineSettings, Plan};
use crate::probe::discover::DiscoveredModels;
use crate::probe::planned::LazyModel;
use crate::tensors::{self, AssignMap, WholeTensors};
use crate::topology::cluster::{Axis, Cluster, Mesh, Placement};
use crate::topology::layout::{Arrangement, Layout};
use crate::topology::scopes::Owners;

/// What a rank knows: its configuration, its context and its device.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, tensor::Tensor};
/// use epl_core::{Config, WithLoss, launch};
///
/// let shapes = launch(&Config::new().with("cluster.ranks", 2)?, |epl| {
///     let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
///     let built = epl.build(|at| WithLoss::new(LinearConfig::new(8, 2).init(at), loss))?;
///     Ok((epl.context().world().rank(), built.model().model.weight.dims()))
/// })?;
/// assert_eq!(shapes, [(0, [8, 2]), (1, [8, 2])]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Epl {
    config: Config,
    cluster: Cluster,
    /// All ranks.
    world: ProcessGroup,
    trace: Option<Trace>,
    place: Place,
    /// Where the program is run for its plan.
    wanted: Option<Arc<WantedPlan>>,
    /// By which models are cut that are made in it.
    discovered: Arc<DiscoveredModels>,
}

/// A model that is laid out and whose parameters have values, with its plan.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, tensor::Tensor};
/// use epl_core::{Config, WithLoss, launch};
///
/// let trained = launch(&Config::new().with("cluster.ranks", 2)?, |epl| {
///     let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
///     let built = epl.build(|at| WithLoss::new(LinearConfig::new(8, 2).init(at), loss))?;
///     let frozen = built.try_map(|mut net, _| {
///         net.model.weight = net.model.weight.set_require_grad(false); // only the bias is trained
///         Ok(net)
///     })?;
///     Ok(frozen.plan().records().iter().filter(|record| record.trainable).map(|record| record.name.clone()).collect::<Vec<_>>())
/// })?;
/// assert_eq!(trained, [["bias"], ["bias"]]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LaidOutModel<M> {
    pub(crate) params: ParamStore<M>,
    pub(crate) builder: PlanBuilder,
    pub(crate) plan: Plan,
    pub(crate) place: Place,
    /// Where the program is run for its plan: parameters have no values then.
    pub(crate) wanted: Option<Arc<WantedPlan>>,
}

impl<M: Module> LaidOutModel<M> {
    /// The model.
    pub fn model(&self) -> &M {
        self.params.model()
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
    /// offloaded parameters, all that lies elsewhere; of layers that are cut it has slices.
    pub fn into_inner(self) -> M {
        self.params.into_model()
    }

    /// Changes the model, such as by loading a checkpoint into it or freezing a part. Collective.
    ///
    /// A checkpoint brings identifiers of its own; the parameters get back those of the plan. Under ZeRO v3 `f` gets the
    /// whole model, and every rank needs the memory for it. In a program that is run for its plan `f` is not called.
    ///
    /// # Errors
    ///
    /// When `f` fails, when a parameter is no longer what the plan says, or when ranks froze different parameters.
    pub fn try_map(self, f: impl FnOnce(M, &Plan) -> Result<M>) -> Result<Self>
    where
        M: Model,
    {
        if self.wanted.is_some() {
            return Ok(self);
        }
        let Self { params, builder, plan, place, wanted } = self;
        let (context, device) = (place.context(), place.device().clone().without_autodiff());
        let (model, storage) = params.into_whole(&plan.params, context, &device)?;
        let whole = plan.unparked();
        let records = whole.records();
        let model = init::adopt(f(model, &whole)?, records)?;
        let builder = builder.with_frozen(&init::frozen(&model, records, context)?);
        let plan = builder.plan()?;
        let params = ParamStore::of(model, &plan.params, storage, &device)?;
        Ok(Self { params, builder, plan, place, wanted })
    }

    /// Fills the model from stored tensors: a folder of Hugging Face, a record of Burn, another run's parameters. Every
    /// rank reads its slices. Collective.
    ///
    /// # Errors
    ///
    /// When something is missing or left over that the map does not allow, or of another shape, before anything is read.
    pub fn assign(self, stored: &impl WholeTensors, map: &AssignMap) -> Result<Self>
    where
        M: Model,
    {
        self.try_map(|model, plan| tensors::assign(model, &plan.params.records, stored, map))
    }
}

impl<M: Model> LaidOutModel<M> {
    /// The same, laid out for an optimizer. Collective.
    ///
    /// # Errors
    ///
    /// When the plan needs more of the device than `offload.device_bytes`, the optimizer's settings cannot be read, or one of
    /// its groups has no parameter.
    pub(crate) fn for_optimizer<O: OptimizerConfig>(self, optimizer: &O, settings: EngineSettings) -> Result<Self> {
        let Self { params, builder, plan: before, place, wanted } = self;
        let (builder, plan) = builder.for_optimizer(optimizer, settings)?;
        let records = || before.records().iter().zip(plan.records());
        if records().all(|(before, record)| before.trainable == record.trainable) {
            let params = params.recut(&before.params, &plan.params, place.context())?;
            return Ok(Self { params, builder, plan, place, wanted });
        }
        // Its groups freeze some: the units are others.
        let device = place.device().clone().without_autodiff();
        let (model, storage) = params.into_whole(&before.params, place.context(), &device)?;
        let model = freeze(model, before.records(), builder.frozen_by_groups());
        let params = ParamStore::of(model, &plan.params, storage, &device)?;
        Ok(Self { params, builder, plan, place, wanted })
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
        Self::wanting(config, (cluster, device), mesh, world, trace, WantedPlan::of_process()?)
    }

    /// [`on_cluster`](Self::on_cluster), run for a plan or not.
    pub(super) fn wanting(
        config: Config,
        (cluster, device): (Cluster, Device),
        mesh: Mesh,
        world: ProcessGroup,
        trace: Option<Trace>,
        wanted: Option<Arc<WantedPlan>>,
    ) -> Result<Self> {
        config.validate()?;
        one_block_at_a_time(&device)?;
        if let (None, false) = (&trace, config.profile.trace.is_empty()) {
            return Err(Error::invalid(format!(
                "profile.trace = {:?} is written by `launch`; give a `Trace` here and write it by `probe::write_trace`, \
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
        Self::joined(config, (cluster, device), mesh, world, trace, wanted)
    }

    /// A rank of a world whose calls are traced already, if they are. Collective.
    pub(super) fn joined(
        config: Config,
        (cluster, device): (Cluster, Device),
        mesh: Mesh,
        world: ProcessGroup,
        trace: Option<Trace>,
        wanted: Option<Arc<WantedPlan>>,
    ) -> Result<Self> {
        let mesh = mesh.with_row_weights(config.io.row_weights.clone());
        // What most models that are colocated need; others are laid out again.
        let split_axis = if config.cluster.colocate_split_and_replicate { Axis::Expert } else { Axis::Tensor };
        let (seed, splits) =
            (config.train.seed, (split_axis, WholeLayers::new(config.dist.whole_layers.as_deref(), &world)?));
        let context = Context::with_splits(world.clone(), mesh, seed, trace.clone(), splits)?;
        let place = Place::new(device, context);
        Ok(Self { config, cluster, world, trace, place, wanted, discovered: Arc::default() })
    }

    /// What the program is run for, where that is its plan.
    pub(crate) fn wanted(&self) -> Option<&Arc<WantedPlan>> {
        self.wanted.as_ref()
    }

    /// The same rank, whose engines are not those that a plan is wanted of.
    pub(crate) fn unwanted(self) -> Self {
        Self { wanted: None, ..self }
    }

    /// What was found of the model that is made in it.
    pub(crate) fn discovered(&self) -> &Arc<DiscoveredModels> {
        &self.discovered
    }

    /// The same rank, in which models are cut so.
    pub(crate) fn with_discovered(self, discovered: Arc<DiscoveredModels>) -> Self {
        Self { discovered, ..self }
    }

    /// The workers and devices that exist.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// All ranks.
    pub(crate) fn world(&self) -> &ProcessGroup {
        &self.world
    }

    /// What records what this rank does.
    pub(super) fn trace(&self) -> Option<Trace> {
        self.trace.clone()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The rank's context, by the options `dist.*`. Scopes in a model may decide another: [`LaidOutModel::context`].
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
    pub fn build<M: Model>(&self, model: impl FnMut(&Place) -> M) -> Result<LaidOutModel<M>> {
        self.draw(self.plan(model)?)
    }

    /// Draws a model that is planned; in a program that is run for its plan nothing is drawn. Collective.
    ///
    /// # Errors
    ///
    /// When ranks do not agree on the model, or there is no room away from the device.
    pub fn draw<M: Model>(&self, planned: LazyModel<M>) -> Result<LaidOutModel<M>> {
        let LazyModel { model, builder, plan, place } = planned;
        let (context, storage) = (place.context(), StateStorage::from_config(&builder.config)?);
        if self.wanted.is_some() {
            let params = ParamStore::undrawn(model, storage);
            return Ok(LaidOutModel { params, builder, plan, place, wanted: self.wanted.clone() });
        }
        let mut params = init::draw(model, &plan.params, context, storage, place.device())?;
        params.freeze(plan.records(), builder.frozen_by_groups());
        let builder = builder.with_frozen(&init::frozen(params.model(), plan.records(), context)?);
        let drawn = builder.plan()?;
        plan.check_drawn(&drawn)?;
        Ok(LaidOutModel { params, builder, plan: drawn, place, wanted: None })
    }

    /// Lays a model out as [`build`](Self::build) does, and draws nothing: what it would need, of any size, in a world of
    /// any size ([`launch_dry`](crate::launch_dry)). Collective.
    ///
    /// What a layer freezes when its parameters are drawn is not known yet.
    ///
    /// # Errors
    ///
    /// When the model cannot be laid out as asked: all that is known to be in the way.
    pub fn plan<M: Model>(&self, mut model: impl FnMut(&Place) -> M) -> Result<LazyModel<M>> {
        self.planned(&mut model)
    }

    /// [`plan`](Self::plan), compiled once for a model and not again for each closure that makes it.
    fn planned<M: Model>(&self, model: &mut dyn FnMut(&Place) -> M) -> Result<LazyModel<M>> {
        let planned = self.plan_uncut(model)?;
        let ranks = planned.context().tensor().size();
        match self.discovered.get(&ranks) {
            Some(Ok(found)) => planned.cut_as(found),
            Some(Err(why)) => Err(Error::invalid(why.clone())),
            None if self.config.auto.discover && ranks > 1 => Err(Error::invalid(format!(
                "auto.discover = true looks at the model on rows of the data, for the {ranks} tensor ranks that there are, and nobody \
                 did; call `Epl::auto_parallel`, or `Epl::discover`, and build in the rank that it returns, or leave the option out \
                 and call `LazyModel::discover`"
            ))),
            None => Ok(planned),
        }
    }

    /// The same, cut by what its layers say alone.
    pub(crate) fn plan_uncut<M: Model>(&self, model: &mut dyn FnMut(&Place) -> M) -> Result<LazyModel<M>> {
        if self.config.searches() {
            return Err(Error::invalid(
                "auto.auto_parallel = true searches a layout, which needs a batch to measure with; call `Epl::auto_parallel` and \
                 build in the rank that it returns, or give pipeline.num_stages, so that stages alone are chosen",
            ));
        }
        let Laid { model, layout, owners, place } = self.lay(model)?;
        let (context, config) = (place.context(), &self.config);
        let survey = plan::survey::survey(&model, &place, &owners)?;
        let (at, placement) = ((context.mesh(), context.world().rank()), Placement::of(&self.cluster, context.mesh()));
        let segments = (0..model.segments()).map(|segment| model.segment_name(segment)).collect();
        let builder = PlanBuilder::new(config, at, placement, survey)
            .with_layout(layout)
            .with_names(format!("{:?}", place.device()), segments);
        let plan = builder.plan()?;
        let builder = builder.with_order(plan.schedule.clone());
        Ok(LazyModel { model, plan, builder, place })
    }

    /// How the scopes in a model lay it out over the ranks; none where it opens no scope. Nothing is drawn.
    ///
    /// ```
    /// use burn::{module::Module, nn::{Linear, LinearConfig}};
    /// use epl_core::{Config, Place, launch_dry};
    ///
    /// #[derive(Module, Debug)]
    /// struct Net { encoder: Linear, decoder: Linear }
    ///
    /// let net = |at: &Place| Net {
    ///     encoder: at.replicate(1, |at| LinearConfig::new(8, 8).init(at)),
    ///     decoder: at.replicate(1, |at| LinearConfig::new(8, 8).init(at)),
    /// };
    /// let (layout, _) = launch_dry(&Config::new().with("cluster.ranks", 4)?, 0, |epl| epl.layout(net))?;
    /// let layout = layout.expect("it opens scopes");
    /// assert_eq!((layout.stages(), layout.replicas()), (2, 2));
    /// println!("{layout}");
    /// # Ok::<_, epl_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the scopes cannot be laid out.
    pub fn layout<M: Module>(&self, model: impl FnOnce(&Place) -> M) -> Result<Option<Layout>> {
        let place = self.place.clone();
        place.build().forget();
        let made = epl_comm::catch(|| place.enter(model))?;
        Ok(self.resolve(&place, &made)?.0)
    }

    /// Makes the model in the mesh that its scopes ask for.
    fn lay<M: Module>(&self, model: &mut dyn FnMut(&Place) -> M) -> Result<Laid<M>> {
        let mut place = self.place.clone();
        place.build().forget();
        let mut made = epl_comm::catch(|| place.enter(&mut *model))?;
        let (mut layout, mut owners) = self.resolve(&place, &made)?;
        let context = place.context();
        let weighted = |layout: &Layout| layout.mesh().clone().with_row_weights(self.config.io.row_weights.clone());
        let other = layout.as_ref().map(|layout| (weighted(layout), layout.split_axis()));
        if let Some((mesh, axis)) = other.filter(|other| *other != (context.mesh().clone(), context.split_axis())) {
            // Its layers were made for the mesh of `dist.*`.
            drop(made);
            let (world, seed) = (self.world.clone(), self.config.train.seed);
            let splits = (axis, WholeLayers::new(self.config.dist.whole_layers.as_deref(), &world)?);
            let context = Context::with_splits(world, mesh, seed, self.trace.clone(), splits)?;
            place = Place::new(place.device().clone(), context);
            made = epl_comm::catch(|| place.enter(&mut *model))?;
            let (again, new_owners) = self.resolve(&place, &made)?;
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

    /// What the scopes come to that were opened while a model was made at a place.
    fn resolve<M: Module>(&self, place: &Place, made: &M) -> Result<(Option<Layout>, Owners)> {
        let build = place.build();
        let (graphs, owners) = build.scopes(std::mem::take).task_graphs();
        if graphs.is_empty() {
            return Ok((None, owners));
        }
        let layout = Layout::new(graphs, &self.cluster, Arrangement::from_config(&self.config))?;
        layout.check_agrees(&self.config)?;
        for graph in 0..layout.task_graphs().len() {
            let own = owners.graphs.iter().filter(|(_, owner)| **owner == graph);
            // A model that is made for the axis of the options is made again for that of its scopes.
            let axes = [place.context().split_axis(), layout.split_axis()];
            let is_cut = |id| axes.iter().any(|axis| build.is_cut_over(id, *axis));
            layout.check_cut(graph, own.map(|(id, _)| is_cut(*id)), || {
                let shape = |id| build.sharding(id).map(|declared| declared.shape);
                whole_layers(made, |id| owners.is_in(id, graph), shape)
            })?;
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
