//! Models of papers, each with a cluster, and with what the paper chose and reports.

use clap::ValueEnum;

use crate::transformer::Transformer;

/// A model of a paper.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PaperModel {
    /// GPT-3 on 1,024 A100 of 80 GB (Narayanan et al. 2021)
    #[value(name = "gpt-175b")]
    Gpt,
    /// The example of ZeRO's paper on 64 V100 of 32 GB (Rajbhandari et al. 2020)
    #[value(name = "zero-7.5b")]
    Zero,
    /// Ten trillion parameters on 512 V100 of 32 GB, as many as M6-10T has (Lin et al. 2021): sizes of our own that come to it
    #[value(name = "moe-10t")]
    Moe,
}

/// 128 hosts of eight A100: of 312 teraFLOP/s in 16 bits large products are taken to reach 170.
const A100: &str = r#"
[[host]]
count = 128
devices = [{ class = "a100", count = 8 }]
inside = { alpha_us = 8, gb_per_s = 240 }
outside = { alpha_us = 20, gb_per_s = 180 }
[class.a100]
memory_gb = 80
tflops = 170
memory_gb_per_s = 1800
"#;

/// Four hosts of sixteen V100: of 125 teraFLOP/s in 16 bits large products are taken to reach 65.
const DGX2: &str = r#"
[[host]]
count = 4
devices = [{ class = "v100", count = 16 }]
inside = { alpha_us = 8, gb_per_s = 120 }
outside = { alpha_us = 20, gb_per_s = 90 }
[class.v100]
memory_gb = 32
tflops = 65
memory_gb_per_s = 800
"#;

/// 64 hosts of eight of them, with a slower network.
const V100: &str = r#"
[[host]]
count = 64
devices = [{ class = "v100", count = 8 }]
inside = { alpha_us = 8, gb_per_s = 120 }
outside = { alpha_us = 20, gb_per_s = 12 }
[class.v100]
memory_gb = 32
tflops = 65
memory_gb_per_s = 800
"#;

impl PaperModel {
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt => "GPT-3",
            Self::Zero => "ZeRO's example",
            Self::Moe => "a mixture of experts as large as M6-10T",
        }
    }

    /// Its sizes.
    pub fn transformer(self) -> Transformer {
        let dense = Transformer {
            layers: 96,
            hidden: 12_288,
            inner: 49_152,
            heads: 96,
            vocabulary: 51_200,
            tokens: 2048,
            experts: None,
        };
        match self {
            Self::Gpt => dense,
            Self::Zero => Transformer { layers: 36, hidden: 4096, inner: 16_384, heads: 32, tokens: 1024, ..dense },
            Self::Moe => Transformer {
                layers: 36,
                hidden: 8192,
                inner: 33_024,
                heads: 64,
                vocabulary: 32_000,
                tokens: 512,
                experts: Some(512),
            },
        }
    }

    /// Sequences of a step.
    pub fn rows(self) -> usize {
        match self {
            Self::Gpt => 1536,
            Self::Zero | Self::Moe => 512,
        }
    }

    /// The cluster of the paper.
    pub fn cluster(self) -> &'static str {
        match self {
            Self::Gpt => A100,
            Self::Zero => DGX2,
            Self::Moe => V100,
        }
    }

    /// What the paper chose and reports.
    pub fn told(self) -> &'static str {
        match self {
            Self::Gpt => {
                "the paper: tensor 8 inside a host, stages between hosts, interleaved 1F1B, all activations run again; 140 teraFLOP/s a \
                 device on 1,024, a forward that is run again among them: 105 of the model's own products"
            }
            Self::Zero => {
                "the paper counts 120 GB of states a device without ZeRO, 31.4 GB with its stage 1 (zero.level = v0), 16.6 GB with \
                 stage 2 (v2) and 1.9 GB with stage 3 (v3), for parameters and gradients in 16 bits; this engine keeps both in 32"
            }
            Self::Moe => "the paper: 512 devices, state in host memory between its uses",
        }
    }
}
