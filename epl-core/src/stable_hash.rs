//! A hash that is the same on every rank and machine, and under every release of the compiler: first values, masks and the
//! identifiers of parameters follow from it.
//!
//! It is SipHash-1-3 with keys of zero, over the parts of a value one after the other: of a text its bytes and 0xff, of a
//! number its eight bytes, the lowest first, of a list its length as such a number and then its parts.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// What has a stable hash.
pub(crate) trait Parts {
    /// Feeds its bytes to the hash.
    fn feed(&self, hasher: &mut SipHasher13);
}

impl Parts for str {
    fn feed(&self, hasher: &mut SipHasher13) {
        hasher.write(self.as_bytes());
        hasher.write(&[0xff]);
    }
}

impl Parts for String {
    fn feed(&self, hasher: &mut SipHasher13) {
        self.as_str().feed(hasher);
    }
}

impl Parts for u64 {
    fn feed(&self, hasher: &mut SipHasher13) {
        hasher.write(&self.to_le_bytes());
    }
}

impl Parts for [u8] {
    fn feed(&self, hasher: &mut SipHasher13) {
        (self.len() as u64).feed(hasher);
        hasher.write(self);
    }
}

impl Parts for [u64] {
    fn feed(&self, hasher: &mut SipHasher13) {
        (self.len() as u64).feed(hasher);
        self.iter().for_each(|number| number.feed(hasher));
    }
}

impl<T: Parts + ?Sized> Parts for &T {
    fn feed(&self, hasher: &mut SipHasher13) {
        (**self).feed(hasher);
    }
}

impl<A: Parts, B: Parts> Parts for (A, B) {
    fn feed(&self, hasher: &mut SipHasher13) {
        self.0.feed(hasher);
        self.1.feed(hasher);
    }
}

impl<A: Parts, B: Parts, C: Parts> Parts for (A, B, C) {
    fn feed(&self, hasher: &mut SipHasher13) {
        self.0.feed(hasher);
        self.1.feed(hasher);
        self.2.feed(hasher);
    }
}

/// The hash of a value.
pub(crate) fn stable_hash(value: &(impl Parts + ?Sized)) -> u64 {
    let mut hasher = SipHasher13::new();
    value.feed(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers on which models that exist were trained: with others they would begin, and be masked, otherwise.
    #[test]
    fn values_never_change() {
        let number = "first.weight".to_string();
        assert_eq!(stable_hash(&("path", &"encoder.layers.0".to_string())), 0xe834_41bc_9856_1084);
        assert_eq!(stable_hash(&("encoder/dropout".to_string(), 1_u64)), 0x0b0f_3e31_b4e4_6879);
        assert_eq!(stable_hash(&(42_u64, number.as_str())), 0x5fc0_3844_3301_fdce);
        assert_eq!(stable_hash(&(42_u64, "after", number.as_str())), 0x8387_218f_60ce_08ec);
        assert_eq!(stable_hash(&number), 0x54cc_ed15_a2e7_7383);
        assert_eq!(stable_hash(""), 0x3040_6ea5_23c5_3def);
    }

    /// What a list is of is no part of what stands beside it.
    #[test]
    fn parts_do_not_run_into_each_other() {
        let (one, two): (&[u8], &[u8]) = (&[1, 2], &[3]);
        let (first, second): (&[u8], &[u8]) = (&[1], &[2, 3]);
        assert_ne!(stable_hash(&(one, two)), stable_hash(&(first, second)));
        assert_ne!(stable_hash(&("ab", "c")), stable_hash(&("a", "bc")));
    }
}
