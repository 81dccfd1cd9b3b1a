//! The same mathematics as loops over samples and experts, every expert on every token.

use burn::tensor::{Tensor, TensorData, activation};
use epl_core::testing;
use epl_modules::moe::{Capacity, Gate};

use super::case::{AUXILIARY, Case, D_MODEL, EXPERTS, Z};
use super::layout::{build, host, plain};
use super::{Outcome, array};

/// Which of a sample's tokens each expert takes, by the formulas of the papers.
struct Decision {
    /// `kept[token][expert]`.
    kept: Vec<[bool; EXPERTS]>,
    /// First choices before dropping, for each expert.
    first: [usize; EXPERTS],
    dropped: usize,
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
    let choices = if case.config.gate == Gate::Top2 { 2 } else { 1 };
    let capacity = match case.config.capacity {
        Capacity::Factor { train, .. } => ((train * (choices * tokens) as f64 / EXPERTS as f64).ceil() as usize).max(4),
        Capacity::Fixed(capacity) => capacity,
        Capacity::Unlimited => usize::MAX,
    };
    let mut decision = Decision { kept: vec![[false; EXPERTS]; tokens], first: [0; EXPERTS], dropped: 0 };
    for choice in 0..choices {
        for token in 0..tokens {
            let expert = ranked[token][choice];
            let earlier_choices = (0..choice).map(|c| (0..tokens).filter(|t| ranked[*t][c] == expert).count());
            let earlier_tokens = (0..token).filter(|t| ranked[*t][choice] == expert).count();
            let position = earlier_choices.sum::<usize>() + earlier_tokens;
            decision.kept[token][expert] |= position < capacity;
            decision.dropped += usize::from(position >= capacity);
            decision.first[expert] += usize::from(choice == 0);
        }
    }
    decision
}

/// Computes a case on one rank with plain tensors.
pub(crate) fn compute(case: &Case) -> Outcome {
    let outcomes = testing::run((1, 1, 1), |epl| {
        let moe = build(case, &epl)?;
        let device = epl.place().device();
        let (router, input, output_weight) =
            (moe.router.weight.val(), moe.experts.input.val(), moe.experts.output.val());
        let gate = moe.experts.gate.as_ref().map(|gate| gate.val());
        let expert = |weights: &Tensor<3>, index: usize| weights.clone().narrow(0, index, 1).squeeze_dim::<2>(0);
        let mut taken = [0; EXPERTS];
        let (mut dropped, mut inputs, mut hidden) = (0, Vec::new(), Vec::new());
        let mut auxiliary = Tensor::<1>::zeros([1], device);
        let mut z = Tensor::<1>::zeros([1], device);
        let mut loss = Tensor::<1>::zeros([1], device);
        for (sample, real) in case.lengths.iter().enumerate() {
            let tokens = if case.config.route_padding { case.padded.expect("given") } else { *real };
            if tokens == 0 {
                continue;
            }
            let x = case.tensor(sample..sample + 1, tokens, |s, t, e| case.x(s, t, e), device);
            let x = x.squeeze_dim::<2>(0).require_grad();
            let logits = x.clone().matmul(router.clone());
            let probabilities = activation::softmax(logits.clone(), 1);
            let rows: Vec<f64> = host(probabilities.clone()).iter::<f64>().collect();
            let decision = decide(&rows, case);

            let kept: Vec<f64> = decision.kept.iter().flatten().map(|kept| f64::from(*kept)).collect();
            let kept = Tensor::<2>::from_data(TensorData::new(kept, [tokens, EXPERTS]), device);
            let mut weights = probabilities.clone() * kept.clone();
            if case.config.gate == Gate::Top2 {
                // A token that nobody took has no sum to divide by.
                let nobody = kept.sum_dim(1).lower_equal_elem(0.0).float();
                weights = weights.clone() / (weights.sum_dim(1) + nobody);
            }
            let mut output = Tensor::<2>::zeros([tokens, D_MODEL], device);
            for index in 0..EXPERTS {
                let inwards = x.clone().matmul(expert(&input, index));
                let inside = match &gate {
                    Some(gate) => activation::gelu_approximate(inwards) * x.clone().matmul(expert(gate, index)),
                    None => activation::relu(inwards),
                };
                let y = inside.matmul(expert(&output_weight, index));
                output = output + y * weights.clone().slice([0..tokens, index..index + 1]);
                taken[index] += decision.kept.iter().filter(|kept| kept[index]).count();
            }
            dropped += decision.dropped;

            let density: Vec<f64> = decision.first.iter().map(|count| *count as f64 / tokens as f64).collect();
            let density = Tensor::<2>::from_data(TensorData::new(density, [1, EXPERTS]), device);
            let proxy = probabilities.mean_dim(0);
            let balance = (density * proxy).mean().mul_scalar((EXPERTS * EXPERTS) as f64);
            let log_sum = logits.exp().sum_dim(1).log();
            let size = log_sum.clone().square().mean();
            let probe = case.tensor(sample..sample + 1, tokens, Case::probe, device).squeeze_dim::<2>(0);
            loss = loss + (output.clone() * probe).sum();
            loss = loss + balance.clone().mul_scalar(AUXILIARY) + size.clone().mul_scalar(Z);
            auxiliary = auxiliary + balance;
            z = z + size;
            inputs.push(x);
            hidden.push(output);
        }
        let gradients = loss.backward();
        let joined = |tensors: Vec<Tensor<2>>| plain(Tensor::cat(tensors, 0));
        let mut outcome = Outcome::new();
        outcome.insert("hidden".into(), joined(hidden.into_iter().map(Tensor::inner).collect()));
        outcome.insert("x".into(), joined(inputs.iter().map(|x| x.grad(&gradients).expect("tracked")).collect()));
        outcome.insert("auxiliary".into(), host(auxiliary));
        outcome.insert("z".into(), host(z));
        outcome.insert("router".into(), plain(router.grad(&gradients).expect("tracked")));
        outcome.insert("experts.input".into(), plain(input.grad(&gradients).expect("tracked")));
        outcome.insert("experts.output".into(), plain(output_weight.grad(&gradients).expect("tracked")));
        if let Some(gate) = gate {
            outcome.insert("experts.gate".into(), plain(gate.grad(&gradients).expect("tracked")));
        }
        let taken: Vec<f64> = taken.iter().map(|count| *count as f64).collect();
        outcome.insert("moe.tokens_per_expert".into(), array(taken, &[EXPERTS]));
        outcome.insert("moe.dropped_tokens".into(), array(vec![dropped as f64], &[1]));
        Ok(outcome)
    });
    outcomes.into_iter().next().expect("one rank")
}
