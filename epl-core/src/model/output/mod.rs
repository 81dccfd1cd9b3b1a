//! Values that a model hands out in a step, merged over micro-batches and replicas.
//!
//! ```text
//!           micro-batches of replica 0   of replica 1
//! local     [ a0 ┆ a1 ┆ a2 ] = A         [ b0 ┆ – ┆ – ] = B      –: a stand-in adds nothing
//! global                    A and B, the same on every rank
//! ```
//!
//! - `value`: what the micro-batches of one replica make.
//! - `exchange`: over the replicas, with the same collectives on every rank.

mod exchange;
mod value;

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use epl_comm::ProcessGroup;

use crate::error::{Error, Result};
use crate::model::flat::Flat;
use exchange::exchange;
pub use value::Combine;
pub(crate) use value::OutputValue;
use value::{MicroBatchOutput, Value};

/// Over what an output is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Over the micro-batches of this replica.
    Local(Combine),
    /// Over the micro-batches of all replicas: the same on every rank.
    Global(Combine),
}

impl Merge {
    fn combine(self) -> Combine {
        match self {
            Self::Local(combine) | Self::Global(combine) => combine,
        }
    }
}

/// Merged outputs, by name. One that no sample gave is not there.
pub type Outputs = BTreeMap<String, TensorData>;

/// What was handed out in a step, by name.
pub(crate) type Taken = Vec<(String, Merge, Vec<MicroBatchOutput>)>;

#[derive(Debug)]
struct Declared {
    merge: Merge,
    parts: Vec<MicroBatchOutput<OutputValue>>,
    /// How many of the parts have been read.
    read: usize,
}

/// What the layers of one rank have declared and handed out.
#[derive(Debug, Default)]
pub(crate) struct OutputStore {
    declared: BTreeMap<String, Declared>,
    /// Whether a step or an evaluation takes what is handed out.
    open: bool,
    pass: u64,
}

impl OutputStore {
    /// Declares an output.
    pub fn declare(&mut self, name: &str, merge: Merge) -> Result<()> {
        match self.declared.insert(name.to_string(), Declared { merge, parts: Vec::new(), read: 0 }) {
            Some(Declared { merge: other, .. }) if other != merge => Err(Error::invalid(format!(
                "the output `{name}` is declared as {other:?} and as {merge:?}; give one of them another name"
            ))),
            _ => Ok(()),
        }
    }

    /// Begins a step or an evaluation, once the one before has ended.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// Ends it, whether it was [taken](Self::take) or failed: nothing of it is held any longer.
    pub fn close(&mut self) {
        self.open = false;
        self.declared.values_mut().for_each(|declared| (declared.parts, declared.read) = (Vec::new(), 0));
    }

    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Begins a pass.
    pub fn next_pass(&mut self) {
        self.pass += 1;
    }

    /// Adds the value of a micro-batch with these samples.
    pub fn add(&mut self, name: &str, samples: &[u64], data: OutputValue) -> Result<()> {
        let Some(Declared { parts, .. }) = self.declared.get_mut(name) else {
            return Err(Error::invalid(format!(
                "the output `{name}` was not declared; declare it where the layer is made, on every rank"
            )));
        };
        if parts.last().is_some_and(|part| part.pass == self.pass) {
            return Err(Error::invalid(format!(
                "the output `{name}` was handed out twice in one forward; give each its own name"
            )));
        }
        let first = samples.first().copied().unwrap_or(0);
        parts.push(MicroBatchOutput { pass: self.pass, first, samples: samples.len(), data });
        Ok(())
    }

    /// What is still to be read: by names, and in the order in which it was handed out.
    pub fn noted(&self) -> Vec<Flat> {
        let values =
            self.declared.values().flat_map(|declared| &declared.parts[declared.read..]).map(|part| &part.data);
        let noted = values.filter_map(|value| match value {
            OutputValue::Noted(flat, _) => Some((**flat).clone()),
            OutputValue::Read(_) => None,
        });
        noted.collect()
    }

