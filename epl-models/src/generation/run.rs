//! Token by token, under any layout.
//!
//! Every rank makes the same number of steps, as experts exchange tokens between replicas, and parameters are gathered over
//! them: after each step the ranks agree whether any row anywhere is unfinished. Finished rows are padding meanwhile: experts
//! do not see them. Tokens are chosen on the last stage, by all ranks that share its classes alike, and told to the others.

use burn::tensor::{Device, Tensor};
use epl_comm::{ReduceOp, Split};
use epl_core::{Decoding, Engine, Incremental, Result};
use epl_modules::split_argmax;

use super::agreed::agree;
use super::beams::BeamSearch;
use super::config::GenerationConfig;
use super::draws::draw;
use super::scores::{largest, log_softmax, penalised, warped};

/// A model that writes text, token by token.
pub trait Generative: Incremental + Sized {
    /// What the steps of some prompts read.
    type Prompts: PromptRows<Self::Batch>;

    /// The number of tokens.
    fn vocabulary(&self) -> usize;

    /// The tokens that end a text.
    fn ends(&self) -> Vec<i64>;

    /// How many tokens of a prompt and of what is written behind it the model reads at most, which is all but what is written
    /// last; none: any number.
    fn longest_text(&self) -> Option<usize> {
        None
    }

    /// Prompts that are in a batch together. None of them is empty, and all of their tokens are in the vocabulary.
    fn prompts(&self, prompts: &[Vec<i64>], device: &Device) -> Self::Prompts;

    /// What stands before the first token that is written to a prompt: of a decoder the prompt, behind an encoder a start token.
    fn begun(&self, prompt: &[i64]) -> Vec<i64>;

    /// This rank's logits of the last position of each row, from what the last segment returned.
    ///
    /// # Shapes
    ///
    /// - output: split along dim 1 of `[rows, tokens]`
    fn last_logits(&self, carry: Self::Carry) -> Split<2>;
}

/// The prompts of the rows of a batch.
pub trait PromptRows<B> {
    /// What a step reads, where each row has `last` written this, or nothing once it is finished. Step 0 reads the prompts.
    fn batch(&self, step: usize, last: &[Option<i64>]) -> B;

    /// Keeps these rows, in this order.
    fn select(&mut self, rows: &[usize]);
}

/// What an engine's model writes behind each prompt, without the token that ends it.
///
/// It goes through the stages, with parameters gathered segment by segment, as in training. Replicas may have different
/// numbers of prompts, or none; ranks of one replica have the same ones. Collective over the world.
///
/// Of a model with experts, each step routes one token of a sequence. It equals what a forward over the whole
/// sequence says as long as that forward drops no token: an expert that is full with earlier and later tokens of
/// the sequence is not full here.
///
/// ```
/// use burn::optim::SgdConfig;
/// use epl_core::{Config, Engine, launch};
/// use epl_models::{DecoderConfig, GenerationConfig, generate};
///
/// let shape = DecoderConfig::new(50).with_d_model(16).with_d_ff(32).with_heads(2).with_layers(2).with_positions(32);
/// let config = Config::new().with("cluster.ranks", 2)?.with("dist.tensor_parallel_size", 2)?;
/// let written = launch(&config, |epl| {
///     let engine = Engine::build(&epl, |at| shape.init(at), &SgdConfig::new())?;
///     generate(&engine, &[vec![7, 8, 9], vec![4]], &GenerationConfig::new(5))
/// })?;
/// assert!(written[0] == written[1] && written[0].iter().all(|text| text.len() == 5));
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// When a prompt has no token, a token of a prompt or of `stop` is not in the vocabulary, a prompt and what may be written
/// behind it need more positions than the model has ([`Generative::longest_text`]), the settings contradict each other or are
/// not the same on every rank, ranks of one replica have different prompts, stages have different widths, or a peer fails.
/// All but the last two are found before the first step, on every rank.
pub fn generate<M: Generative>(
    engine: &Engine<M>,
    prompts: &[Vec<i64>],
    config: &GenerationConfig,
) -> Result<Vec<Vec<i64>>> {
    generate_told(engine, prompts, config, |_, _| ())
}

