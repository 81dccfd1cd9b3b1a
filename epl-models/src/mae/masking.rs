//! Which patches of images stay.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use epl_comm::{Error, unwind};

/// Which patches of each image of a batch stay: those with the smallest numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masking {
    patches: usize,
    /// Of each image, by their numbers.
    kept: Vec<Vec<usize>>,
}

impl Masking {
    /// `kept` of the patches of each image, for which `noise` has a number each.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when it has not one for each.
    pub fn new(noise: &[Vec<f32>], [patches, kept]: [usize; 2]) -> Self {
        if let Some((image, found)) = noise.iter().map(Vec::len).enumerate().find(|(_, found)| *found != patches) {
            let reason = format!("{found} numbers for the {patches} patches of image {image}; give one for each");
            unwind(Error::invalid(reason));
        }
        let of_image = |noise: &Vec<f32>| {
            let mut order: Vec<usize> = (0..patches).collect();
            order.sort_by(|a, b| noise[*a].total_cmp(&noise[*b]));
            order.truncate(kept);
            order
        };
        Self { patches, kept: noise.iter().map(of_image).collect() }
    }

    /// Where the patches that stay stand among all of the batch. Shape `[rows, kept]`.
    pub(super) fn places(&self, device: &Device) -> Tensor<2, Int> {
        let rows = self.kept.iter().enumerate();
        ids(rows.map(|(row, kept)| kept.iter().map(|patch| row * self.patches + patch).collect()), device)
    }

    /// For the class token and each patch, where it stands among what the encoder saw of the batch, a class token and the patches
    /// that stay of each image; what it did not see is behind them. Shape `[rows, 1 + patches]`.
    pub(super) fn sources(&self, device: &Device) -> Tensor<2, Int> {
        let seen = self.kept.first().map_or(0, Vec::len) + 1;
        let behind = self.kept.len() * seen;
        let of_row = |(row, kept): (usize, &Vec<usize>)| {
            let mut sources = vec![behind; self.patches + 1];
            sources[0] = row * seen;
            kept.iter().enumerate().for_each(|(place, patch)| sources[patch + 1] = row * seen + 1 + place);
            sources
        };
        ids(self.kept.iter().enumerate().map(of_row), device)
    }

    /// 1 at each patch that does not stay, else 0. Shape `[rows, patches]`.
    pub fn hidden(&self, device: &Device, dtype: DType) -> Tensor<2> {
        let of_row = |kept: &Vec<usize>| {
            let mut hidden = vec![1.0_f32; self.patches];
            kept.iter().for_each(|patch| hidden[*patch] = 0.0);
            hidden
        };
        let values: Vec<f32> = self.kept.iter().flat_map(of_row).collect();
        Tensor::from_data(TensorData::new(values, [self.kept.len(), self.patches]), (device, dtype))
    }
}

fn ids(rows: impl Iterator<Item = Vec<usize>>, device: &Device) -> Tensor<2, Int> {
    let rows: Vec<Vec<usize>> = rows.collect();
    let shape = [rows.len(), rows.first().map_or(0, Vec::len)];
    let values: Vec<i64> = rows.into_iter().flatten().map(|id| id as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_numbers_stay() {
        let masking = Masking::new(&[vec![0.9, 0.1, 0.5, 0.2], vec![0.3, 0.7, 0.6, 0.4]], [4, 2]);
        let (device, ints) =
            (Device::default(), |ids: Tensor<2, Int>| ids.into_data().iter::<i64>().collect::<Vec<_>>());
        assert_eq!(ints(masking.places(&device)), [1, 3, 4, 7]);
        // Each image gave the encoder three vectors: the sixth is a mask token.
        assert_eq!(ints(masking.sources(&device)), [0, 6, 1, 6, 2, 3, 4, 6, 6, 5]);
        let hidden: Vec<f32> = masking.hidden(&device, DType::F32).into_data().iter().collect();
        assert_eq!(hidden, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        let error = epl_comm::catch(|| Masking::new(&[vec![0.0; 4], vec![0.0; 3]], [4, 2])).unwrap_err().to_string();
        assert!(error.contains("3 numbers for the 4 patches of image 1"), "{error}");
    }
}
