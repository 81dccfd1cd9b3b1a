//! The step of a model by itself, on random data, in the words of Hugging Face: what a peer is measured against.

use std::ops::Range;
use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData};
use clap::Args;
use epl::config::Config;
use epl::data::BatchShard;
use epl::models::bert::{BertBatcher, MaskedLanguage};
use epl::models::decoder::DecoderExpertsConfig;
use epl::models::t5::{T5Batcher, T5Config, T5MoeConfig};
use epl::models::text::TokenPair;
use epl::models::{
    BertConfig, BertItem, DecoderBatcher, DecoderConfig, DecoderItem, ImageBatch, ResNetConfig, ViTConfig,
};
use epl::{Engine, EngineSettings, Epl, Error, MicroBatch, Model, Place, Result};
use epl_comm::{OperationPhase, OperationProfile, profile_operations, timed};

use crate::moe;
use crate::quartiles::quartiles;

/// A model's step: its sizes are those of the PyTorch programs in `tools/peers`, where they are not changed.
#[derive(Clone, Debug)]
pub struct Step {
    /// `moe_t5`, `t5`, `bert`, `gpt2`, `llama`, `mixtral`, `vit`, `resnet50`.
    pub model: String,
    /// Sizes by the names of the PyTorch program.
    pub set: Vec<(String, usize)>,
    /// Ranks, which divide the rows. Each has all experts.
    pub ranks: usize,
    /// Steps, at least three: the first two do not count.
    pub steps: usize,
    /// Rows of a step, of all ranks.
    pub batch: usize,
    /// Tokens of a row, or pixels of a side.
    pub seq: usize,
    /// `f32`, or `f16` or `bf16` in mixed precision.
    pub dtype: String,
}

/// What a step took.
#[derive(Clone, Debug)]
pub struct Took {
    /// Elements of all parameters.
    pub parameters: usize,
    /// The median of the steps.
    pub seconds: f64,
    /// Floating-point operations of the step's products on all ranks: a backward counts as two forwards. None where a layer
    /// does not tell its own.
    pub operations: Option<f64>,
    /// Tokens, or images, of a step on all ranks.
    pub items: usize,
    /// The last loss.
    pub loss: f64,
    /// The most memory that the process had held when the last step was over, in MiB.
    pub peak_mib: f64,
}

/// One rank's steps.
struct OfRank {
    seconds: Vec<f64>,
    operations: Option<f64>,
    parameters: usize,
    loss: f64,
    peak_mib: f64,
    profile: Vec<OperationProfile>,
}

/// What is done with a model and its rows, whichever it is.
pub trait WithModel {
    /// What comes of it.
    type Output;

    /// Does it; `batch` makes these rows.
    ///
    /// # Errors
    ///
    /// What it says.
    fn run<M: Model>(
        self,
        model: impl Fn(&Place) -> M,
        batch: impl Fn(Range<usize>, &Device) -> M::Batch,
    ) -> Result<Self::Output>
    where
        M::Batch: Clone;
}

/// The steps of one rank.
struct OnRank<'a> {
    step: &'a Step,
    epl: &'a Epl,
    is_profiled: bool,
}

impl WithModel for OnRank<'_> {
    type Output = OfRank;

    fn run<M: Model>(
        self,
        model: impl Fn(&Place) -> M,
        batch: impl Fn(Range<usize>, &Device) -> M::Batch,
    ) -> Result<OfRank>
    where
        M::Batch: Clone,
    {
        let Self { step, epl, is_profiled } = self;
        step.steps((epl, is_profiled), model, batch(step.rows_of(epl), epl.place().device()))
    }
}

/// Steps of a model on a rank, in the layout of its configuration, of so many rows of all ranks: `around` gets the engine with each step's
/// micro-batches, and makes the step, when all ranks are there.
///
/// # Errors
///
/// What building, a step or a peer says.
pub fn steps_in_layout<M: Model>(
    epl: &Epl,
    (model, batch): (impl Fn(&Place) -> M, impl Fn(Range<usize>, &Device) -> M::Batch),
    (rows, steps): (usize, usize),
    mut around: impl FnMut(&mut Engine<M>, Vec<MicroBatch<M::Batch>>) -> Result<()>,
) -> Result<()> {
    let micro_batches = epl.config().num_micro_batch(epl.context().mesh().replicas())?;
    let shard = BatchShard::of(epl.context(), micro_batches)?.rows(rows);
    let mut engine = Engine::build(epl, model, &AdamWConfig::new())?;
    for _ in 0..steps {
        let micro_batch = |rows: &Range<usize>| {
            let samples: Vec<u64> = rows.clone().map(|row| row as u64).collect();
            MicroBatch::new(batch(rows.clone(), epl.place().device()), samples)
        };
        let step = shard.iter().map(micro_batch).collect();
        epl.context().world().barrier()?;
        around(&mut engine, step)?;
    }
    Ok(())
}