/// [`generate`], which tells each token of a prompt, by its number, as soon as it is written; those of several beams when all are.
///
/// # Errors
///
/// As [`generate`].
pub fn generate_told<M: Generative>(
    engine: &Engine<M>,
    prompts: &[Vec<i64>],
    config: &GenerationConfig,
    told: impl FnMut(usize, i64),
) -> Result<Vec<Vec<i64>>> {
    let model = engine.model();
    let first = agree(engine.context(), (prompts, model.vocabulary(), model.longest_text()), config)?;
    // A rank without prompts goes along with one that is finished from the start and thrown away.
    let stand_in = [vec![0]];
    let (own, is_real) = if prompts.is_empty() { (&stand_in[..], false) } else { (prompts, true) };
    let mut written = Generation::new(engine, own, config, (is_real, first)).run(engine, told)?;
    written.truncate(prompts.len());
    Ok(written)
}

/// The rows that are still generated, and what all prompts have so far.
struct Generation<'a, M: Generative> {
    config: &'a GenerationConfig,
    stop: Vec<i64>,
    prompts: M::Prompts,
    /// The number of the first prompt over all replicas.
    first: u64,
    /// The prompt of each row in the batch; beams of one prompt are neighbours.
    rows: Vec<usize>,
    /// What each of them wrote last, or nothing once it is finished.
    last: Vec<Option<i64>>,
    /// By prompt, what stands before what is written, and that.
    begun: Vec<Vec<i64>>,
    written: Vec<Vec<i64>>,
    /// By prompt; they go on where tokens are chosen.
    searches: Vec<BeamSearch>,
    steps: usize,
}

impl<'a, M: Generative> Generation<'a, M> {
    fn new(
        engine: &Engine<M>,
        prompts: &[Vec<i64>],
        config: &'a GenerationConfig,
        (is_real, first): (bool, u64),
    ) -> Self {
        let (model, device) = (engine.model(), engine.device().clone().without_autodiff());
        let stop = [model.ends(), config.stop.clone()].concat();
        let rows: Vec<usize> = (0..prompts.len()).flat_map(|prompt| vec![prompt; config.beams]).collect();
        let in_rows: Vec<Vec<i64>> = rows.iter().map(|prompt| prompts[*prompt].clone()).collect();
        let begun: Vec<Vec<i64>> = prompts.iter().map(|prompt| model.begun(prompt)).collect();
        Self {
            config,
            prompts: model.prompts(&in_rows, &device),
            first,
            last: rows.iter().map(|prompt| begun[*prompt].last().copied().filter(|_| is_real)).collect(),
            rows,
            searches: prompts.iter().map(|_| BeamSearch::new(config, stop.clone())).collect(),
            stop,
            written: vec![Vec::new(); begun.len()],
            begun,
            steps: 0,
        }
    }

    /// Steps until every row of every rank is finished, or has the longest text.
    fn run(mut self, engine: &Engine<M>, mut told: impl FnMut(usize, i64)) -> Result<Vec<Vec<i64>>> {
        let (mut decoding, world) = (engine.decoding()?, engine.context().world());
        let mut chooses_here = false;
        while self.steps < self.config.longest {
            let unfinished = f64::from(u8::from(self.last.iter().any(Option::is_some)));
            if world.all_reduce_values(&[unfinished], ReduceOp::Max)?[0] == 0.0 {
                break;
            }
            self.forget_finished(&mut decoding);
            let batch = self.prompts.batch(self.steps, &self.last);
            let next = decoding.step(self.rows.len(), batch, |model, carry| {
                chooses_here = true;
                Ok(self.choose(model.last_logits(carry)))
            })?;
            self.steps += 1;
            match self.config.beams {
                1 => self.write(&next, &mut told),
                _ => self.go_on(&next, engine.model().vocabulary(), &mut decoding),
            }
        }
        // Where no rank has a prompt, no step was made, and there is nothing to tell.
        if self.config.beams > 1 && self.steps > 0 {
            self.take_best(&decoding, chooses_here, &mut told)?;
        }
        Ok(self.written)
    }

    /// The next token of each row; of beams also from which one it goes on, and -1 for all of a prompt that is done. Collective over the
    /// tensor axis.
    fn choose(&mut self, logits: Split<2>) -> Vec<i64> {
        let GenerationConfig { sample, beams, repetition_penalty, no_repeat_ngram, .. } = *self.config;
        if !sample && beams == 1 && repetition_penalty == 1.0 && no_repeat_ngram == 0 {
            return split_argmax(logits).into_data().iter::<i64>().collect();
        }
        let mut scores = rows_of(logits.all_gather());
        if beams > 1 {
            return self.search(scores);
        }
        let choose = |(row, scores): (usize, &mut Vec<f32>)| {
            let prompt = self.rows[row];
            penalised(self.config, scores, &[&self.begun[prompt][..], &self.written[prompt]].concat());
            if !sample {
                return largest(scores);
            }
            warped(self.config, scores);
            draw(scores, self.config.seed, self.first + prompt as u64, self.steps as u64)
        };
        scores.iter_mut().enumerate().map(choose).collect()
    }

