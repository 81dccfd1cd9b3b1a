//! Runs one layer on the ranks of the tensor axis and puts its gradients together.

use std::sync::Arc;

use burn::module::{Module, ModuleDisplay, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor, TensorData};
use epl_comm::local;
use epl_core::{Epl, Loss, LossWeights, Mesh, Model, ParamRecord, Pass, Place, Result, testing};
use epl_testing::tensor;
use rayon::ThreadPoolBuilder;

use super::Outcome;

/// A model of one layer.
#[derive(Module, Debug)]
pub(crate) struct Net<L> {
    pub(crate) layer: L,
}

impl<L: Module + ModuleDisplay> Model for Net<L> {
    type Batch = ();
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, _batch: &()) -> LossWeights {
        LossWeights::new()
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), _batch: &()) -> Loss {
        Loss::new()
    }
}

/// To f64 on the host.
pub(crate) fn host<const D: usize>(x: Tensor<D>) -> TensorData {
    let shape = x.dims();
    TensorData::new(x.into_data().iter::<f64>().collect::<Vec<_>>(), shape)
}

/// The layer, its inputs `[4, ...]`, and where it is.
pub(crate) struct At<'a, L> {
    pub(crate) layer: &'a L,
    pub(crate) inputs: Vec<Tensor<3>>,
    pub(crate) epl: &'a Epl,
}

/// What one rank found: replicated values, and gradients with their records.
struct Part {
    values: Outcome,
    gradients: Vec<(ParamRecord, TensorData)>,
}

/// Builds a layer on `ranks` tensor ranks, feeds it, runs backward from Σ output · probe, and returns the output and
/// the whole gradient of every input and parameter. What is replicated must have the same bits on every rank.
pub(crate) fn outcome<L: Module + ModuleDisplay>(
    ranks: usize,
    inputs: &[[usize; 3]],
    build: impl Fn(&Place) -> L + Sync,
    forward: impl Fn(At<'_, L>) -> Tensor<3> + Sync,
) -> Outcome {
    let parts = testing::run((1, ranks, 1), |epl| {
        let built = epl.build(|place| Net { layer: build(&place.child("layer")) })?;
        let records = built.plan().records().to_vec();
        let net = built.into_inner();
        let samples = (0..inputs.first().map_or(4, |shape| shape[0] as u64)).map(|row| 100 + row).collect();
        epl.context().begin(Pass { step: 3, training: true, samples, empty: false });
        let device = epl.place().device();
        let tracked: Vec<Tensor<3>> =
            inputs.iter().enumerate().map(|(seed, shape)| tensor(seed, *shape, device).require_grad()).collect();
        let layer = &net.layer;
        let output = forward(At { layer, inputs: tracked.clone(), epl: &epl });
        let probe = tensor(99, output.dims(), device);
        let gradients = (output.clone() * probe).sum().backward();
        let mut values = Outcome::from([("output".to_string(), host(output.inner()))]);
        for (index, input) in tracked.iter().enumerate() {
            if let Some(gradient) = input.grad(&gradients) {
                values.insert(format!("input {index}"), host(gradient));
            }
        }
        let mut collector = Collector { gradients: &gradients, records: &records, path: vec![], found: vec![] };
        net.visit(&mut collector);
        Ok(Part { values, gradients: collector.found })
    });
    assemble(&parts)
}

struct Collector<'a> {
    gradients: &'a Gradients,
    records: &'a [ParamRecord],
    path: Vec<String>,
    found: Vec<(ParamRecord, TensorData)>,
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        let record = self.records.iter().find(|record| record.name == name).expect("a record for every parameter");
        if let Some(gradient) = param.val().grad(self.gradients) {
            self.found.push((record.clone(), host(gradient)));
        }
    }
}

fn assemble(parts: &[Part]) -> Outcome {
    let mut whole = parts[0].values.clone();
    for part in parts {
        for (name, value) in &part.values {
            assert!(*value == parts[0].values[name], "ranks differ in `{name}`");
        }
        for (record, gradient) in &part.gradients {
            let all = whole.entry(record.name.clone()).or_insert_with(|| {
                let count: usize = record.global_shape.iter().product();
                TensorData::new(vec![f64::NAN; count], record.global_shape.clone())
            });
            place(all, record, gradient);
        }
    }
    whole
}

/// Writes a rank's slice into the whole; what another rank wrote there before must be the same.
fn place(whole: &mut TensorData, record: &ParamRecord, slice: &TensorData) {
    let (ranges, extents) = (record.ranges(), record.global_shape.clone());
    let whole: &mut [f64] = whole.as_mut_slice().expect("f64");
    for (index, value) in slice.iter::<f64>().enumerate() {
        let (mut rest, mut at, mut stride) = (index, 0, 1);
        for (range, extent) in ranges.iter().zip(&extents).rev() {
            at += (range.start + rest % range.len()) * stride;
            rest /= range.len();
            stride *= extent;
        }
        assert!(whole[at].is_nan() || whole[at] == value, "ranks differ in the gradient of `{}`", record.name);
        whole[at] = value;
    }
}

/// The global sample numbers of the rows.
pub(crate) fn samples(numbers: &[u64]) -> Arc<[u64]> {
    numbers.into()
}

/// Threads of a rank: one, two, and more than there are cores.
pub(crate) const THREADS: [usize; 3] = [1, 2, 7];

/// What `f` makes on one rank that computes on so many threads: a launch gives it as many as the machine has cores.
pub(crate) fn on_threads<T: Send>(threads: usize, f: impl Fn(&Epl) -> Result<T> + Sync) -> T {
    const STACK: usize = 8 << 20;
    let pool = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build().expect("threads");
    let config = testing::config(1, 1, 1);
    let found = local::run(1, |world| {
        let mesh = Mesh::from_config(&config)?;
        // The groups of a rank belong to the first thread that uses them, which is one of these.
        pool.install(|| f(&Epl::new(config.clone(), mesh, world, None)?))
    });
    found.unwrap_or_else(|(_, error)| panic!("{threads} threads: {error}")).remove(0)
}
