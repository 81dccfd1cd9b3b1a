//! The best sequences of one prompt, several pursued side by side.

use super::config::GenerationConfig;

/// The score of what is not there.
const NOTHING: f32 = -1e9;

/// A beam goes on: from which one, and with which token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Continuation {
    pub from: usize,
    pub token: i64,
}

/// The beams of one prompt.
///
/// Of all continuations of all beams the best are looked at, as many more than there are beams as may end at once: those that do not
/// end go on, and those among the first that do are kept, if they are better than the worst that was kept, by the sum of their
/// logarithms divided by a power of their length.
#[derive(Clone, Debug)]
pub(crate) struct BeamSearch {
    beams: usize,
    longest: usize,
    length_penalty: f32,
    early_stopping: bool,
    stop: Vec<i64>,
    /// What each beam has written, and the sum of its logarithms.
    running: Vec<(Vec<i64>, f32)>,
    /// What has ended, from the best on, without the token that ended it.
    ended: Vec<(Vec<i64>, f32)>,
    /// How many tokens each beam has written.
    written: usize,
    is_done: bool,
}

impl BeamSearch {
    /// Begins: of the beams, which are alike, the first one alone counts.
    pub fn new(config: &GenerationConfig, stop: Vec<i64>) -> Self {
        let score = |beam: usize| if beam == 0 { 0.0 } else { NOTHING };
        Self {
            beams: config.beams,
            longest: config.longest,
            length_penalty: config.length_penalty as f32,
            early_stopping: config.early_stopping,
            stop,
            running: (0..config.beams).map(|beam| (Vec::new(), score(beam))).collect(),
            ended: Vec::new(),
            written: 0,
            is_done: false,
        }
    }

    /// Whether nothing better may come.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// What a beam has written.
    pub fn written(&self, beam: usize) -> &[i64] {
        &self.running[beam].0
    }

    /// The best sequence, without the token that ended it.
    pub fn best(&self) -> &[i64] {
        self.ended.first().or(self.running.first()).map_or(&[], |(tokens, _)| tokens)
    }

    /// Goes on by a token, given the logarithms of the probabilities of all tokens behind each beam.
    pub fn step(&mut self, scores: &[Vec<f32>]) -> Vec<Continuation> {
        let looked_at = self.best_continuations(scores);
        let is_last = self.written + 1 >= self.longest;
        let ends = |token: i64| is_last || self.stop.contains(&token);
        let next: Vec<(Continuation, f32)> = {
            let mut going: Vec<(Continuation, f32)> = looked_at
                .iter()
                .map(|(next, score)| (*next, if ends(next.token) { score + NOTHING } else { *score }))
                .collect();
            going.sort_by(|one, other| other.1.total_cmp(&one.1));
            going.truncate(self.beams);
            going
        };
        let is_full = self.early_stopping && self.ended.len() == self.beams;
        let ended = looked_at.iter().take(self.beams).filter(|(next, _)| ends(next.token) && !is_full);
        let ended: Vec<(Vec<i64>, f32)> = ended.map(|(next, score)| self.end(*next, *score)).collect();
        self.ended.extend(ended);
        self.ended.sort_by(|one, other| other.1.total_cmp(&one.1));
        self.ended.truncate(self.beams);
        let all_end = looked_at.iter().all(|(next, _)| ends(next.token));
        self.running = next
            .iter()
            .map(|(next, score)| ([&self.running[next.from].0[..], &[next.token]].concat(), *score))
            .collect();
        self.written += 1;
        self.is_done = all_end || !self.may_improve() || self.early_stopping && self.ended.len() == self.beams;
        next.into_iter().map(|(next, _)| next).collect()
    }

    /// The best continuations of all beams: of equal ones the first beam's and token's.
    fn best_continuations(&self, scores: &[Vec<f32>]) -> Vec<(Continuation, f32)> {
        let mut all: Vec<(Continuation, f32)> = Vec::new();
        for (from, (scores, (_, sum))) in scores.iter().zip(&self.running).enumerate() {
            let of = |(token, score): (usize, &f32)| (Continuation { from, token: token as i64 }, score + sum);
            all.extend(scores.iter().enumerate().map(of));
        }
        let count = (self.beams * (1 + self.stop.len()).max(2)).min(all.len());
        let better = |one: &(Continuation, f32), other: &(Continuation, f32)| {
            other.1.total_cmp(&one.1).then_with(|| (one.0.from, one.0.token).cmp(&(other.0.from, other.0.token)))
        };
        if count < all.len() {
            all.select_nth_unstable_by(count, better);
            all.truncate(count);
        }
        all.sort_by(better);
        all
    }

