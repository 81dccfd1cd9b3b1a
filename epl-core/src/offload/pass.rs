//! One pass over parameters, gradients and state: every element is read once and written once.

use core::ops::Range;

use rayon::prelude::*;

use super::lane::{Lane, Lanes, each_window};
use super::number::{BLOCK, Number};
use super::rules::Rule;
use crate::error::Result;

/// What passes together.
pub(super) struct Arrays<'a, E, const N: usize> {
    pub(super) parameters: Lane<'a, &'a mut [E]>,
    pub(super) gradients: GradientSource<'a, E>,
    pub(super) state: [Lane<'a, &'a mut [E]>; N],
}

/// Where gradients come from.
pub(super) enum GradientSource<'a, E> {
    /// At the places of the parameters.
    Array(Lane<'a, &'a [E]>),
    /// One slice for each piece.
    Slices(Vec<&'a [E]>),
}

/// A parameter's place, and what its step needs.
pub(super) struct ParamUpdate<C> {
    pub(super) range: Range<usize>,
    pub(super) constants: C,
    pub(super) first: bool,
}

/// The part of a piece that one thread updates in one go.
struct UpdateBlock<'a, E, C, const N: usize> {
    piece: &'a ParamUpdate<C>,
    parameters: &'a mut [E],
    gradients: &'a [E],
    state: [&'a mut [E]; N],
}

/// Updates the pieces, which are in order, in windows of at most so many elements.
pub(super) fn update<E: Number, R: Rule<E, N>, const N: usize>(
    arrays: &mut Arrays<'_, E, N>,
    pieces: &[ParamUpdate<R::Constants>],
    factor: E,
    elements: usize,
) -> Result<()> {
    each_window(arrays, &windows_of(pieces, elements), |arrays, window| {
        let mut blocks = blocks_of(arrays, pieces, window);
        let run = |block| Vectorised::<E, R, N> { block, factor }.run();
        match blocks.len() {
            // Not worth waking another thread.
            0 | 1 => blocks.pop().into_iter().for_each(run),
            _ => blocks.into_par_iter().for_each(run),
        }
        Ok(())
    })
}

/// Windows that begin and end with a piece's element; none lies between pieces.
fn windows_of<C>(pieces: &[ParamUpdate<C>], elements: usize) -> Vec<Range<usize>> {
    let mut windows: Vec<Range<usize>> = Vec::new();
    for piece in pieces {
        let mut rest = piece.range.clone();
        while !rest.is_empty() {
            match windows.last_mut() {
                Some(window) if rest.start - window.start < elements => {
                    window.end = rest.end.min(window.start.saturating_add(elements));
                    rest.start = window.end;
                }
                _ => windows.push(rest.start..rest.start),
            }
        }
    }
    windows
}

/// The blocks of a window.
fn blocks_of<'a, E: Number, C, const N: usize>(
    arrays: &'a mut Arrays<'_, E, N>,
    pieces: &'a [ParamUpdate<C>],
    window: &Range<usize>,
) -> Vec<UpdateBlock<'a, E, C, N>> {
    let gradients = &arrays.gradients;
    let mut parameters = arrays.parameters.slice_mut(window);
    let mut state = arrays.state.each_mut().map(|lane| lane.slice_mut(window));
    let mut blocks = Vec::new();
    let mut at = window.start;
    let before = pieces.partition_point(|piece| piece.range.end <= window.start);
    for (index, piece) in pieces.iter().enumerate().skip(before).take_while(|(_, piece)| piece.range.start < window.end)
    {
        let own = piece.range.start.max(window.start)..piece.range.end.min(window.end);
        let gradients = match gradients {
            GradientSource::Array(lane) => &lane.slice(window)[own.start - window.start..own.end - window.start],
            GradientSource::Slices(slices) => {
                &slices[index][own.start - piece.range.start..own.end - piece.range.start]
            }
        };
        // What lies between two pieces is left as it is.
        take(&mut parameters, own.start - at);
        for state in &mut state {
            take(state, own.start - at);
        }
        for gradients in gradients.chunks(BLOCK) {
            let parameters = take(&mut parameters, gradients.len());
            let state = state.each_mut().map(|state| take(state, gradients.len()));
            blocks.push(UpdateBlock { piece, parameters, gradients, state });
        }
        at = own.end;
    }
    blocks
}

