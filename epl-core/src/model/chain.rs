//! An ordinary model as a chain of segments, written as closures.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::{Device, Tensor};

use crate::error::{Error, Result};
use crate::model::batch::{Batch, BatchTensors};
use crate::model::carry::Carry;
use crate::model::chain_carry::{ChainCarry, Handed};
use crate::model::loss::{Loss, LossWeights};
use crate::model::segment::Model;
use crate::model::whole::{LOSS, MeanWeight, module_as_its_model};

/// A chain of segments without a loss yet, of which the last one returns a `C`: see [`Chain`].
pub struct Links<M, B, C> {
    model: M,
    links: Vec<Link<M, B>>,
    batch: BatchTensors<B>,
    last: PhantomData<fn() -> C>,
}

/// An ordinary model, cut into a chain: what pipeline stages, recomputation and the overlap of communication with
/// backward need.
///
/// Each segment names the fields of the model that it uses (a Dropout of Burn's in each that does, or in none), and says how
/// it goes on from what the one before it returned, the *carry*: a tensor, several, or a struct ([`carry!`](crate::carry)), of
/// whatever type. At the end stands a loss that is a mean over the rows of a batch, as most of Burn's are, or over something
/// else that is [said](Chain::weighted_by).
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig, conv::{Conv2d, Conv2dConfig}, loss::CrossEntropyLoss};
/// # use burn::tensor::{Int, Tensor};
/// # use epl_core::{Chain, Epl, Result};
/// #[derive(Module, Debug)]
/// struct Net { features: Vec<Conv2d>, head: Linear }
///
/// # fn example(epl: &Epl) -> Result<()> {
/// type Batch = (Tensor<4>, Tensor<1, Int>);
/// let net = epl.build(|at| {
///     let convolution = |channels| Conv2dConfig::new(channels, [3, 3]).init(at);
///     let features = at.replicate(1, |_| vec![convolution([3, 8]), convolution([8, 8])]); // one stage
///     let head = at.replicate(1, |at| LinearConfig::new(8 * 12 * 12, 10).init(at));       // the next one
///     Chain::of(Net { features, head })
///         .first(&["features.0"], |net: &Net, (images, _): &Batch| net.features[0].forward(images.clone()))
///         .then(&["features.1"], |net, hidden, _| net.features[1].forward(hidden))
///         .then(&["head"], |net, hidden, _| net.head.forward(hidden.flatten(1, 3))) // from four dims to two
///         .mean_loss(|_, logits: Tensor<2>, (_, classes)| {
///             CrossEntropyLoss::new(None, &logits.device()).forward(logits, classes.clone())
///         })
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// A field is the path of a part of the model, however deep: `"head"`, `"features.0"`, `"encoder.layers.3.mha"`. It stands for
/// all parameters below it, and each parameter belongs to one segment at least.
///
/// # Mixed precision
///
/// Under `amp.level = O1` a segment computes in 16 bits: its parameters, what enters it and the batch that it reads are cast,
/// if the batch is a [`Batch`](crate::Batch). One whose parameters all stay in f32 ([`amp.full_precision`], or
/// [`Place::full_precision`](crate::Place::full_precision)) computes in f32. The loss gets what the last segment returned in
/// f32, and the batch as it is.
///
/// [`amp.full_precision`]: crate::config::AmpConfig::full_precision
///
/// It is no level of its own in the module: parameters are named, and stored, as the model names them.
pub struct Chain<M, B, C> {
    /// The model.
    pub model: M,
    weight: MeanWeight<B>,
    shared: Arc<ChainParts<M, B, C>>,
}

struct ChainParts<M, B, C> {
    links: Vec<Link<M, B>>,
    batch: BatchTensors<B>,
    mean: Box<MeanFn<M, B, C>>,
}

type Forward<M, B> = dyn Fn(&M, Handed, &B) -> Result<Handed> + Send + Sync;
type MeanFn<M, B, C> = dyn Fn(&M, C, &B) -> Tensor<1> + Send + Sync;

