//! What the workers of one run know and nobody else.

use core::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::{Error, Result};

/// Fewer bytes could be guessed.
const LEAST: usize = 16;
/// The length of a proof.
pub(super) const TAG: usize = 32;
/// The length of a number that is used once.
pub(super) const NONCE: usize = 32;

/// A secret that all workers of a run share. It is never shown and never sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// A new one, from the system's generator.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers to give.
    pub fn random() -> Result<Self> {
        Ok(Self(random::<32>()?.as_slice().into()))
    }

    /// This one.
    ///
    /// # Errors
    ///
    /// When it is shorter than 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < LEAST {
            let message = format!("a secret of {} bytes can be guessed; use at least {LEAST}", bytes.len());
            return Err(Error::Joining { message });
        }
        Ok(Self(bytes.into()))
    }

    /// A new one as text, for the environment of the workers that this process starts.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers to give.
    pub fn random_text() -> Result<String> {
        Ok(random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The proof of knowing the secret, over these parts.
    pub(super) fn tag(&self, parts: &[&[u8]]) -> [u8; TAG] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether `tag` is that proof; it takes as long for a wrong one as for a right one.
    pub(super) fn verifies(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.mac(parts).verify_slice(tag).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let Ok(mut mac) = <Hmac<Sha256> as Mac>::new_from_slice(&self.0) else {
            unreachable!("HMAC takes keys of any length")
        };
        for part in parts {
            // With its length, so that no two lists of parts are the same bytes.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// Random bytes from the system.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Joining { message: format!("the system gives no random numbers: {error}") })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_needs_the_secret_and_the_same_parts() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let tag = secret.tag(&[b"ab", b"c"]);
        assert!(secret.verifies(&[b"ab", b"c"], &tag));
        assert!(!secret.verifies(&[b"a", b"bc"], &tag) && !secret.verifies(&[b"ab", b"c"], &tag[1..]));
        assert!(!Secret::from_bytes(b"0123456789abcdeg").unwrap().verifies(&[b"ab", b"c"], &tag));
        assert!(Secret::random().unwrap() != Secret::random().unwrap());
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_shown() {
        let error = Secret::from_bytes(b"short").unwrap_err().to_string();
        assert_eq!(error, "a secret of 5 bytes can be guessed; use at least 16");
        assert_eq!(format!("{:?}", Secret::random().unwrap()), "Secret(..)");
        assert_eq!(Secret::random_text().unwrap().len(), 64);
    }
}
