//! Global tensors on meshes of 2 × 2, 2 × 3 and 3 × 2 ranks: every layout leads to every other, values and gradients
//! as on one thread, and random values are those of one rank to the bit.

mod model;

use burn::tensor::{Distribution, TensorData};
use epl_core::{Axis, Epl, MeshSizes, launch, testing};
use epl_modules::{GlobalTensor, Layout, Sbp};
use model::{AXES, STATES, check_whole, held, layouts, local, tensor, value, weight};

/// Data × tensor ranks, with expert dividing data.
const MESHES: [(usize, usize, usize); 3] = [(2, 2, 1), (2, 3, 1), (3, 2, 1)];

/// Extents that divide evenly, that do not, and that leave ranks, or whole groups of them, without anything.
const SHAPES: [[usize; 2]; 3] = [[12, 6], [7, 5], [1, 2]];

fn pairs(layouts: &[Layout]) -> Vec<(Layout, Layout)> {
    layouts.iter().flat_map(|from| layouts.iter().map(|to| (from.clone(), to.clone()))).collect()
}

fn sizes(epl: &Epl) -> MeshSizes {
    epl.context().mesh().sizes()
}

/// Every tensor laid out as `from` becomes the same tensor laid out as `to`.
fn check_values(mesh: (usize, usize, usize), shape: [usize; 2], pairs: &[(Layout, Layout)]) {
    let ranks = testing::run(mesh, |epl| {
        let (context, sizes) = (epl.context(), sizes(&epl));
        let at = context.coordinate();
        let convert = |(from, to): &(Layout, Layout)| {
            let before = local(from, shape, sizes, at, epl.place().device());
            let after = GlobalTensor::from_local(before, shape, from.clone(), context).to_layout(to.clone());
            assert_eq!((after.layout(), after.global_shape()), (to, shape));
            assert_eq!(after.ranges().map(Vec::from_iter), held(to, shape, sizes, at), "{to}, {at}");
            (at, after.local().into_data())
        };
        Ok((sizes, pairs.iter().map(convert).collect::<Vec<_>>()))
    });
    for (index, (from, to)) in pairs.iter().enumerate() {
        let held_by: Vec<_> = ranks.iter().map(|(_, rank)| rank[index].clone()).collect();
        check_whole(to, shape, ranks[0].0, &held_by, &format!("{from} to {to}, {shape:?} on {mesh:?}"));
    }
}

#[test]
fn every_layout_leads_to_every_other() {
    for (mesh, shape) in MESHES.into_iter().flat_map(|mesh| SHAPES.map(|shape| (mesh, shape))) {
        check_values(mesh, shape, &pairs(&layouts()));
    }
}

/// The loss is Σ w · y over the converted tensor, then Σ w · y² over the whole that is gathered from it, which every
/// rank computes and which counts once. A conversion changes nothing, so the gradients are w and 2 w · x.
#[test]
fn gradients_come_back_in_the_layout_of_the_leaf() {
    for (mesh, shape) in MESHES.into_iter().flat_map(|mesh| SHAPES.map(|shape| (mesh, shape))) {
        testing::run(mesh, |epl| {
            let (context, sizes, device) = (epl.context(), sizes(&epl), epl.place().device());
            let at = context.coordinate();
            let numbers = |layout: &Layout, number: &dyn Fn(usize, usize) -> f64| {
                let [rows, columns] = held(layout, shape, sizes, at);
                tensor(&rows, &columns, number, device)
            };
            for (from, to) in pairs(&layouts()) {
                let leaf = local(&from, shape, sizes, at, device).require_grad();
                let convert =
                    || GlobalTensor::from_local(leaf.clone(), shape, from.clone(), context).to_layout(to.clone());
                let check = |loss: burn::tensor::Tensor<1>, gradient: &dyn Fn(usize, usize) -> f64| {
                    let found = leaf.grad(&loss.backward()).map(|gradient| gradient.into_data());
                    assert_eq!(found, Some(numbers(&from, gradient).into_data()), "{from} to {to}, {mesh:?}, {at}");
                };
                check((convert().local() * numbers(&to, &weight)).sum(), &weight);
                let whole = convert().gather();
                let weights = numbers(&Layout::default(), &weight);
                check((whole.powi_scalar(2) * weights).sum(), &|i, j| 2.0 * weight(i, j) * value(i, j));
            }
            Ok(())
        });
    }
}

