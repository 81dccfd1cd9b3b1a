//! What is done to the scores of all tokens before one of them is chosen.

use super::config::GenerationConfig;

/// The score of what may not come.
const NEVER: f32 = f32::NEG_INFINITY;

/// Scores less what `written` and its prompt, which came before, make unwanted.
pub(crate) fn penalised(config: &GenerationConfig, scores: &mut [f32], written: &[i64]) {
    if config.repetition_penalty != 1.0 {
        let penalty = config.repetition_penalty as f32;
        let mut tokens: Vec<i64> = written.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            if let Some(score) = usize::try_from(token).ok().and_then(|token| scores.get_mut(token)) {
                let penalised = if *score < 0.0 { *score * penalty } else { *score / penalty };
                // Within f32, as the difference of two infinite scores is no number.
                *score = penalised.clamp(f32::MIN, f32::MAX);
            }
        }
    }
    let count = config.no_repeat_ngram;
    if count == 0 || written.len() + 1 < count {
        return;
    }
    // What follows wherever the last tokens stood before.
    let last = &written[written.len() + 1 - count..];
    for window in written.windows(count).filter(|window| window[..count - 1] == *last) {
        if let Some(score) = usize::try_from(window[count - 1]).ok().and_then(|token| scores.get_mut(token)) {
            *score = NEVER;
        }
    }
}

/// The scores of what may be drawn.
pub(crate) fn warped(config: &GenerationConfig, scores: &mut [f32]) {
    if config.temperature != 1.0 {
        let (best, temperature) = (scores.iter().copied().fold(NEVER, f32::max), config.temperature as f32);
        // Less the best one, which is then 0 however small the temperature is: two infinite scores have no probabilities.
        let may_come = scores.iter_mut().filter(|score| **score > NEVER);
        may_come.for_each(|score| *score = (*score - best) / temperature);
    }
    if let Some(least) = config.top_k.and_then(|count| kth_largest(scores, count)) {
        scores.iter_mut().filter(|score| **score < least).for_each(|score| *score = NEVER);
    }
    if let Some(share) = config.top_p.filter(|share| *share < 1.0) {
        keep_nucleus(scores, share as f32);
    }
    if let Some(share) = config.min_p {
        let probabilities = softmax(scores);
        let least = share as f32 * probabilities.iter().copied().fold(0.0, f32::max);
        let unlikely = scores.iter_mut().zip(&probabilities).filter(|(_, probability)| **probability < least);
        unlikely.for_each(|(score, _)| *score = NEVER);
    }
}

/// The smallest of so many of the largest; none where there are no more than that.
fn kth_largest(scores: &[f32], count: usize) -> Option<f32> {
    let mut sorted = scores.to_vec();
    let index = count.checked_sub(1).filter(|_| count < scores.len())?;
    sorted.sort_by(|one, other| other.total_cmp(one));
    Some(sorted[index])
}

/// Leaves out the least likely tokens, as long as they come to at most `1 − share` together.
fn keep_nucleus(scores: &mut [f32], share: f32) {
    let probabilities = softmax(scores);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|one, other| scores[*one].total_cmp(&scores[*other]));
    let mut sum = 0.0_f32;
    // The most likely one stays.
    for token in &order[..order.len().saturating_sub(1)] {
        sum += probabilities[*token];
        if sum > 1.0 - share {
            break;
        }
        scores[*token] = NEVER;
    }
}

/// The token of the largest score: of equal ones the first.
pub(crate) fn largest(scores: &[f32]) -> i64 {
    let best = scores.iter().enumerate().fold(
        (0, NEVER),
        |best, (token, score)| {
            if *score > best.1 { (token, *score) } else { best }
        },
    );
    best.0 as i64
}

/// The probabilities of scores.
pub(crate) fn softmax(scores: &[f32]) -> Vec<f32> {
    let largest = scores.iter().copied().fold(NEVER, f32::max);
    let exponentials: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|exponential| exponential / sum).collect()
}

