//! A ResMLP into a folder of timm.

use std::path::Path;

use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value, json};

use super::config::ResMlpConfig;
use super::import::ARCHITECTURES;
use super::names::ResMlpNames;
use crate::huggingface::{Error, Exported, Result, export};
use crate::vision::batch::{DEVIATION, MEAN};

/// Writes a folder that `timm.create_model("local-dir:FOLDER")` loads. `tensors` are the whole parameters by path, such as the
/// engine's [`parameters`](epl_core::Engine::parameters), of a class layer of any layout.
///
/// # Errors
///
/// As [`ResMlpConfig::to_timm`] and [`export::save`].
pub fn export(config: &ResMlpConfig, tensors: &impl WholeTensors, folder: impl AsRef<Path>) -> Result<()> {
    let exported = Exported {
        config: config.to_timm()?,
        names: &ResMlpNames::written(),
        parameters: export::parameters(|place| config.init(place))?,
        copies: Vec::new(),
        constants: Vec::new(),
    };
    export::save(folder, exported, tensors)
}

impl ResMlpConfig {
    /// The keys of a `config.json` as timm writes it.
    ///
    /// Other sizes than the published ones stand in `model_args`; timm's `resmlp_*` take an image's size and channels from there, and
    /// refuse others, so that such a model is its `MlpMixer` with these arguments. Left out is what only the first values or training
    /// read: `layer_scale`, `deviation` and `label_smoothing`.
    ///
    /// # Errors
    ///
    /// When the configuration is none that can be.
    pub fn to_timm(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        let has_sizes = |known: &Self| {
            let sizes = |config: &Self| [config.layers, config.d_model, config.d_ff, config.patch_size];
            sizes(known) == sizes(self)
        };
        let published = ARCHITECTURES.iter().find(|(_, known)| has_sizes(&known(self.classes)));
        let (architecture, known) = published.unwrap_or(&ARCHITECTURES[0]);
        let size = self.image_size;
        let mut keys = Map::new();
        keys.insert("architecture".into(), (*architecture).into());
        keys.insert("num_classes".into(), self.classes.into());
        keys.insert("num_features".into(), self.d_model.into());
        keys.insert("global_pool".into(), "avg".into());
        let arguments = self.arguments(&known(self.classes));
        if !arguments.is_empty() {
            keys.insert("model_args".into(), arguments.into());
        }
        let images = json!({
            "input_size": [self.channels, size, size],
            "fixed_input_size": true,
            "interpolation": "bicubic",
            "crop_pct": 0.875,
            "mean": MEAN.map(rounded),
            "std": DEVIATION.map(rounded),
            "num_classes": self.classes,
            "first_conv": "stem.proj",
            "classifier": "head",
        });
        keys.insert("pretrained_cfg".into(), images);
        Ok(keys)
    }

    /// Where it is not as an architecture.
    fn arguments(&self, known: &Self) -> Map<String, Value> {
        // timm makes the product whole by leaving off what is behind the point.
        let ratio = self.d_ff as f64 / self.d_model as f64;
        let is_less = (ratio * self.d_model as f64) as usize != self.d_ff;
        let ratio = if is_less { ratio.next_up() } else { ratio };
        let all = [
            ("img_size", self.image_size != known.image_size, self.image_size.into()),
            ("in_chans", self.channels != known.channels, self.channels.into()),
            ("patch_size", self.patch_size != known.patch_size, self.patch_size.into()),
            ("num_blocks", self.layers != known.layers, self.layers.into()),
            ("embed_dim", self.d_model != known.d_model, self.d_model.into()),
            ("mlp_ratio", self.d_ff * known.d_model != known.d_ff * self.d_model, ratio.into()),
            ("drop_path_rate", self.drop_path != known.drop_path, self.drop_path.into()),
        ];
        all.into_iter().filter(|(_, differs, _)| *differs).map(|(name, _, value)| (name.to_string(), value)).collect()
    }
}

/// A number in f32 as it is written in decimals.
fn rounded(value: f32) -> f64 {
    (f64::from(value) * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sizes_have_their_names_and_other_images_their_size() {
        let keys = ResMlpConfig::b24(1000).to_timm().unwrap();
        assert_eq!((&keys["architecture"], keys.get("model_args")), (&json!("resmlp_big_24_224"), None));
        assert_eq!(keys["pretrained_cfg"]["mean"], json!([0.485, 0.456, 0.406]));
        let keys = ResMlpConfig::s24(7).with_image_size(256).with_drop_path(0.1).to_timm().unwrap();
        assert_eq!(keys["architecture"], "resmlp_24_224");
        assert_eq!(keys["model_args"], json!({ "img_size": 256, "drop_path_rate": 0.1 }));
        assert_eq!(keys["pretrained_cfg"]["input_size"], json!([3, 256, 256]));
    }

    #[test]
    fn a_ratio_gives_the_width_again() {
        let mut raised = 0;
        for (d_model, d_ff) in (1..40).flat_map(|d| (1..400).map(move |d_ff| (16 * d, d_ff))) {
            let keys = ResMlpConfig::s12(7).with_d_model(d_model).with_d_ff(d_ff).to_timm().unwrap();
            let ratio =
                keys.get("model_args").and_then(|args| args.get("mlp_ratio")).map_or(4.0, |x| x.as_f64().unwrap());
            assert_eq!((ratio * d_model as f64) as usize, d_ff, "{d_model} × {ratio}");
            raised += usize::from(((d_ff as f64 / d_model as f64) * d_model as f64) as usize != d_ff);
        }
        assert!(raised > 0);
    }
}
