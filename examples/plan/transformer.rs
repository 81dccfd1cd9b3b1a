//! A decoder of transformer layers as numbers: what a rank computes, stores and sends for one sequence.
//!
//! With sequences of s tokens, width h, a heads and t tensor ranks, in 16 bits, a layer stores `s h (10 + 24/t + 5 a s / (h t))` bytes
//! (Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022), and its forward has `24 s h² + 4 s² h`
//! floating-point operations (Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021).

use epl::comm::{Operation, ReduceOp};
use epl::memory::OptimizerState;
use epl::search::{PaperParam, PaperSegment, PaperTask};
use epl::topology::cluster::Axis;

/// Sums over tensor ranks.
const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);
/// Bytes of 16 bits.
const HALF: f64 = 2.0;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Transformer {
    pub layers: usize,
    pub hidden: usize,
    /// Width between the two matrices of an MLP.
    pub inner: usize,
    pub heads: usize,
    pub vocabulary: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Experts of each layer, in place of one MLP; a token goes to one.
    pub experts: Option<usize>,
}

impl Transformer {
    /// What is searched for, with Adam.
    pub fn task(&self, rows: usize) -> PaperTask {
        PaperTask { rows, dtype: burn::tensor::DType::F16, state: OptimizerState::PerElement(2) }
    }

    /// Its parameters.
    pub fn parameters(&self) -> f64 {
        let [h, inner, vocabulary] = [self.hidden, self.inner, self.vocabulary].map(|size| size as f64);
        let mlp = 2.0 * h * inner * self.experts.unwrap_or(1) as f64;
        self.layers as f64 * (4.0 * h * h + mlp) + vocabulary * h
    }

    /// Floating-point operations of a step, without what is run again.
    pub fn flops(&self, rows: usize) -> f64 {
        3.0 * rows as f64 * (self.layers as f64 * self.layer_flops() + self.head_flops())
    }

    fn layer_flops(&self) -> f64 {
        let [s, h, inner] = [self.tokens, self.hidden, self.inner].map(|size| size as f64);
        8.0 * s * h * h + 4.0 * s * h * inner + 4.0 * s * s * h
    }

    fn head_flops(&self) -> f64 {
        2.0 * (self.tokens * self.hidden * self.vocabulary) as f64
    }

    /// What a rank has where layers are divided over so many tensor ranks, and experts over so many replicas.
    pub fn segments(&self, tensor: usize, expert: usize) -> Result<Vec<PaperSegment>, String> {
        if !self.heads.is_multiple_of(tensor) {
            return Err(format!("{} heads do not divide over {tensor} ranks", self.heads));
        }
        match self.experts {
            None if expert > 1 => return Err("there are no experts".to_string()),
            Some(experts) if !experts.is_multiple_of(expert) => {
                return Err(format!("{experts} experts do not divide over {expert} ranks"));
            }
            _ => {}
        }
        let layers = (0..self.layers).map(|layer| self.layer(layer, tensor, expert));
        Ok([self.embedding(tensor)].into_iter().chain(layers).chain([self.head(tensor)]).collect())
    }

    /// Elements of what layers hand on.
    fn carry(&self) -> usize {
        self.tokens * self.hidden
    }

    fn table(&self) -> PaperParam {
        param("embedding", [self.vocabulary, self.hidden], &[(Axis::Tensor, 0)])
    }

    fn embedding(&self, tensor: usize) -> PaperSegment {
        let calls = if tensor > 1 { vec![(Axis::Tensor, SUM, self.carry())] } else { Vec::new() };
        PaperSegment {
            name: "embedding".to_string(),
            parameters: vec![self.table()],
            carry: self.carry(),
            stored: HALF * self.carry() as f64,
            calls: [calls, Vec::new()],
            ..PaperSegment::default()
        }
    }

    fn layer(&self, layer: usize, tensor: usize, expert: usize) -> PaperSegment {
        let (h, inner, t) = (self.hidden, self.inner, tensor as f64);
        let name = |what: &str| format!("layers.{layer}.{what}");
        let mut parameters = vec![
            param(&name("query_key_value"), [h, 3 * h], &[(Axis::Tensor, 1)]),
            param(&name("output"), [h, h], &[(Axis::Tensor, 0)]),
        ];
        let sums = if tensor > 1 { 2 } else { 0 };
        let mut calls = vec![(Axis::Tensor, SUM, self.carry()); sums];
        match self.experts {
            None => {
                parameters.push(param(&name("up"), [h, inner], &[(Axis::Tensor, 1)]));
                parameters.push(param(&name("down"), [inner, h], &[(Axis::Tensor, 0)]));
            }
            Some(experts) => {
                let cuts = |dim| [(Axis::Expert, 0), (Axis::Tensor, dim)];
                let cut = |what, shape: [usize; 3], dim| PaperParam {
                    name: name(what),
                    shape: shape.to_vec(),
                    cuts: cuts(dim).to_vec(),
                };
                parameters.push(cut("up", [experts, h, inner], 2));
                parameters.push(cut("down", [experts, inner, h], 1));
                // To the experts, and back.
                let moved = if expert > 1 { 2 } else { 0 };
                calls.extend(vec![(Axis::Expert, Operation::AllToAll, self.carry()); moved]);
            }
        }
        let [s, width] = [self.tokens as f64, h as f64];
        let scores = 5.0 * (self.heads as f64) * s / (width * t);
        // Of 24, sixteen are the MLP's, for an inner width of 4h.
        let divided = (8.0 + 16.0 * inner as f64 / (4.0 * width)) / t;
        PaperSegment {
            name: format!("layer {layer}"),
            parameters,
            flops: self.layer_flops() / t,
            carry: self.carry(),
            stored: s * width * (10.0 + divided + scores),
            working: s * width * (4.0 + divided + scores),
            calls: [calls.clone(), calls],
        }
    }

    fn head(&self, tensor: usize) -> PaperSegment {
        let logits = (self.tokens * self.vocabulary) as f64 / tensor as f64;
        let calls = if tensor > 1 { vec![(Axis::Tensor, SUM, self.carry())] } else { Vec::new() };
        PaperSegment {
            name: "head".to_string(),
            parameters: vec![self.table()],
            flops: self.head_flops() / tensor as f64,
            carry: 1,
            // Probabilities in 32 bits.
            stored: 2.0 * HALF * logits + HALF * self.carry() as f64,
            working: 2.0 * HALF * logits,
            calls: [Vec::new(), calls],
        }
    }
}

fn param(name: &str, shape: [usize; 2], cuts: &[(Axis, usize)]) -> PaperParam {
    PaperParam { name: name.to_string(), shape: shape.to_vec(), cuts: cuts.to_vec() }
}