/// The learning rate of steps that are measured.
pub const LR: f64 = 1e-4;

/// The sizes of a step, as a command line gives them.
#[derive(Args, Clone, Debug)]
pub struct Sizes {
    /// Another size, by the name that the PyTorch program gives it.
    #[arg(long, value_parser = size)]
    pub set: Vec<(String, usize)>,
    /// Rows of a step, of all ranks.
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Tokens of a row, or pixels of a side. Default: 64, and 128 for t5, bert, gpt2, llama and mixtral
    #[arg(long)]
    pub seq: Option<usize>,
    /// `f32`, or `f16` or `bf16` in mixed precision; PyTorch has bf16 only.
    #[arg(long, default_value = "f32")]
    pub dtype: String,
}

impl Sizes {
    /// So many steps of a model of these sizes.
    pub fn step(&self, model: &str, ranks: usize, steps: usize) -> Step {
        let Self { set, batch, seq, dtype } = self.clone();
        let seq = seq.unwrap_or(if matches!(model, "moe_t5" | "vit" | "resnet50") { 64 } else { 128 });
        Step { model: model.to_string(), set, ranks, steps, batch, seq, dtype }
    }
}

/// `KEY=VALUE`, of a size.
fn size(text: &str) -> core::result::Result<(String, usize), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    Ok((key.to_string(), value.parse().map_err(|error| format!("{value:?}: {error}"))?))
}

/// The most memory that this process has held, in MiB.
pub fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<f64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}

impl Step {
    /// A size, by the name that the PyTorch program gives it.
    fn size(&self, name: &str, default: usize) -> usize {
        self.set.iter().rev().find(|(key, _)| key == name).map_or(default, |(_, value)| *value)
    }