    /// Takes the values of what was [`noted`](Self::noted), in that order.
    pub fn settle(&mut self, read: Vec<TensorData>) {
        let mut values = read.into_iter();
        for Declared { parts, read, .. } in self.declared.values_mut() {
            for part in &mut parts[*read..] {
                if let OutputValue::Noted(_, shape) = &part.data {
                    let values = values.next().expect("all that was noted has been read");
                    let dtype = values.dtype();
                    part.data = OutputValue::Read(TensorData::from_bytes(values.into_bytes(), shape.clone(), dtype));
                }
            }
            *read = parts.len();
        }
    }

    /// Ends the step: takes what was handed out.
    ///
    /// # Panics
    ///
    /// When something of it is still to be read: a fault of this crate.
    pub fn take(&mut self) -> Taken {
        self.open = false;
        let taken = |(name, declared): (&String, &mut Declared)| {
            declared.read = 0;
            let parts = std::mem::take(&mut declared.parts).into_iter().map(MicroBatchOutput::read);
            (name.clone(), declared.merge, parts.collect())
        };
        self.declared.iter_mut().map(taken).collect()
    }
}

/// The ranks over which values are merged.
pub(crate) struct Over<'a> {
    /// Those of a replica that may have parts of its values.
    pub replica: &'a [&'a ProcessGroup],
    /// All, one group after the other.
    pub all: &'a [&'a ProcessGroup],
    /// Whether one of these ranks has what this rank has.
    pub is_copy: bool,
}

