//! Values that the host waits for.

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, Tensor, TensorData, Transaction};

use super::Context;
use crate::model::flat::Flat;
use crate::offload::is_host;

impl Context {
    /// The values of a tensor on the host. It waits for all that the tensor's device was asked to compute before, so it is
    /// counted, if the device is not the host: see [`device_reads`](Self::device_reads).
    pub fn read<const D: usize, K: Basic>(&self, tensor: Tensor<D, K>) -> TensorData {
        self.count_read(&tensor.device());
        tensor.into_data()
    }

    /// The numbers of tensors, one after the other: see [`read_numbers_with`](Self::read_numbers_with).
    pub(crate) fn read_numbers(&self, tensors: Vec<Tensor<1>>) -> Vec<f64> {
        self.read_numbers_with(tensors, Vec::new()).0
    }

    /// The numbers of tensors, one after the other, and other tensors whole: all are read together. Numbers of one type are put
    /// together before, as each tensor that is read is a copy of its own.
    pub(crate) fn read_numbers_with(
        &self,
        tensors: Vec<Tensor<1>>,
        mut whole: Vec<Flat>,
    ) -> (Vec<f64>, Vec<TensorData>) {
        let mut types: Vec<(DType, Vec<(usize, Tensor<1>)>)> = Vec::new();
        let mut starts = Vec::with_capacity(tensors.len());
        let mut end = 0;
        for (index, tensor) in tensors.into_iter().enumerate() {
            starts.push(end);
            end += tensor.dims()[0];
            let dtype = tensor.dtype();
            match types.iter_mut().find(|(known, _)| *known == dtype) {
                Some((_, same)) => same.push((index, tensor)),
                None => types.push((dtype, vec![(index, tensor)])),
            }
        }
        let mut places = Vec::with_capacity(types.len());
        let count = whole.len();
        for (_, same) in types {
            let of_type = same.iter().flat_map(|(index, tensor)| starts[*index]..starts[*index] + tensor.dims()[0]);
            places.push(of_type.collect::<Vec<usize>>());
            let tensors = same.into_iter().map(|(_, tensor)| tensor.inner()).collect();
            whole.push(Flat::Float(Tensor::cat(tensors, 0)));
        }
        let mut read = self.read_together(whole);
        let mut numbers = vec![0.0; end];
        for (places, values) in places.into_iter().zip(read.split_off(count)) {
            places.into_iter().zip(values.iter::<f64>()).for_each(|(place, value)| numbers[place] = value);
        }
        (numbers, read)
    }

    /// What tensors have: each device is waited for once, whatever types they are of.
    fn read_together(&self, tensors: Vec<Flat>) -> Vec<TensorData> {
        let mut devices: Vec<(Device, Vec<usize>, Transaction)> = Vec::new();
        for (index, tensor) in tensors.into_iter().enumerate() {
            let device = tensor.device();
            let known = devices.iter().position(|(known, ..)| *known == device).unwrap_or_else(|| {
                devices.push((device, Vec::new(), Transaction::default()));
                devices.len() - 1
            });
            let (_, indices, transaction) = &mut devices[known];
            indices.push(index);
            let begun = core::mem::take(transaction);
            *transaction = match tensor {
                Flat::Float(tensor) => begun.register(tensor),
                Flat::Int(tensor) => begun.register(tensor),
            };
        }
        let mut all = Vec::new();
        for (device, indices, transaction) in devices {
            self.count_read(&device);
            all.extend(indices.into_iter().zip(transaction.execute()));
        }
        all.sort_by_key(|(index, _)| *index);
        all.into_iter().map(|(_, data)| data).collect()
    }

    fn count_read(&self, device: &Device) {
        if !is_host(device) {
            self.state().device_reads += 1;
        }
    }

    /// How often this rank has read values from a device that is not the host: [`read`](Self::read), in its steps and layers.
    /// Batches, checkpoints and what ranks send each other are not counted.
    pub fn device_reads(&self) -> u64 {
        self.state().device_reads
    }
}
