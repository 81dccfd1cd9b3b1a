//! What is found, in runs.

use std::collections::BTreeMap;

use burn::nn::Linear;
use burn::optim::SgdConfig;
use burn::tensor::activation::{gelu, relu};
use epl_comm::{EventKind, Operation, Trace};
use epl_core::plan::ExitSplit::{Same, Sum};
use epl_core::plan::SplitFinding;
use epl_core::topology::cluster::Axis;
use epl_core::{Chain, Engine, EngineSettings, MicroBatch, Place, launch, launch_traced};

use super::{Rows, pair, sample, two_ranks};

#[test]
fn other_tensors_than_those_of_the_sample_are_refused() {
    // A tensor that goes through stands in front of a sum, where there are several positions.
    let chain = |at: &Place| {
        Chain::of(pair(false)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                let left = down.forward(gelu(up.forward(rows.clone())));
                ((rows.dims()[1] > 1).then(|| rows.clone()), left.clone(), (rows.dims()[1] == 1).then_some(left))
            })
            .mean_loss(|_, (_, rows, _): (Option<Rows>, Rows, Option<Rows>), _| rows.mean())
    };
    let step = |positions: usize| {
        launch(&two_ranks(), |epl| {
            let all = sample(epl.place().device());
            let lazy = epl.plan(chain)?.discover(&all)?;
            assert!(matches!(&lazy.plan().findings()[0], SplitFinding::Split(split) if split.exits == [Same, Sum]));
            let settings = EngineSettings::from_config(epl.config());
            let mut engine = Engine::new(epl.draw(lazy)?, &SgdConfig::new(), settings)?;
            engine.step(vec![MicroBatch::new(all.slice([0..2, 0..positions]), [0, 1])], 0.1).map(|_| ())
        })
    };
    step(5).unwrap_or_else(|error| panic!("{error}"));
    let error = step(1).unwrap_err().to_string();
    assert!(error.contains("returns other tensors than when `discover` looked at it"), "{error}");
    assert!(error.contains("or leave `discover` out"), "{error}");
}

#[test]
fn who_measures_sums_the_gradients_too() {
    let chain = |at: &Place| {
        Chain::of(pair(true)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                down.forward(gelu(up.forward(rows.clone())))
            })
            .mean_loss(|_, rows, _| rows.mean())
    };
    let trace = Trace::new();
    let measured = launch_traced(&two_ranks(), Some(trace.clone()), |epl| {
        let all = sample(epl.place().device());
        let lazy = epl.plan(chain)?.discover(&all)?;
        let mark = |what: &str| epl.context().mark(|| what.to_string());
        mark("activations");
        let _ = lazy.activations([1, 2], |rows, at| sample(at).slice([0..rows]))?;
        mark("draw");
        let settings = EngineSettings::from_config(epl.config());
        let engine = Engine::new(epl.draw(lazy)?, &SgdConfig::new(), settings)?;
        mark("profile");
        let _ = engine.profile(&MicroBatch::new(all, [0, 1]))?;
        Ok(())
    });
    measured.unwrap_or_else(|error| panic!("{error}"));
    // Of the first rank: the sums over the tensor axis behind each mark.
    let (mut part, mut sums) = (String::new(), BTreeMap::<String, usize>::new());
    for event in trace.events().into_iter().filter(|event| event.rank.0 == 0) {
        match event.kind {
            EventKind::Mark(what) => part = what,
            EventKind::Collective { group, operation: Operation::AllReduce(_), .. }
                if group == Axis::Tensor.to_string() =>
            {
                *sums.entry(part.clone()).or_default() += 1;
            }
            _ => {}
        }
    }
    // Of what leaves, and of the gradient of the bias that every rank has: two sizes, a forward and three times both; a forward and
    // once both.
    assert_eq!((sums.get("activations"), sums.get("profile")), (Some(&14), Some(&3)), "{sums:?}");
}

#[test]
fn ranks_that_look_with_other_batches_are_told() {
    // What is a slice of the batch on one rank is not on the other.
    let chain = |at: &Place| {
        Chain::of(pair(false)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                let hidden = up.forward(rows.clone());
                let left = down.forward(hidden);
                if rows.dims()[0] > 1 { left } else { relu(left) }
            })
            .mean_loss(|_, rows, _| rows.mean())
    };
    let error = launch(&two_ranks(), |epl| {
        let rows = 1 + epl.context().world().rank();
        let batch = sample(epl.place().device()).slice([0..rows]);
        epl.plan(chain)?.discover(&batch).map(|_| ())
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("give all of them the same batch"), "{error}");
}

#[test]
fn first_values_do_not_depend_on_what_is_found() {
    let chain = |at: &Place| {
        Chain::of(pair(true)(at))
            .first(&["0", "1"], |(up, down): &(Linear, Linear), rows: &Rows| {
                down.forward(gelu(up.forward(rows.clone())))
            })
            .mean_loss(|_, rows, _| rows.mean())
    };
    let values = |look: bool| {
        let all = launch(&two_ranks(), |epl| {
            let lazy = epl.plan(chain)?;
            let lazy = if look { lazy.discover(&sample(epl.place().device()))? } else { lazy };
            let text = lazy.plan().to_string();
            Ok((epl.draw(lazy)?.parameters()?, text))
        });
        all.unwrap_or_else(|error| panic!("{error}")).remove(0)
    };
    let ((plain, before), (found, text)) = (values(false), values(true));
    assert_eq!(plain, found, "the whole of each, to the bit");
    assert!(text.contains("0+1 runs in slices: extent 12 is cut"), "{text}");
    assert!(text.contains("dim 1 over tensor [0..6]"), "{text}");
    assert!(!before.contains("slices"), "{before}");
}