/// Eight ranks: experts divide data, so there are three axes of two, each of which may cut the same dim once more.
#[test]
fn three_axes_at_once() {
    let axes = [Axis::ExpertData, Axis::Tensor, Axis::Expert];
    let every = |code: usize| axes.into_iter().zip([code & 3, code >> 2 & 3, code >> 4 & 3].map(|state| STATES[state]));
    let layouts: Vec<Layout> = (0..64).map(|code| every(code).collect()).collect();
    // Each to one other, in an order that meets every state of every axis, and the one to which all cut the rows.
    let mixed = (0..64).map(|code| (layouts[code].clone(), layouts[(code * 37 + 11) % 64].clone()));
    let nested = layouts.iter().map(|from| (from.clone(), axes.map(|axis| (axis, Sbp::Split(0))).into()));
    check_values((4, 2, 2), [7, 5], &mixed.chain(nested).collect::<Vec<_>>());
}

#[test]
fn two_axes_cut_one_dim_one_inside_the_other() {
    let rows = |layout: [(Axis, Sbp); 2]| {
        testing::run((2, 2, 1), |epl| Ok(GlobalTensor::<2>::zeros([7, 5], layout, epl.place()).ranges()[0].clone()))
    };
    let [data, tensor] = AXES.map(|axis| (axis, Sbp::Split(0)));
    assert_eq!(rows([data, tensor]), [0..2, 2..4, 4..6, 6..7]);
    assert_eq!(rows([tensor, data]), [0..2, 4..6, 2..4, 6..7]);
}

fn bits(data: &TensorData) -> Vec<u32> {
    data.iter::<f32>().map(f32::to_bits).collect()
}

#[test]
fn random_values_are_those_of_one_rank_to_the_bit() {
    for distribution in [Distribution::Normal(0.5, 2.0), Distribution::Uniform(-1.0, 1.0)] {
        let random =
            |epl: &Epl, layout: Layout| GlobalTensor::random([7, 5], distribution, layout, &epl.place().child("noise"));
        let one = &testing::run((1, 1, 1), |epl| Ok(random(&epl, Layout::default()).local().into_data()))[0];
        let whole = |rows: &[usize], columns: &[usize]| -> Vec<u32> {
            let all = bits(one);
            rows.iter()
                .flat_map(|row| columns.iter().map(move |column| (row, column)))
                .map(|(i, j)| all[i * 5 + j])
                .collect()
        };
        for mesh in MESHES {
            testing::run(mesh, |epl| {
                for layout in layouts() {
                    let noise = random(&epl, layout.clone());
                    if !layout.axes().iter().any(|(_, sbp)| *sbp == Sbp::Partial) {
                        let [rows, columns] = held(&layout, [7, 5], sizes(&epl), epl.context().coordinate());
                        assert_eq!(bits(&noise.clone().local().into_data()), whole(&rows, &columns), "{layout}");
                    }
                    let gathered = noise.gather().into_data();
                    assert_eq!(gathered.shape(), one.shape());
                    assert_eq!(bits(&gathered), bits(one), "{layout} on {mesh:?}");
                }
                Ok(())
            });
        }
    }
}

#[test]
fn random_values_depend_on_the_seed_and_the_path_only() {
    let draw = |seed: u64, path: &str| {
        let mut config = testing::config(1, 1, 1);
        config.train.seed = seed;
        let draws = launch(&config, |epl| {
            let place = epl.place().child(path);
            let draw = || GlobalTensor::<1>::random([64], Distribution::Default, [], &place).gather().into_data();
            assert_eq!(draw(), draw(), "the same path gives the same values again");
            Ok(bits(&draw()))
        });
        draws.expect("one rank draws")[0].clone()
    };
    let differ = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| a != b);
    assert_eq!(draw(1, "a"), draw(1, "a"));
    assert!(differ(&draw(1, "a"), &draw(2, "a")));
    assert!(differ(&draw(1, "a"), &draw(1, "b")));
}

#[test]
fn a_replicated_tensor_is_cut_and_gathered_again() {
    testing::run((2, 3, 1), |epl| {
        let whole = tensor(&Vec::from_iter(0..7), &Vec::from_iter(0..5), value, epl.place().device()).require_grad();
        for layout in layouts() {
            let laid_out = GlobalTensor::from_whole(whole.clone(), layout.clone(), epl.context());
            let gathered = laid_out.gather();
            assert_eq!(gathered.to_data(), whole.to_data(), "{layout}");
            let grads = gathered.sum().backward();
            let gradient = whole.grad(&grads).map(|gradient| gradient.into_data().iter::<f32>().collect::<Vec<_>>());
            assert_eq!(gradient, Some(vec![1.0; 35]), "{layout}");
        }
        Ok(())
    });
}

