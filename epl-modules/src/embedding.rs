//! An embedding whose vocabulary is split over the tensor axis.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, module};
use epl_comm::{Partial, Split, custom_vjp, shard_range};
use epl_core::model::precision::{cast, wide, widen};
use epl_core::offload::is_host;
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use crate::host::{self, HostFloat, Real, View, host_float};
use crate::invalid::{check_last_dim, refuse};
use crate::linear::{Operand, Weight, affine, count_affine};
use crate::placement::{self, check_enough};

/// Configuration to create a [`SplitEmbedding`] layer using the [init function](SplitEmbeddingConfig::init).
#[derive(Config, Debug)]
pub struct SplitEmbeddingConfig {
    /// The number of vectors, over all ranks.
    pub n_embedding: usize,
    /// The size of each vector.
    pub d_model: usize,
    /// How the vectors get their first values. Default: normal with mean 0 and deviation 1
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

/// A lookup table of which every rank of the tensor axis holds some rows.
///
/// A rank looks up the ids in its range and gives zeros for the others; the sum over the ranks is the lookup.
/// The same rows, used as columns, are a head whose classes are split: [`logits`](SplitEmbedding::logits).
/// A vocabulary that does not divide is cut as evenly as possible.
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use epl_core::testing;
/// use epl_modules::SplitEmbeddingConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let tokens = SplitEmbeddingConfig::new(7, 4).init(&epl.place().child("tokens"));
///     let ids = Tensor::<2, Int>::from_ints([[0, 6, 3]], epl.place().device());
///     let vectors = tokens.forward(ids); // [1, 3, 4], whole on both ranks
///     let logits = tokens.logits(vectors); // of tokens 0..4 on one, of 4..7 on the other
///     assert_eq!((logits.size(), logits.range()), (7, [0..4, 4..7][epl.context().tensor().rank()].clone()));
///     Ok(())
/// });
/// ```
///
/// Should be created with [`SplitEmbeddingConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SplitEmbedding {
    /// This rank's rows of `[n_embedding, d_model]`
    pub weight: Param<Tensor<2>>,
    /// The number of vectors, over all ranks.
    pub n_embedding: usize,
    /// The size of each vector.
    pub d_model: usize,
    #[module(skip)]
    context: Context,
}

impl SplitEmbeddingConfig {
    /// Initializes a new [`SplitEmbedding`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a rank would hold no row.
    pub fn init(&self, place: &Place) -> SplitEmbedding {
        let (context, shape) = (place.context(), [self.n_embedding, self.d_model]);
        check_enough(context.tensor(), place.path(), "row", self.n_embedding);
        SplitEmbedding {
            weight: place.split_param(shape, &[(Axis::Tensor, 0)], self.initializer.clone()),
            n_embedding: self.n_embedding,
            d_model: self.d_model,
            context: context.clone(),
        }
    }
}

impl SplitEmbedding {
    /// Looks up the vectors of ids.
    ///
    /// # Shapes
    ///
    /// - ids: `[batch_size, seq_length]`, each below `n_embedding`
    /// - output: `[batch_size, seq_length, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there is no such id (in host memory; elsewhere this is not checked, as reading the
    /// ids would wait for the device), or a peer fails.
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        lookup_split(&self.weight, ids, self.n_embedding, &self.context)
    }

    /// The product with the transposed table: a head tied to the embedding, with split classes.
    ///
    /// # Shapes
    ///
    /// - input: `[..., d_model]`
    /// - output: split along the last dim of `[..., n_embedding]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the last dim is another, or the input is copied over another axis.
    pub fn logits<const D: usize>(&self, input: impl Into<Operand<D>>) -> Split<D> {
        self.biased_logits(input, None)
    }

    /// [`logits`](Self::logits), with a bias for each row of the table.
    ///
    /// # Shapes
    ///
    /// - bias: this rank's part of `[n_embedding]`, cut as the table is
    /// - others: as of [`logits`](Self::logits)
    ///
    /// # Errors
    ///
    /// As [`logits`](Self::logits), and when the bias has another length.
    pub fn biased_logits<const D: usize>(&self, input: impl Into<Operand<D>>, bias: Option<Tensor<1>>) -> Split<D> {
        let (rows, found) = (self.weight.val().dims()[0], bias.as_ref().map(|bias| bias.dims()[0]));
        if let Some(found) = found.filter(|found| *found != rows) {
            refuse(format!(
                "a head tied to an embedding, of which this rank has {rows} rows, got a bias of {found}: give it one for each row"
            ));
        }
        let group = self.context.tensor();
        let input = input.into().copied(group).local();
        check_last_dim("head tied to an embedding", ("d_model", self.d_model), input.dims());
        count_affine(&self.context, self.weight.id, input.dims(), self.n_embedding);
        let local = affine(input, Weight::Col(self.weight.val()), bias);
        Split::from_local(local, D - 1, self.n_embedding, group)
    }
}

