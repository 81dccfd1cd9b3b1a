//! Writes a folder that `transformers` loads.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use burn::tensor::{DType, TensorData};
use epl_core::checkpoint::durable::Unpublished;
use epl_core::tensors::{Streamed, TensorInfo, WholeTensors, write_safetensors};
use epl_core::{Config, Model, Place, launch_dry};
use serde_json::{Map, Value};

use super::assign::Names;
use super::error::{Error, Result, WrongShape};
use super::source::{Source, beside, transpose};

/// What a folder is to hold, but for the values.
#[derive(Debug)]
pub struct Exported<'a, N> {
    /// The keys of `config.json`; the element type is added.
    pub config: Map<String, Value>,
    /// Where the parameters stand.
    pub names: &'a N,
    /// The parameters of the model, with their shapes.
    pub parameters: Vec<(String, Vec<usize>)>,
    /// Other names under which a parameter is stored again, as it is, with its path.
    pub copies: Vec<(String, String)>,
    /// Stored tensors that are no parameters here, by their stored names.
    pub constants: Vec<(String, TensorData)>,
}

/// The parameters of a model on one rank, with their shapes; none is drawn.
///
/// # Errors
///
/// When the model cannot be.
pub fn parameters<M: Model>(model: impl FnMut(&Place) -> M) -> Result<Vec<(String, Vec<usize>)>> {
    let planned = launch_dry(&Config::new(), 0, |epl| {
        let planned = epl.plan(model)?;
        let records = planned.plan().records();
        Ok(records.iter().map(|record| (record.name.clone(), record.global_shape.clone())).collect())
    });
    planned.map(|(parameters, _)| parameters).map_err(Error::core)
}

/// How many numbers the parameters of a model have.
#[cfg(test)]
pub(crate) fn parameter_count<M: Model>(model: impl FnMut(&Place) -> M) -> usize {
    let shapes = parameters(model).unwrap();
    shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
}

/// Writes `model.safetensors` and `config.json`, in place of those that a folder has.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use burn::tensor::TensorData;
/// use epl_models::huggingface::{Exported, NameTable, Names, TensorFile, export};
///
/// struct Own(NameTable);
/// impl Names for Own {
///     fn table(&self) -> &NameTable { &self.0 }
///     fn may_be_left(&self, _stored: &str) -> bool { false }
/// }
/// // A weight as Burn has it, `[inputs, outputs]`; PyTorch has `[outputs, inputs]`, under a name of its own.
/// let names = Own(NameTable::new().transposed("head.weight", "lm_head.weight"));
/// let tensors = BTreeMap::from([("head.weight".to_string(), TensorData::from([[1.0_f32, 2.0], [3.0, 4.0]]))]);
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let (config, parameters) = (Default::default(), vec![("head.weight".to_string(), vec![2, 2])]);
/// # let (copies, constants) = (Vec::new(), Vec::new());
/// export::save(&folder, Exported { config, names: &names, parameters, copies, constants }, &tensors)?;
/// let stored = TensorFile::open(folder.path().join("model.safetensors"))?;
/// assert_eq!(stored.read("lm_head.weight")?, TensorData::from([[1.0_f32, 3.0], [2.0, 4.0]]));
/// # Ok::<_, epl_models::huggingface::Error>(())
/// ```
///
/// The file holds what has a name in `transformers`, and nothing else: whole numbers of its norms, such as
/// `num_batches_tracked`, are parameters of the model or [constants](Exported::constants); others that a checkpoint has are
/// refused, like every tensor that is not the model's.
///
/// Other files of the folder stay, such as a tokenizer, or a `generation_config.json`, which goes before the tokens that end
/// a text in `config.json`.
///
/// One stored tensor is in memory at a time, and while one is put together from several parameters, these too. Both files are
/// whole and synced before one of them gets its name, and while the weights get theirs there is no `config.json`: whenever
/// the machine stops, the folder has the old model, the new one, or none that loads.
///
/// # Errors
///
/// [`Error::Weights`] with all tensors that are missing, of another shape, or not the model's, before anything is written;
/// [`Error::Core`] when a tensor cannot be read, or a file not be written.
pub fn save<N: Names>(folder: impl AsRef<Path>, exported: Exported<'_, N>, tensors: &impl WholeTensors) -> Result<()> {
    let folder = folder.as_ref();
    let Exported { mut config, names, parameters, copies, constants } = exported;
    check(folder, &parameters, tensors, names)?;
    if let Some(dtype) = common_dtype(&parameters, tensors) {
        config.insert("dtype".into(), dtype.into());
    }
    let (mut entries, mut parts) = (Vec::new(), Parts::new());
    for (path, shape) in &parameters {
        let own = names.source(path).into_iter();
        let copies = copies.iter().filter(|(_, of)| of == path).map(|(stored, _)| Source::Same(stored.clone()));
        let Some(info) = tensors.info(path) else { continue };
        for part in own.chain(copies).flat_map(|source| inverse(source, shape, Vec::new())) {
            let (number, streamed) = (part.number, part.streamed(path, info.dtype, tensors));
            match number {
                None => entries.push(streamed),
                Some(number) => parts.entry(streamed.name.clone()).or_default().push((number, streamed)),
            }
        }
    }
    entries.extend(parts.into_iter().map(|(stored, parts)| together(stored, parts)));
    entries.extend(constants.into_iter().map(|(name, data)| {
        let info = TensorInfo { shape: data.shape().to_vec(), dtype: data.dtype() };
        Streamed { name, info, read: Box::new(move || Ok(data.clone())) }
    }));
    write(folder, &config, entries).map_err(Error::core)
}

