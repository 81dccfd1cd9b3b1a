//! What an optimizer keeps of each parameter.

use core::ops::Range;
use std::collections::BTreeMap;

use burn::tensor::{DType, TensorData};

use super::array::FlatArray;
use super::lane::Lane;
use super::number::Number;
use super::rules::{HostRule, RmsProp};
use super::storage::Storage;
use crate::error::{Error, Result};
use crate::memory::Tier;

/// Burn keeps what RMSProp divides by, though it follows from the rest.
const VARIANCE: &str = "centered.avg";

/// An optimizer's state of the parameters of one array, made by [`HostOptimizer::state`](super::HostOptimizer::state).
#[derive(Debug)]
pub struct HostState {
    pub(super) kind: HostRule,
    pub(super) dtype: DType,
    /// One a field.
    pub(super) arrays: Vec<FlatArray>,
    pub(super) pieces: Vec<Range<usize>>,
    /// How many steps each parameter has made; before the first it has no state.
    pub(super) steps: Vec<usize>,
    /// What updates each parameter, and what the learning rate is multiplied by.
    pub(super) groups: Vec<(HostRule, f64)>,
    /// The learning rates that single parameters have in the place of the one that a step is given.
    pub(super) rates: BTreeMap<usize, f64>,
}

impl HostState {
    pub(super) fn new(kind: HostRule, storage: &Storage, dtype: DType, pieces: Vec<Range<usize>>) -> Result<Self> {
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::invalid(format!(
                "parameters of {} cannot be updated in one pass; keep them in f32 or f64",
                dtype.name()
            )));
        }
        let mut end = 0;
        for piece in &pieces {
            if piece.start < end || piece.end < piece.start {
                return Err(Error::invalid(format!(
                    "a parameter lies at {}..{} of an array, and the one before it ends at {end}",
                    piece.start, piece.end
                )));
            }
            end = piece.end;
        }
        let arrays = kind.fields().iter().map(|_| storage.zeros(end, dtype)).collect::<Result<_>>()?;
        let (steps, groups) = (vec![0; pieces.len()], vec![(kind, 1.0); pieces.len()]);
        Ok(Self { kind, dtype, arrays, pieces, steps, groups, rates: BTreeMap::new() })
    }

    /// With these rules, and factors on the learning rate: one of both for each parameter.
    pub(super) fn with_groups(self, groups: Vec<(HostRule, f64)>) -> Result<Self> {
        if let Some((other, _)) = groups.iter().find(|(other, _)| !other.is_like(&self.kind)) {
            return Err(Error::invalid(format!(
                "{other:?} keeps other state than {:?}; give all parameters of an array settings that keep the same",
                self.kind
            )));
        }
        if groups.len() != self.pieces.len() {
            return Err(Error::invalid(format!(
                "settings of {} parameters, and there are {}; give one of each",
                groups.len(),
                self.pieces.len()
            )));
        }
        Ok(Self { groups, ..self })
    }

    /// Gives a parameter a learning rate of its own for the steps that follow.
    pub fn set_rate(&mut self, piece: usize, rate: f64) {
        self.rates.insert(piece, rate);
    }

    /// Gives all parameters the learning rate that a step is given.
    pub fn clear_rates(&mut self) {
        self.rates.clear();
    }

    /// Where each parameter lies.
    pub fn pieces(&self) -> &[Range<usize>] {
        &self.pieces
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.arrays.iter().map(|array| array.bytes()).sum()
    }

    /// How many steps a parameter has made, under the name in Burn's record; none where it is not counted, or before
    /// the first.
    pub fn time(&self, piece: usize) -> Option<(&'static str, usize)> {
        self.kind.time().map(|name| (name, self.steps[piece])).filter(|(_, steps)| *steps > 0)
    }

    /// The names that a parameter's tensors have in Burn's record; none before its first step.
    pub fn names(&self, piece: usize) -> Vec<&'static str> {
        let derived = matches!(self.kind, HostRule::RmsProp(_)).then_some(VARIANCE);
        let names = self.kind.fields().iter().copied().chain(derived);
        names.filter(|_| self.steps[piece] > 0).collect()
    }

    /// One of a parameter's tensors, flat.
    ///
    /// # Errors
    ///
    /// When there is none of this name, or its file cannot be read.
    pub fn field(&self, piece: usize, name: &str) -> Result<TensorData> {
        self.part(piece, name, 0..self.pieces[piece].len())
    }

    /// Some elements of it.
    ///
    /// # Errors
    ///
    /// As [`field`](Self::field).
    pub fn part(&self, piece: usize, name: &str, range: Range<usize>) -> Result<TensorData> {
        let start = self.pieces[piece].start;
        let read = |name: &str| {
            let place = self.kind.fields().iter().position(|own| *own == name)?;
            Some(self.arrays[place].data(start + range.start..start + range.end))
        };
        let unknown = || Error::invalid(format!("this state has {:?}, and no `{name}`", self.kind.fields()));
        if name != VARIANCE {
            return read(name).ok_or_else(unknown)?;
        }
        let squares = read("square_avg.square_avg").ok_or_else(unknown)??;
        match read("centered.grad_avg") {
            Some(mean) => variance(squares, &mean?),
            // Not centered: it is divided by the mean square itself.
            None => Ok(squares),
        }
    }

    /// Where it lies.
    pub fn tier(&self) -> Tier {
        self.arrays.first().map_or(Tier::Host, FlatArray::tier)
    }

    /// The element type of its tensors.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Replaces a parameter's state: its tensors by name, flat or not, and how many steps it has made. Without tensors
    /// and steps its next step is its first.
    ///
    /// # Errors
    ///
    /// When a tensor is missing, unknown, or of another type or length; when steps are missing that are counted.
    pub fn set(&mut self, piece: usize, time: Option<usize>, mut fields: BTreeMap<String, TensorData>) -> Result<()> {
        let names = self.kind.fields();
        if let HostRule::RmsProp(RmsProp { .. }) = self.kind {
            fields.remove(VARIANCE);
        }
        if fields.is_empty() && time.is_none() {
            self.steps[piece] = 0;
            return Ok(());
        }
        if !fields.keys().map(String::as_str).eq(sorted(names)) {
            let given: Vec<&String> = fields.keys().collect();
            return Err(Error::invalid(format!("the state of a parameter has {given:?}, and must have {names:?}")));
        }
        let steps = match (self.kind.time(), time) {
            (Some(name), None | Some(0)) => {
                return Err(Error::invalid(format!("the state of a parameter lacks `{name}`, its number of steps")));
            }
            (Some(_), Some(steps)) => steps,
            (None, _) => 1,
        };
        let range = self.pieces[piece].clone();
        for data in fields.values() {
            if data.dtype() != self.dtype || data.num_elements() != range.len() {
                return Err(Error::invalid(format!(
                    "the state of a parameter has {} elements of {}, and its place has {} of {}",
                    data.num_elements(),
                    data.dtype().name(),
                    range.len(),
                    self.dtype.name()
                )));
            }
        }
        for (array, name) in self.arrays.iter_mut().zip(names) {
            if let Some(data) = fields.remove(*name) {
                array.set(range.start, data)?;
            }
        }
        self.steps[piece] = steps;
        Ok(())
    }

    /// Refuses an array of another element type, or one that ends before the last parameter.
    pub(super) fn expect_array(&self, what: &str, array: &FlatArray) -> Result<()> {
        self.expect_elements(what, array.len(), array.dtype())
    }

    /// Refuses elements of another type, or fewer than the state has.
    pub(super) fn expect_elements(&self, what: &str, found: usize, dtype: DType) -> Result<()> {
        let len = self.pieces.last().map_or(0, |piece| piece.end);
        if dtype != self.dtype || found < len {
            return Err(Error::invalid(format!(
                "{what} have {found} elements of {}, and the optimizer's state has {len} of {}",
                dtype.name(),
                self.dtype.name()
            )));
        }
        Ok(())
    }

    /// Refuses numbers of parameters that are not in order, or that there are not.
    pub(super) fn expect_in_order(&self, numbers: &[usize]) -> Result<()> {
        let ascending = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        match numbers.last() {
            Some(last) if *last >= self.pieces.len() => Err(Error::invalid(format!(
                "there is a gradient of parameter {last}, and the state has {} parameters",
                self.pieces.len()
            ))),
            _ if !ascending => {
                Err(Error::invalid(format!("gradients are of parameters {numbers:?}, and must be in order, one each")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn lanes<E: Number, const N: usize>(&mut self) -> Result<[Lane<'_, &mut [E]>; N]> {
        let lanes: Vec<_> = self.arrays.iter_mut().map(Lane::change).collect();
        let fields = lanes.len();
        let lanes = lanes.try_into().ok();
        Ok(lanes.unwrap_or_else(|| panic!("a rule with {N} numbers of state has an array for each, and not {fields}")))
    }
}

fn sorted(names: &[&'static str]) -> Vec<&'static str> {
    let mut names = names.to_vec();
    names.sort_unstable();
    names
}

/// The mean of squares less the square of the mean, as Burn computes it.
fn variance(squares: TensorData, mean: &TensorData) -> Result<TensorData> {
    fn of<E: Number>(squares: &TensorData, mean: &TensorData) -> Option<TensorData> {
        let (squares, mean) = (squares.as_slice::<E>().ok()?, mean.as_slice::<E>().ok()?);
        let values: Vec<E> = squares.iter().zip(mean).map(|(square, mean)| *square - *mean * *mean).collect();
        let len = values.len();
        Some(TensorData::new(values, [len]))
    }
    let found = match squares.dtype() {
        DType::F64 => of::<f64>(&squares, mean),
        _ => of::<f32>(&squares, mean),
    };
    found.ok_or_else(|| Error::invalid("the two averages of RMSProp have different element types"))
}
