//! Writes text with a model from a folder of Hugging Face: a decoder of [`Architecture`], a T5, or a Switch Transformer.
//!
//! ```text
//! cargo run --release --example generate -- FOLDER --prompt "Once upon a time" --longest 40
//! cargo run --release --example generate -- FOLDER --prompt "…" --sample --temperature 0.8 --top-p 0.95 --tensor 2
//! cargo run --release --example generate -- fixtures/transformers/llama-reversed --ids 11,25,36,1 --longest 12 --beams 4 --stages 2
//! ```
//!
//! The folder has `config.json`, the weights, and `tokenizer.json`, unless prompts are given as numbers of tokens.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use burn::optim::SgdConfig;
use clap::Parser;
use epl::models::decoder::{self, Architecture, DecoderConfig};
use epl::models::generation::{GenerationConfig, Generative, check, generate_told};
use epl::models::huggingface::Folder;
use epl::models::t5::{self, T5Config};
use epl::prelude::*;
use tokenizers::Tokenizer;

/// Write text with a model of Hugging Face.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// A folder with config.json, weights and tokenizer.json
    folder: PathBuf,
    /// A text to go on with, or a source to answer; several are written side by side
    #[arg(long, value_name = "TEXT", required_unless_present = "ids")]
    prompt: Vec<String>,
    /// A prompt as numbers of tokens, such as 11,25,36,1
    #[arg(long, value_name = "N,N,…", conflicts_with = "prompt")]
    ids: Vec<String>,
    /// The most tokens that are written
    #[arg(long, value_name = "N", default_value_t = 64)]
    longest: usize,
    /// Tokens that end a text, beside those of the model, such as 128009
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    stop: Vec<i64>,
    /// How many texts are pursued side by side
    #[arg(long, value_name = "N", default_value_t = 1)]
    beams: usize,
    /// Of beams: scores are divided by the length to this power
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    length_penalty: f64,
    /// Draw tokens by their probabilities
    #[arg(long)]
    sample: bool,
    /// Of what is drawn: scores are divided by it
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    temperature: f64,
    /// Of what is drawn: only so many of the most likely tokens
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Of what is drawn: only the most likely tokens that come to this together
    #[arg(long, value_name = "X")]
    top_p: Option<f64>,
    /// Of what is drawn: only tokens at least this times as likely as the most likely one
    #[arg(long, value_name = "X")]
    min_p: Option<f64>,
    /// Where draws start
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Scores of tokens that are there already are divided by it
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// No so many tokens in a row come twice
    #[arg(long, value_name = "N", default_value_t = 0)]
    no_repeat_ngram: usize,
    /// Ranks that share each split layer
    #[arg(long, value_name = "T", default_value_t = 1)]
    tensor: usize,
    /// Pipeline stages
    #[arg(long, value_name = "P", default_value_t = 1)]
    stages: usize,
}

impl Args {
    fn generation(&self) -> GenerationConfig {
        GenerationConfig::new(self.longest)
            .with_stop(self.stop.clone())
            .with_beams(self.beams)
            .with_length_penalty(self.length_penalty)
            .with_sample(self.sample)
            .with_temperature(self.temperature)
            .with_top_k(self.top_k)
            .with_top_p(self.top_p)
            .with_min_p(self.min_p)
            .with_seed(self.seed)
            .with_repetition_penalty(self.repetition_penalty)
            .with_no_repeat_ngram(self.no_repeat_ngram)
    }
}

/// What tokens mean.
struct Words(Option<Tokenizer>);

impl Words {
    fn open(args: &Args) -> epl::Result<Self> {
        let file = args.folder.join("tokenizer.json");
        let open = |file: &Path| Tokenizer::from_file(file).map_err(|error| invalid(file, &error));
        Ok(Self(if args.ids.is_empty() { Some(open(&file)?) } else { None }))
    }

    fn prompts(&self, args: &Args) -> epl::Result<Vec<Vec<i64>>> {
        let Some(tokenizer) = &self.0 else {
            let prompt = |ids: &String| -> epl::Result<Vec<i64>> {
                let tokens: Option<Vec<i64>> = ids.split(',').map(|token| token.trim().parse().ok()).collect();
                tokens.ok_or_else(|| {
                    Error::invalid(format!(
                        "--ids {ids:?}: give numbers of tokens with commas between, such as 11,25,36,1"
                    ))
                })
            };
            return args.ids.iter().map(prompt).collect();
        };
        let encode = |text: &String| {
            let encoding = tokenizer.encode(text.as_str(), true).map_err(|error| invalid(text, &error))?;
            Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
        };
        args.prompt.iter().map(encode).collect()
    }