/// The logarithms of the probabilities of scores.
pub(crate) fn log_softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(NEVER, f32::max);
    let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
    let shift = largest + sum.ln();
    scores.iter_mut().for_each(|score| *score -= shift);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> GenerationConfig {
        GenerationConfig::new(8).with_sample(true)
    }

    fn kept(config: &GenerationConfig, scores: &[f32]) -> Vec<usize> {
        let mut scores = scores.to_vec();
        warped(config, &mut scores);
        (0..scores.len()).filter(|token| scores[*token] > NEVER).collect()
    }

    #[test]
    fn what_was_written_is_penalised_once_and_ngrams_do_not_come_again() {
        let mut scores = [2.0, -1.0, 0.5, 4.0];
        penalised(&config().with_repetition_penalty(2.0), &mut scores, &[0, 1, 0, -100, 9]);
        assert_eq!(scores, [1.0, -2.0, 0.5, 4.0]);
        let mut scores = [0.0; 5];
        // Behind 1 2 came 3 and 4.
        penalised(&config().with_no_repeat_ngram(3), &mut scores, &[1, 2, 3, 1, 2, 4, 0, 1, 2]);
        assert_eq!(scores, [0.0, 0.0, 0.0, NEVER, NEVER]);
        let mut scores = [0.0; 3];
        penalised(&config().with_no_repeat_ngram(1), &mut scores, &[1]);
        assert_eq!(scores, [0.0, NEVER, 0.0]);
        let mut scores = [0.0; 3];
        penalised(&config().with_no_repeat_ngram(4), &mut scores, &[1, 1]);
        assert_eq!(scores, [0.0; 3]);
    }

    #[test]
    fn only_likely_tokens_are_left() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let scores = [8.0, 4.0, 2.0, 2.0].map(f32::ln);
        assert_eq!(kept(&config().with_top_k(Some(2)), &scores), [0, 1]);
        assert_eq!(kept(&config().with_top_k(Some(3)), &scores), [0, 1, 2, 3], "equal ones stay together");
        assert_eq!(kept(&config().with_top_k(Some(9)), &scores), [0, 1, 2, 3]);
        assert_eq!(kept(&config().with_top_p(Some(0.7)), &scores), [0, 1]);
        assert_eq!(kept(&config().with_top_p(Some(0.1)), &scores), [0]);
        assert_eq!(kept(&config().with_top_p(Some(1.0)), &scores), [0, 1, 2, 3]);
        assert_eq!(kept(&config().with_min_p(Some(0.4)), &scores), [0, 1]);
        let mut halved = scores;
        warped(&config().with_temperature(0.5), &mut halved);
        assert_eq!(halved, scores.map(|score| (score - scores[0]) / 0.5));
    }

    #[test]
    fn the_smallest_temperature_leaves_the_likeliest_token() {
        let mut scores = [80.0, 81.5, -3.0, NEVER];
        warped(&config().with_temperature(f64::from(f32::MIN_POSITIVE)), &mut scores);
        assert_eq!(softmax(&scores), [0.0, 1.0, 0.0, 0.0]);
        let mut scores = [80.0, 81.5, -3.0, NEVER];
        warped(&config().with_temperature(f64::from(f32::MAX)), &mut scores);
        assert!(softmax(&scores)[..3].iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-6));
        // Where nothing may come, nothing is likelier.
        let mut never = [NEVER; 2];
        warped(&config().with_temperature(0.5), &mut never);
        assert_eq!(never, [NEVER; 2]);
    }

    #[test]
    fn penalties_at_the_ends_of_f32_leave_probabilities() {
        for penalty in [f32::MIN_POSITIVE, f32::MAX] {
            let mut scores = [12.0, 20.0, -12.0, -20.0];
            penalised(&config().with_repetition_penalty(f64::from(penalty)), &mut scores, &[0, 1, 2, 3]);
            let probabilities = softmax(&scores);
            assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{penalty}: {probabilities:?}");
        }
    }

    #[test]
    fn of_equal_scores_the_first_token_is_taken() {
        assert_eq!(largest(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(largest(&[NEVER, NEVER]), 0);
        let mut scores = [1.0, 1.0];
        log_softmax(&mut scores);
        assert!((scores[0] + 2_f32.ln()).abs() < 1e-6);
    }
}
