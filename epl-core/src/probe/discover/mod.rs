//! Which segments of plain layers can run in slices, found by running them: no graph is read, and nothing is known of a layer.
//!
//! ```text
//! parameters of a segment       extents        cut each dim of extent 32 in t, run the segment on each rank's slices, compare:
//!   gamma [8]  w1 [8, 32]       8, 32          all as the whole                      nothing depends on it
//!   b1 [32]    w2 [32, 8]   ──▶           ──▶  Σ y_r = y                             sums
//!   b2 [8]                                     Σ y_r − (t − 1)·y₀ = y                sums beside a residual or a bias y₀
//!                                              y_0, y_1, … one behind the other      slices of the last dim
//! ```
//!
//! Everything runs in f64, on numbers that depend on names alone, at several magnitudes, and as the engine would run it
//! (`plan::split`): what leaves must agree to 10⁻¹⁰, and gradients do, but for layers that round to f32 inside; for as many
//! slices as there are ranks, and for two and three. What is not shown to agree stays whole, with the reason; so does what is not
//! shown to count, such as the queries of one key, or a branch behind a mask of zeros, as that would agree whatever it is. Layers
//! run in a pass of training, in which those that draw for the samples ask their context, and are refused.
//!
//! - `found`: what was found of a model, and the model cut so.
//! - `carries`: what enters each segment, from a batch.
//! - `numbers`: parameters and carries of numbers that depend on names alone.
//! - `trial`: a segment, run whole and in slices.
//! - `judge`: what that says of an extent.
//! - `quiet`: panics that are looked for, and not told.

mod found;
mod carries;
mod judge;
mod numbers;
mod quiet;
mod trial;

use core::convert::Infallible;

use burn::module::Param;
use burn::tensor::{Device, Tensor};

use crate::error::{Error, Result};
use crate::model::context::{Context, Pass};
use crate::model::precision::HalfPrecision;
use crate::model::segment::Model;
use crate::params::walk::{self, At, Visit};
use crate::params::{ParamOrigin, ParamRecord};
use crate::plan::split::SliceOf;
use crate::plan::{Plan, SplitFinding};
use crate::probe::planned::LazyModel;
use carries::Carries;
use found::cut_alike;
pub(crate) use found::{DiscoveredModel, DiscoveredModels, agree};
use judge::{is_confirmed, judged};
use trial::Subject;

impl<M: Model> LazyModel<M> {
    /// Finds which segments of layers that know nothing of it can run in slices over the tensor axis, such as the plain layers of
    /// Burn between the cuts of a [`Chain`](crate::Chain), and cuts their parameters. Collective.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor, activation::gelu};
    /// # use epl_core::{Chain, Config, Place, Result, launch, plan::SplitFinding};
    /// #[derive(Module, Debug)]
    /// struct Net { norm: LayerNorm, up: Linear, down: Linear }
    ///
    /// fn net(at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
    ///     let linear = |from, to| LinearConfig::new(from, to).init(at);
    ///     let net = Net { norm: LayerNormConfig::new(8).init(at), up: linear(8, 32), down: linear(32, 8) };
    ///     Chain::of(net)
    ///         .first(&["norm", "up", "down"], |net: &Net, rows: &Tensor<2>| {
    ///             rows.clone() + net.down.forward(gelu(net.up.forward(net.norm.forward(rows.clone()))))
    ///         })
    ///         .mean_loss(|_, outputs, _| outputs.powi_scalar(2).mean())
    /// }
    ///
    /// let config = Config::new().with("dist.tensor_parallel_size", 2)?.with("cluster.ranks", 2)?;
    /// launch(&config, |epl| {
    ///     let sample = Tensor::random([4, 8], burn::tensor::Distribution::Default, epl.place().device());
    ///     let found = epl.plan(net)?.discover(&sample)?;
    ///     assert!(matches!(&found.plan().findings()[0], SplitFinding::Split(split) if split.extent == 32));
    ///     let built = epl.draw(found)?;    // `down.weight` is [16, 8] on each of two ranks
    /// #   assert_eq!(built.model().model.down.weight.val().dims(), [16, 8]);
    ///     Ok(())
    /// })?;
    /// # Ok::<_, epl_core::Error>(())
    /// ```
    ///
    /// `batch` is some rows as the model reads them, the same on every rank: several positions, which are not alike, and masks
    /// that let some through and hide others, so that each parameter counts. Each segment is run on numbers of its own, forward
    /// and backward, in f64: five times whole and on each slice where many numbers leave, up to 257 times where one does, and
    /// less often the more parameters it has. It needs a device that has f64, and in the host's memory a segment's results and
    /// gradients about three times in that type. Neither first values nor masks depend on it. Where segments run in slices, what
    /// leaves the model ([`Engine::forward`]) comes with a model whose last segment has no parameters, if that is one of them;
    /// [`Engine::inference`] gives the whole of all.
    ///
    /// A segment stays whole, with the reason in the plan, if one of its layers was made by [`Place`](crate::Place) (those of
    /// `epl-modules` divide themselves), draws, or keeps statistics; if its parameters have values already or are tied; if one of
    /// them has no gradient in any run (also a bias of keys, which a softmax never shows); if what it returns is neither a sum
    /// nor made of slices, as behind a softmax or a norm over what is cut; if it cannot run in f64, or rounds to f32 on its way;
    /// if it is a moving average's, or that of what is followed, and the other is not cut alike; and the last one, if the loss
    /// reads its parameters. The rows of an `Embedding` are never cut. A carry must be made of the same tensors for every batch: another
    /// one than for this batch is an error of the step.
    ///
    /// [`Engine::forward`]: crate::Engine::forward
    /// [`Engine::inference`]: crate::Engine::inference
    ///
    /// # Errors
    ///
    /// When stages have different widths, the model does not run on this batch, or ranks found different things.
    pub fn discover(self, batch: &M::Batch) -> Result<Self> {
        if self.context().tensor().size() == 1 || !self.plan.findings().is_empty() {
            return Ok(self);
        }
        let found = self.look(batch, None)?;
        agree(self.context().world(), &found.told())?;
        self.cut_as(&found)
    }

