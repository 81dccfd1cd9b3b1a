//! Signatures only, until the crate is there.
use burn::tensor::{Int, Tensor, kind::Basic};
use std::ops::Range;
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub usize);
impl core::fmt::Display for Rank { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { write!(f, "rank {}", self.0) } }
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error { #[error("{0}")] Invalid(String) }
pub type Result<T, E = Error> = core::result::Result<T, E>;
pub fn unwind(error: Error) -> ! { std::panic::resume_unwind(Box::new(error)) }
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T> { Ok(f()) }
#[derive(Clone, Copy, Debug, PartialEq, Eq)] pub enum ReduceOp { Sum, Max }
#[derive(Clone, Debug)] pub struct ProcessGroup;
pub struct Pending<T>(T);
impl<T> Pending<T> { pub fn wait(self) -> Result<T> { Ok(self.0) } pub fn is_done(&self) -> bool { true } }
impl ProcessGroup {
    pub fn name(&self) -> &str { "" }
    pub fn rank(&self) -> usize { 0 }
    pub fn size(&self) -> usize { 1 }
    pub fn global(&self, member: usize) -> Rank { Rank(member) }
    pub fn split(&self, _name: &str, _color: usize, _key: usize) -> Result<ProcessGroup> { Ok(self.clone()) }
    pub fn traced(&self, _trace: &Trace) -> ProcessGroup { self.clone() }
    pub fn all_reduce<const D: usize, K: Basic>(&self, x: Tensor<D, K>, _op: ReduceOp) -> Result<Tensor<D, K>> { Ok(x) }
    pub fn start_all_reduce<const D: usize, K: Basic>(&self, x: Tensor<D, K>, _op: ReduceOp) -> Result<Pending<Tensor<D, K>>> { Ok(Pending(x)) }
    pub fn all_gather<const D: usize, K: Basic>(&self, x: Tensor<D, K>, _dim: usize) -> Result<Tensor<D, K>> { Ok(x) }
    pub fn all_gather_uneven<const D: usize, K: Basic>(&self, x: Tensor<D, K>, _dim: usize, _sizes: &[usize]) -> Result<Tensor<D, K>> { Ok(x) }
    pub fn broadcast<const D: usize, K: Basic>(&self, x: Tensor<D, K>, _root: usize) -> Result<Tensor<D, K>> { Ok(x) }
    pub fn barrier(&self) -> Result<()> { Ok(()) }
    pub fn all_reduce_values(&self, v: &[f64], _op: ReduceOp) -> Result<Vec<f64>> { Ok(v.to_vec()) }
    pub fn all_gather_counts(&self, v: &[i64]) -> Result<Vec<Vec<i64>>> { Ok(vec![v.to_vec()]) }
    pub fn all_to_all_counts(&self, v: &[i64]) -> Result<Vec<i64>> { Ok(v.to_vec()) }
}
pub fn shard_range(size: usize, parts: usize, index: usize) -> Range<usize> { let (q, r) = (size / parts, size % parts); let start = index * q + index.min(r); start..start + q + usize::from(index < r) }
pub trait VjpInputs { type Gradients; }
impl<const A: usize> VjpInputs for (Tensor<A>,) { type Gradients = (Option<Tensor<A>>,); }
impl<const A: usize, const B: usize> VjpInputs for (Tensor<A>, Tensor<B>) { type Gradients = (Option<Tensor<A>>, Option<Tensor<B>>); }
impl<const A: usize, const B: usize, const C: usize> VjpInputs for (Tensor<A>, Tensor<B>, Tensor<C>) { type Gradients = (Option<Tensor<A>>, Option<Tensor<B>>, Option<Tensor<C>>); }
impl<const A: usize, const B: usize, const C: usize, const D: usize> VjpInputs for (Tensor<A>, Tensor<B>, Tensor<C>, Tensor<D>) { type Gradients = (Option<Tensor<A>>, Option<Tensor<B>>, Option<Tensor<C>>, Option<Tensor<D>>); }
pub fn custom_vjp<I: VjpInputs, const O: usize, S: Send + 'static>(inputs: I, forward: impl FnOnce(I) -> (Tensor<O>, S), _backward: impl FnOnce(S, Tensor<O>) -> I::Gradients + Send + 'static) -> Tensor<O> { forward(inputs).0 }
#[derive(Clone, Debug)] pub struct Copied<const D: usize>(Tensor<D>, ProcessGroup);
#[derive(Debug)] pub struct Split<const D: usize>(Tensor<D>, ProcessGroup);
#[derive(Debug)] pub struct Partial<const D: usize>(Tensor<D>, ProcessGroup);
pub fn copied<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Copied<D> { Copied(x, group.clone()) }
pub fn sliced<const D: usize>(x: Tensor<D>, _dim: usize, group: &ProcessGroup) -> Split<D> { Split(x, group.clone()) }
impl<const D: usize> Copied<D> { pub fn local(self) -> Tensor<D> { self.0 } pub fn group(&self) -> &ProcessGroup { &self.1 } }
impl<const D: usize> Split<D> {
    pub fn from_local(local: Tensor<D>, _dim: usize, _size: usize, group: &ProcessGroup) -> Self { Split(local, group.clone()) }
    pub fn local(self) -> Tensor<D> { self.0 } pub fn dim(&self) -> usize { 0 } pub fn size(&self) -> usize { 0 } pub fn range(&self) -> Range<usize> { 0..0 } pub fn group(&self) -> &ProcessGroup { &self.1 }
    pub fn all_gather(self) -> Tensor<D> { self.0 } pub fn all_gather_copied(self) -> Copied<D> { Copied(self.0, self.1) } pub fn all_to_all(self, _dim: usize) -> Split<D> { self }
}
impl<const D: usize> Partial<D> { pub fn from_local(local: Tensor<D>, group: &ProcessGroup) -> Self { Partial(local, group.clone()) } pub fn local(self) -> Tensor<D> { self.0 } pub fn all_reduce(self) -> Tensor<D> { self.0 } pub fn reduce_scatter(self, _dim: usize) -> Split<D> { Split(self.0, self.1) } }
pub fn all_to_all_rows<const D: usize>(x: Tensor<D>, _send: &[usize], _receive: &[usize], _group: &ProcessGroup) -> Tensor<D> { x }
#[derive(Clone, Debug, Default)] pub struct Trace;
#[derive(Clone, Debug)] pub struct Event { pub rank: Rank, pub what: String }
impl Trace { pub fn new() -> Self { Self } pub fn mark(&self, _rank: Rank, _what: &str) {} pub fn events(&self) -> Vec<Event> { vec![] } }
pub mod local { use super::*; pub fn run<T: Send, E: From<Error> + Send>(_ranks: usize, f: impl Fn(ProcessGroup) -> core::result::Result<T, E> + Sync) -> core::result::Result<Vec<T>, (Rank, E)> { f(ProcessGroup).map(|x| vec![x]).map_err(|e| (Rank(0), e)) } }
pub mod testing { use super::*; pub fn run_ranks<T: Send>(_n: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> { vec![f(ProcessGroup)] } }
#[allow(unused)] fn _ids(_x: Tensor<1, Int>) {}
