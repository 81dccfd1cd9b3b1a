//! Where the parameters of an MAE stand in a folder of Hugging Face.

use crate::huggingface::{Folder, NameTable, Names};
use crate::vit::encoder_names;

/// The layers of the decoder, as versions of `transformers` before 5 save them, which all read, and as 5 saves them.
const LAYERS: [&str; 2] = ["decoder.decoder_layers", "decoder.decoder_encoder.layer"];

/// The names of `ViTMAEForPreTraining`.
#[derive(Clone, Debug)]
pub struct MaeNames {
    table: NameTable,
}

impl MaeNames {
    /// The names that a folder uses.
    pub fn new(folder: &Folder) -> Self {
        let has = |layers: &&&str| folder.names().any(|name| name.starts_with(**layers));
        Self::with(LAYERS.iter().find(has).unwrap_or(&LAYERS[0]))
    }

    /// The names that all versions of `transformers` read.
    pub fn written() -> Self {
        Self::with(LAYERS[0])
    }

    fn with(layers: &str) -> Self {
        let table = encoder_names(NameTable::new(), ["layers", "vit.encoder.layer"])
            .same("embeddings.class_token", "vit.embeddings.cls_token")
            .same("embeddings.positions", "vit.embeddings.position_embeddings")
            .same("embeddings.projection.weight", "vit.embeddings.patch_embeddings.projection.weight")
            .same("embeddings.projection.bias", "vit.embeddings.patch_embeddings.projection.bias");
        let table = encoder_names(table, ["decoder.layers", layers])
            .linear("decoder.entrance", "decoder.decoder_embed")
            .same("decoder.mask_token", "decoder.mask_token")
            .same("decoder.positions", "decoder.decoder_pos_embed")
            .linear("decoder.pixels", "decoder.decoder_pred");
        let norms = [("norm", "vit.layernorm"), ("decoder.norm", "decoder.decoder_norm")];
        let table = norms.into_iter().fold(table, |table, (ours, stored)| {
            table
                .same(&format!("{ours}.gamma"), &format!("{stored}.weight"))
                .same(&format!("{ours}.beta"), &format!("{stored}.bias"))
        });
        Self { table }
    }
}

impl Names for MaeNames {
    fn table(&self) -> &NameTable {
        &self.table
    }

    fn may_be_left(&self, _stored: &str) -> bool {
        false
    }
}