    /// Finds which segments can run in slices over the tensor axis, and changes nothing. Of what is `known`, a segment that stays whole
    /// is not run, and one that runs in slices once, to see that it still does: else it is looked at anew. Collective where layers
    /// that are divided run.
    ///
    /// # Errors
    ///
    /// When stages have different widths, or the model does not run on this batch.
    pub(crate) fn look(&self, batch: &M::Batch, known: Option<&[SplitFinding]>) -> Result<DiscoveredModel> {
        let Self { model, builder, plan, place } = self;
        if plan.mesh.is_bridged() {
            return Err(Error::invalid(
                "segments that can run in slices are looked for where all stages have one width, and these have different ones; \
                 give all scopes as many devices, or use the layers of `epl::nn`",
            ));
        }
        let ranks = place.context().tensor().size();
        let look = || findings(model, plan, (place.context(), place.device()), batch, (ranks, known));
        let mut findings = quiet::quietly(|| epl_comm::catch(look))??;
        cut_alike(builder.parameters(), &mut findings, SliceOf { rank: 0, ranks });
        Ok(DiscoveredModel::of(plan, builder.parameters(), findings))
    }
}

/// What is found of each segment, for so many ranks, or what is known and still so. Collective where layers that are divided run.
fn findings<M: Model>(
    model: &M,
    plan: &Plan,
    (context, device): (&Context, &Device),
    batch: &M::Batch,
    (ranks, known): (usize, Option<&[SplitFinding]>),
) -> Result<Vec<SplitFinding>> {
    let carries = Carries::of(model, plan, (context, device), batch)?;
    let in_f64 = model.batch_tensors().in_half(batch, HalfPrecision::in_f64());
    let records = plan.records();
    let finding = |segment: usize| {
        let refused = refused(plan, segment).or_else(|| mapped(model, records, segment));
        let refused = refused.or_else(|| carries.loss_reads(segment, model, plan, batch));
        if let Some(why) = refused {
            return SplitFinding::Whole(why);
        }
        let known = known.map(|known| &known[segment]);
        if let Some(SplitFinding::Whole(why)) = known {
            return SplitFinding::Whole(why.clone());
        }
        // Layers that draw for the samples do so in training alone, and are told from others by that they ask.
        context.begin(Pass { step: 0, training: true, samples: [].into(), empty: false });
        context.enter(segment);
        let subject = Subject {
            model,
            records,
            segment,
            context,
            device,
            batch: in_f64.as_ref().unwrap_or(batch),
            enters: carries.entering(segment),
        };
        match known {
            Some(SplitFinding::Split(split)) if is_confirmed(&subject, split, ranks) => {
                SplitFinding::Split(split.clone())
            }
            _ => judged(&subject, ranks).map_or_else(SplitFinding::Whole, SplitFinding::Split),
        }
    };
    let findings = (0..plan.segments.len()).map(finding).collect();
    context.begin(Pass { step: 0, training: false, samples: [].into(), empty: false });
    Ok(findings)
}

/// Why a segment is not looked at.
fn refused(plan: &Plan, segment: usize) -> Option<String> {
    let (layers, records) = (&plan.burn_layers, plan.records());
    let own = || records.iter().filter(|record| record.segments.contains(&segment));
    let statistics = || layers.statistics.iter().any(|number| records[*number].segments.contains(&segment));
    Some(match () {
        () if own().next().is_none() => "it has no parameters".to_string(),
        () if own().any(|record| record.declared) => {
            "layers of it were made by `Place`, and divide themselves where they can".to_string()
        }
        () if layers.draws[segment] => {
            "a layer of it draws random numbers; make the layer a segment of its own".to_string()
        }
        () if statistics() => "a layer of it keeps statistics; make the layer a segment of its own".to_string(),
        () if own().any(|record| record.origin == ParamOrigin::Broadcast) => {
            "its parameters have values already, which ranks may have each of their own; load them behind `draw`, by \
             `LaidOutModel::assign`"
                .to_string()
        }
        () => return None,
    })
}

/// Why a segment is not looked at that has a parameter which is stored otherwise than it is used, as a transposed one: that would
/// be lost where a lazy parameter is made anew.
fn mapped<M: Model>(model: &M, records: &[ParamRecord], segment: usize) -> Option<String> {
    struct Mapped(usize, Option<String>);
    impl Visit for Mapped {
        type Error = Infallible;

        fn float<const D: usize>(
            &mut self,
            At { record, .. }: At<'_>,
            param: &Param<Tensor<D>>,
        ) -> Result<(), Infallible> {
            if !record.segments.contains(&self.0) {
                return Ok(());
            }
            // Burn shows whether there is a mapping, and hands out none.
            let text = format!("{param:?}");
            if text.contains("load: true") || text.contains("save: true") {
                self.1 = Some(format!(
                    "`{}` is stored otherwise than it is used; store it by rows (`LinearLayout::Row`)",
                    record.name
                ));
            }
            Ok(())
        }
    }
    let mut mapped = Mapped(segment, None);
    let Ok(()) = walk::visit(model, records, &mut mapped);
    mapped.1
}
