//! Whether a collective's arguments fit each other. What does not is refused before anything is sent.

use core::fmt::Arguments;

use burn::tensor::DType;

use super::ProcessGroup;
use crate::error::{Error, Result};
use crate::operation::{Operation, ReduceOp};
use crate::per_member::PerMember;

impl ProcessGroup {
    pub(super) fn invalid(&self, message: String) -> Error {
        Error::Invalid { message: format!("group `{}`: {message}", self.name()) }
    }

    /// One size for each member along a dim that exists.
    pub(super) fn check_sizes(&self, what: &str, shape: &[usize], dim: usize, sizes: &[usize]) -> Result<()> {
        self.check_dim(what, shape, dim)?;
        if sizes.len() != self.size() {
            return Err(self.invalid(format!(
                "{what} with {} sizes in a group of {} members; give one size for each member",
                sizes.len(),
                self.size()
            )));
        }
        Ok(())
    }

    pub(super) fn check_dim(&self, what: &str, shape: &[usize], dim: usize) -> Result<()> {
        if dim >= shape.len() {
            return Err(self.invalid(format!(
                "{what} along dim {dim} of a tensor of {} dims; dims count from 0, so give one below {}",
                shape.len(),
                shape.len()
            )));
        }
        Ok(())
    }

    /// A reduction that the element type has.
    pub(super) fn check_op(&self, dtype: DType, operation: Operation) -> Result<()> {
        if operation.reduction() == Some(ReduceOp::Mean) && !dtype.is_float() {
            let name = dtype.name();
            return Err(self.invalid(format!("the mean of {name}, which is not a float type; take the sum, or cast()")));
        }
        Ok(())
    }

    /// Sizes that divide an extent.
    pub(super) fn check_sum(&self, what: &str, extent: usize, sizes: &[usize]) -> Result<()> {
        let sum = sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
        if sum != Some(extent) {
            let sum = sum.map_or("more than can be counted".to_string(), |sum| sum.to_string());
            return Err(self.invalid(format!(
                "{what}: sizes {sizes:?} make {sum}, but the tensor's extent is {extent}; give sizes that make {extent}"
            )));
        }
        Ok(())
    }

    /// What this member holds of a dim that is put together.
    pub(super) fn check_held(&self, what: &str, dim: usize, held: usize, sizes: &[usize]) -> Result<()> {
        let me = self.rank();
        if held != sizes[me] {
            return Err(self.invalid(format!(
                "{what} along dim {dim} with sizes {sizes:?}: member {me} holds {held} instead of {}; give every \
                 member the same sizes, with {held} for member {me}",
                sizes[me]
            )));
        }
        Ok(())
    }

    /// Sizes that make a tensor together with its other dims.
    pub(super) fn check_whole(&self, what: &str, shape: &[usize], dim: usize, sizes: &[usize]) -> Result<()> {
        let others = shape.iter().enumerate().filter(|(other, _)| *other != dim).map(|(_, extent)| *extent);
        let bytes = sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
        let most = others.chain([size_of::<f64>()]).try_fold(bytes, |all, extent| Some(all?.checked_mul(extent)));
        match most.flatten() {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
            _ => Err(self.invalid(format!(
                "{what} along dim {dim} with sizes {sizes:?} makes a tensor larger than memory can be; give the sizes \
                 that the members hold"
            ))),
        }
    }

    /// The one member that a collective names.
    pub(super) fn check_member(&self, what: &str, member: usize) -> Result<()> {
        if member >= self.size() {
            return Err(self.invalid(format!(
                "{what} with member {member}, but the group has {}; members count from 0, so give one below {}",
                self.size(),
                self.size()
            )));
        }
        Ok(())
    }

    /// The other end of a link.
    pub(super) fn check_peer(&self, what: &str, peer: usize) -> Result<()> {
        self.check_member(what, peer)?;
        if peer == self.rank() {
            return Err(self.invalid(format!("{what} with member {peer}, which is the caller; give another one")));
        }
        Ok(())
    }

    /// The part of each member when an extent is divided evenly; `instead` says what else can be called.
    pub(super) fn even_sizes(
        &self,
        what: &str,
        dim: usize,
        extent: usize,
        instead: Arguments<'_>,
    ) -> Result<PerMember> {
        let size = self.size();
        if !extent.is_multiple_of(size) {
            return Err(self.invalid(format!(
                "{what}: an extent of {extent} along dim {dim} does not divide evenly over {size} members; pad it to \
                 {}{instead}",
                extent.next_multiple_of(size)
            )));
        }
        Ok(PerMember::same(extent / size, size))
    }
}
