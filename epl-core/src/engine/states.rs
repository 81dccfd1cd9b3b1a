//! The optimizer's state of each parameter, wherever it lies.

use std::collections::{BTreeMap, HashMap};

use burn::module::ParamId;

use super::state::ModelState;
use crate::checkpoint::{Away, Scalar, TensorValues};
use crate::error::Result;
use crate::model::segment::Model;
use crate::optim::{StateField, StateFields};
use crate::params::ParamRecord;
use crate::plan::Plan;

/// The state of a parameter: tensors where they lie, or copies of them, and numbers, by name.
#[derive(Default)]
pub(super) struct StateOf<'a> {
    pub tensors: BTreeMap<String, TensorValues<'a>>,
    pub scalars: BTreeMap<String, Scalar>,
}

impl<M: Model> ModelState<M> {
    /// The state of a parameter that this rank updates. What Burn keeps is copied.
    pub fn state_of(&self, number: usize, record: &ParamRecord) -> StateOf<'_> {
        let mut state = StateOf::default();
        for (name, field) in self.optimizer.state(record.id) {
            match field {
                StateField::Tensor(data) => drop(state.tensors.insert(name, TensorValues::Data(data))),
                StateField::Scalar(value) => drop(state.scalars.insert(name, value)),
            }
        }
        let kept = self.one_pass.as_ref().and_then(|one_pass| one_pass.state(number));
        let Some((kept, piece)) = kept else { return state };
        for name in kept.names(piece) {
            let away = Away {
                len: kept.pieces()[piece].len(),
                dtype: kept.dtype(),
                tier: kept.tier(),
                read: Box::new(move |range| kept.part(piece, name, range)),
            };
            state.tensors.insert(name.to_string(), TensorValues::Away(away));
        }
        if let Some((name, steps)) = kept.time(piece) {
            state.scalars.insert(name.to_string(), Scalar::Uint(steps as u64));
        }
        state
    }

    /// A copy of the state of all parameters that this rank updates.
    pub fn states(&self, plan: &Plan) -> Result<HashMap<ParamId, StateFields>> {
        let records = plan.records().iter().enumerate();
        let state = |(number, record): (usize, &ParamRecord)| {
            let StateOf { tensors, scalars } = self.state_of(number, record);
            let mut fields = StateFields::new();
            for (name, values) in tensors {
                fields.insert(name, StateField::Tensor(values.into_data()?));
            }
            fields.extend(scalars.into_iter().map(|(name, value)| (name, StateField::Scalar(value))));
            Ok((record.id, fields))
        };
        records.map(state).collect()
    }
}
