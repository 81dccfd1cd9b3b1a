//! A part of a model whose forward is run again in backward, so that nothing in it is stored: for any loop.
//!
//! ```text
//!            scalars                             places
//! carry  ──▶ s ┐                            ┌──▶ tensor ──▶
//!              ├──▶ hub ════ f, no graph ═══╡                  forward
//! params ──▶ s ┘                            └──▶ tensor ──▶
//!
//!        ◀── s ┐                            ┌─── gradient ◀──
//!              ├◀── hub: f again, tracked; ◀┤                  backward
//!        ◀── s ┘    its own backward        └─── gradient ◀──
//! ```
//!
//! The hub's backward runs when those of all tensors behind it have, as Burn goes from the deepest operation to the
//! leaves; the scalars then hand the gradients on to what entered, also to parameters that are used elsewhere too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};
use epl_comm::{Recording, custom_vjp, unwind};

use crate::model::carry::{Carry, CarryMapper};
use crate::model::context::{Context, Moment, without_context};
use crate::model::generator::{self, Seeds};
use crate::model::graph::{CarryGradients, Seed, Track, Untrack, collect};
use crate::model::stateful::{Remembers, STATISTICS, stateful, take_over, undoing};

/// Why a layer without a context is refused in what is run twice.
const RUN_TWICE: &str = "`checkpoint` runs a layer twice that draws random numbers, or tells or keeps something; use \
                         `Context::checkpoint`, which lets it do the same again";

