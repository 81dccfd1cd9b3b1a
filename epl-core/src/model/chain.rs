//! An ordinary model as a chain of segments, written as closures.

use core::fmt;
use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::{Device, Tensor};

use crate::model::carry::Carry;
use crate::model::loss::{Loss, LossWeights};
use crate::model::segment::Model;
use crate::model::whole::{LOSS, module_as_its_model};

/// A chain of segments without a loss yet: see [`Chain`].
pub struct Links<M, B, C> {
    model: M,
    links: Vec<Link<M, B, C>>,
}

/// An ordinary model, cut into a chain: what pipeline stages, recomputation and the overlap of communication with
/// backward need.
///
/// Each segment names the fields of the model that it uses (a Dropout of Burn's in each that does, or in none), and says how
/// it goes on from what the one before it returned, the *carry*: a tensor, several, or a struct ([`carry!`](crate::carry)). At the end stands a loss that is a
/// mean over the rows of a batch, as most of Burn's are.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}};
/// # use burn::tensor::Tensor;
/// # use epl_core::{Chain, Epl, Result};
/// #[derive(Module, Debug)]
/// struct Net { hidden: Linear, output: Linear }
///
/// # fn example(epl: &Epl) -> Result<()> {
/// type Batch = (Tensor<2>, Tensor<2>);
/// let net = epl.build(|at| {
///     let net = Net {
///         hidden: at.replicate(1, |at| LinearConfig::new(8, 32).init(at)), // one stage
///         output: at.replicate(1, |at| LinearConfig::new(32, 1).init(at)), // the next one
///     };
///     Chain::of(net)
///         .first(&["hidden"], |net: &Net, (inputs, _): &Batch| net.hidden.forward(inputs.clone()))
///         .then(&["output"], |net, hidden, _| net.output.forward(hidden))
///         .mean_loss(|outputs, (_, targets)| MseLoss::new().forward(outputs, targets.clone(), Reduction::Mean))
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// It is no level of its own in the module: parameters are named, and stored, as the model names them.
pub struct Chain<M, B, C> {
    /// The model.
    pub model: M,
    shared: Arc<ChainParts<M, B, C>>,
}

struct ChainParts<M, B, C> {
    links: Vec<Link<M, B, C>>,
    mean: Box<MeanFn<B, C>>,
}

type Forward<M, B, C> = dyn Fn(&M, Option<C>, &B) -> C + Send + Sync;
type MeanFn<B, C> = dyn Fn(C, &B) -> Tensor<1> + Send + Sync;

/// One segment.
struct Link<M, B, C> {
    /// The fields of the model that it uses.
    fields: Vec<String>,
    forward: Box<Forward<M, B, C>>,
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
    pub fn first<B, C: Carry>(
        self,
        fields: &[&str],
        forward: impl Fn(&M, &B) -> C + Send + Sync + 'static,
    ) -> Links<M, B, C> {
        let forward = move |model: &M, _: Option<C>, batch: &B| forward(model, batch);
        Links { model: self.0, links: vec![Link::new(fields, forward)] }
    }
}

impl<M, B, C: Carry> Links<M, B, C> {
    /// The next segment.
    #[must_use]
    pub fn then(mut self, fields: &[&str], forward: impl Fn(&M, C, &B) -> C + Send + Sync + 'static) -> Self {
        let forward = move |model: &M, carry: Option<C>, batch: &B| {
            forward(model, carry.expect("a segment behind the first one gets a carry"), batch)
        };
        self.links.push(Link::new(fields, forward));
        self
    }

    /// The loss, from what the last segment returned: a mean over the rows of the batch.
    ///
    /// # Shapes
    ///
    /// - what `mean` returns: `[1]`
    pub fn mean_loss(self, mean: impl Fn(C, &B) -> Tensor<1> + Send + Sync + 'static) -> Chain<M, B, C> {
        let Self { model, links } = self;
        Chain { model, shared: Arc::new(ChainParts { links, mean: Box::new(mean) }) }
    }
}

impl<M, B, C> Link<M, B, C> {
    fn new(fields: &[&str], forward: impl Fn(&M, Option<C>, &B) -> C + Send + Sync + 'static) -> Self {
        Self { fields: fields.iter().map(|field| (*field).to_string()).collect(), forward: Box::new(forward) }
    }

    /// Whether a parameter is of one of its fields.
    fn uses(&self, path: &str) -> bool {
        let is_in =
            |field: &String| path.strip_prefix(&**field).is_some_and(|rest| matches!(rest.as_bytes(), [] | [b'.', ..]));
        self.fields.iter().any(is_in)
    }
}

impl<M, B, C> Chain<M, B, C> {
    fn with_model(&self, model: M) -> Self {
        Self { model, shared: self.shared.clone() }
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
    type Carry = C;

    fn segments(&self) -> usize {
        self.shared.links.len()
    }

    /// The fields that it uses.
    fn segment_name(&self, index: usize) -> String {
        match &*self.shared.links[index].fields {
            [] => index.to_string(),
            fields => fields.join("+"),
        }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        (0..self.segments()).filter(|segment| self.shared.links[*segment].uses(path)).collect()
    }

    fn forward_segment(&self, index: usize, carry: Option<C>, batch: &B) -> C {
        (self.shared.links[index].forward)(&self.model, carry, batch)
    }

    fn weights(&self, _batch: &B) -> LossWeights {
        LossWeights::new().with_rows(LOSS)
    }

    fn loss(&self, carry: C, batch: &B) -> Loss {
        Loss::new().with_mean(LOSS, (self.shared.mean)(carry, batch), 1.0)
    }
}
