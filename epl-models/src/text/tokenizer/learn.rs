use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer, BpeTrainerBuilder};
use tokenizers::{AddedToken, Tokenizer};

use super::codec::{SPECIAL, failed};
use crate::text::{Error, Result};

/// A tokenizer without pieces, normalizer, pre-tokenizer and decoder: the start of every training.
pub(super) fn empty() -> Result<Tokenizer> {
    let model = BPE::builder().unk_token(SPECIAL[2].into()).build().map_err(failed("starting"))?;
    Ok(Tokenizer::new(model))
}

/// What all trainings have in common: the special tokens get the first numbers.
pub(super) fn trainer() -> BpeTrainerBuilder {
    let special = SPECIAL.iter().map(|&token| AddedToken::from(token, true)).collect();
    BpeTrainer::builder().show_progress(false).special_tokens(special)
}

/// Fills `inner` with pieces of the texts.
///
/// # Errors
/// [`Error::NoText`] if the texts have no character.
pub(super) fn learn<S: AsRef<str> + Send>(
    mut inner: Tokenizer,
    trainer: BpeTrainerBuilder,
    texts: impl Iterator<Item = S> + Send,
) -> Result<super::Tokenizer> {
    let mut seen = false;
    let texts = texts.inspect(|text| seen |= !text.as_ref().is_empty());
    inner.train(&mut TrainerWrapper::from(trainer.build()), texts).map_err(failed("learning"))?;
    if !seen {
        return Err(Error::NoText);
    }
    super::Tokenizer::wrap(inner).map_err(|cause| Error::Tokenizer { doing: "learning", cause })
}
