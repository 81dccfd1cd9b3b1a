//! The collectives on one thread, on lists of numbers: what the real ones are compared with.

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, Tensor, TensorData};
use epl_comm::ReduceOp;

/// A row-major array.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Array {
    /// Small whole numbers that depend on everything: exact in every element type, sums too.
    pub fn sample(seed: usize, shape: &[usize]) -> Self {
        let mut state = seed as u64 * 2_654_435_761 + 12_345;
        let values = (0..shape.iter().product())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) % 41) as f64 - 20.0
            })
            .collect();
        Self { shape: shape.to_vec(), values }
    }

    /// As an element type keeps it; whole numbers wrap around.
    pub fn rounded(&self, dtype: DType) -> Self {
        match dtype {
            DType::I8 => return self.map(|value| f64::from(value as i64 as i8)),
            DType::I16 => return self.map(|value| f64::from(value as i64 as i16)),
            DType::I32 => return self.map(|value| f64::from(value as i64 as i32)),
            DType::U8 => return self.map(|value| f64::from(value as i64 as u8)),
            DType::Bool(_) => return self.map(|value| f64::from(value != 0.0)),
            _ => {}
        }
        let data = TensorData::new(self.values.clone(), self.shape.clone()).convert_dtype(dtype);
        Self { shape: self.shape.clone(), values: data.iter::<f64>().collect() }
    }

    pub fn tensor<const D: usize, K: Basic>(&self, dtype: DType, device: &Device) -> Tensor<D, K> {
        let data = TensorData::new(self.values.clone(), self.shape.clone()).convert_dtype(dtype);
        Tensor::from_data(data, (device, dtype))
    }

    pub fn of<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Self {
        let data = tensor.into_data();
        Self { shape: data.shape().to_vec(), values: data.iter::<f64>().collect() }
    }

    fn get(&self, index: &[usize]) -> f64 {
        let flat = index.iter().zip(&self.shape).fold(0, |flat, (index, extent)| flat * extent + index);
        self.values[flat]
    }

    fn build(shape: &[usize], value: impl Fn(&[usize]) -> f64) -> Self {
        let mut index = vec![0; shape.len()];
        let mut values = Vec::new();
        for _ in 0..shape.iter().product() {
            values.push(value(&index));
            for dim in (0..shape.len()).rev() {
                index[dim] += 1;
                if index[dim] < shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
        Self { shape: shape.to_vec(), values }
    }

    /// The part of `dim` from `start`, `len` long.
    pub fn part(&self, dim: usize, start: usize, len: usize) -> Self {
        let mut shape = self.shape.clone();
        shape[dim] = len;
        Self::build(&shape, |index| {
            let mut index = index.to_vec();
            index[dim] += start;
            self.get(&index)
        })
    }

    pub fn concat(parts: &[Self], dim: usize) -> Self {
        let mut shape = parts[0].shape.clone();
        shape[dim] = parts.iter().map(|part| part.shape[dim]).sum();
        Self::build(&shape, |index| {
            let mut index = index.to_vec();
            let part = parts.iter().find(|part| {
                let here = index[dim] < part.shape[dim];
                if !here {
                    index[dim] -= part.shape[dim];
                }
                here
            });
            part.map_or(f64::NAN, |part| part.get(&index))
        })
    }

    pub fn reduce(parts: &[Self], op: ReduceOp) -> Self {
        let mut all = parts[0].clone();
        for part in &parts[1..] {
            for (a, b) in all.values.iter_mut().zip(&part.values) {
                *a = match op {
                    ReduceOp::Sum | ReduceOp::Mean => *a + b,
                    ReduceOp::Product => *a * b,
                    ReduceOp::Min => a.min(*b),
                    ReduceOp::Max => a.max(*b),
                };
            }
        }
        let count = parts.len() as f64;
        if op == ReduceOp::Mean { all.map(|sum| sum / count) } else { all }
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self { shape: self.shape.clone(), values: self.values.iter().map(|value| f(*value)).collect() }
    }

    pub fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        assert_eq!(self.shape, other.shape);
        let values = self.values.iter().zip(&other.values).map(|(a, b)| f(*a, *b)).collect();
        Self { shape: self.shape.clone(), values }
    }

    /// What member `me` gets of an all-to-all: from each input the part `me` of `split_dim`.
    pub fn exchange(inputs: &[Self], me: usize, split_dim: usize, split: &[usize], concat_dim: usize) -> Self {
        let start = split[..me].iter().sum();
        let pieces: Vec<_> = inputs.iter().map(|input| input.part(split_dim, start, split[me])).collect();
        Self::concat(&pieces, concat_dim)
    }
}