fn write(folder: &Path, config: &Map<String, Value>, entries: Vec<Streamed<'_>>) -> epl_core::Result<()> {
    let error = |error| epl_core::Error::file(folder, error);
    fs::create_dir_all(folder).map_err(error)?;
    let path = folder.join("config.json");
    // What `transformers` looks at to see that the values are PyTorch's.
    let weights = write_safetensors(&folder.join("model.safetensors"), &[("format", "pt")], entries)?;
    let text = serde_json::to_string_pretty(config).map_err(|error| epl_core::Error::file(&path, error))?;
    let config = Unpublished::write(&path, |write| write(format!("{text}\n").as_bytes()))?;
    if path.exists() {
        fs::remove_file(&path).map_err(|error| epl_core::Error::file(&path, error))?;
    }
    weights.publish()?;
    config.publish()
}

/// Refuses tensors that are not those of the model.
fn check<N: Names>(
    folder: &Path,
    parameters: &[(String, Vec<usize>)],
    tensors: &impl WholeTensors,
    names: &N,
) -> Result<()> {
    let (mut missing, mut shapes) = (Vec::new(), Vec::new());
    for (path, needed) in parameters {
        if names.source(path).is_none() {
            missing.push(format!("a name in `transformers` for `{path}`"));
        }
        match tensors.info(path) {
            None => missing.push(path.clone()),
            Some(info) if info.shape != *needed => {
                shapes.push(WrongShape { name: path.clone(), stored: info.shape, needed: needed.clone() });
            }
            Some(_) => {}
        }
    }
    let known = |name: &String| parameters.iter().any(|(path, _)| path == name);
    let mut unexpected: Vec<String> = tensors.names().into_iter().filter(|name| !known(name)).collect();
    unexpected.sort();
    if missing.is_empty() && unexpected.is_empty() && shapes.is_empty() {
        return Ok(());
    }
    Err(Error::Weights { folder: folder.to_path_buf(), missing, unexpected, shapes })
}

/// The type of all parameters, as `transformers` names it; nothing where they differ. What is counted has none.
fn common_dtype(parameters: &[(String, Vec<usize>)], tensors: &impl WholeTensors) -> Option<&'static str> {
    let dtypes = parameters.iter().filter_map(|(path, _)| tensors.info(path)).map(|info| info.dtype);
    let mut dtypes = dtypes.filter(DType::is_float);
    let first = dtypes.next()?;
    if dtypes.any(|dtype| dtype != first) {
        return None;
    }
    match first {
        DType::F64 => Some("float64"),
        DType::F32 => Some("float32"),
        DType::F16 => Some("float16"),
        DType::BF16 => Some("bfloat16"),
        _ => None,
    }
}

/// The parts of stored tensors that several parameters make, with their numbers.
type Parts<'a> = BTreeMap<String, Vec<(usize, Streamed<'a>)>>;

