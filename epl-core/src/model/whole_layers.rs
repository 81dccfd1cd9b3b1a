//! Layers that are whole where something is to be cut: which they are, and what to use in their place.
//!
//! Burn tells a visitor the type of what it enters, and no more: a layer is known by the name of its type.

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::topology::layout::WholeLayer;

/// A line for each answer: names of types, and what to do about them. Of a layer in a layer, the outer one answers.
type Answers = &'static [(&'static [&'static str], &'static str)];

/// Of layers of Burn that `epl::nn` cuts.
const CUT: Answers = &[
    (&["Linear"], "use Linear of epl::nn, or SplitLinear of epl-modules"),
    (&["Embedding"], "use Embedding of epl::nn, or SplitEmbedding of epl-modules"),
    (&["Conv2d"], "use Conv2d of epl::nn, or SplitConv2d of epl-modules"),
    (
        &[
            "Conv1d",
            "Conv3d",
            "ConvTranspose1d",
            "ConvTranspose2d",
            "ConvTranspose3d",
            "MultiHeadAttention",
            "CrossAttention",
            "PositionWiseFeedForward",
            "SwiGlu",
            "TransformerEncoder",
            "TransformerEncoderLayer",
            "TransformerDecoder",
            "TransformerDecoderLayer",
        ],
        "use the layer of this name in epl::nn",
    ),
];

/// Of other layers.
const WHOLE: Answers = &[
    (&["ReplicatedLinear"], "use Linear of epl::nn, or SplitLinear of epl-modules"),
    (&["ReplicatedConv2d"], "use Conv2d of epl::nn, or SplitConv2d of epl-modules"),
    (
        &["LayerNorm", "RmsNorm", "GroupNorm", "InstanceNorm", "BatchNorm", "SyncBatchNorm", "PRelu"],
        "may stay whole beside a layer that is cut",
    ),
    (
        &["Dropout", "GaussianNoise", "RRelu"],
        "has no parameter; where others are cut use the layer of this name in epl::nn, which draws the same on all devices",
    ),
    (
        &["Rnn", "BiRnn", "Lstm", "BiLstm", "Gru", "BiGru", "GateController", "DeformConv2d"],
        "cannot be cut: use replicate",
    ),
];

/// The same of a layer that is none of these.
const OWN: &str = "make what is to be cut by `Place::split_param`";

fn answer(answers: Answers, kind: &str) -> Option<&'static str> {
    answers.iter().find(|(kinds, _)| kinds.contains(&kind)).map(|(_, remedy)| *remedy)
}

fn instead(kind: &str) -> Option<&'static str> {
    answer(CUT, kind).or_else(|| answer(WHOLE, kind))
}

/// The same of a layer that is of `epl::nn` already, by what its first parameter is called, and its shape.
fn too_small(name: &str, shape: &[usize]) -> String {
    format!(
        "is of epl::nn, whose `{name}` of {shape:?} has too few columns, vectors, channels or features for that, or groups that \
         do not divide over the devices: give it more of them, or use replicate"
    )
}

/// The layers of a model that have a parameter, or draw, of which the identifier `is_meant`: in the order of the model. The
/// shape of a parameter that a layer `declared` is known; Burn's declare none.
pub(crate) fn whole_layers<M: Module>(
    model: &M,
    is_meant: impl Fn(ParamId) -> bool,
    declared: impl Fn(ParamId) -> Option<Vec<usize>>,
) -> Vec<WholeLayer> {
    let mut search = LayerSearch { fields: Vec::new(), is_meant, declared, found: Vec::new() };
    model.visit(&mut search);
    search.found
}

struct LayerSearch<F, S> {
    /// From the model to where the visit is: the name of each field, and the type that has it.
    fields: Vec<(String, String)>,
    is_meant: F,
    declared: S,
    found: Vec<WholeLayer>,
}

impl<F: Fn(ParamId) -> bool, S: Fn(ParamId) -> Option<Vec<usize>>> LayerSearch<F, S> {
    /// Adds the layer that the visit is in; in one that the table does not know, a switch is no reason to.
    fn add(&mut self, id: ParamId, is_switch: bool) {
        if !(self.is_meant)(id) {
            return;
        }
        let named = |(_, container): &'_ (String, String)| {
            let (kind, name) = container.split_once(':')?;
            matches!(kind, "Struct" | "Enum").then(|| name.to_string())
        };
        let kinds: Vec<Option<String>> = self.fields.iter().map(named).collect();
        let known = |kind: &Option<String>| kind.as_deref().and_then(instead).is_some();
        let innermost = || kinds.iter().rposition(Option::is_some).filter(|_| !is_switch);
        let Some(depth) = kinds.iter().position(known).or_else(innermost) else { return };
        let path: Vec<&str> = self.fields[..depth].iter().map(|(name, _)| name.as_str()).collect();
        let (path, kind) = (path.join("."), kinds[depth].clone().unwrap_or_default());
        if self.found.iter().all(|layer| layer.path != path) {
            let remedy = match (self.declared)(id) {
                Some(shape) if answer(CUT, &kind).is_some() => {
                    let names: Vec<&str> = self.fields[depth..].iter().map(|(name, _)| name.as_str()).collect();
                    too_small(&names.join("."), &shape)
                }
                _ => instead(&kind).unwrap_or(OWN).to_string(),
            };
            self.found.push(WholeLayer { path, kind, remedy });
        }
    }
}

impl<F: Fn(ParamId) -> bool, S: Fn(ParamId) -> Option<Vec<usize>>> ModuleVisitor for LayerSearch<F, S> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.fields.push((name.to_string(), container_type.to_string()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.fields.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id, false);
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.add(flag.id, true);
    }
}
