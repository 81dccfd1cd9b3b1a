//! Where the parameters of a ResNet stand in a folder of Hugging Face.

use crate::huggingface::{Names, Source};

/// The names of `ResNetForImageClassification`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResNetNames;

/// A convolution with its norm, by what is inside of it.
fn conv_norm(at: &str, inside: &str) -> Option<Source> {
    let name = match inside {
        "convolution.weight" => "convolution.weight",
        "norm.gamma" => "normalization.weight",
        "norm.beta" => "normalization.bias",
        "norm.running_mean" => "normalization.running_mean",
        "norm.running_var" => "normalization.running_var",
        _ => return None,
    };
    Some(Source::Same(format!("{at}.{name}")))
}

/// A residual layer, by what is inside of it.
fn layer(at: &str, inside: &str) -> Option<Source> {
    match inside.split_once('.')? {
        ("shortcut", rest) => conv_norm(&format!("{at}.shortcut"), rest),
        ("parts", rest) => {
            let (part, rest) = rest.split_once('.')?;
            conv_norm(&format!("{at}.layer.{part}"), rest)
        }
        _ => None,
    }
}

impl Names for ResNetNames {
    fn source(&self, path: &str) -> Option<Source> {
        match path {
            "class_layer.weight" => return Some(Source::Transposed("classifier.1.weight".into())),
            "class_layer.bias" => return Some(Source::Same("classifier.1.bias".into())),
            _ => {}
        }
        match path.strip_prefix("backbone.")?.split_once('.')? {
            ("stem", rest) => conv_norm("resnet.embedder.embedder", rest),
            ("stages", rest) => {
                let (stage, rest) = rest.split_once('.')?;
                let (index, rest) = rest.strip_prefix("layers.")?.split_once('.')?;
                layer(&format!("resnet.encoder.stages.{stage}.layers.{index}"), rest)
            }
            _ => None,
        }
    }

    fn may_be_left(&self, stored: &str) -> bool {
        // Counts batches, for an average that no model here takes.
        stored.ends_with(".num_batches_tracked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_stored_names() {
        let same = |path: &str| match ResNetNames.source(path) {
            Some(Source::Same(name)) => name,
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(same("backbone.stem.norm.running_var"), "resnet.embedder.embedder.normalization.running_var");
        assert_eq!(
            same("backbone.stages.2.layers.0.shortcut.convolution.weight"),
            "resnet.encoder.stages.2.layers.0.shortcut.convolution.weight"
        );
        assert_eq!(
            same("backbone.stages.1.layers.3.parts.2.norm.gamma"),
            "resnet.encoder.stages.1.layers.3.layer.2.normalization.weight"
        );
        assert_eq!(ResNetNames.source("class_layer.weight"), Some(Source::Transposed("classifier.1.weight".into())));
        assert_eq!(ResNetNames.source("backbone.stem.convolution.bias"), None);
    }
}
