//! Corpora of tokens in Megatron's files, which are mapped into memory, and what is learned from them.
//!
//! ```text
//! PREFIX.bin   the tokens of all sequences, one behind the other, in one type
//! PREFIX.idx   that type; how long each sequence is and where it begins; which sequences each document has
//! ```
//!
//! - [`token_type`]: how a token is stored;
//! - [`corpus`]: such files, read; [`mod@write`]: written;
//! - [`encoder`]: what turns texts into tokens; [`encode`]: corpora of texts, which the program `epl-corpus` writes;
//! - [`packed`]: blocks of equal length, for decoders;
//! - [`masked`]: rows of two texts with hidden words, for BERT;
//! - [`spans`]: rows with spans cut out, for T5;
//! - [`blend`]: several datasets in proportion.
//!
//! Each is a Burn dataset whose item depends on its index and a seed alone: a sampler's position says what comes next, and no
//! layout changes it.
//!
//! *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*, Shoeybi et al., 2019.

pub mod token_type;
pub mod corpus;
pub mod write;
pub mod encoder;
pub mod encode;
pub mod packed;
pub mod masked;
pub mod spans;
pub mod blend;

pub use blend::{Blend, BlendConfig};
pub use corpus::IndexedCorpus;
pub use encode::{EncodeConfig, Encoded, held_out_prefix};
pub use encoder::TextEncoder;
pub use masked::{MaskedWords, MaskedWordsConfig};
pub use packed::PackedBlocks;
pub use spans::{SpanCorruption, SpanCorruptionConfig};
pub use token_type::TokenType;
pub use write::{CorpusWriter, Written, write};
