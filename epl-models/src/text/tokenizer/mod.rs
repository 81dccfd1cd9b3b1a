//! Text to numbers and back.
//!
//! One [`Tokenizer`] type for every segmentation, over the crate `tokenizers`; its file is the `tokenizer.json` of
//! Hugging Face. Special tokens as in T5: `<pad>` 0, `</s>` 1, `<unk>` 2, and the decoder starts with `<pad>`.
//!
//! | made by | pieces | tokens of a German number word, mean and most |
//! |---|---|---|
//! | [`Tokenizer::characters`] | single characters | 52, 64 |
//! | [`BpeConfig`] | byte-pair pieces learned from the text (Sennrich et al., 2016) | 6.5, 7 (224 pieces) |
//! | [`Tokenizer::load`] | whatever the file says, such as T5's own | |

mod bpe;
mod characters;
mod codec;
mod learn;

pub use bpe::BpeConfig;
pub use codec::Tokenizer;

#[cfg(test)]
mod tests;
