//! The layout never changes the mathematics: in f64, all errors are at most 1e-10.

use epl::config::{PipelineStrategy, ZeroLevel};
use epl::data::BatchShard;
use epl::{Axis, launch_dry};

use crate::parity::{Case, Layout, assert_parity_in_f64 as assert_parity, dense, layout, metric, moe};

macro_rules! parity {
    ($($name:ident: $case:expr, $data:literal x $tensor:literal / $expert:literal, accumulate $accumulation:literal;)*) => {$(
        #[test]
        fn $name() {
            epl_testing::in_f64(|| {
                assert_parity(&$case, layout($data, $tensor, $expert, $accumulation));
            });
        }
    )*};
}

parity! {
    one_rank_accumulates:             moe(),                     1 x 1 / 1, accumulate 4;
    data_2:                           moe(),                     2 x 1 / 1, accumulate 1;
    data_2_accumulates:               moe(),                     2 x 1 / 1, accumulate 4;
    data_4:                           moe(),                     4 x 1 / 1, accumulate 1;
    data_4_accumulates:               moe(),                     4 x 1 / 1, accumulate 4;
    data_2_dense:                     dense(),                   2 x 1 / 1, accumulate 1;
    data_2_sgd:                       moe().sgd(),               2 x 1 / 1, accumulate 1;
    tensor_2:                         moe(),                     1 x 2 / 1, accumulate 1;
    tensor_2_accumulates:             moe(),                     1 x 2 / 1, accumulate 4;
    tensor_2_dense:                   dense(),                   1 x 2 / 1, accumulate 1;
    tensor_4:                         moe(),                     1 x 4 / 1, accumulate 1;
    tensor_4_dense_sgd:               dense().sgd(),             1 x 4 / 1, accumulate 1;
    expert_2:                         moe(),                     2 x 1 / 2, accumulate 1;
    expert_2_accumulates:             moe(),                     2 x 1 / 2, accumulate 4;
    expert_2_switch:                  moe().switch(),            2 x 1 / 2, accumulate 1;
    expert_2_sgd:                     moe().sgd(),               2 x 1 / 2, accumulate 1;
    expert_4:                         moe(),                     4 x 1 / 4, accumulate 1;
    data_2_tensor_2:                  moe(),                     2 x 2 / 1, accumulate 1;
    data_2_tensor_2_accumulates:      moe(),                     2 x 2 / 1, accumulate 4;
    data_4_expert_2:                  moe(),                     4 x 1 / 2, accumulate 1;
    data_4_expert_2_accumulates:      moe(),                     4 x 1 / 2, accumulate 4;
    data_2_tensor_2_expert_2:         moe(),                     2 x 2 / 2, accumulate 1;
    data_4_tensor_2_expert_2_switch:  moe().switch(),            4 x 2 / 2, accumulate 1;
    no_valid_token_on_a_replica:      moe().half_ignored(),      2 x 1 / 1, accumulate 1;
    no_valid_token_on_an_expert_rank: moe().half_ignored(),      2 x 1 / 2, accumulate 4;
    fewer_samples_than_replicas:      moe().samples(3),          4 x 1 / 2, accumulate 1;
    fewer_samples_than_micro_batches: moe().samples(3),          2 x 1 / 2, accumulate 4;
}

/// Whether a parameter of this name is of a layer that is whole.
type IsWhole = fn(&str) -> bool;

/// The names of parameters that are cut over tensor ranks.
fn cut(case: &Case, layout: Layout) -> Vec<String> {
    let plan = launch_dry(&layout.config(), 0, |epl| Ok(epl.plan(|at| case.init(at))?.plan().clone()));
    let plan = plan.expect("it can be laid out so").0;
    let cut = plan.records().iter().filter(|record| record.is_cut_over(Axis::Tensor));
    cut.map(|record| record.name.clone()).collect()
}