    /// The same of beams, by the logits of all rows.
    fn search(&mut self, mut scores: Vec<Vec<f32>>) -> Vec<i64> {
        let (beams, mut next) = (self.config.beams, Vec::with_capacity(scores.len()));
        for (group, scores) in scores.chunks_mut(beams).enumerate() {
            let prompt = self.rows[group * beams];
            let search = &mut self.searches[prompt];
            if self.last[group * beams].is_none() {
                next.extend(vec![-1; beams]);
                continue;
            }
            for (beam, scores) in scores.iter_mut().enumerate() {
                log_softmax(scores);
                penalised(self.config, scores, &[&self.begun[prompt][..], search.written(beam)].concat());
            }
            let tokens = scores[0].len();
            let chosen = search.step(scores);
            let number = |next: super::Continuation| (next.from * tokens) as i64 + next.token;
            next.extend(chosen.into_iter().map(|next| if search.is_done() { -1 } else { number(next) }));
        }
        next
    }

    /// Writes the tokens that were chosen.
    fn write(&mut self, next: &[i64], told: &mut impl FnMut(usize, i64)) {
        for ((last, prompt), token) in self.last.iter_mut().zip(&self.rows).zip(next) {
            *last = last.and(Some(*token)).filter(|token| !self.stop.contains(token));
            if let Some(token) = *last {
                self.written[*prompt].push(token);
                told(*prompt, token);
            }
        }
    }

    /// Goes on with the beams that were chosen.
    fn go_on(&mut self, next: &[i64], vocabulary: usize, decoding: &mut Decoding<'_, M>) {
        let beams = self.config.beams;
        let from = |(row, number): (usize, &i64)| {
            let group = row / beams * beams;
            usize::try_from(*number).map_or(row, |number| group + number / vocabulary)
        };
        let kept: Vec<usize> = next.iter().enumerate().map(from).collect();
        self.last = next.iter().map(|number| (*number >= 0).then(|| *number % vocabulary as i64)).collect();
        if kept.iter().enumerate().any(|(row, from)| row != *from) {
            decoding.select(&kept);
            self.prompts.select(&kept);
        }
    }

    /// The best text of each prompt, which the last stage knows. Collective over the stages.
    fn take_best(
        &mut self,
        decoding: &Decoding<'_, M>,
        chooses_here: bool,
        told: &mut impl FnMut(usize, i64),
    ) -> Result<()> {
        // No text is longer than the steps that were made, which may be far fewer than `longest`.
        let width = self.steps;
        let text = |search: &BeamSearch| {
            let mut tokens = search.best().to_vec();
            tokens.resize(width, -1);
            tokens
        };
        let own = chooses_here.then(|| self.searches.iter().flat_map(text).collect());
        let all = decoding.tell(self.searches.len() * width, own)?;
        for (prompt, tokens) in all.chunks(width).enumerate() {
            self.written[prompt] = tokens.iter().copied().take_while(|token| *token >= 0).collect();
            self.written[prompt].iter().for_each(|token| told(prompt, *token));
        }
        Ok(())
    }

    /// Takes finished prompts out of the batch when they are the half of it; one stays, so that this rank goes along with the others.
    fn forget_finished(&mut self, decoding: &mut Decoding<'_, M>) {
        let beams = self.config.beams;
        let mut kept: Vec<usize> = (0..self.rows.len()).filter(|row| self.last[*row].is_some()).collect();
        if 2 * kept.len() > self.rows.len() || self.rows.len() == beams {
            return;
        }
        if kept.is_empty() {
            kept.extend(0..beams);
        }
        decoding.select(&kept);
        self.prompts.select(&kept);
        self.rows = kept.iter().map(|row| self.rows[*row]).collect();
        self.last = kept.iter().map(|row| self.last[*row]).collect();
    }
}

/// The scores of each row on the host.
fn rows_of(logits: Tensor<2>) -> Vec<Vec<f32>> {
    let tokens = logits.dims()[1];
    let values: Vec<f32> = logits.into_data().iter::<f32>().collect();
    values.chunks(tokens).map(<[f32]>::to_vec).collect()
}
