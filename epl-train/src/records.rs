//! What the learner keeps in records, for engines, and back.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::OptimizerRecord;
use burn::tensor::{Int, Tensor, TensorData};
use burn_train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction, CheckpointingStrategy,
};
use burn_train::metric::store::EventStoreClient;
use burn_train::{Learner, LearnerModel, LearningCheckpointer};
use epl_core::checkpoint::Scalar;
use epl_core::optim::{StateField, WholeStates};
use epl_core::{Error, ParamRecord, Result};

/// Under which Burn keeps how many dims a parameter has.
const DIMS: &str = "__rank";

/// A parameter of a model.
pub(crate) struct Named {
    pub path: String,
    pub id: ParamId,
    pub elements: usize,
    pub is_trained: bool,
}

/// A model's parameters, in its order. What is lazy gets its values.
pub(crate) fn named<M: Module>(model: &M) -> Vec<Named> {
    struct Paths {
        path: Vec<String>,
        found: Vec<Named>,
    }
    impl ModuleVisitor for Paths {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let elements = param.val().shape().num_elements();
            self.found.push(Named {
                path: self.path.join("."),
                id: param.id,
                elements,
                is_trained: param.is_require_grad(),
            });
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            let _ = param.val();
        }
    }
    let mut paths = Paths { path: Vec::new(), found: Vec::new() };
    model.visit(&mut paths);
    paths.found
}

/// The optimizer's state that a learner has, by path: as a checkpoint would have it, as the learner does not show it otherwise.
///
/// # Errors
///
/// When it is not that of its model.
pub(crate) fn states<M: LearnerModel>(learner: &Learner<M>, store: &EventStoreClient) -> Result<WholeStates> {
    let kept = Kept::default();
    // Dropped at once: it has saved then.
    LearningCheckpointer::new(keeping(&Kept::default()), keeping(&kept), keeping(&Kept::default()), Box::new(Always))
        .checkpoint(learner, 0, store);
    let record: Option<OptimizerRecord> = kept.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    match record.filter(|record| !record.is_empty()) {
        Some(record) => {
            let parameters = named(&learner.model());
            let mut states = read(record, &parameters)?;
            // Burn keeps nothing of a parameter that had no gradient, and does not say so.
            for parameter in parameters.into_iter().filter(|parameter| parameter.is_trained) {
                states.entry(parameter.path).or_default();
            }
            Ok(states)
        }
        None => Ok(WholeStates::new()),
    }
}

/// A record by the identifiers of parameters.
pub(crate) fn read(record: OptimizerRecord, parameters: &[Named]) -> Result<WholeStates> {
    let failed = |error: &dyn core::fmt::Display| Error::invalid(format!("the learner's optimizer record: {error}"));
    let names: HashMap<u64, &String> = parameters.iter().map(|named| (named.id.val(), &named.path)).collect();
    let reader = record.into_bytes().map_err(|error| failed(&error))?;
    let reader = burn_pack::Reader::from_bytes(reader).map_err(|error| failed(&error))?;
    let mut states = WholeStates::new();
    let mut put = |name: &str, value: StateField| {
        let (id, field) =
            name.split_once('.').ok_or_else(|| failed(&format!("`{name}` is no field of a parameter")))?;
        let path = id.parse().ok().and_then(|id: u64| names.get(&id));
        let path = path.ok_or_else(|| {
            failed(&format!("`{name}` is of no parameter of its model; resume a checkpoint whole, or none of it"))
        })?;
        if field != DIMS {
            states.entry((*path).clone()).or_default().insert(field.to_string(), value);
        }
        Ok::<_, Error>(())
    };
    for (name, value) in reader.scalars() {
        put(name, StateField::Scalar((*value).into()))?;
    }
    for tensor in reader.into_tensors().map_err(|error| failed(&error))? {
        let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(|error| failed(&error))?;
        put(&name, StateField::Tensor(TensorData::from_bytes(bytes, shape, dtype)))?;
    }
    Ok(states)
}

/// The record of some state, of a model with these parameters: what Burn's own optimizer would give.
///
/// # Errors
///
/// When Burn cannot write it.
pub(crate) fn record(states: WholeStates, parameters: &[ParamRecord]) -> Result<OptimizerRecord> {
    let (mut tensors, mut scalars, mut names) = (Vec::new(), BTreeMap::new(), Vec::new());
    for (path, fields) in states {
        let known = parameters.iter().find(|parameter| parameter.name == path);
        let Some(parameter) = known.filter(|_| !fields.is_empty()) else { continue };
        let id = parameter.id.val();
        scalars.insert(format!("{id}.{DIMS}"), Scalar::Uint(parameter.global_shape.len() as u64));
        names.push((id.to_string(), path));
        for (field, value) in fields {
            let name = format!("{id}.{field}");
            match value {
                StateField::Scalar(value) => drop(scalars.insert(name, value)),
                StateField::Tensor(data) => {
                    let (bytes, shape, dtype) = data.into_parts();
                    tensors.push(burn_pack::Tensor::new(name, dtype, shape, Some(id), bytes));
                }
            }
        }
    }
    let writer = scalars
        .into_iter()
        .fold(burn_pack::Writer::new(tensors), |writer, (name, value)| writer.with_scalar(&name, value.into()));
    let writer = names.iter().fold(writer, |writer, (id, path)| writer.with_metadata(id, path));
    let failed =
        |error: &dyn core::fmt::Display| Error::invalid(format!("the optimizer's state as Burn's record: {error}"));
    OptimizerRecord::from_bytes(writer.into_bytes().map_err(|error| failed(&error))?).map_err(|error| failed(&error))
}

/// Keeps what is saved, in memory.
struct Kept<R>(Arc<Mutex<Option<R>>>);

impl<R> Default for Kept<R> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

fn keeping<R: Checkpoint>(kept: &Kept<R>) -> AsyncCheckpointer<R> {
    AsyncCheckpointer::new(Kept(kept.0.clone()))
}

impl<R: Checkpoint> Checkpointer<R> for Kept<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, epoch: usize) -> Result<R, CheckpointerError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.ok_or_else(|| CheckpointerError::Unknown(format!("nothing is kept of epoch {epoch}")))
    }
}

/// Saves whenever it is asked.
struct Always;

impl CheckpointingStrategy for Always {
    fn checkpointing(&mut self, _epoch: usize, _store: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}
