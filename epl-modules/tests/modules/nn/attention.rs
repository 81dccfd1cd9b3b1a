//! Attention, transformers and encodings of positions.

use burn::tensor::{Bool, Tensor};

use super::case::Layer;
use super::layers::line;
use super::strategy::Strategy;
use super::table::{Line, Table};

/// Two heads do not divide over three ranks.
const TWO_HEADS: &[(Strategy, &str)] = &[(Strategy::Tensor(3), "2 heads do not divide over 3 ranks")];

/// The same program for ours and for Burn's: `$nn` is the module of either.
macro_rules! both {
    ($table:expr, $name:literal, $row:expr, $refused:expr, |$nn:ident| $layer:ty, $config:expr, $forward:expr) => {{
        let ours = {
            use epl_modules::nn as $nn;
            Layer::<$layer> { build: |place| $config.init(place), forward: $forward }
        };
        let theirs = {
            use burn::nn as $nn;
            Layer::<$layer> { build: |place| $config.init(place), forward: $forward }
        };
        $table.line(Line { refused: $refused, deep: $name.contains("coder"), ..line($name, $row, ours) }, theirs, 0.0);
    }};
}

/// What is padding depends on the numbers of a position, so that it goes with the sample; a sequence may be all padding.
fn padding(x: &Tensor<3>) -> Tensor<2, Bool> {
    let [rows, positions, _] = x.dims();
    x.clone().narrow(2, 0, 1).greater_scalar(0.3).reshape([rows, positions])
}

fn later(x: &Tensor<3>) -> Tensor<3, Bool> {
    let [rows, positions, _] = x.dims();
    burn::nn::attention::generate_autoregressive_mask(rows, positions, &x.device())
}

/// Weights and context as one row.
fn as_row(weights: Tensor<4>, context: Tensor<3>) -> Tensor<3> {
    let rows = context.dims()[0];
    let [weights, context] = [weights.flatten(1, 3), context.flatten(1, 2)];
    Tensor::<2>::cat(vec![weights, context], 1).reshape([rows as i32, 1, -1])
}

pub(crate) fn multi_head(table: &mut Table) {
    both!(
        table,
        "MultiHeadAttention",
        [5, 12],
        &[],
        |nn| nn::attention::MultiHeadAttention,
        nn::attention::MultiHeadAttentionConfig::new(12, 6).with_dropout(0.0),
        |layer, x| {
            let input = nn::attention::MhaInput::self_attn(x.clone()).mask_pad(padding(&x)).mask_attn(later(&x));
            let output = layer.forward(input);
            as_row(output.weights, output.context)
        }
    );
    both!(
        table,
        "…, quiet, a memory",
        [5, 6],
        TWO_HEADS,
        |nn| nn::attention::MultiHeadAttention,
        nn::attention::MultiHeadAttentionConfig::new(6, 2)
            .with_dropout(0.0)
            .with_quiet_softmax(true)
            .with_min_float(-2.0)
            .with_key_bias(false)
            .with_output_bias(false),
        |layer, x| {
            let (memory, value) = (x.clone().narrow(1, 1, 4), x.clone().narrow(1, 0, 4) * 2.0);
            let mask = padding(&memory);
            layer.forward(nn::attention::MhaInput::new(x, memory, value).mask_pad(mask)).context
        }
    );
    both!(
        table,
        "…, cached",
        [4, 6],
        TWO_HEADS,
        |nn| nn::attention::MultiHeadAttention,
        nn::attention::MultiHeadAttentionConfig::new(6, 2).with_dropout(0.0),
        |layer, x| {
            let mut cache = nn::attention::MhaCache::autoregressive();
            let mut output = x.clone();
            for positions in 1..=x.dims()[1] {
                let seen = x.clone().narrow(1, 0, positions);
                let mask = later(&seen);
                output =
                    layer.forward_cache(nn::attention::MhaInput::self_attn(seen).mask_attn(mask), &mut cache).context;
            }
            output
        }
    );
    both!(
        table,
        "CrossAttention",
        [5, 6],
        TWO_HEADS,
        |nn| nn::attention::CrossAttention,
        nn::attention::CrossAttentionConfig::new(6, 6, 4, 2, 3).with_dropout(0.0),
        |layer, x| {
            let context = x.clone().narrow(1, 1, 4) * 2.0;
            let mask = padding(&context);
            let mut cache = nn::attention::CrossAttentionCache::new();
            let first = layer.forward_cache(x.clone().narrow(1, 0, 2), context.clone(), Some(mask.clone()), &mut cache);
            let second = layer.forward_cache(x.clone().narrow(1, 2, 3), context.clone(), Some(mask), &mut cache);
            Tensor::cat(vec![first, second], 1) + layer.forward(x, context, None)
        }
    );
    use epl_modules::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
    let drawing = Layer::<MultiHeadAttention> {
        build: |place| MultiHeadAttentionConfig::new(12, 6).with_dropout(0.3).init(place),
        forward: |layer, x| {
            let output = layer.forward(MhaInput::self_attn(x.clone()).mask_pad(padding(&x)));
            as_row(output.weights, output.context)
        },
    };
    table.drawing(line("…, with dropout", [5, 12], drawing));
}

