//! How a token is stored.

/// How a token is stored, as the files of Megatron name it by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// 8 bits.
    U8,
    /// 8 bits, signed.
    I8,
    /// 16 bits, signed.
    I16,
    /// 32 bits, signed.
    I32,
    /// 64 bits, signed.
    I64,
    /// 16 bits.
    U16,
}

/// Vocabularies below this are stored in 16 bits by Megatron.
const SMALL_VOCABULARY: usize = 65_500;

impl TokenType {
    const ALL: [Self; 6] = [Self::U8, Self::I8, Self::I16, Self::I32, Self::I64, Self::U16];

    /// The one that Megatron chooses for so many tokens.
    pub fn for_vocabulary(tokens: usize) -> Self {
        if tokens < SMALL_VOCABULARY { Self::U16 } else { Self::I32 }
    }

    /// The number in the file.
    pub fn code(self) -> u8 {
        match self {
            Self::U8 => 1,
            Self::I8 => 2,
            Self::I16 => 3,
            Self::I32 => 4,
            Self::I64 => 5,
            Self::U16 => 8,
        }
    }

    /// The one of a number in a file.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Bytes of a token.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// The largest token.
    pub fn largest(self) -> i64 {
        match self {
            Self::U8 => u8::MAX.into(),
            Self::I8 => i8::MAX.into(),
            Self::I16 => i16::MAX.into(),
            Self::I32 => i32::MAX.into(),
            Self::I64 => i64::MAX,
            Self::U16 => u16::MAX.into(),
        }
    }

    /// Appends a token from 0 to [`largest`](Self::largest), lowest byte first.
    pub(super) fn put(self, token: i64, to: &mut Vec<u8>) {
        to.extend_from_slice(&token.to_le_bytes()[..self.bytes()]);
    }

    /// A token from its bytes.
    pub(super) fn get(self, bytes: &[u8]) -> i64 {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        let value = i64::from_le_bytes(whole);
        match self {
            Self::U8 | Self::U16 | Self::I64 => value,
            Self::I8 => (value as i8).into(),
            Self::I16 => (value as i16).into(),
            Self::I32 => (value as i32).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_each_type_comes_back() {
        for kind in TokenType::ALL {
            assert_eq!(TokenType::of_code(kind.code()), Some(kind));
            for token in [0, 1, kind.largest()] {
                let mut bytes = Vec::new();
                kind.put(token, &mut bytes);
                assert_eq!((bytes.len(), kind.get(&bytes)), (kind.bytes(), token), "{kind:?}");
            }
        }
        assert_eq!(TokenType::I32.get(&[0xff; 4]), -1);
        assert_eq!(TokenType::of_code(6), None, "a real number is no token");
        assert_eq!(TokenType::for_vocabulary(65_499), TokenType::U16);
        assert_eq!(TokenType::for_vocabulary(65_500), TokenType::I32);
    }
}