/// Splits so many elements off the front.
fn take<'a, E>(rest: &mut &'a mut [E], count: usize) -> &'a mut [E] {
    let (front, back) = core::mem::take(rest).split_at_mut(count);
    *rest = back;
    front
}

/// A block's update, which is compiled once for each width of vectors. All that it calls must be inlined (a closure is
/// not, always): a function of its own would be compiled for the narrowest.
struct Vectorised<'a, E: Number, R: Rule<E, N>, const N: usize> {
    block: UpdateBlock<'a, E, R::Constants, N>,
    factor: E,
}

impl<E: Number, R: Rule<E, N>, const N: usize> Vectorised<'_, E, R, N> {
    /// With the widest vectors that this processor has.
    fn run(self) {
        let vectors = pulp::Arch::new();
        // `Arch` knows AVX2 by a feature only, which Burn leaves off.
        #[cfg(target_arch = "x86_64")]
        if let (pulp::Arch::Scalar, Some(vectors)) = (vectors, pulp::x86::V3::try_new()) {
            return pulp::Simd::vectorize(vectors, self);
        }
        vectors.dispatch(self);
    }
}

impl<E: Number, R: Rule<E, N>, const N: usize> pulp::WithSimd for Vectorised<'_, E, R, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _vectors: S) {
        self.block.update::<R>(self.factor);
    }
}

impl<E: Number, C: Copy, const N: usize> UpdateBlock<'_, E, C, N> {
    #[inline(always)]
    fn update<R: Rule<E, N, Constants = C>>(self, factor: E) {
        match self.piece.first {
            true => self.walk::<R, true>(factor),
            false => self.walk::<R, false>(factor),
        }
    }

    #[inline(always)]
    fn walk<R: Rule<E, N, Constants = C>, const FIRST: bool>(self, factor: E) {
        // Copies and lengths that the compiler knows, so that the loop is vectorised.
        let (constants, len) = (self.piece.constants, self.parameters.len());
        let (parameters, gradients) = (&mut self.parameters[..len], &self.gradients[..len]);
        let mut state = self.state.map(|state| &mut state[..len]);
        for at in 0..len {
            let before = core::array::from_fn(|field| state[field][at]);
            let gradient = gradients[at] * factor;
            let (parameter, after) = R::element::<FIRST>(&constants, parameters[at], gradient, before);
            parameters[at] = parameter;
            for (state, after) in state.iter_mut().zip(after) {
                state[at] = after;
            }
        }
    }
}

impl<E, const N: usize> Lanes for Arrays<'_, E, N> {
    fn look_ahead(&mut self, window: &Range<usize>) -> Result<()> {
        self.parameters.look_ahead(window)?;
        if let GradientSource::Array(lane) = &mut self.gradients {
            lane.look_ahead(window)?;
        }
        self.state.iter_mut().try_for_each(|lane| lane.look_ahead(window))
    }

    fn advance(&mut self) {
        self.parameters.advance();
        if let GradientSource::Array(lane) = &mut self.gradients {
            lane.advance();
        }
        self.state.iter_mut().for_each(Lanes::advance);
    }

    fn flush(&self) -> Result<()> {
        self.parameters.flush()?;
        self.state.iter().try_for_each(Lanes::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(ranges: &[Range<usize>], elements: usize) -> Vec<Range<usize>> {
        let piece = |range: &Range<usize>| ParamUpdate { range: range.clone(), constants: (), first: false };
        windows_of(&ranges.iter().map(piece).collect::<Vec<_>>(), elements)
    }

    #[test]
    fn windows_hold_pieces_and_no_more_than_the_limit() {
        assert_eq!(windows(&[0..3, 3..10], 4), [0..4, 4..8, 8..10]);
        assert_eq!(windows(&[0..3, 5..6, 90..95], 8), [0..6, 90..95]);
        assert_eq!(windows(&[2..3, 7..7, 8..20], 8), [2..10, 10..18, 18..20]);
        assert_eq!(windows(&[2..3, 8..20], usize::MAX), [2..20]);
        assert!(windows(&[], 4).is_empty());
        assert!(windows(&[4..4], 4).is_empty());
    }
}