/// Kinds of layers, one layer, and all that may be: what is beside them stays divided.
#[test]
fn layers_are_whole_beside_others_that_are_divided() {
    let v3 = layout(2, 2, 1, 2).zero(ZeroLevel::V3);
    let staged = layout(1, 2, 1, 3).stages(2, 1, PipelineStrategy::PreferBackward);
    let layouts: [(Case, Layout, IsWhole); 6] = [
        (moe(), layout(1, 2, 1, 1).whole(&["**.feed_forward"]), |name| name.contains("feed_forward")),
        (moe(), layout(2, 2, 2, 2).whole(&["encoder.blocks.*.feed_forward.moe", "**.cross_attention"]), |name| {
            name.starts_with("encoder.blocks") && name.contains("moe") || name.contains("cross_attention")
        }),
        (moe().sgd(), layout(1, 4, 1, 1).whole(&["decoder.blocks.1.feed_forward"]), |name| {
            name.starts_with("decoder.blocks.1.feed_forward")
        }),
        // Self-attention gets a bias of divided heads.
        (dense(), layout(1, 2, 1, 2).whole(&["**"]), |name| {
            name.contains("feed_forward") || name.contains("cross_attention")
        }),
        (dense(), v3.whole(&["decoder.**.feed_forward"]), |name| {
            name.starts_with("decoder") && name.contains("feed_forward")
        }),
        (moe(), staged.whole(&["**.feed_forward"]), |name| name.contains("feed_forward")),
    ];
    epl_testing::in_f64(|| {
        for (case, layout, is_whole) in &layouts {
            let mut divided = cut(case, Layout { whole_layers: None, ..*layout });
            let all = divided.len();
            divided.retain(|name| !is_whole(name));
            assert!(!divided.is_empty() && divided.len() < all, "{divided:?}");
            assert_eq!(cut(case, *layout), divided);
            assert_parity(case, *layout);
        }
    });
}

/// A head on whose slices the loss counts, and what is not there.
#[test]
fn what_cannot_be_whole_is_refused() {
    for (names, told) in [
        (&["head"][..], "dist.whole_layers: no layer that may be whole or divided is at `head`"),
        (&["encoder.blocks.*.self_attention"], "is at `encoder.blocks.*.self_attention`"),
        (&["**.feed_forward", "blocks.0"], "; a path begins at the whole model: `**.blocks.0` covers some"),
        (&[], "dist.whole_layers = [] names no layer"),
    ] {
        let config = layout(1, 2, 1, 1).whole(names).config();
        let refused = launch_dry(&config, 0, |epl| epl.plan(|at| dense().init(at)).map(drop)).unwrap_err().to_string();
        assert!(refused.contains(told), "{refused}");
    }
}

#[test]
fn rows_are_divided_in_any_proportion() {
    epl_testing::in_f64(|| {
        for layout in [
            layout(2, 1, 2, 1).rows(&[2, 1]),
            layout(4, 1, 2, 2).rows(&[3, 1, 0, 2]),
            layout(2, 2, 1, 3).rows(&[1, 5]).zero(ZeroLevel::V2),
            layout(2, 1, 1, 3).rows(&[5, 2]).stages(2, 1, PipelineStrategy::PreferBackward),
        ] {
            let (weights, config) = (layout.row_weights.unwrap(), layout.config());
            let rows = epl::launch(&config, |epl| {
                let shard = BatchShard::of(epl.context(), layout.accumulation)?;
                Ok((shard.replica, shard.rows(moe().pairs.len()).into_iter().map(|rows| rows.len()).sum::<usize>()))
            });
            for (replica, rows) in rows.unwrap() {
                let exact = 7.0 * weights[replica] as f64 / weights.iter().sum::<usize>() as f64;
                assert!((rows as f64 - exact).abs() < 1.0, "{weights:?}: {rows} rows of replica {replica}");
            }
            assert_parity(&moe(), layout);
        }
    });
}

#[test]
fn experts_without_tokens() {
    epl_testing::in_f64(|| {
        for layout in [layout(2, 1, 2, 1), layout(4, 1, 4, 1), layout(1, 2, 1, 1)] {
            let outcome = assert_parity(&moe().many_experts(), layout);
            let tokens = metric(&outcome, "tokens_per_expert");
            assert!(
                tokens.iter().all(|layer| layer.contains(&0.0)),
                "every layer has an expert without tokens: {tokens:?}"
            );
        }
    });
}

#[test]
fn the_same_tokens_are_dropped_in_every_layout() {
    epl_testing::in_f64(|| {
        // `assert_parity` compares the counts as well.
        for layout in [layout(2, 1, 2, 1), layout(4, 1, 2, 4), layout(2, 2, 1, 1), layout(1, 1, 1, 4)] {
            for case in [moe().tight(), moe().switch().tight()] {
                let outcome = assert_parity(&case, layout);
                let dropped = metric(&outcome, "dropped_tokens");
                assert!(dropped.len() == 2 && dropped.iter().all(|layer| layer[0] > 0.0), "{dropped:?}");
            }
        }
    });
}
