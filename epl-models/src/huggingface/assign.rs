//! Fills a laid out model from a folder.

use std::collections::{BTreeSet, HashMap};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use epl_core::ParamRecord;
use epl_core::plan::with_values;

use super::error::{Error, Result, WrongShape};
use super::folder::Folder;
use super::name_table::NameTable;
use super::source::Source;

/// Where the parameters of a model stand in a folder: a pure table.
pub trait Names {
    /// All names, ours and theirs.
    fn table(&self) -> &NameTable;

    /// Where the parameter at a path of the module, such as `encoder.final_norm.gamma`, stands.
    fn source(&self, path: &str) -> Option<Source> {
        self.table().source(path)
    }

    /// The paths of the parameters that a stored tensor is, is a part of, or is put together from; none if it is no parameter.
    fn paths(&self, stored: &str) -> Vec<String> {
        self.table().paths(stored)
    }

    /// Whether a stored tensor may be left unread, such as a copy of a tied weight.
    fn may_be_left(&self, stored: &str) -> bool;

    /// Whether the parameter at a path keeps the values it has, such as those of a head that the folder lacks.
    fn keeps(&self, _path: &str) -> bool {
        false
    }
}

/// Fills a model: every rank reads what its records say it holds, one parameter after another; of what another stage
/// holds, nothing.
///
/// `records` are [`Plan::records`](epl_core::Plan::records), which [`try_map`](epl_core::LaidOutModel::try_map) gives with the
/// model. Values are cast to the type of the parameter. The model may be lazy or drawn; its identifiers stay.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use burn::{nn::{Linear, LinearConfig}, tensor::{Tensor, TensorData}};
/// # use epl_core::{Config, WithLoss, launch};
/// # use epl_models::huggingface::{self, Exported, Folder, NameTable, Names, export};
/// # struct Own(NameTable);
/// # impl Names for Own {
/// #     fn table(&self) -> &NameTable { &self.0 }
/// #     fn may_be_left(&self, _stored: &str) -> bool { false }
/// # }
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).mean();
/// // Any Burn module, its names in a value that is `Names`, and a folder that has `proj.weight` and `proj.bias`.
/// let names = Own(NameTable::new().transposed("weight", "proj.weight").same("bias", "proj.bias"));
/// # let stored = [("weight", TensorData::from([[1.0_f32, 2.0], [3.0, 4.0]])), ("bias", TensorData::from([5.0_f32, 6.0]))];
/// # let stored = BTreeMap::from(stored.map(|(name, data)| (name.to_string(), data)));
/// # let parameters = stored.iter().map(|(name, data)| (name.clone(), data.shape().to_vec())).collect();
/// # let (config, copies, constants) = (Default::default(), Vec::new(), Vec::new());
/// # export::save(&folder, Exported { config, names: &names, parameters, copies, constants }, &stored)?;
/// let folder = Folder::open(&folder)?;
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let built = epl.build(|at| WithLoss::new(LinearConfig::new(2, 2).init(at), loss))?;
///     let built = built.try_map(|net, plan| Ok(huggingface::load(net, plan.records(), &folder, &names)?))?;
///     assert_eq!(built.parameters()?, stored);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Weights`] with all that is missing, left over or of another shape, before anything is assigned;
/// [`Error::File`] and [`Error::Format`] while reading.
pub fn load<M: Module>(model: M, records: &[ParamRecord], folder: &Folder, names: &impl Names) -> Result<M> {
    let sources = check(records, folder, names)?;
    let by_name = records.iter().zip(sources).map(|(record, source)| (record.name.as_str(), (record, source)));
    let mut loader = Loader { folder, by_name: by_name.collect(), path: Vec::new(), error: None };
    let model = model.map(&mut loader);
    match loader.error {
        Some(error) => Err(error),
        None => Ok(model),
    }
}

/// The source of every record, if the folder and the model fit; none of one that keeps its values.
fn check(records: &[ParamRecord], folder: &Folder, names: &impl Names) -> Result<Vec<Option<Source>>> {
    let (mut missing, mut shapes, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    let mut unread: BTreeSet<String> = folder.names().map(String::from).collect();
    for record in records {
        if names.keeps(&record.name) {
            sources.push(None);
            continue;
        }
        let Some(source) = names.source(&record.name) else {
            missing.push(format!("a tensor for `{}`", record.name));
            continue;
        };
        let known = missing.len();
        for name in source.names() {
            unread.remove(name);
            if folder.shape(name).is_none() {
                missing.push(name.to_string());
            }
        }
        if missing.len() > known {
            continue;
        }
        match source.shape(folder) {
            Some(shape) if shape == record.global_shape => sources.push(Some(source)),
            shape => shapes.push(WrongShape {
                name: source.names().join(" + "),
                stored: shape.unwrap_or_default(),
                needed: record.global_shape.clone(),
            }),
        }
    }
    let unexpected: Vec<String> = unread.into_iter().filter(|name| !names.may_be_left(name)).collect();
    if missing.is_empty() && unexpected.is_empty() && shapes.is_empty() {
        return Ok(sources);
    }
    Err(Error::Weights { folder: folder.path().to_path_buf(), missing, unexpected, shapes })
}

struct Loader<'a> {
    folder: &'a Folder,
    by_name: HashMap<&'a str, (&'a ParamRecord, Option<Source>)>,
    path: Vec<String>,
    error: Option<Error>,
}

impl Loader<'_> {
    /// What this rank holds of a parameter, on the parameter's device without autodiff; nothing where it keeps what it
    /// has, or another stage holds it.
    fn read<const D: usize>(&self, name: &str, param: &Param<Tensor<D>>) -> Result<Option<Tensor<D>>> {
        let (record, source) = &self.by_name[name];
        let Some(source) = source.as_ref().filter(|_| record.held) else { return Ok(None) };
        let data = source.read(self.folder, &record.ranges())?.convert_dtype(record.dtype);
        let device = param.lazy_device().without_autodiff();
        Ok(Some(Tensor::from_data(data, (&device, record.dtype))))
    }
}

impl ModuleMapper for Loader<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        assert!(self.by_name.contains_key(name.as_str()), "the records are those of another model: no `{name}`");
        // What another stage holds, that one reads.
        if self.error.is_some() || !self.by_name[name.as_str()].0.held {
            return param;
        }
        match self.read(&name, &param) {
            Ok(Some(values)) => with_values(param, values),
            Ok(None) => param,
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}
