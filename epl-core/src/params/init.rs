//! The initialisation phase: first values that do not depend on the layout.
//!
//! Every parameter is drawn from (seed, path) by the layer's own initializer, as a whole, then cut. A backend has one
//! generator for all threads of a process, so it is held from seeding to the end of one draw, and the ranks enter and leave
//! the phase together: no rank trains, and draws without holding it, while another one initialises.

use std::convert::Infallible;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};

use super::storage::StateStorage;
use super::store::{ParamStore, Parking};
use super::walk::{self, At, Change, Visit};
use super::{ParamOrigin, ParamRecord, ParamTable, with_values};
use crate::error::{Error, Result};
use crate::model::context::Context;
use crate::model::generator::{Seeds, seeded};
use crate::stable_hash::stable_hash;
use crate::topology::cluster::Axis;

/// Draws what is lazy, broadcasts what has values, and gives every parameter its stable identifier. What is parked is
/// parked as soon as it has its values, one parameter at a time.
pub(crate) fn draw<M: Module>(
    model: M,
    table: &ParamTable,
    context: &Context,
    storage: StateStorage,
    device: &Device,
) -> Result<ParamStore<M>> {
    let records = &table.records;
    agree(records, context, "has values", |number| records[number].origin == ParamOrigin::Broadcast)?;
    context.world().barrier()?;
    let mut drawer = Drawer { context, parking: Parking::new(table, &storage, device)? };
    let model = walk::change(model, records, &mut drawer)?;
    let parked = drawer.parking.finish();
    context.world().barrier()?;
    let mut store = parked.beside(model, storage);
    // Averages begin as what they follow.
    store.move_averages(table, |_| 0.0)?;
    Ok(store)
}

/// Whether something holds for each parameter, by the number of its record, as all ranks that hold it say. Collective.
///
/// # Errors
///
/// When they do not agree: some would wait for the others in its broadcast or reduction.
fn agree(records: &[ParamRecord], context: &Context, what: &str, holds: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    /// Said of a parameter that a rank does not hold.
    const UNKNOWN: i64 = -1;
    let own = |(number, record): (usize, &ParamRecord)| if record.held { i64::from(holds(number)) } else { UNKNOWN };
    let mine: Vec<i64> = records.iter().enumerate().map(own).collect();
    let all = context.world().all_gather_counts(&mine)?;
    let mut agreed: Vec<Option<(usize, i64)>> = vec![None; records.len()];
    for (rank, theirs) in all.iter().enumerate() {
        for (index, (agreed, said)) in agreed.iter_mut().zip(theirs).enumerate().filter(|(_, (_, said))| **said >= 0) {
            let (other, before) = *agreed.get_or_insert((rank, *said));
            if before != *said {
                return Err(Error::Parameter {
                    name: records[index].name.clone(),
                    reason: format!(
                        "{what} on some ranks only (rank {other} and rank {rank} differ); build the model the same way \
                         on every rank"
                    ),
                });
            }
        }
    }
    Ok(agreed.into_iter().map(|agreed| agreed.is_some_and(|(_, said)| said > 0)).collect())
}

/// Which parameters of a drawn model are frozen. Collective: ranks that froze different parameters would wait for each other
/// in different reductions.
///
/// # Errors
///
/// When ranks froze different ones.
pub(crate) fn frozen<M: Module>(model: &M, records: &[ParamRecord], context: &Context) -> Result<Vec<bool>> {
    struct Frozen(Vec<bool>);
    impl Visit for Frozen {
        type Error = Infallible;

        fn float<const D: usize>(&mut self, _: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Infallible> {
            self.0.push(!param.base().is_require_grad());
            Ok(())
        }
    }
    let mut frozen = Frozen(Vec::new());
    let Ok(()) = walk::visit(model, records, &mut frozen);
    agree(records, context, "is frozen", |number| frozen.0[number])
}

/// Nothing in the place of a parameter that another stage holds. Traversals initialise what is lazy: so it is initialised.
fn released<const D: usize>(param: &Param<Tensor<D>>) -> Param<Tensor<D>> {
    Param::initialized(param.id, Tensor::empty([0; D], &param.lazy_device()))
}

/// Gives every parameter of a model, in which none is parked, the identifier of its record.
pub(crate) fn adopt<M: Module>(model: M, records: &[ParamRecord]) -> Result<M> {
    let mut adopter = Adopter { records: records.iter(), error: None };
    let model = model.map(&mut adopter);
    let missing = adopter.records.next();
    match (adopter.error, missing) {
        (Some(error), _) => Err(error),
        (None, Some(record)) => Err(Error::Parameter {
            name: record.name.clone(),
            reason: "is no longer in the model; keep its parameters as they were when the plan was made".to_string(),
        }),
        (None, None) => Ok(model),
    }
}

struct Adopter<'a> {
    records: core::slice::Iter<'a, ParamRecord>,
    error: Option<Error>,
}

impl ModuleMapper for Adopter<'_> {
    fn map_float<const D: usize>(&mut self, mut param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(record) = self.records.next() else {
            self.error.get_or_insert(Error::invalid("the model has more parameters than its plan".to_string()));
            return param;
        };
        let held = param.lazy_shape().to_vec();
        if held != record.own_shape() {
            self.error.get_or_insert(Error::Parameter {
                name: record.name.clone(),
                reason: format!("holds {held:?}, and the plan says {:?}", record.own_shape()),
            });
        }
        param.id = record.id;
        param
    }
}

struct Drawer<'a> {
    context: &'a Context,
    parking: Parking<'a>,
}

impl Drawer<'_> {
    fn draw<const D: usize>(&self, record: &ParamRecord, param: &Param<Tensor<D>>) {
        let (seed, name) = (self.context.seed(), record.name.as_str());
        let seeds = Seeds { own: stable_hash(&(seed, name)), after: stable_hash(&(seed, "after", name)) };
        seeded(&param.lazy_device(), seeds, || {
            let _ = param.base();
        });
    }

    fn broadcast<const D: usize>(&self, record: &ParamRecord, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        let mut values = param.base().inner();
        if record.is_tied_over_stages() {
            // All stages have values, also those that are about to drop them.
            let first = self.context.mesh().widths()[record.stages[0]].members.start;
            values = self.context.axis(Axis::Pipeline).broadcast(values, first)?;
        }
        if !record.held {
            return Ok(released(&param));
        }
        for axis in record.replicated_over() {
            let group = self.context.axis(axis);
            if group.size() > 1 {
                values = group.broadcast(values, 0)?;
            }
        }
        Ok(with_values(param, values))
    }
}

impl Change for Drawer<'_> {
    type Error = Error;

    fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        let record = at.record;
        let mut param = match record.origin {
            ParamOrigin::Drawn if !record.held => released(&param),
            ParamOrigin::Drawn => {
                self.draw(record, &param);
                // A clone of a lazy parameter shares its value, and with it a graph: ranks need leaves of their own.
                let values = param.base().inner();
                with_values(param, values)
            }
            ParamOrigin::Broadcast => self.broadcast(record, param)?,
        };
        param.id = record.id;
        self.parking.take(at.number, param)
    }
}
