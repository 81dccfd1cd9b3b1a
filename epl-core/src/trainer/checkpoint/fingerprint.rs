//! What tells some bytes from others.

/// What tells some bytes from others in a checkpoint, such as a tokenizer or the data, which are too large to be kept in it:
/// see [`Trainer::with_invariant`](crate::Trainer::with_invariant). The bytes may come in parts; where one ends does not
/// matter.
pub fn fingerprint<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> String {
    let (mut crc, mut count) = (flate2::Crc::new(), 0_u64);
    for part in parts {
        crc.update(part.as_ref());
        count += part.as_ref().len() as u64;
    }
    format!("{count} bytes with checksum {:08x}", crc.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_have_another_fingerprint() {
        assert_eq!(fingerprint(["123456789"]), "9 bytes with checksum cbf43926");
        assert_eq!(fingerprint(["1234", "", "56789"]), fingerprint(["123456789"]));
        assert_ne!(fingerprint(["123456789"]), fingerprint(["123456798"]));
    }
}
