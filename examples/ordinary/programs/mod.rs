//! Four programs, each twice from one source: of Burn's layers, and of those of `epl::nn`.
//!
//! Between the two the `use` line of the layers is another, and the type of what constructors are given.

pub mod data;
pub mod train;

/// Convolutions with batch norms and dropout, for images.
pub mod image {
    /// Of Burn's layers.
    pub mod burns {
        use burn::nn::{
            BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d,
            conv::{Conv2d, Conv2dConfig},
            loss::CrossEntropyLossConfig,
            pool::{MaxPool2d, MaxPool2dConfig},
        };
        use burn::tensor::Device;
        include!("image.rs");
        use super::super::data::Images;
        include!("image_chain.rs");
    }
    /// Of layers with Burn's names, under every strategy.
    pub mod epls {
        use epl::Place as Device;
        use epl::nn::{
            BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d,
            conv::{Conv2d, Conv2dConfig},
            loss::CrossEntropyLossConfig,
            pool::{MaxPool2d, MaxPool2dConfig},
        };
        include!("image.rs");
        use super::super::data::Images;
        include!("image_chain.rs");
    }
}

/// A transformer encoder, for texts.
pub mod text {
    /// Of Burn's layers.
    pub mod burns {
        use burn::nn::{
            Embedding, EmbeddingConfig, Linear, LinearConfig,
            loss::CrossEntropyLossConfig,
            transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
        };
        use burn::tensor::Device;
        include!("text.rs");
        use super::super::data::Texts;
        include!("text_chain.rs");
    }
    /// Of layers with Burn's names, under every strategy.
    pub mod epls {
        use epl::Place as Device;
        use epl::nn::{
            Embedding, EmbeddingConfig, Linear, LinearConfig,
            loss::CrossEntropyLossConfig,
            transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
        };
        include!("text.rs");
        use super::super::data::Texts;
        include!("text_chain.rs");
    }
}

/// Two layers, for points.
pub mod regression {
    /// Of Burn's layers.
    pub mod burns {
        use burn::nn::{
            Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
            loss::{MseLoss, Reduction},
        };
        use burn::tensor::Device;
        include!("regression.rs");
        use super::super::data::Points;
        include!("regression_chain.rs");
    }
    /// Of layers with Burn's names, under every strategy.
    pub mod epls {
        use epl::Place as Device;
        use epl::nn::{
            Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
            loss::{MseLoss, Reduction},
        };
        include!("regression.rs");
        use super::super::data::Points;
        include!("regression_chain.rs");
    }
}

/// An LSTM, for curves.
pub mod lstm {
    /// Of Burn's layers.
    pub mod burns {
        use burn::nn::{
            Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig,
            loss::{MseLoss, Reduction},
        };
        use burn::tensor::Device;
        include!("lstm.rs");
        use super::super::data::Curves;
        include!("lstm_chain.rs");
    }
    /// Of layers with Burn's names, under every strategy.
    pub mod epls {
        use epl::Place as Device;
        use epl::nn::{
            Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig,
            loss::{MseLoss, Reduction},
        };
        include!("lstm.rs");
        use super::super::data::Curves;
        include!("lstm_chain.rs");
    }
}
