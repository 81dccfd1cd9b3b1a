//! The one way over a model's parameters, in the module's order, beside their records.
//!
//! ```text
//! module     encoder.weight   encoder.bias   steps (whole numbers)   head.weight
//! records    0                1                                      2
//! walk       float(0, …)      float(1, …)    other("steps", …)       float(2, …)
//! ```
//!
//! A parameter is known by its place, and compared with its record there: by its identifier, or, before it has that of its
//! record, by its path. So one that is missed does not shift those behind it. What a walk does with a parameter may fail: what
//! comes behind it is left alone then.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::ParamRecord;

/// A parameter's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    /// The number of its record.
    pub number: usize,
    pub record: &'a ParamRecord,
}

/// What looks at the parameters of a model.
pub(crate) trait Visit {
    type Error;

    /// Is shown a parameter.
    fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Self::Error>;

    /// Is shown what is no parameter that could be trained, and has no record: whole numbers, or truth values, which are read
    /// as bytes.
    fn other(&mut self, _path: &str, _values: &dyn Fn() -> TensorData) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// What changes the parameters of a model.
pub(crate) trait Change {
    type Error;

    /// Gives a parameter for another one.
    fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>, Self::Error>;

    /// What is to stand in the place of what has no record, and has this shape; none: what stands there.
    fn other(&mut self, _path: &str, _shape: &[usize]) -> Result<Option<TensorData>, Self::Error> {
        Ok(None)
    }
}

/// Shows a model's parameters.
///
/// # Errors
///
/// The first that `visit` gives.
///
/// # Panics
///
/// When the records are those of another model.
pub(crate) fn visit<M: Module, V: Visit>(model: &M, records: &[ParamRecord], visit: &mut V) -> Result<(), V::Error> {
    let mut visitor = Visitor { walk: Walk::new(records), visit, ended: Ok(()) };
    model.visit(&mut visitor);
    visitor.ended
}

/// The model with its parameters changed.
///
/// # Errors
///
/// The first that `change` gives; the model is gone then.
///
/// # Panics
///
/// When the records are those of another model.
pub(crate) fn change<M: Module, C: Change>(model: M, records: &[ParamRecord], change: &mut C) -> Result<M, C::Error> {
    let mut mapper = Mapper { walk: Walk::new(records), change, ended: Ok(()) };
    let model = model.map(&mut mapper);
    mapper.ended.map(|()| model)
}

/// How far a walk has come.
struct Walk<'a> {
    records: &'a [ParamRecord],
    next: usize,
    path: String,
    /// Where the names in the path begin.
    starts: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn new(records: &'a [ParamRecord]) -> Self {
        Self { records, next: 0, path: String::new(), starts: Vec::new() }
    }

    fn enter(&mut self, name: &str) {
        let start = self.path.len();
        if !self.starts.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.starts.push(start);
    }

    fn exit(&mut self) {
        self.path.truncate(self.starts.pop().unwrap_or(0));
    }

    /// The place of the next parameter, which has this identifier.
    fn step(&mut self, id: ParamId) -> At<'a> {
        let number = self.next;
        self.next += 1;
        match self.records.get(number).filter(|record| record.id == id || record.name == self.path) {
            Some(record) => At { number, record },
            None => panic!("the records are those of another model: parameter {number} is not `{}`", self.path),
        }
    }
}

struct Visitor<'a, V: Visit> {
    walk: Walk<'a>,
    visit: &'a mut V,
    ended: Result<(), V::Error>,
}

impl<V: Visit> Visitor<'_, V> {
    fn other(&mut self, values: &dyn Fn() -> TensorData) {
        if self.ended.is_ok() {
            self.ended = self.visit.other(&self.walk.path, values);
        }
    }
}

impl<V: Visit> ModuleVisitor for Visitor<'_, V> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.walk.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.walk.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.ended.is_ok() {
            self.ended = self.visit.float(self.walk.step(param.id), param);
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.other(&|| param.base().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.other(&|| param.base().into_data().convert::<u8>());
    }
}

struct Mapper<'a, C: Change> {
    walk: Walk<'a>,
    change: &'a mut C,
    ended: Result<(), C::Error>,
}

impl<C: Change> Mapper<'_, C> {
    fn other(&mut self, shape: &[usize]) -> Option<TensorData> {
        if self.ended.is_err() {
            return None;
        }
        self.change.other(&self.walk.path, shape).unwrap_or_else(|error| {
            self.ended = Err(error);
            None
        })
    }
}

/// The same parameter again, where what it becomes is seen by clones of the module, as of running statistics. It is put back
/// when a change fails, which one that cannot has no need of.
fn kept<E, const D: usize>(param: &Param<Tensor<D>>) -> Option<Param<Tensor<D>>> {
    // `Infallible` has no size.
    let is_wanted = size_of::<E>() > 0 && param.is_initialized() && !param.base().is_require_grad();
    is_wanted.then(|| param.clone())
}

