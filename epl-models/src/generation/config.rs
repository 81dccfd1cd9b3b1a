//! How tokens are chosen.

use burn::config::Config;
use epl_core::{Error, Result};

/// How tokens are chosen: greedily, drawn by chance, or by a beam search.
///
/// What a folder of Hugging Face recommends in `generation_config.json` is not read, but for the tokens that end a text,
/// which are the model's ([`Folder::end_tokens`](crate::huggingface::Folder::end_tokens)): what is not said here has the
/// defaults below.
///
/// ```
/// use epl_models::generation::GenerationConfig;
///
/// let greedy = GenerationConfig::new(64);
/// let sampled = GenerationConfig::new(64).with_sample(true).with_temperature(0.8).with_top_p(Some(0.95));
/// let beams = GenerationConfig::new(64).with_beams(4).with_length_penalty(0.6);
/// assert!(greedy.with_top_k(Some(50)).validate().is_err(), "nothing is drawn");
/// # assert!(sampled.validate().is_ok() && beams.validate().is_ok());
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct GenerationConfig {
    /// The most tokens that are written behind a prompt, the one that ends it included.
    pub longest: usize,
    /// Tokens that end a text, beside those of the model; they are not part of it. Default: none
    #[config(default = "Vec::new()")]
    pub stop: Vec<i64>,
    /// How many texts of a prompt are pursued side by side; of more than one the best is returned. Default: 1
    #[config(default = 1)]
    pub beams: usize,
    /// Of beams: scores are divided by the length to this power. Above 0 favours longer texts. Default: 1
    #[config(default = 1.0)]
    pub length_penalty: f64,
    /// Of beams: whether a prompt is done once it has as many ended texts as beams, whatever may come. Default: false
    #[config(default = false)]
    pub early_stopping: bool,
    /// Whether tokens are drawn, by their probabilities. Default: false
    #[config(default = false)]
    pub sample: bool,
    /// Of what is drawn: scores are divided by it. Below 1 favours the likely ones. Default: 1
    #[config(default = 1.0)]
    pub temperature: f64,
    /// Of what is drawn: only so many of the most likely tokens. Default: all
    pub top_k: Option<usize>,
    /// Of what is drawn: only the most likely tokens whose probabilities come to this together
    /// (nucleus sampling, [arXiv:1904.09751](https://arxiv.org/abs/1904.09751)). Default: all
    pub top_p: Option<f64>,
    /// Of what is drawn: only tokens at least this times as likely as the most likely one
    /// ([arXiv:2407.01082](https://arxiv.org/abs/2407.01082)). Default: all
    pub min_p: Option<f64>,
    /// Where draws start: the same seed, prompts and settings draw by the same numbers in every layout, and write the same
    /// where layouts do not round probabilities to two sides of one of them. Default: 0
    #[config(default = 0)]
    pub seed: u64,
    /// Scores of tokens that are there already are divided by it, or multiplied, where they are below 0
    /// (CTRL, [arXiv:1909.05858](https://arxiv.org/abs/1909.05858)). Default: 1, no penalty
    #[config(default = 1.0)]
    pub repetition_penalty: f64,
    /// No so many tokens in a row come twice. Default: 0, they may
    #[config(default = 0)]
    pub no_repeat_ngram: usize,
}

impl GenerationConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, and a setting that has no effect on how tokens are chosen, with the remedy.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid(format!("generation: {message}")));
        if self.longest == 0 || self.beams == 0 {
            let (longest, beams) = (self.longest, self.beams);
            return invalid(format!("`longest` is {longest} and `beams` {beams}; both should be at least 1"));
        }
        if self.sample && self.beams > 1 {
            return invalid(format!("tokens are drawn, and `beams` is {}; leave one of both out", self.beams));
        }
        let default = Self::new(self.longest);
        let of_draws = [
            ("temperature", self.temperature != default.temperature),
            ("top_k", self.top_k.is_some()),
            ("top_p", self.top_p.is_some()),
            ("min_p", self.min_p.is_some()),
            ("seed", self.seed != default.seed),
        ];
        let of_beams = [
            ("length_penalty", self.length_penalty != default.length_penalty),
            ("early_stopping", self.early_stopping != default.early_stopping),
        ];
        for (is_on, all, needs) in
            [(self.sample, &of_draws[..], "`sample`"), (self.beams > 1, &of_beams[..], "several `beams`")]
        {
            if let Some((name, _)) = all.iter().find(|(_, is_given)| *is_given && !is_on) {
                return invalid(format!("`{name}` has no effect without {needs}; leave it out"));
            }
        }
        // Scores are f32.
        let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
        let greedy = "from 1.2e-38 to 3.4e38; for the likeliest token alone leave `sample` out";
        let numbers = [
            ("temperature", Some(self.temperature), least..=most, greedy),
            ("repetition_penalty", Some(self.repetition_penalty), least..=most, "from 1.2e-38 to 3.4e38; 1 is none"),
            ("top_p", self.top_p, f64::MIN_POSITIVE..=1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0..=1.0, "from 0 to 1"),
            ("length_penalty", Some(self.length_penalty), -most..=most, "a number from -3.4e38 to 3.4e38"),
        ];
        for (name, number, range, should) in numbers {
            if let Some(number) = number.filter(|number| !range.contains(number)) {
                return invalid(format!("`{name}` is {number}; it should be {should}"));
            }
        }
        match self.top_k {
            Some(0) => invalid("`top_k` is 0; it should be at least 1".to_string()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_or_has_no_effect_is_refused_by_name() {
        let new = || GenerationConfig::new(8);
        for (config, told) in [
            (GenerationConfig::new(0), "`longest` is 0"),
            (new().with_beams(2).with_sample(true), "`beams` is 2"),
            (new().with_temperature(0.5), "`temperature` has no effect without `sample`"),
            (new().with_length_penalty(2.0), "`length_penalty` has no effect without several `beams`"),
            (new().with_sample(true).with_temperature(0.0), "`temperature` is 0"),
            (new().with_sample(true).with_temperature(1e-39), "it should be from 1.2e-38 to 3.4e38; for the likeliest"),
            (new().with_sample(true).with_temperature(1e39), "`temperature` is 1000000"),
            (new().with_repetition_penalty(1e-39), "`repetition_penalty` is 0.000000"),
            (new().with_repetition_penalty(1e39), "it should be from 1.2e-38 to 3.4e38; 1 is none"),
            (new().with_beams(2).with_length_penalty(f64::INFINITY), "`length_penalty` is inf"),
            (new().with_sample(true).with_top_p(Some(1.5)), "`top_p` is 1.5"),
            (new().with_sample(true).with_top_k(Some(0)), "`top_k` is 0"),
            (new().with_repetition_penalty(f64::NAN), "`repetition_penalty` is NaN"),
        ] {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
