//! Mixture of experts: no layout changes the mathematics, in f32 to 1e-5; refusals; metrics.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use epl_comm::{EventKind, Operation, ReduceOp, Trace, shard_range};
use epl_core::testing::{self, config};
use epl_core::{Error, Pass, launch, launch_traced};
use epl_modules::moe::{Moe, Routed};
use epl_modules::{Balance, Capacity, Gate, MoeConfig, TokenMask};

use crate::moe::case::{Case, cases};
use crate::moe::layout::{Layout, build, host, run, run_rank};
use crate::moe::{assert_close, reference};

const LIMIT: f64 = 1e-5;

#[test]
fn one_rank_equals_the_dense_reference() {
    for case in cases() {
        assert_close(case.name, &run(&case, (1, 1, 1)), &reference::compute(&case), LIMIT);
    }
}

#[test]
fn layouts_equal_one_rank() {
    let layouts: [Layout; 5] = [(2, 1, 1), (2, 1, 2), (4, 1, 4), (1, 2, 1), (2, 2, 2)];
    for case in cases() {
        let whole = run(&case, (1, 1, 1));
        for layout in layouts {
            assert_close(&format!("{} under {layout:?}", case.name), &run(&case, layout), &whole, LIMIT);
        }
    }
}

#[test]
fn routed_on_the_device_it_is_the_same() {
    let layouts: [Layout; 4] = [(2, 1, 1), (4, 1, 4), (1, 2, 1), (2, 2, 2)];
    for case in cases() {
        let there = Case { on_device: true, ..case.clone() };
        assert_close(case.name, &run(&there, (1, 1, 1)), &reference::compute(&case), LIMIT);
        let config = case.config.clone().with_jitter(0.3).with_dropout(0.4);
        let (there, here) = (Case { config: config.clone(), ..there }, Case { config, ..case });
        let whole = run(&here, (1, 1, 1));
        for layout in layouts {
            assert_close(&format!("{} under {layout:?}", here.name), &run(&there, layout), &whole, LIMIT);
        }
    }
}

