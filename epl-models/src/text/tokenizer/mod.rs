//! Text to numbers and back.
//!
//! One [`Tokenizer`] type for every segmentation, over the crate `tokenizers`; its file is the `tokenizer.json` of
//! Hugging Face. Special tokens as in T5: `<pad>` 0, `</s>` 1, `<unk>` 2, and the decoder starts with `<pad>`.
//!
//! | made by | pieces | target of a six-digit number word |
//! |---|---|---|
//! | [`Tokenizer::characters`] | single characters | about 54 tokens |
//! | [`BpeConfig`] | byte-pair pieces learned from the text (Sennrich et al., 2016) | about 10 tokens with 256 pieces |
//! | [`Tokenizer::load`] | whatever the file says, such as T5's own | |

mod bpe;
mod characters;
mod piece;

pub use bpe::BpeConfig;
pub use piece::Tokenizer;
