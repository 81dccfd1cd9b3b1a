//! Parts of a buffer in another order, on its device.

use core::ops::Range;

use burn::tensor::Tensor;

use crate::buffer::{Buffer, with_kind};

/// Parts of a buffer, chosen and in order.
pub(super) fn arranged(buffer: Buffer, chosen: &[Range<usize>]) -> Buffer {
    let len = buffer.num_elements();
    let is_in_order = chosen.windows(2).all(|pair| pair[0].end == pair[1].start);
    let all = chosen.iter().map(ExactSizeIterator::len).sum::<usize>() == len;
    if len == 0 || (is_in_order && all) {
        return buffer;
    }
    with_kind!(buffer.dtype(), K => {
        let x = buffer.into_flat::<K>();
        let part = |part: &Range<usize>| x.clone().narrow(0, part.start, part.len());
        Buffer::from_tensor(Tensor::cat(chosen.iter().filter(|part| !part.is_empty()).map(part).collect(), 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_the_order_they_are_chosen_in() {
        let numbers = || Buffer::from_values((0..6).collect::<Vec<i64>>());
        let chosen = arranged(numbers(), &[4..6, 0..0, 1..2]).into_values::<i64>();
        assert_eq!(chosen, [4, 5, 1]);
        assert_eq!(arranged(numbers(), &[0..2, 2..6]).into_values::<i64>(), (0..6).collect::<Vec<_>>());
        assert_eq!(arranged(numbers(), &[0..2]).into_values::<i64>(), [0, 1]);
    }
}
