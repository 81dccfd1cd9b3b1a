//! Whole models, with what it takes to train, import and judge them.
//!
//! - [`text`]: text for translation models: corpora, tokenizers, scores;
//! - [`squad`]: questions about texts, for models that find the answer;
//! - [`huggingface`]: folders of Hugging Face's `transformers`, tensor by tensor;
//! - [`generation`]: text written token by token: greedily, by chance, by a beam search;
//! - [`t5`]: T5, dense or with experts;
//! - [`bert`]: BERT and RoBERTa, which answer questions, fill gaps, classify, and are pretrained;
//! - [`decoder`]: GPT-2, Llama, Qwen3, Mixtral, Qwen3-MoE and Gemma 2, which write the next token;
//! - [`indexed`]: corpora of tokens in Megatron's files, and what these models learn from them;
//! - [`vision`]: images for classification models: datasets, batches, scores;
//! - [`resnet`]: ResNet, its classes whole or split;
//! - [`vit`]: ViT, an image as a sequence of patches;
//! - [`resmlp`]: ResMLP, patches mixed without attention;
//! - [`mae`]: MAE, a ViT that learns images without classes by filling in patches;
//! - [`swin`]: Swin and Swin V2, patches that attend to each other in windows;
//! - [`moco`]: MoCo v3, a ViT that learns images by telling them apart.
//!
//! # Features
//!
#![doc = document_features::document_features!()]
#![warn(missing_docs)]

mod rows;
pub mod text;
pub mod squad;
pub mod huggingface;
pub mod generation;
pub mod t5;
pub mod bert;
pub mod decoder;
pub mod indexed;
pub mod vision;
pub mod resnet;
pub mod vit;
pub mod resmlp;
pub mod mae;
pub mod swin;
pub mod moco;

pub use bert::{Bert, BertBatch, BertBatcher, BertConfig, BertItem};
pub use decoder::{Decoder, DecoderBatch, DecoderBatcher, DecoderConfig, DecoderItem};
pub use generation::{GenerationConfig, generate};
pub use mae::{Mae, MaeBatch, MaeBatcher, MaeConfig};
pub use moco::{Moco, MocoBatch, MocoBatcher, MocoConfig};
pub use resmlp::{ResMlp, ResMlpConfig};
pub use resnet::{ResNet, ResNetConfig};
pub use swin::{Swin, SwinConfig, SwinVersion};
pub use t5::{T5, T5Batch, T5Batcher, T5Config, T5FeedForward, T5MoeConfig};
pub use text::{
    Bleu, BleuCounts, BpeConfig, ExactMatch, NumberPairs, NumberPairsConfig, Pair, ParallelCorpus, TokenPair,
    TokenPairs, Tokenizer,
};
pub use vision::{ImageBatch, ImageBatcher, ImageFolder, LabelledImage, ShapesConfig};
pub use vit::{ViT, ViTConfig};
