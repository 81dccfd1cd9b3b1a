//! Batches that are made of tensors: in 16 bits for segments that compute so, and their types, by the names of fields.

use core::fmt;

use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Int, Tensor};

use crate::model::precision::{HalfPrecision, cast};
use crate::stable_hash::stable_hash;

/// What a model reads, as mixed precision needs it.
///
/// Tensors, tuples and options of these are batches, and so is a list, which stays as it is. [`batch!`](crate::batch) writes it
/// for a struct of such parts. A struct whose tensors the model casts by itself has it for one line:
///
/// ```
/// # struct Mine;
/// impl epl_core::Batch for Mine {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `Batch`",
    label = "mixed precision does not know of which tensors this is made",
    note = "for a struct of tensors write `epl::batch!({Self} {{ field, … }});`, with all of its fields",
    note = "`impl epl::Batch for {Self} {{}}` is enough where nothing in it is to be cast"
)]
pub trait Batch: Sized {
    /// The same with its tensors of f32 in 16 bits; none where it has none, as by default.
    fn in_half(&self, _half: HalfPrecision) -> Option<Self> {
        None
    }

    /// Tells the types of its tensors of floats; none, by default.
    fn float_types(&self, _types: &mut FloatTypes) {}
}

/// The types of a batch's tensors of floats, by the names of its fields; and the shapes of all its tensors.
#[derive(Clone, Debug, Default)]
pub struct FloatTypes {
    path: Vec<String>,
    found: Vec<(String, DType)>,
    shapes: Vec<Vec<usize>>,
    /// Of the values of all its tensors, where these are read.
    hash: Option<u64>,
}

impl FloatTypes {
    /// Of a field.
    pub fn field(&mut self, name: &str, part: &impl Batch) {
        self.path.push(name.to_string());
        part.float_types(self);
        self.path.pop();
    }

    fn tensor<const D: usize, K: Basic>(&mut self, tensor: &Tensor<D, K>) {
        self.shapes.push(tensor.dims().to_vec());
        if let Some(hash) = &mut self.hash {
            *hash = stable_hash(&(*hash, tensor.to_data().as_bytes()));
        }
    }
}

impl<const D: usize> Batch for Tensor<D> {
    fn in_half(&self, half: HalfPrecision) -> Option<Self> {
        (self.dtype() == DType::F32).then(|| cast(self.clone(), half.dtype()))
    }

    fn float_types(&self, types: &mut FloatTypes) {
        types.found.push((types.path.join("."), self.dtype()));
        types.tensor(self);
    }
}

impl<const D: usize> Batch for Tensor<D, Int> {
    fn float_types(&self, types: &mut FloatTypes) {
        types.tensor(self);
    }
}

impl<const D: usize> Batch for Tensor<D, Bool> {
    fn float_types(&self, types: &mut FloatTypes) {
        types.tensor(self);
    }
}

impl<T> Batch for Vec<T> {}

impl<T: Batch> Batch for Option<T> {
    fn in_half(&self, half: HalfPrecision) -> Option<Self> {
        self.as_ref()?.in_half(half).map(Some)
    }

    fn float_types(&self, types: &mut FloatTypes) {
        if let Some(part) = self {
            part.float_types(types);
        }
    }
}

macro_rules! without_tensors {
    ($($part:ty),+) => {
        $(impl Batch for $part {})+
    };
}

without_tensors!((), bool, char, i8, i16, i32, i64, isize, u8, u16, u32, u64, usize, f32, f64, String, &'static str);

/// What is known of the tensors of a model's batches: see [`Model::batch_tensors`](crate::Model::batch_tensors).
pub struct BatchTensors<B> {
    in_half: fn(&B, HalfPrecision) -> Option<B>,
    float_types: fn(&B, &mut FloatTypes),
    in_loss: bool,
}

impl<B> BatchTensors<B> {
    /// Nothing: the batch stays as it is.
    pub fn unknown() -> Self {
        Self { in_half: |_, _| None, float_types: |_, _| (), in_loss: false }
    }

    /// What [`Batch`] tells.
    pub fn of() -> Self
    where
        B: Batch,
    {
        Self { in_half: B::in_half, float_types: B::float_types, in_loss: false }
    }

    /// The loss gets the batch in 16 bits, too: for a model of one segment that runs its forward there.
    #[must_use]
    pub fn with_loss(self) -> Self {
        Self { in_loss: true, ..self }
    }

    pub(crate) fn in_half(&self, batch: &B, half: HalfPrecision) -> Option<B> {
        (self.in_half)(batch, half)
    }

    pub(crate) fn in_loss(&self) -> bool {
        self.in_loss
    }

    /// The types of the floats of a batch, by the names of its fields.
    pub(crate) fn float_types(&self, batch: &B) -> Vec<(String, DType)> {
        let mut types = FloatTypes::default();
        (self.float_types)(batch, &mut types);
        types.found
    }

    /// The shapes of its tensors.
    pub(crate) fn shapes(&self, batch: &B) -> Vec<Vec<usize>> {
        let mut types = FloatTypes::default();
        (self.float_types)(batch, &mut types);
        types.shapes
    }

    /// A number that other values, types or shapes of its tensors change; none, where it tells of no tensor.
    pub(crate) fn hash(&self, batch: &B) -> Option<u64> {
        let mut types = FloatTypes { hash: Some(0), ..FloatTypes::default() };
        (self.float_types)(batch, &mut types);
        let told = format!("{:?} {:?}", types.found, types.shapes);
        types.hash.filter(|_| !types.shapes.is_empty()).map(|values| stable_hash(&(values, told.as_str())))
    }
}

impl<B> Clone for BatchTensors<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for BatchTensors<B> {}

impl<B> fmt::Debug for BatchTensors<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchTensors").field("in_loss", &self.in_loss).finish_non_exhaustive()
    }
}