/// `f(module, carry)`, of which nothing is stored for backward but the carry: it is run again there. For a part of a model
/// in a loop of one's own, whatever the loop.
///
/// The gradients are those of its first run, to the bit where a backend computes the same the second time, as Flex does, but
/// for the order in which gradients are added of what leaves `f` in several tensors. `f` must depend on nothing but its
/// arguments, and use no other parameters than the module's. Layers of EPL, which draw random numbers and communicate, need
/// [`Context::checkpoint`].
///
/// Layers of Burn that draw do so from seeds of this call, in both runs, which are made of the generator's next numbers (outside
/// of an engine's segment they are read from the device). Other draws of `f` would be others the second time; and a thread that
/// draws by Burn's generator while `f` runs, other than in a `checkpoint` or an engine, takes numbers from it: let none.
/// Running statistics of Burn's move in the first run alone.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use epl_core::checkpoint;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(2, 2).init(&device);
/// let x = Tensor::<2>::ones([3, 2], &device).require_grad();
/// let y = checkpoint(&layer, x.clone(), |layer: &Linear, x| layer.forward(x).exp());
/// let gradients = y.sum().backward();
/// assert!(x.grad(&gradients).is_some() && layer.weight.grad(&gradients).is_some());
/// ```
///
/// After Chen, Xu, Zhang and Guestrin, *Training Deep Nets with Sublinear Memory Cost*, 2016.
///
/// # Panics
///
/// Unwinds with an `Error::Invalid` when a layer of EPL in it draws random numbers or communicates, and when `f` uses a tensor
/// that asks for a gradient and is neither in the module nor in the carry. In backward, when `f` returns another number of
/// tensors than at first.
pub fn checkpoint<M, I, O>(module: &M, carry: I, f: impl Fn(&M, I) -> O + Send + 'static) -> O
where
    M: Module + 'static,
    I: Carry + 'static,
    O: Carry,
{
    rerun(module, carry, f, None)
}

impl Context {
    /// [`checkpoint`], for layers of EPL: the second time they draw the same random numbers, and what collectives gave is
    /// given again, so that no other rank is asked.
    ///
    /// # Panics
    ///
    /// As [`checkpoint`].
    pub fn checkpoint<M, I, O>(&self, module: &M, carry: I, f: impl Fn(&M, I) -> O + Send + 'static) -> O
    where
        M: Module + 'static,
        I: Carry + 'static,
        O: Carry,
    {
        rerun(module, carry, f, Some(self.clone()))
    }
}

fn rerun<M, I, O>(module: &M, carry: I, f: impl Fn(&M, I) -> O + Send + 'static, context: Option<Context>) -> O
where
    M: Module + 'static,
    I: Carry + 'static,
    O: Carry,
{
    let Some((root, delivery)) = Seed::of(&carry).with_parameters(module).whole() else {
        // The first run of a part that is run again with a graph, where it draws from seeds of its own, too.
        return match generator::device() {
            Some(device) => Remembered::of(module, &device).drawing(|| f(module, carry)),
            None => f(module, carry),
        };
    };
    let remembered = Remembered::of(module, &root.device());
    let module = module.clone().no_grad();
    let entrance = carry.map(&mut Untrack);
    let (exit, memory) = FirstRun::of(context, || remembered.drawing(|| f(&module, entrance.clone())));
    let arrived = Arrived::default();
    let gradients = arrived.clone();
    let again = move |(), _: Tensor<1>| {
        let tracked: Vec<bool> = delivery.tracked().collect();
        let mut like = TrackLike(tracked.iter());
        let entrance = entrance.map(&mut like);
        let module = module.map(&mut like);
        let statistics = remembered.statistics(&module);
        let second = || memory.again(|| remembered.drawing(|| f(&module, entrance.clone())));
        let exit = undoing(second, || statistics.put_back(&module));
        let gradients = core::mem::take(&mut *gradients.lock().unwrap_or_else(PoisonError::into_inner));
        let seed = Seed::of(&exit);
        check_count(seed.len(), gradients.len());
        delivery.deliver(match seed.root(gradients) {
            Some(root) => collect(entrance, Some(&module), &mut root.backward()),
            None => tracked.iter().map(|_| None).collect(),
        });
        (None,)
    };
    let hub = custom_vjp((root,), |(root,)| (root, ()), again);
    exit.map(&mut Attach { hub, arrived })
}

/// What of a module's layers of Burn outlives a run, beside their parameters.
struct Remembered {
    /// Where some draw: the device's generator, and the seeds of both runs.
    draws: Option<(Device, Seeds)>,
    /// Whether some keep running statistics.
    moves: bool,
}

impl Remembered {
    fn of<M: Module>(module: &M, device: &Device) -> Self {
        let layers = stateful(module);
        let has = |what: Remembers| layers.iter().any(|(_, remembers)| *remembers == what);
        let draws = has(Remembers::Generator).then(|| (device.clone(), Seeds::of_part(device)));
        Self { draws, moves: has(Remembers::Statistics) }
    }

    fn drawing<T>(&self, f: impl FnOnce() -> T) -> T {
        match &self.draws {
            Some((device, seeds)) => generator::part(device, *seeds, f),
            None => f(),
        }
    }

    /// The running statistics as they are.
    fn statistics<M: Module>(&self, module: &M) -> Untracked {
        let mut found = Untracked::default();
        if self.moves {
            take_over(module);
            module.visit(&mut found);
        }
        found
    }
}

/// Parameters that ask for no gradient and are called as running statistics, flat.
#[derive(Default)]
struct Untracked(HashMap<ParamId, Tensor<1>>, Vec<String>);

impl Untracked {
    /// Gives a module, and all clones of it, which share their running statistics, these values.
    fn put_back<M: Module>(mut self, module: &M) {
        if !self.0.is_empty() {
            take_over(module);
            drop(module.clone().map(&mut self));
        }
    }
}

impl ModuleVisitor for Untracked {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.1.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.1.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.1.last().is_some_and(|field| STATISTICS.contains(&field.as_str())) {
            return;
        }
        let values = param.base();
        if !values.is_require_grad() {
            let values = if values.is_autodiff() { values.inner() } else { values };
            self.0.insert(param.id, values.flatten(0, D - 1));
        }
    }
}

impl ModuleMapper for Untracked {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.0.remove(&param.id) else { return param };
        param.map(|now| {
            let values = values.reshape(now.shape());
            if now.is_autodiff() { Tensor::from_inner(values) } else { values }
        })
    }
}

/// Of the tensors that leave.
fn check_count(second: usize, first: usize) {
    if second != first {
        unwind(epl_comm::Error::invalid(format!(
            "what is run again returned {first} tensors at first and {second} the second time; let it depend on nothing but \
             its arguments"
        )));
    }
}

/// What the second run needs to be like the first one.
struct FirstRun(Option<(Context, Moment, Recording)>);

impl FirstRun {
    fn of<T>(context: Option<Context>, f: impl FnOnce() -> T) -> (T, Self) {
        let Some(context) = context else { return (without_context(RUN_TWICE, f), Self(None)) };
        let moment = context.moment();
        let (value, results) = context.world().record(f);
        (value, Self(Some((context, moment, results))))
    }

    fn again<T>(self, f: impl FnOnce() -> T) -> T {
        let Some((context, moment, results)) = self.0 else { return without_context(RUN_TWICE, f) };
        let value = context.at(moment, || context.world().replay(results, f));
        value.unwrap_or_else(|error| unwind(error))
    }
}

/// The gradients of the tensors that left, as far as they have come.
type Arrived = Arc<Mutex<CarryGradients>>;

/// Puts tensors behind the hub, which then has their gradients when its backward runs.
struct Attach {
    hub: Tensor<1>,
    arrived: Arrived,
}

impl CarryMapper for Attach {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let index = arrived.len();
        arrived.push(None);
        drop(arrived);
        if !tensor.is_autodiff() {
            return tensor;
        }
        if tensor.is_tracked() {
            unwind(epl_comm::Error::invalid(
                "what is run again uses a tensor that asks for a gradient and is neither in its module nor in its carry; \
                 pass it in the carry, as one tensor of several",
            ));
        }
        let arrived = self.arrived.clone();
        let keep = move |(), gradient: Tensor<D>| {
            arrived.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(gradient.into_dispatch());
            (None,)
        };
        custom_vjp((self.hub.clone(),), |_| (tensor.inner(), ()), keep)
    }
}

/// Tracks tensors, then parameters, as leaves where those of the first run were tracked.
struct TrackLike<'a>(core::slice::Iter<'a, bool>);

impl TrackLike<'_> {
    fn next<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match self.0.next() {
            Some(true) => Track.float(tensor),
            _ => tensor,
        }
    }
}

impl CarryMapper for TrackLike<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.next(tensor)
    }
}

impl ModuleMapper for TrackLike<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| self.next(tensor))
    }
}