impl<C: Change> ModuleMapper for Mapper<'_, C> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.walk.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.walk.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.ended.is_err() {
            return param;
        }
        let (id, kept) = (param.id, kept::<C::Error, D>(&param));
        self.change.float(self.walk.step(id), param).unwrap_or_else(|error| {
            self.ended = Err(error);
            // Nobody gets the model.
            kept.unwrap_or_else(|| Param::initialized(id, Tensor::empty([0; D], &Device::flex())))
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.other(&param.lazy_shape()) {
            Some(data) => param.map(|old| Tensor::from_data(data, (&old.device(), old.dtype()))),
            None => param,
        }
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        match self.other(&param.lazy_shape()) {
            Some(data) => param.map(|old| Tensor::from_data(data.convert::<bool>(), &old.device())),
            None => param,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::params::record::tests::record;
    use burn::nn::{BatchNormConfig, Linear, LinearConfig};

    #[derive(Module, Debug)]
    struct Net {
        first: Linear,
        steps: Param<Tensor<1, Int>>,
        second: Linear,
    }

    fn net(device: &Device) -> Net {
        let linear = || LinearConfig::new(2, 3).init(device);
        let steps = Param::initialized(ParamId::new(), Tensor::from_data([4, 5], device));
        Net { first: linear(), steps, second: linear() }
    }

    /// Records of these names, with identifiers of their own.
    fn records(names: &[&str]) -> Vec<ParamRecord> {
        let record =
            |(number, name): (usize, &&str)| ParamRecord { name: name.to_string(), ..record(number, 6, false) };
        names.iter().enumerate().map(record).collect()
    }

    const NAMES: [&str; 4] = ["first.weight", "first.bias", "second.weight", "second.bias"];

    /// Notes what it is shown, up to the parameter of this number.
    struct Note(Vec<String>, usize);

    impl Visit for Note {
        type Error = usize;

        fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<(), usize> {
            self.0.push(format!("{} {} of {D}", at.number, at.record.name));
            assert_eq!(param.dims().len(), D);
            if at.number == self.1 { Err(at.number) } else { Ok(()) }
        }

        fn other(&mut self, path: &str, values: &dyn Fn() -> TensorData) -> Result<(), usize> {
            self.0.push(format!("{path} {}", values().iter::<i64>().sum::<i64>()));
            Ok(())
        }
    }

    #[test]
    fn parameters_are_shown_with_their_records_until_one_fails() {
        let (net, records) = (net(&Device::flex()), records(&NAMES));
        let shown = |until: usize| {
            let mut note = Note(Vec::new(), until);
            let ended = visit(&net, &records, &mut note);
            (note.0, ended)
        };
        let all = ["0 first.weight of 2", "1 first.bias of 1", "steps 9", "2 second.weight of 2", "3 second.bias of 1"];
        assert_eq!(shown(9), (all.map(String::from).to_vec(), Ok(())));
        assert_eq!(shown(1), (all[..2].iter().map(|text| text.to_string()).collect(), Err(1)));
    }

    #[test]
    fn a_parameter_without_its_record_is_not_taken_for_the_next_one() {
        let net = net(&Device::flex());
        for wrong in [&["first.weight", "second.weight", "second.bias"][..], &NAMES[..3]] {
            let walk = || visit(&net, &records(wrong), &mut Note(Vec::new(), 9));
            let told = catch_unwind(AssertUnwindSafe(walk)).unwrap_err();
            let told = told.downcast_ref::<String>().unwrap();
            assert!(told.contains("the records are those of another model"), "{told}");
        }
        // Whatever it is called, once it has the record's identifier.
        let mut found = records(&["a", "b", "c", "d"]);
        let ids = [net.first.weight.id, net.first.bias.as_ref().unwrap().id, net.second.weight.id];
        found.iter_mut().zip(ids).for_each(|(record, id)| record.id = id);
        found[3].id = net.second.bias.as_ref().unwrap().id;
        assert_eq!(visit(&net, &found, &mut Note(Vec::new(), 9)), Ok(()));
    }

    /// Changes the parameter of one number, fails at that of another, and has other whole numbers.
    struct Add(usize, usize);

    impl Change for Add {
        type Error = usize;

        fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>, usize> {
            match at.number {
                number if number == self.1 => Err(number),
                number if number == self.0 => Ok(param.map(|values| values * 0.0 + 7.0)),
                _ => Ok(param),
            }
        }

        fn other(&mut self, path: &str, shape: &[usize]) -> Result<Option<TensorData>, usize> {
            assert_eq!((path, shape), ("steps", &[2][..]));
            Ok(Some(TensorData::from([8, 9])))
        }
    }

    #[test]
    fn a_changed_model_has_what_it_was_given_and_keeps_the_rest() {
        let device = Device::flex();
        let before = net(&device);
        let kept = before.first.weight.val().into_data();
        let Ok(after) = change(before, &records(&NAMES), &mut Add(3, 9)) else { panic!("none fails") };
        assert_eq!(after.steps.val().into_data().iter::<i64>().collect::<Vec<_>>(), [8, 9]);
        assert_eq!(after.first.weight.val().into_data(), kept);
        let bias = after.second.bias.unwrap().val().into_data();
        assert_eq!(bias.iter::<f32>().collect::<Vec<_>>(), [7.0; 3]);
    }

    /// What it becomes, its clones become too.
    #[test]
    fn running_statistics_of_other_models_outlive_a_change_that_fails() {
        let device = Device::flex();
        let net = BatchNormConfig::new(3).init(&device);
        let names = ["gamma", "beta", "running_mean", "running_var"];
        let records: Vec<ParamRecord> = records(&names);
        assert_eq!(change(net.clone(), &records, &mut Add(0, 2)).map(drop), Err(2));
        assert_eq!(net.running_mean.value_sync().dims(), [3]);
    }
}