pub(crate) fn transformers(table: &mut Table) {
    both!(
        table,
        "PositionWiseFeedF…",
        [3, 5],
        &[],
        |nn| nn::transformer::PositionWiseFeedForward,
        nn::transformer::PositionWiseFeedForwardConfig::new(5, 7).with_dropout(0.0),
        |layer, x| layer.forward(x)
    );
    both!(
        table,
        "…Encoder",
        [4, 6],
        TWO_HEADS,
        |nn| nn::transformer::TransformerEncoder,
        nn::transformer::TransformerEncoderConfig::new(6, 7, 2, 2).with_dropout(0.0),
        |layer, x| {
            let input = nn::transformer::TransformerEncoderInput::new(x.clone()).mask_pad(padding(&x));
            layer.forward(input.mask_attn(later(&x)))
        }
    );
    both!(
        table,
        "…Encoder, pre-norm",
        [4, 12],
        &[],
        |nn| nn::transformer::TransformerEncoder,
        nn::transformer::TransformerEncoderConfig::new(12, 2, 6, 2).with_dropout(0.0).with_norm_first(true),
        |layer, x| layer.forward(nn::transformer::TransformerEncoderInput::new(x))
    );
    both!(
        table,
        "…Encoder, cached",
        [4, 6],
        TWO_HEADS,
        |nn| nn::transformer::TransformerEncoder,
        nn::transformer::TransformerEncoderConfig::new(6, 7, 2, 2).with_dropout(0.0),
        |layer, x| {
            let mut cache = layer.new_autoregressive_cache();
            let mut output = x.clone();
            for positions in 1..=x.dims()[1] {
                let seen = x.clone().narrow(1, 0, positions);
                let mask = later(&seen);
                let input = nn::transformer::TransformerEncoderInput::new(seen).mask_attn(mask);
                output = layer.forward_autoregressive_inference(input, &mut cache);
            }
            output
        }
    );
    both!(
        table,
        "…Decoder",
        [4, 6],
        TWO_HEADS,
        |nn| nn::transformer::TransformerDecoder,
        nn::transformer::TransformerDecoderConfig::new(6, 7, 2, 2).with_dropout(0.0),
        |layer, x| {
            let memory = x.clone().narrow(1, 1, 3) * 2.0;
            let input = nn::transformer::TransformerDecoderInput::new(x.clone(), memory.clone());
            let input = input.memory_mask_pad(padding(&memory)).target_mask_pad(padding(&x));
            layer.forward(input.target_mask_attn(later(&x)))
        }
    );
    both!(
        table,
        "…Decoder, cached",
        [4, 6],
        TWO_HEADS,
        |nn| nn::transformer::TransformerDecoder,
        nn::transformer::TransformerDecoderConfig::new(6, 7, 2, 2).with_dropout(0.0).with_norm_first(true),
        |layer, x| {
            let mut cache = layer.new_autoregressive_cache();
            let (memory, mut output) = (x.clone().narrow(1, 1, 3) * 2.0, x.clone());
            for positions in 1..=x.dims()[1] {
                let seen = x.clone().narrow(1, 0, positions);
                let mask = later(&seen);
                let input = nn::transformer::TransformerDecoderInput::new(seen, memory.clone()).target_mask_attn(mask);
                output = layer.forward_autoregressive_inference(input, &mut cache);
            }
            output
        }
    );
    use epl_modules::nn::transformer::{TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput};
    let drawing = Layer::<TransformerDecoder> {
        build: |place| TransformerDecoderConfig::new(12, 7, 6, 2).with_dropout(0.2).init(place),
        forward: |layer, x| {
            let memory = x.clone().narrow(1, 1, 3);
            layer.forward(TransformerDecoderInput::new(x, memory))
        },
    };
    table.drawing(line("…Decoder, dropout", [4, 12], drawing));
}

pub(crate) fn positions(table: &mut Table) {
    both!(
        table,
        "PositionalEncoding",
        [3, 6],
        &[],
        |nn| nn::PositionalEncoding,
        nn::PositionalEncodingConfig::new(6).with_max_sequence_size(9),
        |layer, x| layer.forward(x)
    );
    both!(
        table,
        "RotaryEncoding",
        [3, 6],
        &[],
        |nn| nn::RotaryEncoding,
        nn::RotaryEncodingConfig::new(9, 6),
        |layer, x| layer.apply(x, 2)
    );
}
