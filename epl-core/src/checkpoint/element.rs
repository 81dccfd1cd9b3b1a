//! Element types, as Burn and as safetensors names them.

use burn::tensor::DType;
use safetensors::Dtype;

use crate::error::{Error, Result};

/// The element types that both know.
const TYPES: &[(DType, Dtype)] = &[
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U16, Dtype::U16),
    (DType::U8, Dtype::U8),
];

/// The element type as safetensors names it. Truth values are stored as bytes.
///
/// # Errors
///
/// When safetensors has none such.
pub(crate) fn stored_dtype(dtype: DType) -> Result<Dtype> {
    let found = TYPES.iter().find(|(own, _)| *own == dtype).map(|(_, stored)| *stored);
    found.ok_or_else(|| Error::invalid(format!("tensors of {} cannot be saved", dtype.name())))
}

/// The element type in Burn.
///
/// # Errors
///
/// When Burn has none such.
pub fn burn_dtype(stored: Dtype) -> Result<DType> {
    let found = TYPES.iter().find(|(_, of_file)| *of_file == stored).map(|(own, _)| *own);
    found.ok_or_else(|| Error::invalid(format!("elements of {stored:?} are not known")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_the_same_size_and_comes_back() {
        for (own, stored) in TYPES {
            assert_eq!(own.size() * 8, stored.bitsize(), "{own:?}");
            assert_eq!((stored_dtype(*own).unwrap(), burn_dtype(*stored).unwrap()), (*stored, *own));
        }
        assert!(stored_dtype(DType::Flex32).unwrap_err().to_string().contains("flex32"));
        assert!(burn_dtype(Dtype::F8_E4M3).unwrap_err().to_string().contains("F8_E4M3 are not known"));
    }
}
