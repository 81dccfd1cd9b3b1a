//! The same mathematics as loops over samples and experts, every expert on every token.

use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_core::testing;
use epl_modules::moe::{Balance, Capacity, Gate, Moe};

use super::case::{AUXILIARY, Case, D_MODEL, EXPERTS, Z};
use super::layout::{build, host, plain};
use super::{Outcome, array};

/// Which of a sample's tokens each expert takes, by the formulas of the papers.
struct Decision {
    /// `kept[token][expert]`.
    kept: Vec<[bool; EXPERTS]>,
    /// The choices that the auxiliary loss counts, before dropping, for each expert.
    asked: [usize; EXPERTS],
    dropped: usize,
}

/// How many experts a token asks, and how many of them the auxiliary loss counts.
fn choices(case: &Case) -> (usize, usize) {
    match case.config.gate {
        Gate::Switch => (1, 1),
        Gate::Top2 => (2, 1),
        Gate::TopK { experts, .. } => (experts, experts),
    }
}

fn decide(rows: &[f64], case: &Case) -> Decision {
    let tokens = rows.len() / EXPERTS;
    let ranked: Vec<Vec<usize>> = rows
        .chunks(EXPERTS)
        .map(|row| {
            let mut order: Vec<usize> = (0..EXPERTS).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            order
        })
        .collect();
    let (choices, counted) = choices(case);
    let capacity = match case.config.capacity {
        Capacity::Factor { train, .. } => ((train * (choices * tokens) as f64 / EXPERTS as f64).ceil() as usize).max(4),
        Capacity::Fixed(capacity) => capacity,
        Capacity::Unlimited => usize::MAX,
    };
    let mut decision = Decision { kept: vec![[false; EXPERTS]; tokens], asked: [0; EXPERTS], dropped: 0 };
    for choice in 0..choices {
        for token in 0..tokens {
            let expert = ranked[token][choice];
            let earlier_choices = (0..choice).map(|c| (0..tokens).filter(|t| ranked[*t][c] == expert).count());
            let earlier_tokens = (0..token).filter(|t| ranked[*t][choice] == expert).count();
            let position = earlier_choices.sum::<usize>() + earlier_tokens;
            decision.kept[token][expert] |= position < capacity;
            decision.dropped += usize::from(position >= capacity);
            decision.asked[expert] += usize::from(choice < counted);
        }
    }
    decision
}

/// The layer's weights, whole.
struct Weights {
    router: Tensor<2>,
    input: Tensor<3>,
    gate: Option<Tensor<3>>,
    output: Tensor<3>,
    /// Of the shared network, which is gated.
    shared: Option<[Tensor<2>; 3]>,
}

impl Weights {
    fn new(moe: &Moe) -> Self {
        Self {
            router: moe.router.weight.val(),
            input: moe.experts.input.val(),
            gate: moe.experts.gate.as_ref().map(|gate| gate.val()),
            output: moe.experts.output.val(),
            shared: moe.shared.as_ref().map(|shared| {
                let gate = shared.gate.as_ref().expect("the case is gated");
                [&shared.input, gate, &shared.output].map(|linear| linear.weight.val())
            }),
        }
    }

    /// What all tokens are sent to.
    fn shared(&self, x: Tensor<2>) -> Option<Tensor<2>> {
        let [input, gate, output] = self.shared.as_ref()?;
        let inside = activation::gelu_approximate(x.clone().matmul(input.clone())) * x.matmul(gate.clone());
        Some(inside.matmul(output.clone()))
    }

    /// One expert on every token.
    fn expert(&self, index: usize, x: Tensor<2>) -> Tensor<2> {
        let of = |weights: &Tensor<3>| weights.clone().narrow(0, index, 1).squeeze_dim::<2>(0);
        let inwards = x.clone().matmul(of(&self.input));
        let inside = match &self.gate {
            Some(gate) => activation::gelu_approximate(inwards) * x.matmul(of(gate)),
            None => activation::relu(inwards),
        };
        inside.matmul(of(&self.output))
    }
}

/// What one sample contributes.
struct Sample {
    x: Tensor<2>,
    hidden: Tensor<2>,
    auxiliary: Tensor<1>,
    z: Tensor<1>,
    /// The sum of each expert's probability. Shape `[1, EXPERTS]`.
    sums: Tensor<2>,
    asked: [usize; EXPERTS],
    taken: [usize; EXPERTS],
    dropped: usize,
}

