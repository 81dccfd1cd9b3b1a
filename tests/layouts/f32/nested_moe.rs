//! EPL's mixture of experts, everything replicated by default and the experts in a split scope, is the same plan and the
//! same run as `dist.expert_parallel_size`.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl::modules::{Moe, MoeConfig};
use epl::prelude::*;
use epl::{LaidOutModel, Strategy};

const RANKS: usize = 2;

/// `[samples, tokens, features]`
type Batch = Tensor<3>;

#[derive(Module, Debug)]
struct Net {
    body: Linear,
    moe: Moe,
}

impl Net {
    fn loss(&self, batch: &Batch) -> Tensor<1> {
        let output = self.moe.forward(self.body.forward(batch.clone()), None);
        output.hidden.powi_scalar(2).mean() + output.auxiliary * (0.01 / 3.0)
    }
}

type Model = WithLoss<Net, Batch>;
type Tensors = BTreeMap<String, TensorData>;

fn run(
    config: &Config,
    build: impl Fn(&Epl) -> epl::Result<LaidOutModel<Model>> + Sync,
) -> Vec<(String, Tensors, Tensors)> {
    let rank = |epl: Epl| {
        let built = build(&epl)?;
        let cuts: Vec<String> =
            built.plan().records().iter().map(|record| format!("{} {:?}", record.name, record.cuts)).collect();
        let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
        let rank = engine.context().data().rank();
        let batch = |seed: usize| {
            let number = |at: usize| ((at * 7919 + seed * 104_729) as f32 * 0.618_034).fract() - 0.5;
            let values: Vec<f32> = (0..3 * 5 * 4).map(number).collect();
            let samples: Vec<u64> = (0..3).map(|row| (seed * 3 + row) as u64).collect();
            MicroBatch::new(Tensor::from_data(TensorData::new(values, [3, 5, 4]), epl.place().device()), samples)
        };
        let gradients = engine.gradients(vec![batch(rank)])?.1;
        engine.step(vec![batch(rank)], 0.1)?;
        Ok((cuts.join("\n"), gradients, engine.parameters()?))
    };
    epl::launch(config, rank).unwrap_or_else(|error| panic!("{error}"))
}

fn net(at: &Place, experts: impl Fn(&Place) -> Moe) -> Net {
    Net { body: LinearConfig::new(4, 8).init(at), moe: experts(&at.child("moe")) }
}

#[test]
fn experts_in_a_split_scope_are_divided_over_the_replica() -> epl::Result<()> {
    let moe = MoeConfig::new(8, 16, 4);
    let numbers = Config::new().with("dist.data_parallel_size", RANKS)?.with("dist.expert_parallel_size", RANKS)?;
    let by_numbers = run(&numbers, |epl| epl.build(|at| WithLoss::new(net(at, |at| moe.init(at)), Net::loss)));
    let words = Config::new().with("cluster.ranks", RANKS)?.with("cluster.colocate_split_and_replicate", true)?;
    let by_words = run(&words, |epl| {
        epl.build(|at| {
            let net =
                at.default_strategy(Strategy::replicate(RANKS), |at| net(at, |at| at.split(RANKS, |at| moe.init(at))));
            WithLoss::new(net, Net::loss)
        })
    });
    assert!(by_words[0].0.contains("Expert"), "the experts are divided:\n{}", by_words[0].0);
    assert_eq!(by_words, by_numbers, "plan, gradients and parameters, to the bit");
    Ok(())
}
