//! What recurrent layers share: the steps of a sequence, and the state between these.

use burn::tensor::{DType, Device, Tensor};

use crate::invalid::refuse;

/// From a batch that is dim 0 or 1 to one that is dim 0, and back.
pub(super) fn batch_first(x: Tensor<3>, is_batch_first: bool) -> Tensor<3> {
    if is_batch_first { x } else { x.swap_dims(0, 1) }
}

/// The steps of `[batch_size, seq_length, d_input]` in the order in which they are run, each with its number.
pub(super) fn steps(input: Tensor<3>, backwards: bool) -> Vec<(usize, Tensor<3>)> {
    let mut steps: Vec<_> = input.iter_dim(1).enumerate().collect();
    if backwards {
        steps.reverse();
    }
    steps
}

/// The state before the first step, in this type: as given, or zero.
pub(super) fn start(
    layer: &str,
    given: Option<Tensor<2>>,
    [rows, d_hidden]: [usize; 2],
    (device, dtype): (&Device, DType),
) -> Tensor<2> {
    let Some(given) = given else { return Tensor::zeros([rows, d_hidden], (device, dtype)) };
    let found = given.dims();
    // One row is broadcast, as Burn's layers do.
    if found[1] != d_hidden || (found[0] != rows && found[0] != 1) {
        refuse(format!(
            "a {layer} of d_hidden {d_hidden} got {rows} sequences and a state of {found:?}: give it a state of \
             [{rows}, {d_hidden}], or none for zeros"
        ));
    }
    given.cast(dtype)
}

/// Runs the steps one after the other, each with the state of the one before, and puts what they give in the order of the
/// sequence. Gives the last state too.
pub(super) fn run<S>(
    layer: &str,
    steps: impl IntoIterator<Item = (usize, Tensor<3>)>,
    length: usize,
    start: S,
    step: impl Fn(Tensor<2>, S) -> (Tensor<2>, S),
) -> (Tensor<3>, S) {
    let (mut outputs, mut state) = (vec![None; length], start);
    for (number, input) in steps {
        let Some(place) = outputs.get_mut(number) else {
            refuse(format!("a {layer} got step {number} of a sequence of {length}: count from 0"));
        };
        let (output, next) = step(input.squeeze_dim(1), state);
        state = next;
        *place = Some(output);
    }
    let given = outputs.iter().flatten().count();
    if given < length || length == 0 {
        refuse(format!("a {layer} got {given} steps of a sequence of {length}: give it each step, and one at least"));
    }
    (Tensor::stack(outputs.into_iter().flatten().collect(), 1), state)
}

/// Runs a sequence in both directions, and puts their outputs side by side. Gives the last state of each.
pub(super) fn both_ways<S>(
    input: Tensor<3>,
    is_batch_first: bool,
    run: impl Fn(Tensor<3>, bool) -> (Tensor<3>, S),
) -> (Tensor<3>, [S; 2]) {
    let input = batch_first(input, is_batch_first);
    let (forward, first) = run(input.clone(), false);
    let (reverse, second) = run(input, true);
    (batch_first(Tensor::cat(vec![forward, reverse], 2), is_batch_first), [first, second])
}

/// The state of one direction of `[2, batch_size, d_hidden]`.
pub(super) fn of_direction(layer: &str, state: &Tensor<3>, backwards: bool) -> Tensor<2> {
    let dims = state.dims();
    if dims[0] != 2 {
        refuse(format!(
            "a {layer} got a state of {dims:?}, of {} directions: give it [2, batch_size, d_hidden], or none for zeros",
            dims[0]
        ));
    }
    state.clone().narrow(0, usize::from(backwards), 1).squeeze_dim(0)
}

/// Between the bounds, if there are any.
pub(super) fn clipped(x: Tensor<2>, clip: Option<f64>) -> Tensor<2> {
    match clip {
        Some(clip) => x.clamp(-clip, clip),
        None => x,
    }
}