fn compute_sample(case: &Case, weights: &Weights, sample: usize, tokens: usize, device: &Device) -> Sample {
    let x = case.tensor(sample..sample + 1, tokens, |s, t, e| case.x(s, t, e), device);
    let x = x.squeeze_dim::<2>(0).require_grad();
    let logits = x.clone().matmul(weights.router.clone());
    let probabilities = activation::softmax(logits.clone(), 1);
    let rows: Vec<f64> = host(probabilities.clone()).iter::<f64>().collect();
    let decision = decide(&rows, case);

    let kept: Vec<f64> = decision.kept.iter().flatten().map(|kept| f64::from(*kept)).collect();
    let kept = Tensor::<2>::from_data(TensorData::new(kept, [tokens, EXPERTS]), device);
    let mut shares = probabilities.clone() * kept.clone();
    if matches!(case.config.gate, Gate::Top2 | Gate::TopK { renormalise: true, .. }) {
        // A token that nobody took has no sum to divide by.
        let nobody = kept.sum_dim(1).lower_equal_elem(0.0).float();
        shares = shares.clone() / (shares.sum_dim(1) + nobody);
    }
    let mut hidden = Tensor::<2>::zeros([tokens, D_MODEL], device);
    let mut taken = [0; EXPERTS];
    for (index, taken) in taken.iter_mut().enumerate() {
        hidden = hidden + weights.expert(index, x.clone()) * shares.clone().narrow(1, index, 1);
        *taken = decision.kept.iter().filter(|kept| kept[index]).count();
    }
    let choices = (choices(case).1 * tokens) as f64;
    let hidden = weights.shared(x.clone()).map_or(hidden.clone(), |shared| hidden + shared);
    let density: Vec<f64> = decision.asked.iter().map(|count| *count as f64 / choices).collect();
    let density = Tensor::<2>::from_data(TensorData::new(density, [1, EXPERTS]), device);
    Sample {
        x,
        hidden,
        asked: decision.asked,
        sums: probabilities.clone().sum_dim(0),
        auxiliary: (density * probabilities.mean_dim(0)).mean().mul_scalar((EXPERTS * EXPERTS) as f64),
        z: logits.exp().sum_dim(1).log().square().mean(),
        taken,
        dropped: decision.dropped,
    }
}

/// E · Σ share of all choices · sum of probabilities, over all samples at once.
fn over_batch(samples: &[(usize, Sample)], device: &Device) -> Tensor<1> {
    let asked = |expert: usize| samples.iter().map(|(_, sample)| sample.asked[expert]).sum::<usize>();
    let asked: Vec<f64> = (0..EXPERTS).map(|expert| asked(expert) as f64).collect();
    let all: f64 = asked.iter().sum();
    let shares: Vec<f64> = asked.iter().map(|asked| EXPERTS as f64 * asked / all).collect();
    let sums = samples.iter().map(|(_, sample)| sample.sums.clone()).reduce(|sum, next| sum + next);
    (sums.expect("a sample with a token") * Tensor::from_data(TensorData::new(shares, [1, EXPERTS]), device)).sum()
}

/// Computes a case on one rank with plain tensors.
pub(crate) fn compute(case: &Case) -> Outcome {
    let outcomes = testing::run((1, 1, 1), |epl| Ok(compute_case(case, &build(case, &epl)?, epl.place())));
    outcomes.into_iter().next().expect("one rank")
}

fn compute_case(case: &Case, moe: &Moe, device: &Device) -> Outcome {
    let weights = Weights::new(moe);
    let lengths = case.lengths.iter().map(|real| match case.config.route_padding {
        true => case.padded.expect("given"),
        false => *real,
    });
    let routed = lengths.enumerate().filter(|(_, tokens)| *tokens > 0);
    let samples: Vec<(usize, Sample)> =
        routed.map(|(sample, tokens)| (sample, compute_sample(case, &weights, sample, tokens, device))).collect();

    let zero = || Tensor::<1>::zeros([1], device);
    let auxiliary = match case.config.balance {
        Balance::Sequences => samples.iter().fold(zero(), |sum, (_, sample)| sum + sample.auxiliary.clone()),
        Balance::Batch => over_batch(&samples, device),
    };
    let z = samples.iter().fold(zero(), |sum, (_, sample)| sum + sample.z.clone());
    let output = samples.iter().fold(zero(), |sum, (number, sample)| {
        let [tokens, _] = sample.hidden.dims();
        let probe = case.tensor(*number..number + 1, tokens, Case::probe, device).squeeze_dim::<2>(0);
        sum + (sample.hidden.clone() * probe).sum()
    });
    let gradients = (output + auxiliary.clone().mul_scalar(AUXILIARY) + z.clone().mul_scalar(Z)).backward();

    let joined = |tensors: Vec<Tensor<2>>| plain(Tensor::cat(tensors, 0));
    let mut taken = vec![0.0; EXPERTS];
    for (_, sample) in &samples {
        taken.iter_mut().zip(sample.taken).for_each(|(sum, count)| *sum += count as f64);
    }
    let dropped = samples.iter().map(|(_, sample)| sample.dropped as f64).sum();
    let mut outcome = Outcome::from([
        ("hidden".into(), joined(samples.iter().map(|(_, sample)| sample.hidden.clone().inner()).collect())),
        ("x".into(), joined(samples.iter().map(|(_, sample)| sample.x.grad(&gradients).expect("tracked")).collect())),
        ("auxiliary".into(), host(auxiliary)),
        ("z".into(), host(z)),
        ("router".into(), plain(weights.router.grad(&gradients).expect("tracked"))),
        ("experts.input".into(), plain(weights.input.grad(&gradients).expect("tracked"))),
        ("experts.output".into(), plain(weights.output.grad(&gradients).expect("tracked"))),
        ("moe.tokens_per_expert".into(), array(taken, &[EXPERTS])),
        ("moe.dropped_tokens".into(), array(vec![dropped], &[1])),
    ]);
    if let Some(gate) = weights.gate {
        outcome.insert("experts.gate".into(), plain(gate.grad(&gradients).expect("tracked")));
    }
    outcome
}
