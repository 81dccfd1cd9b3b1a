//! Where one graph ends and another begins: tensors taken out of their graph, and gradients handed over.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Gradients, Tensor};
use epl_comm::custom_vjp;

use crate::model::carry::{Carry, CarryMapper};
use crate::model::context::Context;

/// The gradients of a carry's tensors, in the carry's order.
pub(crate) type CarryGradients = Vec<Option<DispatchTensor>>;

/// A place for a gradient that comes later than its graph.
type Later = Arc<Mutex<Option<DispatchTensor>>>;

/// Takes a tensor out of its graph; it stays on the device with autodiff.
pub(crate) struct Untrack;

impl CarryMapper for Untrack {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match tensor.is_autodiff() {
            // A leaf stays tracked when it is detached.
            true => tensor.detach().set_require_grad(false),
            false => tensor,
        }
    }
}

/// Detaches a tensor and tracks it as a leaf of the next graph.
pub(crate) struct Track;

impl CarryMapper for Track {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match tensor.is_autodiff() {
            true => tensor.detach().require_grad(),
            false => tensor,
        }
    }
}

/// Takes the gradients of a carry's leaves, then of a module's parameters.
pub(crate) fn collect<C: Carry, M: Module>(leaves: C, module: Option<&M>, gradients: &mut Gradients) -> CarryGradients {
    let mut collect = Collect { gradients, found: CarryGradients::new() };
    let _ = leaves.map(&mut collect);
    if let Some(module) = module {
        module.visit(&mut collect);
    }
    collect.found
}

struct Collect<'a> {
    gradients: &'a mut Gradients,
    found: CarryGradients,
}

impl Collect<'_> {
    fn take<const D: usize>(&mut self, tensor: &Tensor<D>) {
        let gradient = if tensor.is_autodiff() { tensor.grad_remove(self.gradients) } else { None };
        self.found.push(gradient.map(Tensor::into_dispatch));
    }
}

impl CarryMapper for Collect<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.take(&tensor);
        tensor
    }
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.take(&param.base());
    }
}

/// The numbers of a table's rows whose gradient is not zero; one that holds a NaN is not.
pub(crate) fn rows_not_zero(gradient: Tensor<2>, context: &Context) -> Vec<i64> {
    let used = context.read(gradient.not_equal_elem(0).any_dim(1));
    used.iter::<bool>().enumerate().filter(|(_, used)| *used).map(|(row, _)| row as i64).collect()
}

/// Scalars whose backward hands gradients, which come later, to tensors. The tensors may be dropped until then.
pub(crate) struct Seed(Vec<Option<SeedScalar>>);

/// None for a tensor that is not tracked.
struct SeedScalar {
    root: Tensor<1>,
    /// What its backward hands on.
    gradient: Later,
}

/// Where the gradients of some tensors are put, before their scalars go backward.
pub(crate) struct Delivery(Vec<Option<Later>>);

impl Seed {
    /// The scalars of a carry's tensors.
    pub fn of<C: Carry>(carry: &C) -> Self {
        let mut seed = Self(Vec::new());
        let _ = carry.clone().map(&mut seed);
        seed
    }

    /// Adds the scalars of a module's parameters, in the module's order.
    pub fn with_parameters<M: Module>(mut self, module: &M) -> Self {
        module.visit(&mut self);
        self
    }

    /// How many tensors it is of.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The sum of the scalars of those tensors that have a gradient; none if no tracked one has.
    pub fn root(self, gradients: CarryGradients) -> Option<Tensor<1>> {
        assert!(
            gradients.is_empty() || gradients.len() == self.0.len(),
            "a carry has as many tensors at its exit as at the next entrance"
        );
        let seeded = |(scalar, gradient): (Option<SeedScalar>, Option<DispatchTensor>)| {
            let (scalar, gradient) = scalar.zip(gradient)?;
            put(&scalar.gradient, Some(gradient));
            Some(scalar.root)
        };
        self.0.into_iter().zip(gradients).filter_map(seeded).reduce(|sum, root| sum + root)
    }

    /// The sum of all scalars, and where the gradients are to be put; none where nothing is tracked.
    pub fn whole(self) -> Option<(Tensor<1>, Delivery)> {
        let (roots, places): (Vec<_>, Vec<_>) =
            self.0.into_iter().map(|scalar| scalar.map(|scalar| (scalar.root, scalar.gradient)).unzip()).unzip();
        let root = roots.into_iter().flatten().reduce(|sum, root| sum + root)?;
        Some((root, Delivery(places)))
    }

    fn add<const D: usize>(&mut self, tensor: &Tensor<D>) {
        self.0.push(tensor.is_tracked().then(|| SeedScalar::of(tensor.clone())));
    }
}

impl CarryMapper for Seed {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.add(&tensor);
        tensor
    }
}

impl ModuleVisitor for Seed {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(&param.base());
    }
}

impl Delivery {
    /// Which of the tensors are tracked.
    pub fn tracked(&self) -> impl Iterator<Item = bool> + '_ {
        self.0.iter().map(Option::is_some)
    }

    /// Puts the gradients where they belong, in the order of the tensors.
    pub fn deliver(self, gradients: CarryGradients) {
        assert_eq!(self.0.len(), gradients.len(), "one gradient, or none, for each tensor");
        self.0.iter().zip(gradients).for_each(|(place, gradient)| {
            if let Some(place) = place {
                put(place, gradient);
            }
        });
    }
}

impl SeedScalar {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        let gradient = Later::default();
        let (shape, place) = (tensor.shape(), gradient.clone());
        let root = custom_vjp(
            (tensor,),
            // Of one type, whatever the tensors' types are: scalars are added.
            |(tensor,)| (Tensor::<1>::zeros([1], (&tensor.device(), DType::F32)), ()),
            // Another stage sends a gradient in a row.
            move |(), _| (take(&place).map(|gradient| Tensor::<D>::from_dispatch(gradient).reshape(shape)),),
        );
        Self { root, gradient }
    }
}

/// Puts a gradient where it is taken from.
fn put(place: &Later, gradient: Option<DispatchTensor>) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = gradient;
}

/// Takes the gradient that was put there.
fn take(place: &Later) -> Option<DispatchTensor> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}
