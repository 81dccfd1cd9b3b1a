//! Runs a case on the ranks of a mesh, and puts the whole result together.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Bool, Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::{Epl, Loss, LossWeights, Model, Pass, Result, testing};
use epl_modules::moe::{Balance, Moe, TokenMask};

use super::case::{AUXILIARY, Case, D_FF, D_MODEL, EXPERTS, Z, router};
use super::{Outcome, array};

/// A model of this layer alone.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) moe: Moe,
}

impl Model for Net {
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

/// What one rank found.
pub(crate) struct Part {
    data: usize,
    tensor: usize,
    /// This rank's experts and its slice of `d_ff`.
    experts: Range<usize>,
    d_ff: Range<usize>,
    values: BTreeMap<String, TensorData>,
}

/// Data × tensor ranks, expert divides data.
pub(crate) type Layout = (usize, usize, usize);

/// The layer of a case on this rank, with a router that follows the favourites.
pub(crate) fn build(case: &Case, epl: &Epl) -> Result<Moe> {
    let built = epl.build(|place| Net { moe: case.config.init(&place.child("moe")) })?;
    let mut moe = built.into_inner().moe;
    let drawn = moe.router.weight.val().inner();
    moe.router.weight = Param::from_tensor(Tensor::from_inner(router(drawn)).require_grad());
    Ok(moe)
}

/// Runs a case under a layout. Ranks that hold the same thing must hold the same bits.
pub(crate) fn run(case: &Case, layout: Layout) -> Outcome {
    let parts = testing::run(layout, |epl| run_rank(case, &epl));
    for part in &parts {
        let twin = parts.iter().find(|twin| twin.data == part.data).expect("itself");
        for (name, value) in part.values.iter().filter(|(name, _)| !name.starts_with("experts")) {
            assert!(twin.values[name] == *value, "{}: tensor ranks differ in `{name}`", case.name);
        }
    }
    assemble(&parts)
}

pub(crate) fn run_rank(case: &Case, epl: &Epl) -> Result<Part> {
    let context = epl.context();
    let moe = build(case, epl)?;
    let samples = shard_range(case.lengths.len(), context.data().size(), context.data().rank());
    let numbers: Vec<u64> = samples.clone().map(|sample| sample as u64).collect();
    context.begin(Pass { step: 5, training: true, samples: Arc::from(numbers), empty: false });

    let lengths = &case.lengths[samples.clone()];
    let length = case.padded.unwrap_or(lengths.iter().max().expect("a sample on every rank") + 1);
    let mask = TokenMask::from_lengths(lengths, length);
    let x = case.tensor(samples.clone(), length, |s, t, e| case.x(s, t, e), epl.place()).require_grad();
    // Both ways of saying what is padding.
    let output = match context.data().rank() % 2 {
        _ if case.on_device => {
            let routed = moe.router.forward(x.clone());
            let decision = moe.decide_on_device(x.dims(), &routed, &mask);
            assert!(decision.routing().is_none(), "{}: it was listed", case.name);
            moe.forward_routed(x.clone(), &routed, &decision)
        }
        0 => moe.forward_masked(x.clone(), &mask),
        _ => moe.forward(x.clone(), Some(padding(&mask, &x))),
    };
    let auxiliary = match case.config.balance {
        Balance::Sequences => output.auxiliary.clone(),
        Balance::Batch => output.clone().into_parts().1.over_batch(context),
    };
    let probe = case.tensor(samples.clone(), length, Case::probe, epl.place());
    // A shared network sees padding, too, which must not count in the loss.
    let probe = match &moe.shared {
        Some(_) => probe.mask_fill(padding(&mask, &x).unsqueeze_dim::<3>(2).expand(x.dims()), 0.0),
        None => probe,
    };
    let loss = (output.hidden.clone() * probe).sum()
        + auxiliary.clone().mul_scalar(AUXILIARY)
        + output.z.clone().mul_scalar(Z);
    let gradients = loss.backward();

    let routed = if case.config.route_padding { TokenMask::all(lengths.len(), length) } else { mask };
    let mut values = BTreeMap::new();
    let hidden = match &moe.shared {
        Some(_) => output.hidden.mask_fill(padding(&routed, &x).unsqueeze_dim::<3>(2).expand(x.dims()), 0.0),
        None => output.hidden,
    };
    values.insert("hidden".into(), tokens(hidden, &routed));
    values.insert("x".into(), tokens_of(x.grad(&gradients).expect("x takes part"), &routed));
    values.insert("auxiliary".into(), host(auxiliary));
    values.insert("z".into(), host(output.z));
    let mut gradient = |name: &str, found: Option<TensorData>| {
        values.insert(name.into(), found.unwrap_or_else(|| panic!("{}: no gradient of {name}", case.name)));
    };
    gradient("router", moe.router.weight.val().grad(&gradients).map(plain));
    gradient("experts.input", moe.experts.input.val().grad(&gradients).map(plain));
    gradient("experts.output", moe.experts.output.val().grad(&gradients).map(plain));
    if let Some(gate) = &moe.experts.gate {
        gradient("experts.gate", gate.val().grad(&gradients).map(plain));
    }
    for (name, sums) in context.take_metrics() {
        let shape = [sums.len()];
        values.insert(name, array(sums, &shape));
    }
    let (expert, tensor) = (context.expert(), context.tensor());
    Ok(Part {
        data: context.data().rank(),
        tensor: tensor.rank(),
        experts: shard_range(EXPERTS, expert.size(), expert.rank()),
        d_ff: shard_range(D_FF, tensor.size(), tensor.rank()),
        values,
    })
}

fn padding(mask: &TokenMask, x: &Tensor<3>) -> Tensor<2, Bool> {
    let padding: Vec<bool> = mask.as_slice().iter().map(|real| !real).collect();
    Tensor::from_data(TensorData::new(padding, [mask.groups(), mask.length()]), &x.device())
}

pub(crate) fn host<const D: usize>(x: Tensor<D>) -> TensorData {
    plain(x.inner())
}

/// To f64 on the host.
pub(crate) fn plain<const D: usize>(x: Tensor<D>) -> TensorData {
    let shape = x.dims();
    array(x.into_data().iter::<f64>().collect(), &shape)
}

/// The rows of the routed tokens; all others must be zero.
fn tokens(x: Tensor<3>, mask: &TokenMask) -> TensorData {
    tokens_of(x.inner(), mask)
}

fn tokens_of(x: Tensor<3>, mask: &TokenMask) -> TensorData {
    let values: Vec<f64> = plain(x).iter::<f64>().collect();
    let mut rows = Vec::new();
    for (row, real) in values.chunks(D_MODEL).zip(mask.as_slice()) {
        match real {
            true => rows.extend_from_slice(row),
            false => assert!(row.iter().all(|value| *value == 0.0), "padding came out as {row:?}"),
        }
    }
    let shape = [rows.len() / D_MODEL, D_MODEL];
    array(rows, &shape)
}

fn assemble(parts: &[Part]) -> Outcome {
    let mut replicas: Vec<&Part> = parts.iter().filter(|part| part.tensor == 0).collect();
    replicas.sort_by_key(|part| part.data);
    let mut outcome = Outcome::new();
    for name in replicas[0].values.keys() {
        let values = |part: &Part| part.values[name].iter::<f64>().collect::<Vec<f64>>();
        let whole = match name.as_str() {
            "hidden" | "x" => {
                let rows: Vec<f64> = replicas.iter().flat_map(|part| values(part)).collect();
                let shape = [rows.len() / D_MODEL, D_MODEL];
                array(rows, &shape)
            }
            name if name.starts_with("experts") => whole_experts(name, parts),
            _ => {
                let mut sum = values(replicas[0]);
                for part in &replicas[1..] {
                    sum.iter_mut().zip(values(part)).for_each(|(sum, value)| *sum += value);
                }
                array(sum, replicas[0].values[name].shape())
            }
        };
        outcome.insert(name.clone(), whole);
    }
    outcome
}

/// Adds every rank's slice into its place: summed over data ÷ expert.
fn whole_experts(name: &str, parts: &[Part]) -> TensorData {
    let inwards = name != "experts.output";
    let shape = if inwards { [EXPERTS, D_MODEL, D_FF] } else { [EXPERTS, D_FF, D_MODEL] };
    let mut whole = vec![0.0; shape.iter().product()];
    for part in parts {
        let all = 0..D_MODEL;
        let ranges = if inwards { [&part.experts, &all, &part.d_ff] } else { [&part.experts, &part.d_ff, &all] };
        let mut values = part.values[name].iter::<f64>();
        for i in ranges[0].clone() {
            for j in ranges[1].clone() {
                for k in ranges[2].clone() {
                    whole[(i * shape[1] + j) * shape[2] + k] += values.next().expect("a slice of this shape");
                }
            }
        }
        assert!(values.next().is_none(), "a slice of this shape");
    }
    array(whole, &shape)
}
