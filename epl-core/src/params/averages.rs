//! Parameters that are moving averages of others: what the two have in common, and how the one follows the other.
//!
//! ```text
//! in the model          parameter ──▶ average            the same slice, on the same ranks
//! beside it     [ a ┆ b b ┆ c ]   ──▶   [ a ┆ b b ┆ c ]     the same elements of it: units of averages are cut alike
//! ```
//!
//! So each rank moves what it keeps, and asks no other.

use std::collections::HashMap;

use burn::module::Module;
use burn::tensor::Tensor;

use super::store::{ParamStore, fill, read};
use super::{ParamRecord, ParamTable};
use crate::error::{Error, Result};
use crate::model::decay::AverageDecay;

/// The numbers of the records of moving averages, each with that of what it follows.
pub(crate) fn averages(records: &[ParamRecord]) -> Vec<(usize, usize)> {
    let of = |(number, record): (usize, &ParamRecord)| Some((number, record.average.as_ref()?.of.clone()));
    let found: Vec<(usize, String)> = records.iter().enumerate().filter_map(of).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let numbers: HashMap<&str, usize> =
        records.iter().enumerate().map(|(number, record)| (record.name.as_str(), number)).collect();
    found.into_iter().filter_map(|(number, of)| Some((number, *numbers.get(of.as_str())?))).collect()
}

/// Refuses moving averages that could not follow where they lie.
///
/// # Errors
///
/// The first that asks for a gradient, follows another average, or is not like what it follows.
pub(crate) fn check_averages(records: &[ParamRecord]) -> Result<()> {
    for (number, of) in averages(records) {
        let (average, followed) = (&records[number], &records[of]);
        let (name, cuts) = (&followed.name, |record: &ParamRecord| format!("{:?}", record.cuts));
        let reason = if average.trainable {
            format!("is a moving average of `{name}` and asks for a gradient; leave it without")
        } else if followed.average.is_some() {
            format!("is a moving average of `{name}`, which is one, too; let it follow what that follows")
        } else if (&average.global_shape, average.dtype) != (&followed.global_shape, followed.dtype) {
            let shown = |record: &ParamRecord| format!("{:?} of {}", record.global_shape, record.dtype.name());
            let (own, other) = (shown(average), shown(followed));
            format!("has {own} and is a moving average of `{name}`, which has {other}; make both parts alike")
        } else if cuts(average) != cuts(followed) {
            format!("is a moving average of `{name}`, and is divided otherwise; make both parts in scopes alike")
        } else if average.stages != followed.stages {
            format!(
                "is on the stages {:?} and is a moving average of `{name}`, which is on {:?}; name both in the same segments",
                average.stages, followed.stages
            )
        } else {
            continue;
        };
        return Err(Error::Parameter { name: average.name.clone(), reason });
    }
    Ok(())
}

impl<M: Module> ParamStore<M> {
    /// Moves each moving average towards what it follows; `stays` says how much of it stays.
    ///
    /// # Errors
    ///
    /// When what lies away from the device cannot be read or written.
    pub fn move_averages(&mut self, table: &ParamTable, stays: impl Fn(AverageDecay) -> f64) -> Result<()> {
        let records = &table.records;
        let averages: HashMap<usize, usize> =
            averages(records).into_iter().filter(|(own, _)| records[*own].held).collect();
        if averages.is_empty() {
            return Ok(());
        }
        let stays = |number: usize| records[number].average.as_ref().map_or(1.0, |average| stays(average.decay));
        let in_model = averages.iter().filter(|(own, _)| !records[**own].parked).map(|(_, of)| *of).collect::<Vec<_>>();
        let followed = read(self.model(), records, &in_model);
        let moved_in_model = |number: usize, own: &dyn Fn() -> Tensor<1>| {
            let of = followed.get(averages.get(&number)?)?;
            Some(moved(own(), of.clone(), stays(number)))
        };
        self.change(|model| (fill(model, records, true, moved_in_model), ()));
        for (number, unit) in table.gathered().filter(|(_, unit)| averages.contains_key(&unit.members[0])) {
            let device = self.flats[number].moment_device();
            let kept = self.kept(table);
            let part = |slot: &super::Slot| {
                let [own, of] = [slot.record, averages[&slot.record]].map(|number| kept[&number].tensor(&device));
                Ok(moved(own?, of?, stays(slot.record)))
            };
            let parts = unit.slots.iter().map(part).collect::<Result<_>>()?;
            self.flats[number].write(unit.join(parts, unit.kept_len(), &device))?;
        }
        Ok(())
    }
}

/// `stays · average + (1 − stays) · of`: of equal ones, that very number.
fn moved(average: Tensor<1>, of: Tensor<1>, stays: f64) -> Tensor<1> {
    match stays {
        0.0 => of,
        _ => average.clone() + (of - average) * (1.0 - stays),
    }
}
