//! What `transformers` calls the experts of a Mixtral and of a Qwen3-MoE, and their keys of `config.json`.

use epl_modules::{Balance, Gate};
use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::config::DecoderConfig;
use super::experts::DecoderExpertsConfig;
use crate::huggingface::{JsonConfig, NameTable, Result};

/// The factor of the load-balancing loss where none is said.
const COEFFICIENT: f64 = 0.001;

/// The parameters of the experts; those of dense layers are a Llama's.
pub(super) fn names(table: NameTable, architecture: Architecture, experts: usize) -> NameTable {
    // What is called the gate of an expert there is what the function is applied to.
    let (part, [input, gate, output]) = match architecture {
        Architecture::Mixtral => ("block_sparse_moe", ["w1", "w3", "w2"]),
        _ => ("mlp", ["gate_proj", "up_proj", "down_proj"]),
    };
    let at = format!("model.layers.*.{part}");
    let table = table.transposed("layers.*.feed_forward.moe.router.weight", &format!("{at}.gate.weight"));
    let parts = [("input", input), ("gate", gate), ("output", output)];
    parts.into_iter().fold(table, |table, (ours, stored)| {
        let ours = format!("layers.*.feed_forward.moe.experts.{ours}");
        table.stacked(&ours, &format!("{at}.experts.#.{stored}.weight"), experts)
    })
}

/// The experts of so many layers. What is learned is what `transformers` learns: without `output_router_logits` its loss has no
/// part for the balance of experts.
pub(super) fn read(
    json: &JsonConfig,
    architecture: Architecture,
    layers: usize,
) -> Result<Option<DecoderExpertsConfig>> {
    let (experts, gate, d_ff, dense_layers) = match architecture {
        Architecture::Mixtral => {
            if json.number_or("router_jitter_noise", 0.0)? != 0.0 {
                return Err(json.error("router_jitter_noise", "is not 0; what experts read has no noise here"));
            }
            let gate = Gate::TopK { experts: json.count_or("num_experts_per_tok", 2)?, renormalise: true };
            (json.count_or("num_local_experts", 8)?, gate, None, Vec::new())
        }
        Architecture::Qwen3Moe => {
            let renormalise = json.flag_or("norm_topk_prob", false)?;
            let gate = Gate::TopK { experts: json.count_or("num_experts_per_tok", 8)?, renormalise };
            // `transformers` 5 writes one key, versions before it another.
            let key = if json.has("num_local_experts") { "num_local_experts" } else { "num_experts" };
            let d_ff = Some(json.count_or("moe_intermediate_size", 768)?);
            (json.count_or(key, 128)?, gate, d_ff, dense_layers(json, layers)?)
        }
        _ => return Ok(None),
    };
    if dense_layers.len() == layers {
        return Ok(None);
    }
    let is_balanced = json.flag_or("output_router_logits", false)?;
    let coefficient = if is_balanced { json.number_or("router_aux_loss_coef", COEFFICIENT)? } else { 0.0 };
    let config = DecoderExpertsConfig::new(experts).with_gate(gate).with_d_ff(d_ff).with_dense_layers(dense_layers);
    let balance = if coefficient > 0.0 { Balance::Batch } else { Balance::Sequences };
    Ok(Some(config.with_balance(balance).with_auxiliary(coefficient * gate.choices() as f64)))
}

/// The layers of a Qwen3-MoE without experts: those that it lists, and with a step of n all but each n-th.
fn dense_layers(json: &JsonConfig, layers: usize) -> Result<Vec<usize>> {
    let listed = if json.has("mlp_only_layers") { json.counts("mlp_only_layers")? } else { Vec::new() };
    let step = json.count_or("decoder_sparse_step", 1)?;
    if step == 0 {
        return Err(json.error("decoder_sparse_step", "is 0; it should be at least 1"));
    }
    let is_dense = |layer: &usize| listed.contains(layer) || !(layer + 1).is_multiple_of(step);
    Ok((0..layers).filter(is_dense).collect())
}

/// The keys that [`read`] reads.
pub(super) fn write(config: &DecoderConfig, architecture: Architecture) -> Map<String, Value> {
    let Some(experts) = &config.experts else { return Map::new() };
    let is_balanced = experts.balance == Balance::Batch && experts.auxiliary > 0.0;
    let mut keys = json!({
        "num_experts_per_tok": experts.gate.choices(),
        "output_router_logits": is_balanced,
        // That of another loss is no factor of this one.
        "router_aux_loss_coef": if is_balanced { experts.auxiliary / experts.gate.choices() as f64 } else { 0.0 },
    });
    match architecture {
        Architecture::Mixtral => {
            keys["num_local_experts"] = experts.experts.into();
            keys["router_jitter_noise"] = 0.0.into();
            // Where none is said, that of the model's width.
            keys["head_dim"] = config.head_dim.into();
            // An expert's.
            keys["intermediate_size"] = experts.d_ff.unwrap_or(config.d_ff).into();
        }
        _ => {
            keys["num_local_experts"] = experts.experts.into();
            keys["num_experts"] = experts.experts.into();
            keys["moe_intermediate_size"] = experts.d_ff.unwrap_or(config.d_ff).into();
            keys["norm_topk_prob"] = matches!(experts.gate, Gate::TopK { renormalise: true, .. }).into();
            keys["decoder_sparse_step"] = 1.into();
            keys["mlp_only_layers"] = experts.dense_layers.clone().into();
        }
    }
    if let Value::Object(keys) = keys { keys } else { Map::new() }
}