/// One segment.
struct Link<M, B> {
    /// The fields of the model that it uses.
    fields: Vec<String>,
    /// The first one is handed nothing.
    forward: Box<Forward<M, B>>,
}

/// A model that is about to become a [`Chain`].
pub struct Unlinked<M>(M);

impl Chain<(), (), ()> {
    /// Begins a chain with a model.
    pub fn of<M>(model: M) -> Unlinked<M> {
        Unlinked(model)
    }
}

impl<M> Unlinked<M> {
    /// The first segment, which goes on from the batch.
    pub fn first<B: Batch, C: Carry>(
        self,
        fields: &[&str],
        forward: impl Fn(&M, &B) -> C + Send + Sync + 'static,
    ) -> Links<M, B, C> {
        let forward = move |model: &M, _: Handed, batch: &B| Ok(Handed::of(forward(model, batch)));
        let (links, batch) = (vec![Link::new(fields, forward)], BatchTensors::of());
        Links { model: self.0, links, batch, last: PhantomData }
    }

    /// The only segment, which uses all of the model: what tells the network from its loss.
    ///
    /// ```
    /// # use burn::nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}};
    /// # use burn::tensor::Tensor;
    /// # use epl_core::{Chain, Epl, Result};
    /// # fn example(epl: &Epl) -> Result<()> {
    /// let net = epl.build(|at| {
    ///     Chain::of(LinearConfig::new(8, 1).init(at))
    ///         .whole(|net: &Linear, (inputs, _): &(Tensor<2>, Tensor<2>)| net.forward(inputs.clone()))
    ///         .mean_loss(|_, outputs, (_, targets)| MseLoss::new().forward(outputs, targets.clone(), Reduction::Mean))
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn whole<B: Batch, C: Carry>(self, forward: impl Fn(&M, &B) -> C + Send + Sync + 'static) -> Links<M, B, C> {
        self.first(&[ALL], forward)
    }
}

/// The field that stands for all of the model.
const ALL: &str = "";

impl<M, B, C: Carry> Links<M, B, C> {
    /// The next segment, from what the one before it returned, and the batch. It may return something of another type.
    #[must_use]
    pub fn then<D: Carry>(
        self,
        fields: &[&str],
        forward: impl Fn(&M, C, &B) -> D + Send + Sync + 'static,
    ) -> Links<M, B, D> {
        let forward = move |model: &M, handed: Handed, batch: &B| {
            handed.typed().map(|carry| Handed::of(forward(model, carry, batch)))
        };
        let Self { model, mut links, batch, .. } = self;
        links.push(Link::new(fields, forward));
        Links { model, links, batch, last: PhantomData }
    }

    /// The loss, from what the last segment returned, and the batch: a mean over the rows of the batch, or over what
    /// [`weighted_by`](Chain::weighted_by) says.
    ///
    /// Of the model it may read what the last segment uses: anything else may lie on another stage. Under mixed precision its
    /// parameters are as that segment sees them, and what it returned is in f32: so layers belong into the segment, and in the
    /// loss is what a penalty on parameters needs, or a loss with weights of its own.
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::Tensor};
    /// # use epl_core::{Chain, Engine, Place, testing};
    /// # #[derive(Module, Debug)]
    /// # struct Net { body: Linear, head: Linear }
    /// let losses = testing::run((2, 1, 1), |epl| {
    ///     let net = |at: &Place| {
    ///         let [body, head] = [(); 2].map(|()| LinearConfig::new(4, 4).init(at));
    ///         Chain::of(Net { body, head })
    ///             .first(&["body"], |net: &Net, rows: &Tensor<2>| net.body.forward(rows.clone()))
    ///             .then(&["head"], |net, hidden, _| net.head.forward(hidden))
    ///             .mean_loss(|net, outputs, _| outputs.powi_scalar(2).mean() + net.head.weight.val().powi_scalar(2).sum() * 0.01)
    ///     };
    ///     let mut engine = Engine::build(&epl, net, &SgdConfig::new())?;
    ///     Ok(engine.train_batch(&Tensor::ones([6, 4], epl.place().device()), 0.1)?.loss)
    /// });
    /// assert_eq!(losses[0], losses[1]); // of the batch, which both have run a half of
    /// ```
    ///
    /// # Shapes
    ///
    /// - what `mean` returns: `[1]`
    pub fn mean_loss(self, mean: impl Fn(&M, C, &B) -> Tensor<1> + Send + Sync + 'static) -> Chain<M, B, C> {
        let Self { model, links, batch, .. } = self;
        Chain { model, weight: MeanWeight::ROWS, shared: Arc::new(ChainParts { links, batch, mean: Box::new(mean) }) }
    }
}

