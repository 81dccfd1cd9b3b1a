//! What the workers of one run know and nobody else.

use core::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Fewer bytes could be guessed.
const LEAST: usize = 16;
/// Before the secret in what its key is the hash of, so that no other use of it comes to the same.
const LABEL: &[u8] = b"the key of EPL's rendezvous, version 2: ";

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

    /// The key that handshakes are encrypted by.
    pub(super) fn key(&self) -> [u8; 32] {
        Sha256::new().chain_update(LABEL).chain_update(&self.0).finalize().into()
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
    fn each_secret_has_a_key_of_its_own() {
        let key = |text: &[u8]| Secret::from_bytes(text).unwrap().key();
        assert_eq!(key(b"0123456789abcdef"), key(b"0123456789abcdef"));
        assert!(key(b"0123456789abcdef") != key(b"0123456789abcdeg"));
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
