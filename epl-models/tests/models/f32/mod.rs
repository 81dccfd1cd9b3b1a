//! Models against Hugging Face, under layouts, and what belongs to them, in f32.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod bert_huggingface;
mod decoder_huggingface;
mod end_tokens;
mod evaluation;
mod evaluation_memory;
mod generation;
mod huggingface_assign;
mod huggingface_errors;
mod huggingface_export;
mod images_huggingface;
mod mae;
mod moco;
mod mixed_precision;
mod resnet_shapes;
mod split_classes;
mod squad;
mod t5_generate;
mod t5_huggingface;
mod t5_layouts;
mod text_measures;
