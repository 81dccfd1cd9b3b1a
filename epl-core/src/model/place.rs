//! Where a part of the model goes: a device, the rank's context and the part's path.

use core::cell::RefCell;
use core::ops::Deref;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use epl_comm::shard_range;

use crate::model::context::{BuildContext, Context, Sharding, SplitScope};
use crate::model::generator;
use crate::stable_hash::stable_hash;
use crate::topology::cluster::Axis;
use crate::topology::layout::{Strategy, StrategyKind};

/// Where a part of the model goes.
///
/// It derefs to Burn's [`Device`], so that it can be handed to the `init` of any Burn layer; the layers of
/// `epl-modules` also read the groups and the path from it. The closure that makes a model gets the root, here called `at` or
/// `place`, as do the closures of scopes.
///
/// A layer may be made at the root itself. At [`child("encoder")`](Self::child) an error names it by that path, and its masks
/// stay what they are when other layers are made before it: layers that draw at one path are told apart by their order. Layers
/// whose `init` takes no place, such as the Dropout of `epl::nn`, are at the path of the closure that makes them:
/// `at.child("encoder").enter(Encoder::new)`. A parameter has the name that its field has in the module, whatever the path.
#[derive(Clone, Debug)]
pub struct Place {
    device: Device,
    context: Context,
    /// What the layers of its model declare.
    build: BuildContext,
    path: String,
    /// The path of the layer that this is a part of, where it takes and gives whole tensors.
    self_contained_in: Option<String>,
}

