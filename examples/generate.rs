//! Writes text with a model from a folder of Hugging Face: a GPT-2, Llama, Qwen3, or T5.
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
use epl::models::generation::{GenerationConfig, Generative, generate_told};
use epl::models::huggingface::Folder;
use epl::models::{decoder, t5};
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
            let token = |token: &str| token.trim().parse().map_err(|error| invalid(token, &error));
            return args.ids.iter().map(|ids| ids.split(',').map(token).collect()).collect();
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

/// Writes behind the prompts; one alone is printed while it is written.
fn write<M: Generative>(engine: &Engine<M>, args: &Args) -> epl::Result<()> {
    let (words, is_first) = (Words::open(args)?, engine.context().world().rank() == 0);
    let prompts = words.prompts(args)?;
    let (begin, mut count, mut shown) = (Instant::now(), 0, (Vec::new(), String::new()));
    let written = generate_told(engine, &prompts, &args.generation(), |_, token| {
        count += 1;
        if is_first && prompts.len() == 1 {
            shown.0.push(token);
            // A piece may become text with the next one only.
            if let Some((whole, more)) = words.text(&shown.0).ok().and_then(|whole| {
                let more = whole.strip_prefix(&shown.1)?.to_string();
                (!more.ends_with('\u{fffd}')).then_some((whole, more))
            }) {
                print!("{more}");
                let _ = std::io::stdout().flush();
                shown.1 = whole;
            }
        }
    })?;
    if is_first {
        if prompts.len() == 1 {
            println!();
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

fn rank(epl: &Epl, folder: &Folder, args: &Args) -> epl::Result<()> {
    let settings = EngineSettings::from_config(epl.config());
    if folder.model_type().map_err(|error| Error::invalid(error.to_string()))? == "t5" {
        let (weights, config) = t5::open(&args.folder).map_err(|error| Error::invalid(error.to_string()))?;
        let built = epl.build(|at| config.init(at))?;
        let built = built.try_map(|model, plan| Ok(t5::load(model, plan.records(), &weights)?))?;
        return write(&Engine::new(built, &SgdConfig::new(), settings)?, args);
    }
    let (weights, config) = decoder::open(&args.folder).map_err(|error| Error::invalid(error.to_string()))?;
    let built = epl.build(|at| config.init(at))?;
    let built = built.try_map(|model, plan| Ok(decoder::load(model, plan.records(), &weights)?))?;
    write(&Engine::new(built, &SgdConfig::new(), settings)?, args)
}

fn main() -> ExitCode {
    let args = Args::parse();
    let run = || -> epl::Result<()> {
        let folder = Folder::open(&args.folder).map_err(|error| Error::invalid(error.to_string()))?;
        let config = Config::new()
            .with("dist.tensor_parallel_size", args.tensor)?
            .with("auto.auto_parallel", true)?
            .with("pipeline.num_stages", args.stages)?;
        config.validate()?;
        epl::launch(&config, |epl| rank(&epl, &folder, &args)).map(drop)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