    fn text(&self, tokens: &[i64]) -> epl::Result<String> {
        let Some(tokenizer) = &self.0 else {
            return Ok(tokens.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
        };
        let ids: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        tokenizer.decode(&ids, true).map_err(|error| invalid("tokens", &error))
    }
}

fn invalid(what: impl AsRef<Path>, error: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {error}", what.as_ref().display()))
}

/// A text that is printed while it is written.
#[derive(Default)]
struct Shown {
    tokens: Vec<i64>,
    text: String,
}

impl Shown {
    /// Prints what a token adds, unless it becomes text with the next one only.
    fn add(&mut self, words: &Words, token: i64) {
        self.tokens.push(token);
        if let Ok(whole) = words.text(&self.tokens)
            && let Some(more) = whole.strip_prefix(&self.text).filter(|more| !more.ends_with('\u{fffd}'))
        {
            print!("{more}");
            let _ = std::io::stdout().flush();
            self.text = whole;
        }
    }

    /// Prints what was held back.
    fn end(self, words: &Words) -> epl::Result<()> {
        let whole = words.text(&self.tokens)?;
        println!("{}", whole.strip_prefix(&self.text).unwrap_or_default());
        Ok(())
    }
}

/// What is to be written, as far as it can be checked before weights are loaded.
struct Task {
    words: Words,
    prompts: Vec<Vec<i64>>,
    generation: GenerationConfig,
}

impl Task {
    fn new(args: &Args) -> epl::Result<Self> {
        let generation = args.generation();
        generation.validate()?;
        let words = Words::open(args)?;
        let prompts = words.prompts(args)?;
        Ok(Self { words, prompts, generation })
    }

    /// Checks prompts and settings for a model of this shape.
    fn check(&self, shape: &Shape) -> epl::Result<()> {
        let limits = match shape {
            Shape::T5(config) => (config.vocab, None),
            Shape::Decoder(config) => (config.vocab, Some(config.positions)),
        };
        check(&self.prompts, &self.generation, limits)
    }
}

/// Writes behind the prompts; one alone is printed while it is written.
fn write<M: Generative>(engine: &Engine<M>, task: &Task) -> epl::Result<()> {
    let (Task { words, prompts, generation }, is_first) = (task, engine.context().world().rank() == 0);
    let (begin, mut count, mut shown) = (Instant::now(), 0, Shown::default());
    let written = generate_told(engine, prompts, generation, |_, token| {
        count += 1;
        if is_first && prompts.len() == 1 {
            shown.add(words, token);
        }
    })?;
    if is_first {
        if prompts.len() == 1 {
            shown.end(words)?;
        } else {
            for (number, tokens) in written.iter().enumerate() {
                println!("{}: {}", number + 1, words.text(tokens)?);
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("{count} tokens in {seconds:.2} s, {:.1} a second", count as f64 / seconds);
    }
    Ok(())
}

/// The shape of the folder's model.
enum Shape {
    T5(T5Config),
    Decoder(DecoderConfig),
}

impl Shape {
    fn of(folder: &Folder) -> epl::Result<Self> {
        Ok(match folder.model_type()? {
            "t5" | "switch_transformers" => Self::T5(T5Config::from_huggingface(folder)?),
            known if Architecture::named(known).is_some() => Self::Decoder(DecoderConfig::from_huggingface(folder)?),
            other => {
                return Err(Error::invalid(format!(
                    "{} is a `{other}`, which does not write text here; supported are t5, switch_transformers, {}",
                    folder.path().display(),
                    Architecture::SUPPORTED
                )));
            }
        })
    }
}

fn rank(epl: &Epl, (folder, shape): (&Folder, &Shape), task: &Task) -> epl::Result<()> {
    let (settings, optimizer) = (EngineSettings::from_config(epl.config()), SgdConfig::new());
    match shape {
        Shape::T5(config) => {
            let built = epl.build(|at| config.init(at))?;
            let built = built.try_map(|model, plan| Ok(t5::load(model, plan.records(), folder)?))?;
            write(&Engine::new(built, &optimizer, settings)?, task)
        }
        Shape::Decoder(config) => {
            let built = epl.build(|at| config.init(at))?;
            let built = built.try_map(|model, plan| Ok(decoder::load(model, plan.records(), folder)?))?;
            write(&Engine::new(built, &optimizer, settings)?, task)
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let run = || -> epl::Result<()> {
        let task = Task::new(&args)?;
        let folder = Folder::open(&args.folder)?;
        let shape = Shape::of(&folder)?;
        task.check(&shape)?;
        let config = Config::new()
            .with("dist.tensor_parallel_size", args.tensor)?
            .with("auto.auto_parallel", true)?
            .with("pipeline.num_stages", args.stages)?;
        config.validate()?;
        epl::launch(&config, |epl| rank(&epl, (&folder, &shape), &task)).map(drop)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