    /// A sequence that ends with a token, and its score by its length.
    fn end(&self, next: Continuation, score: f32) -> (Vec<i64>, f32) {
        let mut tokens = self.running[next.from].0.clone();
        // At the last position any token ends it, and is a part of it.
        tokens.extend((!self.stop.contains(&next.token)).then_some(next.token));
        (tokens, score / ((self.written + 1) as f32).powf(self.length_penalty))
    }

    /// Whether the best beam may come to more than the worst that was kept, if it ended now.
    fn may_improve(&self) -> bool {
        let best = self.running[0].1 / (self.written as f32).powf(self.length_penalty);
        let is_full = self.ended.len() == self.beams;
        !is_full || self.ended.last().is_some_and(|(_, worst)| best > *worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The logarithms of probabilities behind what was written, in a language of three tokens of which 0 ends a text.
    fn model(written: &[i64]) -> Vec<f32> {
        let probabilities: [f32; 3] = match written {
            [] => [0.1, 0.6, 0.3],
            [1] => [0.2, 0.4, 0.4],
            [2] => [0.85, 0.05, 0.1],
            _ => [0.5, 0.25, 0.25],
        };
        probabilities.map(f32::ln).to_vec()
    }

    /// Another language of these tokens: many short texts, and a longer one that gets ever surer.
    fn surer(written: &[i64]) -> Vec<f32> {
        let probabilities: [f32; 3] = match written {
            [] => [0.3, 0.6, 0.1],
            [1] => [0.2, 0.75, 0.05],
            _ => [0.95, 0.03, 0.02],
        };
        probabilities.map(f32::ln).to_vec()
    }

    fn searched(config: &GenerationConfig) -> (BeamSearch, usize) {
        searched_in(model, config)
    }

    fn searched_in(model: impl Fn(&[i64]) -> Vec<f32>, config: &GenerationConfig) -> (BeamSearch, usize) {
        let (mut search, mut steps) = (BeamSearch::new(config, vec![0]), 0);
        while !search.is_done() {
            let scores: Vec<Vec<f32>> = (0..config.beams).map(|beam| model(search.written(beam))).collect();
            search.step(&scores);
            steps += 1;
        }
        (search, steps)
    }

    #[test]
    fn the_best_sequence_is_not_the_greedy_one() {
        // 2 0 has 0.255; what begins with 1 has at most 0.6 · 0.4 · 0.5 = 0.12.
        let (search, _) = searched(&GenerationConfig::new(5).with_beams(2).with_length_penalty(0.0));
        assert_eq!(search.best(), [2]);
        assert!((search.ended[0].1 - (0.3_f32 * 0.85).ln()).abs() < 1e-6);
        // By its length the longer one is better.
        for penalty in [2.0, 4.0] {
            let (search, _) = searched(&GenerationConfig::new(5).with_beams(2).with_length_penalty(penalty));
            assert_eq!(search.best(), [1, 1], "{search:?}");
        }
    }

    #[test]
    fn it_ends_early_where_that_is_asked_for() {
        let config = GenerationConfig::new(50).with_beams(2);
        let (whole, steps) = searched_in(surer, &config);
        let (early, fewer) = searched_in(surer, &config.with_early_stopping(true));
        // After two steps the texts of 0 and of 1 token have ended; that of 2 is the likelier one by its length.
        assert_eq!((early.best(), fewer), (&[1][..], 2));
        assert_eq!((whole.best(), steps), (&[1, 1][..], 3));
    }

    #[test]
    fn it_ends_at_the_longest() {
        let (search, steps) = searched(&GenerationConfig::new(2).with_beams(3));
        assert_eq!((search.ended.len(), steps), (3, 2));
        // One beam is the greedy sequence.
        let (search, _) = searched(&GenerationConfig::new(4).with_beams(1));
        assert_eq!(search.best()[..1], [1]);
    }

    #[test]
    fn beams_go_on_from_those_that_were_best() {
        let config = GenerationConfig::new(5).with_beams(2);
        let mut search = BeamSearch::new(&config, vec![0]);
        let first = search.step(&[model(&[]), model(&[])]);
        assert_eq!(first, [Continuation { from: 0, token: 1 }, Continuation { from: 0, token: 2 }]);
        let second = search.step(&[model(&[1]), model(&[2])]);
        assert_eq!(second, [Continuation { from: 0, token: 1 }, Continuation { from: 0, token: 2 }]);
        assert_eq!([search.written(0), search.written(1)], [[1, 1], [1, 2]]);
    }
}