/// The stored tensor whose parts lie beside each other along the last dim.
fn together(name: String, mut parts: Vec<(usize, Streamed<'_>)>) -> Streamed<'_> {
    parts.sort_by_key(|(number, _)| *number);
    let mut info = parts[0].1.info.clone();
    if let Some(last) = info.shape.last_mut() {
        *last *= parts.len();
    }
    let read = move || {
        let parts: Vec<TensorData> = parts.iter().map(|(_, part)| (part.read)()).collect::<epl_core::Result<_>>()?;
        Ok(beside(&parts))
    };
    Streamed { name, info, read: Box::new(read) }
}

/// A stored tensor, and what it is of a parameter.
#[derive(Debug, PartialEq, Eq)]
struct ExportedPart {
    stored: String,
    /// Which part of the stored tensor it is, if it is not the whole.
    number: Option<usize>,
    /// The ranges of the parameter's first dims, of which each leaves one entry, and which are not stored.
    front: Vec<Range<usize>>,
    /// Its shape in the parameter.
    shape: Vec<usize>,
    transposed: bool,
}

/// What a parameter is put together from, taken apart.
fn inverse(source: Source, shape: &[usize], front: Vec<Range<usize>>) -> Vec<ExportedPart> {
    let whole = |stored, front| ExportedPart { stored, number: None, front, shape: shape.to_vec(), transposed: false };
    match source {
        Source::Same(stored) => vec![whole(stored, front)],
        Source::Transposed(stored) => vec![ExportedPart { transposed: true, ..whole(stored, front) }],
        Source::Part { name, part, .. } => vec![ExportedPart { number: Some(part), ..whole(name, front) }],
        Source::Stacked(parts) => {
            let part = |(index, part)| inverse(part, &shape[1..], [front.as_slice(), &[index..index + 1]].concat());
            parts.into_iter().enumerate().flat_map(part).collect()
        }
    }
}

impl ExportedPart {
    fn streamed<'a>(self, path: &'a str, dtype: DType, tensors: &'a impl WholeTensors) -> Streamed<'a> {
        let Self { stored, number: _, front, shape, transposed } = self;
        let mut written = shape.clone();
        if transposed {
            written.reverse();
        }
        let read = move || {
            let ranges: Vec<Range<usize>> =
                front.iter().cloned().chain(shape.iter().map(|extent| 0..*extent)).collect();
            let read = tensors.read(path, &ranges)?;
            let (bytes, dtype) = (read.as_bytes().to_vec(), read.dtype());
            let data = TensorData::from_bytes_vec(bytes, shape.clone(), dtype);
            Ok(if transposed { transpose(data) } else { data })
        };
        Streamed { name: stored, info: TensorInfo { shape: written, dtype }, read: Box::new(read) }
    }
}

/// The names of classes that `transformers` gives where nobody names them.
pub(crate) fn class_names(classes: usize) -> Map<String, Value> {
    let label = |class: usize| format!("LABEL_{class}");
    let names: Map<String, Value> = (0..classes).map(|class| (class.to_string(), label(class).into())).collect();
    let numbers: Map<String, Value> = (0..classes).map(|class| (label(class), class.into())).collect();
    Map::from_iter([("id2label".to_string(), names.into()), ("label2id".to_string(), numbers.into())])
}

/// What `transformers` says of a model with so many stages, of which the last one's output counts.
pub(crate) fn stage_names(stages: usize) -> Map<String, Value> {
    let named = (1..=stages).map(|stage| format!("stage{stage}"));
    let names: Vec<String> = ["stem".to_string()].into_iter().chain(named).collect();
    let (last, index) = (vec![names[stages].clone()], vec![stages]);
    let keys = [("out_features", last.into()), ("out_indices", index.into()), ("stage_names", names.into())];
    keys.into_iter().map(|(key, value): (_, Value)| (key.to_string(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::{NameTable, TensorFile};

    struct Own(NameTable);

    impl Names for Own {
        fn table(&self) -> &NameTable {
            &self.0
        }

        fn may_be_left(&self, _stored: &str) -> bool {
            false
        }
    }

    fn exported<'a>(names: &'a Own, parameters: &[&str]) -> Exported<'a, Own> {
        let parameters = parameters.iter().map(|path| (path.to_string(), vec![2])).collect();
        Exported { config: Map::new(), names, parameters, copies: Vec::new(), constants: Vec::new() }
    }

    #[test]
    fn whole_numbers_stay_where_they_have_a_name_and_leave_by_no_other_way() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = BTreeMap::from([
            ("weight".to_string(), TensorData::new(vec![1.0_f32, 2.0], [2])),
            ("num_batches_tracked".to_string(), TensorData::new(vec![7_i64, 8], [2])),
        ]);
        let table =
            ["weight", "num_batches_tracked"].into_iter().fold(NameTable::new(), |all, name| all.same(name, name));
        let names = Own(table);
        let refused = save(folder.path(), exported(&names, &["weight"]), &tensors).unwrap_err().to_string();
        assert!(refused.contains("num_batches_tracked"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
        save(folder.path(), exported(&names, &["weight", "num_batches_tracked"]), &tensors).unwrap();
        let stored = TensorFile::open(folder.path().join("model.safetensors")).unwrap();
        assert_eq!(stored.read("num_batches_tracked").unwrap(), tensors["num_batches_tracked"]);
        let config: Value = serde_json::from_slice(&fs::read(folder.path().join("config.json")).unwrap()).unwrap();
        assert_eq!(config["dtype"], "float32", "that of what is no count");
    }

    #[test]
    fn a_source_is_taken_apart() {
        let turned = |name: &str| Source::Transposed(name.into());
        let part = |stored: &str, front: Vec<Range<usize>>, transposed| ExportedPart {
            stored: stored.into(),
            number: None,
            front,
            shape: vec![3, 4],
            transposed,
        };
        assert_eq!(inverse(Source::Same("w".into()), &[3, 4], vec![]), [part("w", vec![], false)]);
        let stacked = Source::Stacked(vec![turned("a"), turned("b")]);
        let parts = [part("a", vec![0..1], true), part("b", vec![1..2], true)];
        assert_eq!(inverse(stacked, &[2, 3, 4], vec![]), parts);
        let queries = Source::Part { name: "qkv".into(), part: 1, of: 3 };
        let expected = ExportedPart { number: Some(1), ..part("qkv", vec![], false) };
        assert_eq!(inverse(queries, &[3, 4], vec![]), [expected]);
    }
}
