//! Where the optimizer's state is read from: a checkpoint, or what is given whole in memory.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::TensorData;

use crate::checkpoint::{Checkpoint, Region, Scalar, names};
use crate::error::{Error, Result};
use crate::optim::{StateField, WholeStates};
use crate::params::ParamRecord;
use crate::plan::Plan;

/// Whole tensors and numbers, by the names that they have in a checkpoint.
pub(super) trait StateSource {
    /// What an error calls it.
    fn place(&self) -> &Path;

    /// The names of all tensors.
    fn tensors(&self) -> Vec<&str>;

    /// All numbers.
    fn scalars(&self) -> &BTreeMap<String, Scalar>;

    /// The shape of a tensor.
    ///
    /// # Errors
    ///
    /// When there is none of this name.
    fn shape(&self, name: &str) -> Result<Vec<usize>>;

    /// Some elements of a tensor.
    ///
    /// # Errors
    ///
    /// When there is none of this name, or it cannot be read.
    fn read(&self, name: &str, region: &Region) -> Result<TensorData>;
}

impl StateSource for Checkpoint {
    fn place(&self) -> &Path {
        self.folder()
    }

    fn tensors(&self) -> Vec<&str> {
        self.index().tensors.keys().map(String::as_str).collect()
    }

    fn scalars(&self) -> &BTreeMap<String, Scalar> {
        &self.index().scalars
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        Ok(self.entry(name)?.shape.clone())
    }

    fn read(&self, name: &str, region: &Region) -> Result<TensorData> {
        Checkpoint::read(self, name, region)
    }
}

/// State that is given whole.
pub(super) struct GivenStates<'a> {
    tensors: BTreeMap<String, &'a TensorData>,
    scalars: BTreeMap<String, Scalar>,
    /// Of the parameters of the model that it is for, by their names in a checkpoint.
    shapes: BTreeMap<String, Vec<usize>>,
}

impl<'a> GivenStates<'a> {
    /// For a model with this plan.
    ///
    /// # Errors
    ///
    /// When some is of a parameter that the model does not have.
    pub fn new(states: &'a WholeStates, plan: &Plan) -> Result<Self> {
        let shape = |record: &ParamRecord| (names::of_parameter(&record.name), record.global_shape.clone());
        let shapes: BTreeMap<_, _> = plan.records().iter().map(shape).collect();
        let (mut tensors, mut scalars) = (BTreeMap::new(), BTreeMap::new());
        for (path, fields) in states {
            if !shapes.contains_key(&names::of_parameter(path)) {
                return Err(Error::Parameter {
                    name: path.clone(),
                    reason: "has optimizer state, and is no parameter of this model; give the state of this model"
                        .to_string(),
                });
            }
            if fields.is_empty() {
                scalars.insert(names::of_state(path, names::NO_GRADIENT), Scalar::Uint(1));
            }
            for (field, value) in fields {
                let name = names::of_state(path, field);
                match value {
                    StateField::Tensor(data) => drop(tensors.insert(name, data)),
                    StateField::Scalar(value) => drop(scalars.insert(name, *value)),
                }
            }
        }
        Ok(Self { tensors, scalars, shapes })
    }

    fn tensor(&self, name: &str) -> Result<&'a TensorData> {
        let missing =
            || Error::Parameter { name: name.to_string(), reason: "is not in the given optimizer state".into() };
        self.tensors.get(name).copied().ok_or_else(missing)
    }
}

impl StateSource for GivenStates<'_> {
    fn place(&self) -> &Path {
        Path::new("the given optimizer state")
    }

    fn tensors(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn scalars(&self) -> &BTreeMap<String, Scalar> {
        &self.scalars
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        match self.shapes.get(name) {
            Some(shape) => Ok(shape.clone()),
            None => Ok(self.tensor(name)?.shape().to_vec()),
        }
    }

    fn read(&self, name: &str, region: &Region) -> Result<TensorData> {
        region.of_whole(name, self.tensor(name)?)
    }
}
