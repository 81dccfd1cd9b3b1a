//! Values that the host waits for.

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Tensor, TensorData};

use super::Context;
use crate::offload::is_host;

impl Context {
    /// The values of a tensor on the host. It waits for all that the tensor's device was asked to compute before, so it is
    /// counted, if the device is not the host: see [`device_reads`](Self::device_reads).
    pub fn read<const D: usize, K: Basic>(&self, tensor: Tensor<D, K>) -> TensorData {
        if !is_host(&tensor.device()) {
            self.state().device_reads += 1;
        }
        tensor.into_data()
    }

    /// The numbers of tensors, one after the other: those of one type are read together.
    pub(crate) fn read_numbers(&self, tensors: Vec<Tensor<1>>) -> Vec<f64> {
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
        let mut numbers = vec![0.0; end];
        for (_, same) in types {
            let places: Vec<usize> =
                same.iter().flat_map(|(index, tensor)| starts[*index]..starts[*index] + tensor.dims()[0]).collect();
            let values = self.read(Tensor::cat(same.into_iter().map(|(_, tensor)| tensor).collect(), 0));
            places.into_iter().zip(values.iter::<f64>()).for_each(|(place, value)| numbers[place] = value);
        }
        numbers
    }

    /// How often this rank has read values from a device that is not the host: [`read`](Self::read), in its steps and layers.
    /// Batches, outputs, checkpoints and what ranks send each other are not counted.
    pub fn device_reads(&self) -> u64 {
        self.state().device_reads
    }
}
