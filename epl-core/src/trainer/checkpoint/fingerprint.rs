//! What tells some bytes from others.

/// What tells some bytes from others in a checkpoint, such as a tokenizer that is too large to be kept in it: see
/// [`Trainer::with_invariant`](crate::Trainer::with_invariant).
pub fn fingerprint(bytes: &[u8]) -> String {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    format!("{} bytes with checksum {:08x}", bytes.len(), crc.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_have_another_fingerprint() {
        assert_eq!(fingerprint(b"123456789"), "9 bytes with checksum cbf43926");
        assert_ne!(fingerprint(b"123456789"), fingerprint(b"123456798"));
    }
}