    fn known(&self) -> &'static [&'static str] {
        match self.model.as_str() {
            "moe_t5" => &["vocab", "d_model", "d_kv", "heads", "d_ff", "layers", "experts"],
            "t5" => &["vocab_size", "d_model", "d_kv", "num_heads", "d_ff", "num_layers"],
            "bert" => &["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"],
            "gpt2" => &["vocab_size", "n_embd", "n_layer", "n_head"],
            "llama" | "mixtral" => &[
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "num_local_experts",
            ],
            "vit" => &["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "num_labels"],
            "resnet50" => &["num_labels"],
            _ => &[],
        }
    }

    /// Refuses what cannot be run.
    ///
    /// # Errors
    ///
    /// When the model has no such size, a size is too small, or the ranks do not divide the rows.
    pub fn check(&self) -> Result<()> {
        if let Some((key, _)) = self.set.iter().find(|(key, _)| !self.known().contains(&key.as_str())) {
            let (model, known) = (&self.model, self.known());
            return Err(Error::invalid(format!(
                "{model} has no size {key:?}; it has {known:?}: choose rows by --only"
            )));
        }
        if self.ranks == 0 || !self.batch.is_multiple_of(self.ranks) {
            let (ranks, batch) = (self.ranks, self.batch);
            return Err(Error::invalid(format!("{ranks} ranks do not divide {batch} rows; give as many as divide")));
        }
        let vocab = self.size("vocab", self.size("vocab_size", 8000));
        if self.steps < 3 || self.seq == 0 || vocab < 3 || self.set.iter().any(|(_, size)| *size == 0) {
            let (steps, seq) = (self.steps, self.seq);
            return Err(Error::invalid(format!(
                "{steps} steps, rows of {seq}, {vocab} tokens; give at least 3 steps, 3 tokens, and no size of 0"
            )));
        }
        Ok(())
    }

    fn ranks(&self, is_profiled: bool) -> Result<Vec<OfRank>> {
        self.check()?;
        let config = Config::new().with("dist.data_parallel_size", self.ranks)?;
        let config = match self.dtype.as_str() {
            "f32" => config,
            half => config.with("amp.level", "O1")?.with("amp.dtype", half)?,
        };
        epl::launch(&config, |epl| self.on_rank(&epl, is_profiled))
    }

    /// What the operations of the first rank took in the steps that count, and how many these are.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn profiled(&self) -> Result<(Vec<OperationProfile>, usize)> {
        Ok((self.ranks(true)?.swap_remove(0).profile, self.steps - 2))
    }

    /// Runs it.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and when there is no such model.
    pub fn run(&self) -> Result<Took> {
        let mut ranks = self.ranks(false)?;
        let OfRank { mut seconds, operations, parameters, loss, peak_mib, .. } = ranks.swap_remove(0);
        let seconds = quartiles(seconds.split_off(2))[1];
        let items = match self.model.as_str() {
            "moe_t5" | "t5" => 2 * self.batch * self.seq,
            "vit" | "resnet50" => self.batch,
            _ => self.batch * self.seq,
        };
        let operations = operations.map(|operations| operations * self.ranks as f64);
        Ok(Took { parameters, seconds, operations, items, loss, peak_mib })
    }

    fn on_rank(&self, epl: &Epl, is_profiled: bool) -> Result<OfRank> {
        self.with_model(OnRank { step: self, epl, is_profiled })
    }

    /// Does something with the model and its rows.
    ///
    /// # Errors
    ///
    /// When there is no such model; what that something says.
    pub fn with_model<W: WithModel>(&self, with: W) -> Result<W::Output> {
        match self.model.as_str() {
            "moe_t5" => {
                let sparse = moe::model();
                let experts =
                    sparse.moe.clone().map(|moe| T5MoeConfig { experts: self.size("experts", moe.experts), ..moe });
                let config = self.t5(sparse, ["vocab", "heads", "layers"]).with_moe(experts);
                self.with_t5(&config, with)
            }
            "t5" => {
                let config = self.t5(moe::model().with_moe(None), ["vocab_size", "num_heads", "num_layers"]);
                self.with_t5(&config, with)
            }
            "bert" => {
                let config = BertConfig::new(self.size("vocab_size", 8000))
                    .with_d_model(self.size("hidden_size", 256))
                    .with_layers(self.size("num_hidden_layers", 4))
                    .with_heads(self.size("num_attention_heads", 8))
                    .with_d_ff(self.size("intermediate_size", 1024))
                    .with_dropout(0.0)
                    .with_attention_dropout(0.0);
                let row = |row: usize| {
                    let labels = self.tokens(config.vocab, row * self.seq + 31);
                    BertItem::new(self.tokens(config.vocab, row * self.seq), vec![0; self.seq], labels)
                };
                let batcher = BertBatcher::<MaskedLanguage>::new(&config);
                let batch = |rows: Range<usize>, device: &Device| batcher.batch(rows.map(row).collect(), device);
                with.run(|at| config.init_masked_language(at), batch)
            }
            "gpt2" | "llama" | "mixtral" => {
                let config = self.decoder()?;
                let batcher = DecoderBatcher::new(&config);
                let row = |row: usize| DecoderItem::new(self.tokens(config.vocab, row * self.seq));
                let batch = |rows: Range<usize>, device: &Device| batcher.batch(rows.map(row).collect(), device);
                with.run(|at| config.init(at), batch)
            }
            "vit" => {
                let config = ViTConfig::new(self.size("num_labels", 100))
                    .with_image_size(self.seq)
                    .with_patch_size(8)
                    .with_d_model(self.size("hidden_size", 256))
                    .with_layers(self.size("num_hidden_layers", 4))
                    .with_heads(self.size("num_attention_heads", 8))
                    .with_d_ff(self.size("intermediate_size", 1024));
                with.run(|at| config.init(at), |rows, device| self.images(config.classes, rows, device))
            }
            "resnet50" => {
                let config = ResNetConfig::resnet50(self.size("num_labels", 100));
                with.run(|at| config.init(at), |rows, device| self.images(config.classes, rows, device))
            }
            other => Err(Error::invalid(format!(
                "there is no model {other:?}; there are moe_t5, t5, bert, gpt2, llama, mixtral, vit and resnet50"
            ))),
        }
    }

    fn with_t5<W: WithModel>(&self, config: &T5Config, with: W) -> Result<W::Output> {
        let batcher = T5Batcher::new(config);
        let batch = |rows, device: &Device| batcher.batch(self.pairs(config.vocab, rows), device);
        with.run(|at| config.init(at), batch)
    }

    /// The shape of a decoder, of published ones but for their sizes.
    fn decoder(&self) -> Result<DecoderConfig> {
        if self.model == "gpt2" {
            let d_model = self.size("n_embd", 256);
            return Ok(DecoderConfig::new(self.size("vocab_size", 8000))
                .with_positions(512)
                .with_d_model(d_model)
                .with_d_ff(4 * d_model)
                .with_layers(self.size("n_layer", 4))
                .with_heads(self.size("n_head", 8))
                .with_embedding_dropout(0.0)
                .with_dropout(0.0)
                .with_attention_dropout(0.0));
        }
        let base = DecoderConfig::preset(if self.model == "llama" { "llama2-7b" } else { "mixtral-8x7b" })?;
        let experts = base.experts.clone();
        let experts = experts.map(|of| DecoderExpertsConfig { experts: self.size("num_local_experts", 8), ..of });
        let config = DecoderConfig { vocab: self.size("vocab_size", 8000), experts, ..base };
        Ok(config
            .with_d_model(self.size("hidden_size", 256))
            .with_d_ff(self.size("intermediate_size", 688))
            .with_layers(self.size("num_hidden_layers", 4))
            .with_heads(self.size("num_attention_heads", 8))
            .with_kv_heads(Some(self.size("num_key_value_heads", 4))))
    }

    /// The sizes of `base` but for those that are set.
    fn t5(&self, base: T5Config, [vocab, heads, layers]: [&str; 3]) -> T5Config {
        T5Config {
            vocab: self.size(vocab, base.vocab),
            d_model: self.size("d_model", base.d_model),
            d_kv: self.size("d_kv", base.d_kv),
            heads: self.size(heads, base.heads),
            d_ff: self.size("d_ff", base.d_ff),
            encoder_layers: self.size(layers, base.encoder_layers),
            decoder_layers: self.size(layers, base.decoder_layers),
            dropout: 0.0,
            ..base
        }
    }

    /// Rows of one rank.
    fn rows(&self) -> usize {
        self.batch / self.ranks
    }

    /// The numbers of this rank's rows.
    fn rows_of(&self, epl: &Epl) -> Range<usize> {
        let first = epl.context().data().rank() * self.rows();
        first..first + self.rows()
    }

    fn tokens(&self, vocab: usize, from: usize) -> Vec<i64> {
        (from..from + self.seq).map(|at| 2 + (at * 7919 % (vocab - 2)) as i64).collect()
    }

    fn pairs(&self, vocab: usize, rows: Range<usize>) -> Vec<TokenPair> {
        let ended = |mut tokens: Vec<i64>| {
            tokens.pop();
            tokens.push(1);
            tokens
        };
        let pair = |row: usize| TokenPair {
            source: ended(self.tokens(vocab, row * 64)),
            target: ended(self.tokens(vocab, row * 64 + 31)),
        };
        rows.map(pair).collect()
    }

    fn images(&self, classes: usize, rows: Range<usize>, device: &Device) -> ImageBatch {
        let shape = [rows.len(), 3, self.seq, self.seq];
        let value = |at: usize| (at as f32 * 0.37).sin() + (at as f32 * 0.011).cos();
        let first = rows.start * 3 * self.seq * self.seq;
        let values: Vec<f32> = (first..first + shape.iter().product::<usize>()).map(value).collect();
        let pixels = Tensor::from_data(TensorData::new(values, shape), device);
        ImageBatch::new(pixels, rows.map(|row| (row * 7 % classes) as i64).collect())
    }

    fn steps<M: Model>(
        &self,
        (epl, is_profiled): (&Epl, bool),
        model: impl Fn(&Place) -> M,
        batch: M::Batch,
    ) -> Result<OfRank>
    where
        M::Batch: Clone,
    {
        let settings = EngineSettings { clip_norm: Some(1.0), ..EngineSettings::from_config(epl.config()) };
        let built = epl.build(model)?;
        let parameters =
            built.plan().records().iter().map(|record| record.global_shape.iter().product::<usize>()).sum();
        let mut engine = Engine::new(built, &AdamWConfig::new(), settings)?;
        let samples: Vec<u64> = self.rows_of(epl).map(|row| row as u64).collect();
        let micro_batch = || MicroBatch::new(batch.clone(), samples.clone());
        let (mut seconds, mut loss) = (Vec::new(), f64::NAN);
        let mut steps = |count: usize| -> Result<()> {
            for _ in 0..count {
                let start = Instant::now();
                let report = timed("engine", OperationPhase::Update, || engine.step(vec![micro_batch()], LR))?;
                // The norm was read, so all of the step but its update is over; the next one begins with that.
                seconds.push(start.elapsed().as_secs_f64());
                loss = report.loss;
            }
            Ok(())
        };
        steps(2)?;
        let mut rest = || steps(self.steps - 2);
        let (rest, profile) = if is_profiled { profile_operations(rest) } else { (rest(), Vec::new()) };
        rest?;
        let peak_mib = peak_mib();
        let operations = engine.profile(&micro_batch())?.0.iter().map(|segment| segment.flops).sum::<Option<f64>>();
        let operations = operations.map(|forward| 3.0 * forward);
        Ok(OfRank { seconds, operations, parameters, loss, peak_mib, profile })
    }
}