impl<M, B> Link<M, B> {
    fn new(fields: &[&str], forward: impl Fn(&M, Handed, &B) -> Result<Handed> + Send + Sync + 'static) -> Self {
        Self { fields: fields.iter().map(|field| (*field).to_string()).collect(), forward: Box::new(forward) }
    }

    /// Whether a parameter is of one of its fields.
    fn uses(&self, path: &str) -> bool {
        let is_in =
            |field: &String| path.strip_prefix(&**field).is_some_and(|rest| matches!(rest.as_bytes(), [] | [b'.', ..]));
        self.fields.iter().any(|field| field == ALL || is_in(field))
    }
}

impl<M, B, C> Chain<M, B, C> {
    /// Says what the loss of a batch is a mean over, where it is not its rows: see
    /// [`WithLoss::weighted_by`](crate::WithLoss::weighted_by).
    #[must_use]
    pub fn weighted_by(self, weight: impl Fn(&B) -> f64 + Send + Sync + 'static) -> Self {
        Self { weight: MeanWeight::by(weight), ..self }
    }

    fn with_model(&self, model: M) -> Self {
        Self { model, weight: self.weight.clone(), shared: self.shared.clone() }
    }
}

impl<M: fmt::Debug, B, C> fmt::Debug for Chain<M, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Chain").field(&self.model).field(&self.shared.links.len()).finish()
    }
}

module_as_its_model!(Chain<M, B, C>);

impl<M: Module, B: Send, C: Carry> Model for Chain<M, B, C> {
    type Batch = B;
    type Carry = ChainCarry<C>;

    fn segments(&self) -> usize {
        self.shared.links.len()
    }

    /// The fields that it uses.
    fn segment_name(&self, index: usize) -> String {
        match self.shared.links[index].fields.join("+") {
            none if none.is_empty() => index.to_string(),
            fields => fields,
        }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        (0..self.segments()).filter(|segment| self.shared.links[*segment].uses(path)).collect()
    }

    fn forward_segment(&self, index: usize, carry: Option<ChainCarry<C>>, batch: &B) -> ChainCarry<C> {
        let handed = carry.map(ChainCarry::handed).unwrap_or_default();
        let forward = &self.shared.links[index].forward;
        ChainCarry::new(unwinding(forward(&self.model, handed, batch)))
    }

    fn weights(&self, batch: &B) -> LossWeights {
        self.weight.of(batch)
    }

    fn loss(&self, carry: ChainCarry<C>, batch: &B) -> Loss {
        let outputs = unwinding(carry.into_output());
        Loss::new().with_mean(LOSS, (self.shared.mean)(&self.model, outputs, batch), 1.0)
    }

    fn batch_tensors(&self) -> BatchTensors<B> {
        self.shared.batch
    }
}

/// Carries what is wrong with a carry out of a forward.
fn unwinding<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| match error {
        Error::Communication(error) => epl_comm::unwind(error),
        other => epl_comm::unwind(epl_comm::Error::invalid(other.to_string())),
    })
}
