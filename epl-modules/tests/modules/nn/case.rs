//! A layer of `epl_modules::nn` beside Burn's, with the same parameters.

use burn::module::{Module, ModuleDisplay, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Gradients, Tensor, TensorData};
use epl_core::testing::{self, error_on_scale};
use epl_core::{Epl, Pass, Place};

use crate::layers::Outcome;
use crate::layers::run::host;
use epl_testing::tensor;

/// How a layer is made, and what it makes of `[rows, a, b]`.
pub(crate) struct Layer<L> {
    pub(crate) build: fn(&Place) -> L,
    pub(crate) forward: fn(&L, Tensor<3>) -> Tensor<3>,
}

// Not derived, which would ask the layer for it.
impl<L> Clone for Layer<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Layer<L> {}

const ROWS: usize = 4;

/// Output, gradients and values in training, and the output in evaluation.
fn found<L: Module + ModuleDisplay>(
    epl: &Epl,
    layer: &L,
    forward: fn(&L, Tensor<3>) -> Tensor<3>,
    x: Tensor<3>,
) -> Outcome {
    let pass = |training| Pass { step: 0, training, samples: (0..ROWS as u64).collect(), empty: false };
    epl.context().begin(pass(true));
    let x = x.detach().require_grad();
    let y = forward(layer, x.clone());
    let gradients = (y.clone() * tensor(99, y.dims(), epl.place().device()).cast(y.dtype())).sum().backward();
    let mut found = Outcome::from([("output".to_string(), host(y.inner()))]);
    if let Some(gradient) = x.grad(&gradients) {
        found.insert("input".to_string(), host(gradient));
    }
    let mut collector = Collector { gradients: &gradients, path: Vec::new(), found: &mut found };
    layer.visit(&mut collector);
    epl.context().begin(pass(false));
    found.insert("evaluated".to_string(), host(forward(&layer.valid(), x.inner())));
    found
}

struct Collector<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: &'a mut Outcome,
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.gradients) {
            self.found.insert(format!("∂ {}", self.path.join(".")), host(gradient));
        }
    }
}

/// Transposed, where the other is: a linear layer may store its weight so.
fn as_stored(value: &TensorData, other: &TensorData) -> TensorData {
    let (shape, stored) = (value.shape().to_vec(), other.shape().to_vec());
    if shape == stored || shape.iter().rev().ne(&stored) || shape.len() != 2 {
        return value.clone();
    }
    let [a, b] = [shape[0], shape[1]];
    let values: Vec<f64> = value.iter::<f64>().collect();
    let transposed = (0..a * b).map(|at| values[at % a * b + at / a]).collect::<Vec<_>>();
    TensorData::new(transposed, [b, a])
}

/// How far the worst tensor is off, of its largest element.
#[track_caller]
pub(crate) fn check(what: &str, found: &Outcome, expected: &Outcome, limit: f64) -> f64 {
    let mut worst = 0.0_f64;
    assert!(found.keys().eq(expected.keys()), "{what}: {:?} beside {:?}", found.keys(), expected.keys());
    for (name, value) in expected {
        // A bias of all keys changes no weight, and a factor before a norm nothing behind it: their gradients are zero up to
        // rounding.
        let like = if name == "scale" { "gain".to_string() } else { name.replace("key.bias", "query.bias") };
        let scale = expected.get(&like).unwrap_or(value);
        let (value, scale) = (as_stored(value, &found[name]), as_stored(scale, &found[name]));
        let error = error_on_scale(&found[name], &value, &scale);
        assert!(error <= limit, "{what}: `{name}` is off by {error:e}, limit {limit:e}");
        worst = worst.max(error);
    }
    worst
}

/// Loads Burn's record into ours and ours into another of Burn's; all three must compute the same in training and in
/// evaluation. Of several layers behind each other the roundings of both add up: ours is compared with Burn's in f64, and may be
/// off by as much as Burn's in f32 is. Gives how far ours are off.
pub(crate) fn against_burn<L, B>(
    name: &str,
    [a, b]: [usize; 2],
    ours: Layer<L>,
    burns: Layer<B>,
    limit: f64,
    deep: bool,
) -> f64
where
    L: Module + ModuleDisplay,
    B: Module + ModuleDisplay,
{
    let ranks = testing::run((1, 1, 1), |epl| {
        let place = epl.place();
        // Burn's layers draw their parameters from the generator of their device, which begins anywhere.
        place.device().seed(11);
        let theirs = (burns.build)(place);
        let own = place.enter(ours.build).load_record(theirs.clone().into_record());
        let back = (burns.build)(place).load_record(own.clone().into_record());
        let x = tensor(3, [ROWS, a, b], place.device());
        let expected = found(&epl, &theirs, burns.forward, x.clone());
        check(
            &format!("{name}: our record in Burn's"),
            &found(&epl, &back, burns.forward, x.clone()),
            &expected,
            limit,
        );
        let own = found(&epl, &own, ours.forward, x.clone());
        if !deep {
            return Ok(check(&format!("{name}: Burn's record in ours"), &own, &expected, limit));
        }
        let exact = found(&epl, &theirs.map(&mut InF64), burns.forward, x.cast(DType::F64));
        let burns = check(&format!("{name}: Burn's in f32 and in f64"), &expected, &exact, 10.0 * limit);
        Ok(check(&format!("{name}: ours, and Burn's in f64"), &own, &exact, limit.max(burns)))
    });
    ranks[0]
}

/// Has a module compute in f64.
struct InF64;

impl ModuleMapper for InF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|values| match values.dtype() {
            DType::F64 => values,
            _ => Tensor::from_inner(values.inner().cast(DType::F64)).require_grad(),
        })
    }
}