thread_local! {
    /// The places whose parts are being made on this thread, the innermost last.
    static ENTERED: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

impl Deref for Place {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl Place {
    /// The root of a model on a device.
    pub(crate) fn new(device: Device, context: Context) -> Self {
        Self { device, context, build: BuildContext::default(), path: String::new(), self_contained_in: None }
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// What the layers of its model declare.
    pub(crate) fn build(&self) -> &BuildContext {
        &self.build
    }

    /// The device of this part.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The path of this part, such as `encoder.layers.0`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The place of a part of this part.
    pub fn child(&self, name: &str) -> Place {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Place { path, ..self.clone() }
    }

    /// The place of a layer that takes and gives whole tensors, and sends within itself what its slices need, such as attention over
    /// heads with its four products: the option `dist.whole_layers` leaves it whole on each tensor rank, where that names this path,
    /// and a search may. What is made at other places is divided always, as what is beside it counts on its slices.
    ///
    /// ```
    /// # use burn::module::{Module, Param};
    /// # use burn::nn::Initializer;
    /// # use burn::tensor::Tensor;
    /// # use epl_core::{Axis, Config, Context, Place, launch};
    /// #[derive(Module, Debug)]
    /// struct Scale {
    ///     features: Param<Tensor<1>>,
    ///     #[module(skip)]
    ///     context: Context, // its tensor group is this rank alone where the layer is whole
    /// }
    ///
    /// fn scale(place: &Place) -> Scale {
    ///     let place = place.self_contained();
    ///     let features = place.split_param([6], &[(Axis::Tensor, 0)], Initializer::Ones);
    ///     Scale { features, context: place.context().clone() }
    /// }
    ///
    /// let config = Config::new().with("dist.tensor_parallel_size", 2)?.with("dist.whole_layers", vec!["second"])?;
    /// let held = launch(&config, |epl| {
    ///     let of = |name| scale(&epl.place().child(name));
    ///     Ok(["first", "second"].map(of).map(|scale| (scale.features.dims(), scale.context.tensor().size())))
    /// })?;
    /// assert_eq!(held[0], [([3], 2), ([6], 1)]);
    /// # Ok::<_, epl_core::Error>(())
    /// ```
    #[must_use]
    pub fn self_contained(&self) -> Place {
        if self.self_contained_in.is_some() {
            // The layer that it is a part of is whole or divided with all its parts.
            return self.clone();
        }
        let part = match self.context.part() {
            SplitScope::Mesh if self.context.whole_layers().covers(&self.path) => SplitScope::Whole,
            part => part,
        };
        Place { self_contained_in: Some(self.path.clone()), ..self.of_part(part) }
    }

    /// The same place, in a part of the model.
    fn of_part(&self, part: SplitScope) -> Place {
        Place { context: self.context.of_part(part), ..self.clone() }
    }

    /// Makes a part of the model whose layers may ask for this place by [`current`](Self::current): the closures that
    /// [`Epl::build`](crate::Epl::build) and the scopes are given run so.
    pub fn enter<M>(&self, part: impl FnOnce(&Place) -> M) -> M {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                ENTERED.with_borrow_mut(|entered| entered.pop());
            }
        }
        ENTERED.with_borrow_mut(|entered| entered.push(self.clone()));
        let _leave = Leave;
        part(self)
    }

    /// The place of the innermost closure that makes a part of a model on this thread; `None` outside. For layers whose
    /// constructors have no argument in Burn, such as Dropout's.
    pub fn current() -> Option<Place> {
        ENTERED.with_borrow(|entered| entered.last().cloned())
    }

    /// Makes a part of the model in a `replicate` scope: each of so many devices holds it whole, and they divide the
    /// micro-batch among them.
    ///
    /// # Errors
    ///
    /// As [`scope`](Self::scope).
    pub fn replicate<M: Module>(&self, devices: usize, part: impl FnOnce(&Place) -> M) -> M {
        self.scope(Strategy::replicate(devices), part)
    }

    /// Makes a part of the model in a `split` scope: each of so many devices holds a slice of its split layers. Other layers
    /// in it, such as a norm, are whole on each.
    ///
    /// # Errors
    ///
    /// As [`scope`](Self::scope); when the model is laid out, also where no parameter of the part is cut.
    pub fn split<M: Module>(&self, devices: usize, part: impl FnOnce(&Place) -> M) -> M {
        self.scope(Strategy::split(devices), part)
    }

    /// Makes a part of the model in a scope of its own: one task graph. It may be any Burn module; several are one as a tuple.
    ///
    /// Several are pipeline stages, each on devices of its own, unless `cluster.colocate_split_and_replicate` is set. They
    /// may have different numbers of devices: then the first dim of every tensor that crosses counts the rows.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use epl_core::{Place, Strategy};
    /// #[derive(Module, Debug)]
    /// struct Net { encoder: Linear, decoder: Linear }
    ///
    /// fn net(at: &Place) -> Net {
    ///     Net {
    ///         encoder: at.scope(Strategy::replicate(1).named("encoder"), |at| LinearConfig::new(8, 8).init(at)),
    ///         decoder: at.replicate(1, |at| LinearConfig::new(8, 8).init(at)),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Unwinds with an error in an open scope, as strategies do not nest, and when another scope has the same name.
    pub fn scope<M: Module>(&self, strategy: Strategy, part: impl FnOnce(&Place) -> M) -> M {
        let place = self.of_part(self.part_of(strategy.kind));
        let number = self.open(strategy, false);
        let part = place.enter(part);
        self.build.scopes(|scopes| scopes.close(number, &part));
        part
    }

    /// Makes a part of the model under a strategy for everything in it that is in no scope. A second one, beside the
    /// first or inside it, is another task graph.
    ///
    /// # Errors
    ///
    /// As [`scope`](Self::scope); scopes inside are allowed.
    pub fn default_strategy<M: Module>(&self, strategy: Strategy, part: impl FnOnce(&Place) -> M) -> M {
        let place = self.of_part(self.part_of(strategy.kind));
        let number = self.open(strategy, true);
        let part = place.enter(part);
        self.build.scopes(|scopes| scopes.close(number, &part));
        part
    }

    /// Makes a layer of a model whose layers are spread over pipeline stages by their numbers, as LiBai does: from 0, and
    /// −1 for what is on the last stage, such as a head. Of layers inside others the innermost number counts.
    ///
    /// How many there are is `dist.pipeline_num_layers`, or the highest number and one; they are spread evenly, or as
    /// `dist.custom_pipeline_stage_id` says.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use epl_core::Place;
    /// #[derive(Module, Debug)]
    /// struct Net { layers: Vec<Linear>, head: Linear }
    ///
    /// fn net(at: &Place) -> Net {
    ///     let layer = |index| at.with_layer_idx(index, |at| LinearConfig::new(8, 8).init(at));
    ///     Net {
    ///         layers: (0..12).map(layer).collect(),
    ///         head: at.with_layer_idx(-1, |at| LinearConfig::new(8, 1).init(at)),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the number is below −1.
    pub fn with_layer_idx<M: Module>(&self, index: isize, layer: impl FnOnce(&Place) -> M) -> M {
        if index < -1 {
            refuse(format!("layer {index}: layers are numbered from 0, and -1 is the last stage; give one of these"));
        }
        let layer = self.enter(layer);
        self.build.scopes(|scopes| scopes.number(index, &layer));
        layer
    }

    fn part_of(&self, kind: StrategyKind) -> SplitScope {
        match (kind, self.context.split_axis()) {
            (StrategyKind::Replicate, _) | (StrategyKind::Split, Axis::Tensor) => SplitScope::Mesh,
            (StrategyKind::Split, _) => SplitScope::Colocated { gathered: false },
        }
    }

    /// The number of the new scope.
    fn open(&self, strategy: Strategy, is_default: bool) -> usize {
        match self.build.scopes(|scopes| scopes.open(strategy, is_default)) {
            Ok(number) => number,
            Err(error) => refuse(error.to_string()),
        }
    }

    /// The place of what divides its work over the mesh by itself, such as experts, wherever it stands.
    ///
    /// # Errors
    ///
    /// Unwinds with an error behind a bridge, where each rank would do the work of all.
    #[must_use]
    pub fn on_mesh(&self) -> Place {
        if self.is_behind_bridge() {
            refuse(format!("{}: it takes the rows of its own rank; make it before the bridge", self.path));
        }
        match self.context.part() {
            SplitScope::Whole => self.clone(),
            _ => self.of_part(SplitScope::Mesh),
        }
    }

    /// Makes the layers behind a bridge, which get the rows of all ranks of the replica. Where these run the same rows
    /// anyway, it is this place.
    ///
    /// Their input must be gathered over [`Context::tensor`]; what they compute counts once for all these ranks.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a parameter is held whole: its gradient would count several times.
    pub fn behind_bridge<M: Module>(&self, layers: impl FnOnce(&Place) -> M) -> M {
        let part = match self.context.part() {
            SplitScope::Colocated { .. } => SplitScope::Colocated { gathered: true },
            part => part,
        };
        let layers = self.of_part(part).enter(layers);
        if part != SplitScope::Mesh && self.context.tensor().size() > 1 {
            let mut whole = FindWhole { build: &self.build, found: false };
            layers.visit(&mut whole);
            if whole.found {
                self.refuse_whole();
            }
        }
        layers
    }

    /// Whether the rows of several ranks have been gathered for the layers of this place.
    pub fn is_behind_bridge(&self) -> bool {
        self.context.part() == SplitScope::Colocated { gathered: true }
    }

    fn refuse_whole(&self) -> ! {
        refuse(format!(
            "{}: behind a bridge all {} ranks of the `split` scope run the same rows, and a parameter that each holds \
             whole would count them several times: divide it (a row split: without its bias), or make it before the \
             bridge",
            self.name(),
            self.context.tensor().size()
        ))
    }

    fn name(&self) -> &str {
        if self.path.is_empty() { "a layer" } else { &self.path }
    }

    /// Refuses a parameter that the layout would make wrong.
    fn check_part(&self, cuts: &[(Axis, usize)]) {
        let is_cut = cuts.iter().any(|(axis, _)| *axis == Axis::Tensor);
        match self.context.part() {
            _ if self.context.tensor().size() == 1 => {}
            SplitScope::Colocated { gathered: false } if is_cut => refuse(format!(
                "{}: a `split` scope is colocated with replicated parts on {} ranks, which run rows of their own, and a \
                 split layer needs the same rows on all: use SplitClassifier, or SplitLinear or SplitConv2d behind a Bridge; \
                 layers of epl::nn take whole tensors and do not fit there",
                self.name(),
                self.context.tensor().size()
            )),
            SplitScope::Colocated { gathered: true } if !is_cut => self.refuse_whole(),
            _ => {}
        }
    }

    /// The cuts of a parameter of this part: where it is whole, none over the tensor axis.
    fn cuts_here(&self, cuts: &[(Axis, usize)]) -> Vec<(Axis, usize)> {
        let (over_tensor, others): (Vec<_>, Vec<_>) = cuts.iter().partition(|(axis, _)| *axis == Axis::Tensor);
        if let (Some(layer), false) = (&self.self_contained_in, over_tensor.is_empty()) {
            self.build.declare_self_contained(layer);
        }
        if self.context.part() == SplitScope::Whole { others } else { cuts.to_vec() }
    }

    /// Declares that mixed precision leaves the parameters of this part, or this one parameter, as they are.
    ///
    /// A segment all of whose parameters are left computes in f32, and what enters and leaves it is cast, so that any layer of
    /// Burn may be in it. Beside parameters in 16 bits, the layer must bring what it computes with these to their type, and the
    /// result back to that of its input. The option `amp.full_precision`, which names parameters whose layers know nothing of
    /// it, has the whole segment of one compute in f32, but for layers of EPL.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::Tensor;
    /// # use epl_core::{Chain, Place};
    /// #[derive(Module, Debug)]
    /// struct Net { body: Linear, head: Linear }
    ///
    /// fn net(at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
    ///     let body = LinearConfig::new(8, 8).init(at);
    ///     let head = at.full_precision(LinearConfig::new(8, 2).init(at));
    ///     Chain::of(Net { body, head })
    ///         .first(&["body"], |net: &Net, rows: &Tensor<2>| net.body.forward(rows.clone())) // in 16 bits
    ///         .then(&["head"], |net, hidden, _| net.head.forward(hidden))                     // in f32
    ///         .mean_loss(|_, outputs, _| outputs.powi_scalar(2).mean())
    /// }
    /// ```
    pub fn full_precision<M: Module>(&self, part: M) -> M {
        part.visit(&mut Keep(&self.build));
        part
    }

    /// Declares that a layer takes something over all rows of a micro-batch, of all replicas, such as the statistics of a batch norm:
    /// with another number of micro-batches a step computes something else. A search leaves that number as it is, and where it is not
    /// one, also the number of replicas, as it decides which rows these are; a plan of several names what was declared.
    ///
    /// ```
    /// # use epl_core::Place;
    /// # fn init(place: &Place) {
    /// place.declare_over_micro_batch("the statistics of batch norms");
    /// # }
    /// ```
    pub fn declare_over_micro_batch(&self, what: &'static str) {
        self.build.declare_over_micro_batch(what);
    }

    /// Declares that a layer takes something over the rows that one replica has of a micro-batch, without the others', as Burn's own
    /// batch norm takes its statistics: with another number of replicas, too, a step computes something else, and a search leaves that
    /// number as it is.
    pub fn declare_over_replica(&self, what: &'static str) {
        self.build.declare_over_replica(what);
    }

    /// The identity of a layer for random masks: the same in every layout, different for any two layers.
    pub fn layer_key(&self, kind: &str) -> u64 {
        let path = format!("{}/{kind}", self.path);
        let number = self.build.layer_number(&path);
        stable_hash(&(path, number))
    }

    /// A number for the path of this part: the same in every layout and at every call.
    pub fn path_key(&self) -> u64 {
        stable_hash(&("path", &self.path))
    }

    /// A parameter that every rank holds whole.
    ///
    /// Its values come from (seed, path in the module), whatever the layout.
    pub fn param<const D: usize>(&self, shape: [usize; D], initializer: Initializer) -> Param<Tensor<D>> {
        self.split_param(shape, &[], initializer)
    }

    /// A parameter of which this rank holds a slice: every `(axis, dim)` cuts `dim` over the group of `axis`.
    ///
    /// It is drawn whole from (seed, path in the module) and cut at once, by [`shard_range`]. `shape` is the
    /// whole shape. Fans are read from the last two dims, or from the only one.
    ///
    /// ```
    /// use burn::{module::{Module, Param}, nn::Initializer, tensor::Tensor};
    /// use epl_core::{Axis, Place, testing};
    ///
    /// /// A scale of each feature, of which a rank of the tensor axis holds some.
    /// #[derive(Module, Debug)]
    /// struct Scale { features: Param<Tensor<1>> }
    ///
    /// fn scale(features: usize, place: &Place) -> Scale {
    ///     Scale { features: place.split_param([features], &[(Axis::Tensor, 0)], Initializer::Ones) }
    /// }
    ///
    /// let held = testing::run((1, 2, 1), |epl| Ok(scale(5, epl.place()).features.dims()));
    /// assert_eq!(held, [[3], [2]]);
    /// ```
    pub fn split_param<const D: usize>(
        &self,
        shape: [usize; D],
        cuts: &[(Axis, usize)],
        initializer: Initializer,
    ) -> Param<Tensor<D>> {
        let fans = match D {
            0 => (1, 1),
            1 => (shape[0], shape[0]),
            _ => (shape[D - 2], shape[D - 1]),
        };
        self.split_param_with_fans(shape, cuts, initializer, fans)
    }

    /// [`split_param`](Self::split_param) with the fan-in and fan-out that the initializer is to assume.
    pub fn split_param_with_fans<const D: usize>(
        &self,
        shape: [usize; D],
        cuts: &[(Axis, usize)],
        initializer: Initializer,
        (fan_in, fan_out): (usize, usize),
    ) -> Param<Tensor<D>> {
        if let Some((axis, _)) = cuts.iter().find(|(axis, _)| !matches!(axis, Axis::Tensor | Axis::Expert)) {
            epl_comm::unwind(epl_comm::Error::invalid(format!(
                "a parameter of `{}` is to be divided over the {axis} axis; layers divide over tensor or expert",
                self.path
            )));
        }
        let cuts = self.cuts_here(cuts);
        self.check_part(&cuts);
        let mut ranges = shape.map(|extent| 0..extent);
        for &(axis, dim) in &cuts {
            let group = self.context.axis(axis);
            ranges[dim] = shard_range(shape[dim], group.size(), group.rank());
        }
        let mine = ranges.clone().map(|range| range.len());
        let whole_shape = shape;
        let draw = move |device: &Device, require_grad: bool| {
            let plain = device.clone().without_autodiff();
            // A layer that no model has is drawn at its first use, beside what other threads draw from their seeds.
            let data = generator::held(|| {
                let whole = initializer.init_with::<D, _>(whole_shape, Some(fan_in), Some(fan_out), &plain);
                let whole = whole.into_value().inner();
                // Through the host, so that the slice does not keep the whole alive.
                if mine == whole_shape { whole.into_data() } else { whole.slice(ranges).into_data() }
            });
            Tensor::from_data(data, device).set_require_grad(require_grad)
        };
        let id = ParamId::new();
        let cuts = cuts.iter().map(|(axis, dim)| (self.context.meant(*axis), *dim)).collect();
        self.build.declare_sharding(id, Sharding { path: self.path.clone(), shape: shape.to_vec(), cuts });
        Param::uninitialized(id, draw, self.device.clone(), true, mine.into())
    }
}

/// Declares parameters as those that stay in full precision.
struct Keep<'a>(&'a BuildContext);

impl ModuleVisitor for Keep<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.keep_full_precision(param.id);
    }
}

/// Looks for a parameter that no layer declared as divided over the tensor axis of its part.
struct FindWhole<'a> {
    build: &'a BuildContext,
    found: bool,
}

impl ModuleVisitor for FindWhole<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let sharding = self.build.sharding(param.id);
        self.found |= sharding.is_none_or(|sharding| sharding.cuts.is_empty());
    }
}

#[cold]
fn refuse(message: String) -> ! {
    epl_comm::unwind(epl_comm::Error::invalid(message))
}
