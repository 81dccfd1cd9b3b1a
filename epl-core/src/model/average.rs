//! A part of a model that is a moving average of another part.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use epl_comm::{Error, unwind};

use crate::model::decay::AverageDecay;
use crate::model::place::Place;
use crate::model::stateful::STATISTICS;

impl Place {
    /// Declares that the parameters of a part are moving averages of those of another one, which is made alike: the momentum
    /// encoder of MoCo, the teacher of DINO, weights that are averaged to be evaluated. The part asks for no gradient.
    ///
    /// Its parameters begin as those that they follow. After each update the engine moves them to
    /// `decay · average + (1 − decay) · parameter`, where they lie: no layout changes them, and a step that fails or is skipped
    /// leaves them as they are. They are parameters of the model: saved, read and gathered as all others; an
    /// [`AssignMap`](crate::tensors::AssignMap) that fills the one part has to fill the other, too. What a part keeps by itself,
    /// such as the running statistics of a batch norm, follows nothing: its own forwards move it.
    ///
    /// Both must be used by segments of the same stages, so that a rank has both.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use epl_core::{AverageDecay, Place};
    /// #[derive(Module, Debug)]
    /// struct Net { encoder: Linear, teacher: Linear }
    ///
    /// fn net(at: &Place) -> Net {
    ///     let [encoder, teacher] = [(); 2].map(|()| LinearConfig::new(8, 8).init(at));
    ///     Net { teacher: at.moving_average(teacher, &encoder, AverageDecay::Constant(0.999)), encoder }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the decay cannot be, or the parts have other numbers of parameters; when the model is laid out,
    /// also where a parameter and the one that it follows are not alike, or not on the same stages.
    pub fn moving_average<M: Module>(&self, part: M, of: &M, decay: AverageDecay) -> M {
        let [own, others] = [&part, of].map(parameters);
        let refused = decay.refusal().or_else(|| {
            (own.len() != others.len()).then(|| {
                format!(
                    "a part of {} parameters is to be a moving average of one of {}; make both alike",
                    own.len(),
                    others.len()
                )
            })
        });
        if let Some(reason) = refused {
            let at = if self.path().is_empty() { String::new() } else { format!("{}: ", self.path()) };
            unwind(Error::invalid(format!("{at}{reason}")));
        }
        own.into_iter().zip(others).for_each(|(own, of)| self.build().declare_average(own, of, decay));
        part.no_grad()
    }
}

/// The parameters of a part, without what it keeps by itself.
fn parameters<M: Module>(part: &M) -> Vec<ParamId> {
    struct Ids {
        names: Vec<String>,
        found: Vec<ParamId>,
    }
    impl ModuleVisitor for Ids {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.names.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.names.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.names.last().is_some_and(|name| STATISTICS.contains(&name.as_str())) {
                self.found.push(param.id);
            }
        }
    }
    let mut ids = Ids { names: Vec::new(), found: Vec::new() };
    part.visit(&mut ids);
    ids.found
}