/// Merges what was handed out on all ranks. Collective over the groups of a replica if a local output is declared, and
/// over all if a global one is.
pub(crate) fn merge(taken: Taken, over: &Over<'_>) -> Result<Outputs> {
    let (mut local, mut global) = (Vec::new(), Vec::new());
    for (name, merge, parts) in taken {
        let parts = if over.is_copy { Vec::new() } else { parts };
        let value = Value::of(&name, merge.combine(), parts)?;
        let target = if matches!(merge, Merge::Global(_)) { &mut global } else { &mut local };
        target.push((name, merge.combine(), value));
    }
    for (values, groups) in [(&mut local, over.replica), (&mut global, over.all)] {
        if !values.is_empty() {
            // One stage gives it, the others nothing.
            groups.iter().filter(|group| group.size() > 1).try_for_each(|group| exchange(values, group))?;
        }
    }
    let merged = local.into_iter().chain(global);
    Ok(merged.filter_map(|(name, combine, value)| Some((name, value?.finish(combine)))).collect())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, Tensor};

    use super::*;

    fn table(values: &[f32], shape: [usize; 2]) -> TensorData {
        TensorData::new(values.to_vec(), shape)
    }

    fn read(values: &[f32], shape: [usize; 2]) -> OutputValue {
        OutputValue::Read(table(values, shape))
    }

    /// A store in a first pass of a step, with one output.
    fn store(merge: Merge) -> OutputStore {
        let mut store = OutputStore::default();
        store.declare("out", merge).unwrap();
        store.open();
        store.next_pass();
        store
    }

    #[test]
    fn misuse_is_refused_with_the_name() {
        let mut store = store(Merge::Local(Combine::Sum));
        let text = store.declare("out", Merge::Local(Combine::Mean)).unwrap_err().to_string();
        assert!(text.contains("`out` is declared as Local(Sum) and as Local(Mean)"), "{text}");
        assert!(store.add("other", &[0], read(&[1.0], [1, 1])).unwrap_err().to_string().contains("`other`"));
        store.add("out", &[0], read(&[1.0], [1, 1])).unwrap();
        let text = store.add("out", &[0], read(&[1.0], [1, 1])).unwrap_err().to_string();
        assert!(text.contains("`out` was handed out twice"), "{text}");
    }

    #[test]
    fn values_that_do_not_fit_each_other_are_refused_with_both() {
        for (combine, shape, fits) in [
            (Combine::Sum, [2, 1], false),
            (Combine::Mean, [2, 1], false),
            (Combine::Concat, [2, 1], false),
            (Combine::Concat, [1, 2], true),
        ] {
            let mut store = store(Merge::Local(combine));
            store.add("out", &[0], read(&[1.0, 2.0, 3.0, 4.0], [2, 2])).unwrap();
            store.next_pass();
            store.add("out", &[1], read(&[5.0, 6.0], shape)).unwrap();
            let (_, merge, parts) = store.take().remove(0);
            let value = Value::of("out", merge.combine(), parts);
            assert_eq!(value.is_ok(), fits, "{combine:?}");
        }
        let mut whole = store(Merge::Local(Combine::Mean));
        whole.add("out", &[0], OutputValue::Read(TensorData::new(vec![1_i64], [1]))).unwrap();
        let (_, merge, parts) = whole.take().remove(0);
        assert!(Value::of("out", merge.combine(), parts).unwrap_err().to_string().contains("averaged"));
    }

    #[test]
    fn a_mean_counts_samples_and_a_concatenation_follows_them() {
        let (mut mean, mut concat) = (store(Merge::Local(Combine::Mean)), store(Merge::Local(Combine::Concat)));
        for (samples, value) in [(&[3, 4, 5][..], 1.0), (&[0], 5.0)] {
            mean.add("out", samples, read(&[value], [1, 1])).unwrap();
            concat.add("out", samples, read(&vec![value; samples.len()], [samples.len(), 1])).unwrap();
            mean.next_pass();
            concat.next_pass();
        }
        let merged = |mut store: OutputStore| {
            let (name, merge, parts) = store.take().remove(0);
            Value::of(&name, merge.combine(), parts).unwrap().unwrap().finish(merge.combine())
        };
        assert_eq!(merged(mean), table(&[2.0], [1, 1]));
        assert_eq!(merged(concat), table(&[5.0, 1.0, 1.0, 1.0], [4, 1]));
    }

    /// Of a step that failed between its micro-batches.
    #[test]
    fn what_was_handed_out_in_vain_is_not_held() {
        let held = |fails: bool| {
            let found = crate::launch_dry(&crate::Config::new(), 0, |epl| {
                let context = epl.context();
                context.declare_output("out", Merge::Local(Combine::Sum));
                let outputs = context.open_outputs();
                context.output("out", Tensor::<1>::ones([2], &Device::flex()));
                if fails {
                    drop(outputs);
                    // Nobody takes it.
                    context.output("out", Tensor::<1>::ones([2], &Device::flex()));
                }
                Ok(context.take_outputs().remove(0).2.len())
            });
            found.unwrap().0
        };
        assert_eq!([false, true].map(held), [1, 0]);
    }

    #[test]
    fn values_that_are_read_late_are_those_of_their_micro_batches() {
        let device = Device::flex();
        let mut store = store(Merge::Local(Combine::Concat));
        store.declare("a", Merge::Local(Combine::Sum)).unwrap();
        let noted = |values: [f32; 2]| {
            let value = Tensor::<2>::from_floats([values], &device);
            OutputValue::Noted(Box::new(Flat::of(value.clone())), value.shape())
        };
        store.add("out", &[1], noted([3.0, 4.0])).unwrap();
        let count = Tensor::<1, Int>::from_ints([7], &device);
        store.add("a", &[1], OutputValue::Noted(Box::new(Flat::of(count.clone())), count.shape())).unwrap();
        assert!(store.add("out", &[1], noted([3.0, 4.0])).unwrap_err().to_string().contains("handed out twice"));
        store.next_pass();
        store.add("out", &[0], read(&[1.0, 2.0], [1, 2])).unwrap();
        store.next_pass();
        store.add("out", &[2], noted([5.0, 6.0])).unwrap();
        let values = store.noted().into_iter().map(|flat| match flat {
            Flat::Float(tensor) => tensor.into_data(),
            Flat::Int(tensor) => tensor.into_data(),
        });
        store.settle(values.collect());
        assert!(store.noted().is_empty());
        let merged = merge(store.take(), &Over { replica: &[], all: &[], is_copy: false }).unwrap();
        assert_eq!(merged["out"], table(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2]));
        assert_eq!(merged["a"], count.into_data());
    }
}