#[test]
fn a_sum_is_taken_over_every_partial_axis() {
    let sums = testing::run((2, 3, 1), |epl| {
        let one = || burn::tensor::Tensor::<1>::ones([4], epl.place().device());
        let sum = |layout: [(Axis, Sbp); 2]| {
            let extent = if layout[1].1 == Sbp::Partial { 4 } else { 12 };
            let sum = GlobalTensor::from_local(one(), [extent], layout, epl.context()).all_reduce();
            assert!(sum.layout().axes().iter().all(|(_, sbp)| *sbp != Sbp::Partial));
            (sum.layout().to_string(), sum.local().into_data().iter::<f32>().collect::<Vec<_>>())
        };
        let zeros = GlobalTensor::<1>::zeros([4], [(Axis::Data, Sbp::Partial)], epl.place());
        assert_eq!(zeros.gather().into_data().iter::<f32>().collect::<Vec<_>>(), [0.0; 4]);
        let both = sum([(Axis::Data, Sbp::Partial), (Axis::Tensor, Sbp::Partial)]);
        Ok((both, sum([(Axis::Data, Sbp::Partial), (Axis::Tensor, Sbp::Split(0))])))
    });
    for (both, one) in sums {
        assert_eq!(both, ("data: B, tensor: B".to_string(), vec![6.0; 4]));
        assert_eq!(one, ("data: B, tensor: S(0)".to_string(), vec![2.0; 4]));
    }
}

#[test]
fn a_placement_tells_the_ranks_by_axis() {
    let placements = testing::run((2, 3, 1), |epl| {
        let of = |layout: Layout| GlobalTensor::<2>::zeros([7, 5], layout, epl.place()).placement().to_string();
        let axis = |axis: Axis| (axis, Sbp::Split(0));
        Ok([of([axis(AXES[0]), axis(AXES[1])].into()), of([axis(AXES[1])].into()), of(Layout::default())])
    });
    assert_eq!(placements[4][0], "data × tensor [[0, 1, 2], [3, 4, 5]]");
    assert_eq!(placements[4][1], "tensor [3, 4, 5]");
    assert_eq!(placements[4][2], "rank 4");
}

/// The error of a closure on 4 data (2 expert) × 2 tensor ranks.
#[track_caller]
fn refused<T>(parts: &[&str], f: impl Fn(&Epl) -> T + Sync) {
    let found = launch(&testing::config(4, 2, 2), |epl| {
        epl_comm::catch(|| f(&epl))?;
        Ok(())
    });
    let error = found.expect_err("this is wrong").to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    assert!(!error.contains("panicked"), "{error}");
}

#[test]
fn layouts_that_do_not_exist_are_refused() {
    let zeros = |epl: &Epl, layout: Layout| GlobalTensor::<2>::zeros([7, 5], layout, epl.place());
    refused(&["dim 2 of a tensor of 2 dims over the tensor axis", "below 2"], |epl| {
        zeros(epl, [(Axis::Data, Sbp::Split(0)), (Axis::Tensor, Sbp::Split(2))].into())
    });
    refused(&["the tensor axis twice, as S(0) and as P", "once"], |epl| {
        zeros(epl, [(Axis::Tensor, Sbp::Split(0)), (Axis::Tensor, Sbp::Partial)].into())
    });
    refused(&["the expert axis and the data axis", "not independent", "expert and expert_data"], |epl| {
        zeros(epl, [(Axis::Expert, Sbp::Split(0)), (Axis::Data, Sbp::Broadcast)].into())
    });
    refused(&["dim 3 of a tensor of 2 dims"], |epl| {
        zeros(epl, Layout::default()).to_layout([(Axis::Data, Sbp::Split(3))])
    });
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    refused(&["rank ", "holds [2, 2] of a tensor of [7, 5]", "`tensor: S(0)`", "Layout::ranges"], |epl| {
        let local = burn::tensor::Tensor::<2>::zeros([2, 2], epl.place().device());
        GlobalTensor::from_local(local, [7, 5], [(Axis::Tensor, Sbp::Split(0))], epl.context())
    });
    for (distribution, part) in [
        (Distribution::Bernoulli(1.5), "probability 1.5"),
        (Distribution::Uniform(2.0, 1.0), "from 2 to 1"),
        (Distribution::Normal(0.0, -1.0), "standard deviation -1"),
    ] {
        refused(&[part], |epl| GlobalTensor::random([7, 5], distribution, [], epl.place()));
    }
}