/// The vectors of ids, of whose table this rank holds the rows that are its part of `n_embedding`.
pub(crate) fn lookup_split(
    table: &Param<Tensor<2>>,
    ids: Tensor<2, Int>,
    n_embedding: usize,
    context: &Context,
) -> Tensor<3> {
    context.count_flops(Some(table.id), 0.0);
    let group = context.tensor();
    if group.size() == 1 {
        return lookup(table.val(), ids);
    }
    check_ids(&ids, n_embedding);
    let mine = shard_range(n_embedding, group.size(), group.rank());
    let (start, end) = (mine.start as i64, mine.end as i64);
    let foreign = ids.clone().lower_scalar(start).bool_or(ids.clone().greater_equal_scalar(end));
    let rows = ids.sub_scalar(start).mask_fill(foreign.clone(), 0);
    let vectors = vectors_of(table.val(), rows);
    let [batch_size, seq_length, d_model] = vectors.dims();
    let foreign = foreign.reshape([batch_size, seq_length, 1]).expand([batch_size, seq_length, d_model]);
    Partial::from_local(vectors.mask_fill(foreign, 0.0), group).all_reduce()
}

/// Refuses ids of which there is no vector, on this rank or another.
fn check_ids(ids: &Tensor<2, Int>, n_embedding: usize) {
    if !is_host(&ids.device()) {
        return;
    }
    let unknown = |id: &i64| usize::try_from(*id).map_or(true, |id| id >= n_embedding);
    if let Some(id) = ids.clone().into_data().iter::<i64>().find(unknown) {
        refuse(format!(
            "an embedding of n_embedding {n_embedding} was asked for id {id}: ids are at least 0 and below \
             {n_embedding}; use the vocabulary that the ids were made with"
        ));
    }
}