/// What `init` says to a configuration on a mesh.
fn refusal(layout: Layout, config: MoeConfig) -> String {
    let case = Case { config, ..cases().remove(0) };
    let (data, tensor, expert) = layout;
    let built = launch(&self::config(data, tensor, expert), |epl| build(&case, &epl).map(drop));
    match built {
        Err(Error::Rank { cause, .. }) => cause.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_does_not_fit_is_refused_with_both_numbers() {
    let new = MoeConfig::new;
    for (layout, config, expected) in [
        ((3, 1, 3), new(6, 7, 4), "moe: 4 experts cannot be divided evenly over 3 expert ranks"),
        ((1, 2, 1), new(6, 1, 4), "moe: 1 hidden features cannot be split over the 2 ranks of group `tensor`"),
        ((1, 1, 1), new(6, 7, 1).with_gate(Gate::Top2), "moe: 1 experts, but the gate Top2 sends a token to 2"),
        (
            (1, 1, 1),
            new(6, 7, 4).with_gate(Gate::TopK { experts: 5, renormalise: true }),
            "moe: 4 experts, but the gate TopK { experts: 5, renormalise: true } sends a token to 5",
        ),
        (
            (1, 1, 1),
            new(6, 7, 4).with_gate(Gate::TopK { experts: 0, renormalise: true }),
            "moe: a token is sent to 0 experts",
        ),
        (
            (1, 1, 1),
            new(6, 7, 4).with_gate(Gate::Top2).with_bias_rate(Some(0.1)),
            "moe: a bias counts all choices, of which Gate::Top2 balances the first",
        ),
        ((1, 1, 1), new(6, 7, 4).with_bias_rate(Some(-0.1)), "moe: the bias of experts moves by -0.1 a step"),
        ((1, 1, 1), new(6, 7, 4).with_shared(Some(0)), "the shared width is Some(0); both must be at least 1"),
        ((1, 1, 1), new(6, 7, 0), "moe: 0 experts"),
        ((1, 1, 1), new(0, 7, 4), "moe: d_model is 0"),
        ((1, 1, 1), new(6, 7, 4).with_jitter(1.5), "moe: jitter 1.5"),
        ((1, 1, 1), new(6, 7, 4).with_dropout(1.0), "moe.experts: dropout probability 1"),
        ((1, 1, 1), new(6, 7, 4).with_capacity(Capacity::Fixed(0)), "moe: a fixed capacity of 0"),
    ] {
        let message = refusal(layout, config);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_shared_network_is_added_to_what_the_experts_say() {
    for (layout, gated) in [((1, 1, 1), false), ((2, 2, 2), true)] {
        testing::run(layout, |epl| {
            let config = MoeConfig::new(6, 7, 4).with_gated(gated);
            let of = |config: &MoeConfig| build(&Case { config: config.clone(), ..cases().remove(0) }, &epl);
            let (alone, both) = (of(&config)?, of(&config.with_shared(Some(5)))?);
            let samples =
                Arc::from([2 * epl.context().data().rank() as u64, 1 + 2 * epl.context().data().rank() as u64]);
            epl.context().begin(Pass { step: 0, training: true, samples, empty: false });
            let x = epl_testing::tensor(epl.context().data().rank(), [2, 5, 6], epl.place().device());
            let x = epl.context().tensor().broadcast(x, 0)?;
            let mask = TokenMask::from_lengths(&[5, 3], 5);
            let shared = both.shared.as_ref().expect("it was asked for");
            assert_eq!(shared.gate.is_some(), gated);
            let expected = alone.forward_masked(x.clone(), &mask).hidden + shared.forward(x.clone());
            let found = both.forward_masked(x, &mask).hidden;
            let error = (found - expected).abs().max().into_scalar::<f32>();
            assert!(error < 1e-6, "{error:e}");
            Ok(())
        });
    }
}

/// After each step an expert that was asked too often is asked less; whatever the layout and the number of micro-batches.
#[test]
fn a_bias_evens_out_what_experts_are_asked() {
    let train = |(layout, micro_batches): (Layout, usize)| {
        let ranks = testing::run(layout, |epl| {
            let config = MoeConfig::new(6, 7, 4).with_bias_rate(Some(0.05)).with_capacity(Capacity::Unlimited);
            let case = Case { config, favourite: |_, token| token % 2, ..cases().remove(0) };
            let (moe, context) = (build(&case, &epl)?, epl.context());
            let bias = moe.bias.as_ref().expect("it was asked for");
            let loads = || bias.running_load.value_sync().into_data().iter::<f64>().collect::<Vec<_>>();
            let mut all = Vec::new();
            for step in 0..30 {
                let samples = shard_range(8, context.data().size(), context.data().rank());
                for part in 0..micro_batches {
                    let part = shard_range(samples.len(), micro_batches, part);
                    let part = samples.start + part.start..samples.start + part.end;
                    let numbers: Arc<[u64]> = part.clone().map(|sample| sample as u64).collect();
                    context.begin(Pass { step, training: true, samples: numbers, empty: false });
                    let x = case.tensor(part.clone(), 9, |s, t, e| case.x(s, t, e), epl.place());
                    let _ = moe.forward_masked(x, &TokenMask::from_lengths(&case.lengths[part], 9));
                }
                all.push(loads());
            }
            // An evaluation chooses by the bias and counts nothing.
            context.begin(Pass { step: 30, training: false, samples: Arc::from([0]), empty: false });
            let x = case.tensor(0..1, 9, |s, t, e| case.x(s, t, e), epl.place());
            let _ = moe.forward_masked(x, &TokenMask::all(1, 9));
            assert_eq!(loads(), *all.last().expect("thirty steps"));
            Ok((all, bias.running_bias.value_sync().into_data().iter::<f64>().collect::<Vec<_>>()))
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
        ranks.into_iter().next().expect("a rank")
    };
    let (loads, bias) = train(((1, 1, 1), 1));
    let apart = |loads: &[f64]| epl_testing::largest(loads.iter().map(|load| (load - 8.0).abs()));
    assert!(loads.iter().all(|loads| loads.iter().sum::<f64>() == 32.0), "all tokens of each step: {loads:?}");
    assert!(apart(&loads[0]) >= 8.0 && apart(&loads[29]) <= 5.0, "{loads:?}");
    assert!(bias[0] < 0.0 && bias[3] > 0.0, "{bias:?}");
    // The load of the last step has not moved it yet.
    let moved = |expert: usize| {
        let moves = loads[..29].iter().map(|loads| 0.05 * f64::from((8.0 - loads[expert]).signum() as f32));
        moves.zip(&loads[..29]).map(|(by, loads)| if loads[expert] == 8.0 { 0.0 } else { by }).sum::<f64>()
    };
    for (expert, bias) in bias.iter().enumerate() {
        assert!((bias - moved(expert)).abs() < 1e-5, "expert {expert}: {bias}, not {}", moved(expert));
    }
    for other in [((2, 1, 1), 1), ((2, 2, 2), 1), ((1, 1, 1), 4), ((2, 1, 2), 2)] {
        assert_eq!(train(other), (loads.clone(), bias.clone()), "{other:?}");
    }
}

/// Neither what is not finite counts, nor what a frozen layer is asked.
#[test]
fn a_bias_stays_where_nothing_is_to_be_learned() {
    testing::run((1, 1, 1), |epl| {
        let config = MoeConfig::new(6, 7, 4).with_bias_rate(Some(0.05));
        let case = Case { config, ..cases().remove(0) };
        let run = |moe: &Moe, step: u64, factor: f32| {
            epl.context().begin(Pass { step, training: true, samples: Arc::from([0]), empty: false });
            let x = case.tensor(0..1, 9, |s, t, e| case.x(s, t, e), epl.place());
            let _ = moe.forward_masked(x * factor, &TokenMask::all(1, 9));
            let bias = moe.bias.as_ref().expect("it was asked for");
            [&bias.running_load, &bias.running_bias].map(|x| x.value_sync().into_data().iter::<f32>().sum::<f32>())
        };
        let moe = build(&case, &epl)?;
        assert_eq!(run(&moe, 0, f32::NAN), [0.0, 0.0]);
        assert_eq!(run(&moe, 0, 1.0)[0], 9.0);
        let frozen = build(&case, &epl)?.freeze();
        assert_eq!(run(&frozen, 0, 1.0), [0.0, 0.0]);
        Ok(())
    });
}

/// The collectives along an axis that each rank issued in one forward and backward of a case.
fn collectives(case: &Case, (data, tensor, expert): Layout, axis: &str) -> Vec<Vec<Operation>> {
    let trace = Trace::new();
    let run = launch_traced(&config(data, tensor, expert), Some(trace.clone()), |epl| run_rank(case, &epl).map(drop));
    run.unwrap_or_else(|error| panic!("{error}"));
    let mut ranks = vec![Vec::new(); data * tensor];
    for event in trace.events() {
        match event.kind {
            EventKind::Collective { group, operation, .. } if group == axis => ranks[event.rank.0].push(operation),
            _ => {}
        }
    }
    ranks
}

#[test]
fn every_rank_issues_the_same_collectives_whatever_its_tokens() {
    for case in cases() {
        for rank in collectives(&case, (2, 2, 2), "expert") {
            // Counts and rows there, rows back; the gradients of both.
            assert_eq!(rank, [Operation::AllToAll; 5], "{}", case.name);
        }
        for rank in collectives(&case, (2, 2, 2), "tensor") {
            // The routing; the experts' partial sums; the gradient of their input; the last two of the shared network, too.
            let of_shared = if case.config.shared.is_some() { 2 } else { 0 };
            // Three numbers of a bias have values from the begin, which all ranks are told.
            let of_bias = if case.config.bias_rate.is_some() { 3 } else { 0 };
            assert_eq!(rank.len(), 3 + of_shared + of_bias, "{}: {rank:?}", case.name);
        }
        // What experts are asked for, of all replicas: for the balance over the batch, and for the bias.
        let of_batch =
            usize::from(case.config.balance == Balance::Batch) + usize::from(case.config.bias_rate.is_some());
        for mut rank in collectives(&case, (2, 2, 2), "data") {
            rank.retain(|operation| !matches!(operation, Operation::Broadcast { .. }));
            assert_eq!(rank, vec![Operation::AllReduce(ReduceOp::Sum); of_batch], "{}", case.name);
        }
    }
}

#[test]
fn a_replayed_decision_gives_the_same_bits_and_is_counted_once() {
    let both = cases().into_iter().flat_map(|case| [Case { on_device: true, ..case.clone() }, case]);
    for case in both {
        let case = Case { config: case.config.clone().with_jitter(0.3).with_dropout(0.4), ..case };
        testing::run((2, 1, 2), |epl| {
            let moe = build(&case, &epl)?;
            let pass = |empty| Pass { step: 1, training: true, samples: Arc::new([0, 1]), empty };
            let x = case.tensor(0..2, 6, |s, t, e| case.x(s, t, e), epl.place());
            let mask = TokenMask::from_lengths(&case.lengths[..2], 6);
            epl.context().begin(pass(false));
            let routed = moe.router.forward(x.clone());
            let listed = moe.decide(x.dims(), &routed, &mask);
            let counted = epl.context().take_metrics();
            let decide = || match case.on_device {
                true => moe.decide_on_device(x.dims(), &routed, &mask),
                false => moe.decide(x.dims(), &routed, &mask),
            };
            let decision = decide();
            let first = moe.forward_routed(x.clone(), &routed, &decision);
            epl.context().begin(pass(false));
            let again = moe.forward_routed(x.clone(), &moe.router.forward(x.clone()), &decision);
            assert_eq!(host(first.hidden), host(again.hidden), "{}", case.name);
            assert_eq!(host(first.z), host(again.z), "{}", case.name);
            // A stand-in counts for nothing.
            epl.context().begin(pass(true));
            decide();
            assert_eq!(epl.context().take_metrics(), counted, "{}", case.name);
            let assignments = listed.routing().expect("on the host").assignments.len();
            assert_eq!(counted["moe.tokens_per_expert"].iter().sum::<f64>(), assignments as f64, "{}", case.name);
            Ok(())
        });
    }
}

#[test]
fn evaluation_has_its_own_capacity_and_counts_nothing() {
    let case = Case {
        config: MoeConfig::new(6, 7, 4).with_capacity(Capacity::Factor { train: 0.1, eval: 4.0 }).with_jitter(0.5),
        lengths: vec![9],
        favourite: |_, _| 0,
        ..cases().remove(0)
    };
    testing::run((1, 1, 1), |epl| {
        let moe = build(&case, &epl)?;
        let x = case.tensor(0..1, 9, |s, t, e| case.x(s, t, e), epl.place());
        let kept = |training| {
            epl.context().begin(Pass { step: 0, training, samples: Arc::new([0]), empty: false });
            let output = host(moe.forward(x.clone(), None).hidden);
            let values: Vec<f64> = output.iter::<f64>().collect();
            let kept = values.chunks(6).filter(|row| row.iter().any(|value| *value != 0.0)).count();
            (kept, epl.context().take_metrics().values().flatten().sum::<f64>())
        };
        assert_eq!(kept(true), (4, 9.0), "four places; four kept and five dropped are counted");
        assert_eq!(kept(false), (9, 0.0));
        Ok(())
    });
}

#[test]
fn tensor_ranks_take_one_decision_whatever_the_last_bit() {
    for gate in [Gate::Switch, Gate::Top2] {
        let case = Case { config: MoeConfig::new(6, 7, 4).with_gate(gate), ..cases().remove(0) };
        let decisions = testing::run((1, 2, 1), |epl| {
            let moe = build(&case, &epl)?;
            epl.context().begin(Pass { step: 0, training: true, samples: Arc::new([0]), empty: false });
            // All experts alike but for one bit, which the second rank has at another one.
            let mut row = [0.25_f32; 4];
            row[if epl.context().tensor().rank() == 0 { 1 } else { 3 }] = 0.25_f32.next_up();
            let device = epl.place().device();
            let routed =
                Routed { probabilities: Tensor::from_data([row; 5], device), log_sum: Tensor::zeros([5, 1], device) };
            Ok(moe.decide([1, 5, 6], &routed, &TokenMask::all(1, 5)).routing().cloned().expect("on the host"))
        });
        assert_eq!(decisions[0], decisions[1]);
        assert!(decisions[0].groups[0].asked[1] == 5, "{decisions:?}");
    }
}

#[test]
fn a_decision_for_another_batch_is_refused() {
    let case = cases().remove(0);
    testing::run((1, 1, 1), |epl| {
        let moe = build(&case, &epl)?;
        epl.context().begin(Pass { step: 0, training: true, samples: Arc::new([0, 1]), empty: false });
        let [short, long] = [5, 6].map(|length| case.tensor(0..2, length, |s, t, e| case.x(s, t, e), epl.place()));
        let routed = moe.router.forward(short.clone());
        let routing = moe.decide(short.dims(), &routed, &TokenMask::all(2, 5));
        let error = epl_comm::catch(|| moe.forward_routed(long, &routed, &routing)).expect_err("6 tokens, not 5");
        assert!(error.to_string().contains("10 tokens in sequences of 5"), "{error}");
        Ok(())
    });
}

#[test]
fn dropout_inside_the_experts_differs_by_sample_and_token_in_training_alone() {
    let case = Case { config: MoeConfig::new(6, 16, 4).with_dropout(0.5), ..cases().remove(0) };
    testing::run((1, 1, 1), |epl| {
        let moe = build(&case, &epl)?;
        let alike = Tensor::ones([2, 4, 6], epl.place().device());
        let rows = |training| {
            epl.context().begin(Pass { step: 0, training, samples: Arc::new([0, 1]), empty: false });
            let values: Vec<f64> = host(moe.forward(alike.clone(), None).hidden).iter::<f64>().collect();
            values.chunks(6).map(<[f64]>::to_vec).collect::<Vec<_>>()
        };
        let trained = rows(true);
        assert_ne!(trained[0], trained[1], "two tokens");
        assert_ne!(trained[0], trained[4], "two samples");
        assert!(rows(false).windows(2).all(|rows| rows[0] == rows[1]));
        Ok(())
    });
}
