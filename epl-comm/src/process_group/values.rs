//! Collectives on numbers in host memory: counts, flags, scalars.

use burn::tensor::{Element, Shape};

use super::ProcessGroup;
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Call, Operation, ReduceOp};
use crate::per_member::PerMember;

/// # Values on the host
///
/// Errors as for the collectives on tensors.
impl ProcessGroup {
    /// Reduces numbers over all members; as many on every member.
    pub fn all_reduce_values(&self, values: &[f64], op: ReduceOp) -> Result<Vec<f64>> {
        let call = Call::new(Operation::AllReduce(op), f64::dtype(), Shape::new([values.len()]));
        self.run_values(call, values)
    }

    /// Every member's counts, in the order of the members; as many on every member.
    pub fn all_gather_counts(&self, counts: &[i64]) -> Result<Vec<Vec<i64>>> {
        let call = Call {
            dim: Some(0),
            receive: PerMember::same(counts.len(), self.size()),
            ..Call::new(Operation::AllGather, i64::dtype(), Shape::new([counts.len()]))
        };
        let all = self.run_values(call, counts)?;
        Ok((0..self.size()).map(|member| all[member * counts.len()..][..counts.len()].to_vec()).collect())
    }

    /// Every member's text, in the order of the members.
    pub fn all_gather_texts(&self, own: &str) -> Result<Vec<String>> {
        if self.size() == 1 {
            return Ok(vec![own.to_string()]);
        }
        let mut bytes: Vec<i64> = own.bytes().map(i64::from).collect();
        let lens = self.all_gather_counts(&[bytes.len() as i64])?;
        let longest = lens.iter().map(|len| len[0]).max().unwrap_or(0) as usize;
        if longest == 0 {
            return Ok(vec![String::new(); self.size()]);
        }
        bytes.resize(longest, 0);
        let all = self.all_gather_counts(&bytes)?;
        let text = |(bytes, len): (&Vec<i64>, &Vec<i64>)| {
            let bytes: Vec<u8> = bytes[..len[0] as usize].iter().map(|byte| *byte as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ok(all.iter().zip(&lens).map(text).collect())
    }

    /// Sends the same number of counts to every member: the first k of `size() * k` to member 0, and so on. Returns
    /// what came from each member, in their order.
    pub fn all_to_all_counts(&self, counts: &[i64]) -> Result<Vec<i64>> {
        if !counts.len().is_multiple_of(self.size()) {
            let (len, size) = (counts.len(), self.size());
            let padded = len.next_multiple_of(size);
            let message = format!("{len} counts do not divide evenly over {size} members; pad them to {padded}");
            return Err(self.invalid(message));
        }
        let sizes = PerMember::same(counts.len() / self.size(), self.size());
        let call = Call {
            dim: Some(0),
            split_dim: Some(0),
            send: sizes.clone(),
            receive: sizes,
            ..Call::new(Operation::AllToAll, i64::dtype(), Shape::new([counts.len()]))
        };
        self.run_values(call, counts)
    }

    fn run_values<E: Element>(&self, call: Call, values: &[E]) -> Result<Vec<E>> {
        if self.size() == 1 {
            return Ok(values.to_vec());
        }
        Ok(self.communicator.run(Box::new(call), Buffer::from_values(values.to_vec()))?.into_values())
    }
}