/// The rows of a table, as of Burn's `Embedding`. The gradient of a row is a sum over all positions that have its id, in their
/// order: of a table in 16 bits it is taken in f32 and rounded once, where a sum in 16 bits would come to a stop.
///
/// ```
/// # use burn::tensor::{Device, Int, Tensor};
/// use epl_modules::embedding::lookup;
///
/// let device = Device::flex().autodiff();
/// let table = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device).require_grad();
/// let vectors = lookup(table.clone(), Tensor::<2, Int>::from_ints([[1, 0, 1]], &device));
/// assert_eq!(vectors.dims(), [1, 3, 2]);
/// let gradient = table.grad(&vectors.sum().backward()).unwrap();
/// assert_eq!(gradient.into_data().to_vec::<f32>().unwrap(), [1.0, 1.0, 2.0, 2.0]); // id 1 stands at two positions
/// ```
///
/// # Shapes
///
/// - table: `[n_embedding, d_model]`, ids: `[batch_size, seq_length]`
/// - output: `[batch_size, seq_length, d_model]`
///
/// # Errors
///
/// Unwinds with an error when there is no such id, in host memory.
pub fn lookup(table: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<3> {
    check_ids(&ids, table.dims()[0]);
    vectors_of(table, ids)
}

/// [`lookup`] of ids that are known to be of the table.
fn vectors_of(table: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<3> {
    if table.dtype() == wide(table.dtype()) && !is_host(&table.device()) {
        return module::embedding(table, ids);
    }
    let (shape, dtype, ids) = (table.dims(), table.dtype(), ids.inner());
    custom_vjp(
        (table,),
        |(table,)| (module::embedding(table, ids.clone()), ids),
        move |ids, grad| (Some(sums_of_rows(shape, dtype, ids.flatten(0, 1), grad.flatten(0, 1))),),
    )
}

/// The rows of these indices, with the gradient of [`lookup`].
pub(crate) fn rows_at(table: Tensor<2>, indices: Tensor<1, Int>) -> Tensor<2> {
    let (shape, dtype, indices) = (table.dims(), table.dtype(), indices.inner());
    custom_vjp(
        (table,),
        |(table,)| (table.select(0, indices.clone()), indices),
        move |indices, grad| (Some(sums_of_rows(shape, dtype, indices, grad)),),
    )
}

/// The sums of the rows of each index, in f32 at least and rounded once.
fn sums_of_rows(shape: [usize; 2], dtype: DType, indices: Tensor<1, Int>, rows: Tensor<2>) -> Tensor<2> {
    let rows = widen(rows);
    let sums = match host_float(&rows) {
        Some(HostFloat::Single) => sums_on_host::<f32>(shape, indices, rows),
        Some(HostFloat::Double) => sums_on_host::<f64>(shape, indices, rows),
        None => {
            let zeros = Tensor::<2>::zeros(shape, (&rows.device(), rows.dtype()));
            zeros.select_assign(0, indices, rows, IndexingUpdateOp::Add)
        }
    };
    cast(sums, dtype)
}

fn sums_on_host<T: Real>(shape: [usize; 2], indices: Tensor<1, Int>, rows: Tensor<2>) -> Tensor<2> {
    let (device, rows) = (rows.device(), View::<T>::new(rows));
    let indices = indices.into_data();
    let indices = indices.iter::<i64>().map(|index| usize::try_from(index).expect("forward has found its row"));
    let sums = host::scatter_add(shape, &indices.collect::<Vec<_>>(), rows.slice(), None);
    host::tensor(sums, shape, &device)
}

impl ModuleDisplay for SplitEmbedding {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("n_embedding", &self.n_embedding)
            .add("d_model", &self.d_model)
            .add("placement", placement::split(self.context.tensor(), "row", self.n_embedding).as_str())
            .optional()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, TensorData};

    use super::*;

    #[test]
    fn the_gradient_of_a_table_is_the_sum_over_the_positions_of_each_id_on_any_number_of_threads() {
        // Some ids never, some in several blocks, and no position at all.
        for (n_embedding, d_model, [batch_size, seq_length]) in
            [(1, 1, [1, 1]), (7, 3, [2, 5]), (9000, 5, [3, 700]), (40, 900, [4, 33]), (3, 4, [0, 2]), (5, 2, [2, 0])]
        {
            let device = Device::flex();
            let count = batch_size * seq_length;
            let ids: Vec<i64> = (0..count as i64).map(|at| at * at * 7919 % n_embedding as i64).collect();
            let ids = Tensor::<2, Int>::from_ints(TensorData::new(ids, [batch_size, seq_length]), &device);
            let grad = Tensor::<3>::random([batch_size, seq_length, d_model], Distribution::Default, &device);
            let zeros = Tensor::<2>::zeros([n_embedding, d_model], &device);
            let exact = zeros.clone().select_assign(
                0,
                ids.clone().flatten(0, 1),
                grad.clone().flatten(0, 1),
                IndexingUpdateOp::Add,
            );
            let table = zeros.autodiff().require_grad();
            let of = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    let grads = (lookup(table.clone(), ids.clone()) * grad.clone().autodiff()).sum().backward();
                    table.grad(&grads).unwrap().into_data()
                })
            };
            for threads in [1, 2, 5] {
                assert_eq!(of(threads), exact.clone().into_data(), "{n_embedding} x {d_model} on {threads} threads");
            }
        }
    }

    #[test]
    fn an_id_without_a_vector_is_refused() {
        let table = Tensor::<2>::zeros([3, 2], &Device::flex());
        for id in [-1, 3] {
            let ids = Tensor::<2, Int>::from_ints([[0, id]], &table.device());
            let found = epl_comm::catch(|| lookup(table.clone(), ids)).map(|_| ()).unwrap_err().to_string();
            assert!(found.contains(&format!("n_embedding 3 was asked for id {id}:")), "{found}");
        }
    }
}
