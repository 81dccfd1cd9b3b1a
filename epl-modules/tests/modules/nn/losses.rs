//! Every method of every loss against Burn's: in f32 the same bits, and of 16 bits Burn's of the same in f32.

use burn::nn::loss::Reduction;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use epl_core::model::precision::widen;

use epl_testing::tensor;

/// Result and gradient.
fn found<const D: usize, const E: usize>(
    x: Tensor<D>,
    loss: impl Fn(Tensor<D>) -> Tensor<E>,
) -> (TensorData, Tensor<D>) {
    let x = x.detach().require_grad();
    let y = loss(x.clone());
    let gradient = x.grad(&y.clone().sum().backward()).expect("it is tracked");
    (y.into_data(), gradient)
}

#[track_caller]
fn against<const D: usize, const E: usize>(
    what: &str,
    x: Tensor<D>,
    ours: impl Fn(Tensor<D>) -> Tensor<E>,
    burns: impl Fn(Tensor<D>) -> Tensor<E>,
) {
    let (full, expected) = (found(x.clone(), &ours), found(x.clone(), &burns));
    assert_eq!(full.0, expected.0, "{what}");
    assert_eq!(full.1.into_data(), expected.1.into_data(), "{what}: gradient");
    for dtype in [DType::BF16, DType::F16] {
        let x = x.clone().cast(dtype);
        let (half, expected) = (found(x.clone(), &ours), found(widen(x), &burns));
        assert_eq!(half.0.dtype(), DType::F32, "{what}");
        assert_eq!(half.0, expected.0, "{what} in {dtype:?}");
        assert_eq!(half.1.into_data(), expected.1.cast(dtype).into_data(), "{what} in {dtype:?}: gradient");
    }
}

/// The same call of both.
macro_rules! same {
    ($what:literal, $x:expr, |$losses:ident, $input:ident| $loss:expr) => {
        against(
            $what,
            $x,
            |$input| {
                use epl_modules::nn::loss as $losses;
                $loss
            },
            |$input| {
                use burn::nn::loss as $losses;
                $loss
            },
        )
    };
}

fn device() -> Device {
    Device::default().autodiff()
}

/// Numbers between -1 and 1.
fn rows() -> Tensor<2> {
    tensor(1, [6, 4], &device())
}

/// Others, of the type of these and as exact.
fn others(x: &Tensor<2>) -> Tensor<2> {
    x.clone().detach().flip([0]) * 2.0
}

/// 1 and -1.
fn signs(x: &Tensor<2>) -> Tensor<2> {
    others(x).sign()
}

fn ids<const N: usize>(ids: [i64; N]) -> Tensor<1, Int> {
    Tensor::from_data(ids, &device())
}

#[test]
fn of_classes() {
    let classes = || ids([0, 3, 1, 2, 3, 3]);
    same!("cross-entropy", rows(), |losses, x| losses::CrossEntropyLossConfig::new()
        .init(&device())
        .forward(x, classes()));
    same!("cross-entropy with options", rows(), |losses, x| losses::CrossEntropyLossConfig::new()
        .with_pad_tokens(Some(vec![3]))
        .with_weights(Some(vec![1.0, 2.0, 0.5, 1.5]))
        .with_smoothing(Some(0.1))
        .init(&device())
        .forward(x, classes()));
    same!("cross-entropy of probabilities", rows().abs(), |losses, x| losses::CrossEntropyLossConfig::new()
        .with_logits(false)
        .init(&device())
        .forward(x, classes()));
    same!("cross-entropy, new", rows(), |losses, x| losses::CrossEntropyLoss::new(Some(1), &device())
        .forward(x, classes()));
    let of_each = || rows().greater_scalar(0.0).int();
    same!("binary cross-entropy", rows().abs(), |losses, x| losses::BinaryCrossEntropyLossConfig::new()
        .init(&device())
        .forward(x, of_each()));
    same!("binary cross-entropy with options", rows(), |losses, x| losses::BinaryCrossEntropyLossConfig::new()
        .with_weights(Some(vec![1.0, 2.0, 0.5, 1.5]))
        .with_smoothing(Some(0.1))
        .with_logits(true)
        .init(&device())
        .forward(x, of_each()));
    same!("multi margin", rows(), |losses, x| losses::MultiMarginLossConfig::new().with_p(2).init().forward(
        x,
        classes(),
        Reduction::Sum
    ));
    same!("multi margin, each", rows(), |losses, x| losses::MultiMarginLossConfig::new()
        .with_margin(0.5)
        .init()
        .forward_no_reduction(x, classes()));
    same!("soft margin", rows(), |losses, x| {
        let targets = signs(&x);
        losses::SoftMarginLoss::new().forward(x, targets, Reduction::Mean)
    });
    same!("soft margin, each", rows(), |losses, x| {
        let targets = signs(&x);
        losses::SoftMarginLoss.forward_no_reduction(x, targets)
    });
}

/// The methods of a loss of two tensors.
macro_rules! two {
    ($what:literal, $x:expr, |$losses:ident| $loss:expr, $other:expr) => {
        same!($what, $x, |$losses, x| {
            let other = $other(&x);
            $loss.forward(x, other, Reduction::Mean)
        });
        same!($what, $x, |$losses, x| {
            let other = $other(&x);
            $loss.forward_no_reduction(x, other)
        });
    };
}

#[test]
fn of_numbers() {
    two!("squares", rows(), |losses| losses::MseLoss::new(), others);
    two!("squares of the type", rows(), |losses| losses::MseLoss, others);
    two!("a power", rows(), |losses| losses::LpLossConfig::new(3.0).init(), others);
    two!("absolute", rows(), |losses| losses::LpLossConfig::l1(), others);
    two!("squared", rows(), |losses| losses::LpLossConfig::l2(), others);
    two!("Huber", rows(), |losses| losses::HuberLossConfig::new(0.5).init(), others);
    same!("Huber's residuals", rows(), |losses, x| losses::HuberLossConfig::new(0.5).init().forward_residuals(x));
    same!("absolute, by dims", rows(), |losses, x| {
        let targets = others(&x);
        losses::LpLossConfig::l1().forward_reduce_dims(x, targets, &[1])
    });
    same!("smooth", rows(), |losses, x| {
        let targets = others(&x);
        losses::SmoothL1LossConfig::new().with_beta(0.5).init().forward(x, targets)
    });
    same!("smooth, summed", rows(), |losses, x| {
        let targets = others(&x);
        losses::SmoothL1LossConfig::new().init().forward_with_reduction(x, targets, Reduction::Sum)
    });
    same!("smooth, by dims", rows(), |losses, x| {
        let targets = others(&x);
        losses::SmoothL1LossConfig::new().init().forward_reduce_dims(x, targets, &[0, 1])
    });
    let counts = |x: &Tensor<2>| others(x).abs();
    two!("divergence", rows(), |losses| losses::KLDivLossConfig::new().init(), counts);
    two!(
        "divergence of logarithms",
        rows(),
        |losses| losses::KLDivLossConfig::new().with_log_target(true).init(),
        others
    );
    two!("Poisson", rows(), |losses| losses::PoissonNllLossConfig::new().with_full(true).init(), counts);
    two!(
        "Poisson of rates",
        rows().abs(),
        |losses| losses::PoissonNllLossConfig::new().with_log_input(false).init(),
        counts
    );
    same!("Gauss", rows(), |losses, x| {
        let (targets, variance) = (others(&x), counts(&x));
        losses::GaussianNLLLossConfig::new().init().forward(x, targets, variance, Reduction::Mean)
    });
    same!("Gauss, each", rows(), |losses, x| {
        let (targets, variance) = (others(&x), counts(&x));
        losses::GaussianNLLLossConfig::new()
            .with_full(true)
            .with_eps(0.1)
            .init()
            .forward_no_reduction(x, targets, variance)
    });
}

#[test]
fn of_pairs() {
    let like = || ids([1, -1, 1, 1, -1, -1]);
    same!("cosine", rows(), |losses, x| {
        let other = others(&x);
        losses::CosineEmbeddingLossConfig::new().with_margin(0.1).with_reduction(Reduction::Sum).init().forward(
            x,
            other,
            like(),
        )
    });
    same!("cosine, each", rows(), |losses, x| {
        let other = others(&x);
        losses::CosineEmbeddingLoss::new().forward_no_reduction(x, other, like())
    });
    two!("hinge", rows(), |losses| losses::HingeEmbeddingLossConfig::new().with_margin(0.5).init(), signs);
    same!("ranking", rows(), |losses, x| {
        let (other, target) = (others(&x), signs(&x));
        losses::MarginRankingLossConfig::new().with_margin(0.5).init().forward(x, other, target, Reduction::Mean)
    });
    same!("ranking, each", rows(), |losses, x| {
        let (other, target) = (others(&x), signs(&x));
        losses::MarginRankingLossConfig::new().init().forward_no_reduction(x, other, target)
    });
    same!("triplets", rows(), |losses, x| {
        let (near, far) = (others(&x), x.clone().detach().flip([1]));
        losses::TripletMarginLossConfig::new().with_p(1.0).init().forward(x, near, far, Reduction::Mean)
    });
    same!("triplets, each", rows(), |losses, x| {
        let (near, far) = (others(&x), x.clone().detach().flip([1]));
        losses::TripletMarginLossConfig::new().with_margin(0.5).init().forward_no_reduction(x, near, far)
    });
}

#[test]
fn of_sequences() {
    let targets = || Tensor::<2, Int>::from_data([[1, 2], [3, 1]], &device());
    let of_frames = || tensor::<3>(2, [5, 2, 4], &device()) - 2.0;
    same!("CTC", of_frames(), |losses, x| losses::CTCLossConfig::new().init().forward(
        x,
        targets(),
        ids([5, 4]),
        ids([2, 1])
    ));
    same!("CTC, reduced", of_frames(), |losses, x| losses::CTCLossConfig::new()
        .with_zero_infinity(true)
        .init()
        .forward_with_reduction(x, targets(), ids([5, 4]), ids([2, 1]), Reduction::Mean));
    let of_pairs = || tensor::<4>(3, [2, 4, 3, 4], &device());
    same!("RNNT", of_pairs(), |losses, x| losses::RNNTLossConfig::new().init().forward(
        x,
        targets(),
        ids([4, 3]),
        ids([2, 1])
    ));
    same!("RNNT, reduced", of_pairs(), |losses, x| losses::RNNTLossConfig::new()
        .with_blank(3)
        .with_logits(false)
        .init()
        .forward_with_reduction(x, targets(), ids([4, 3]), ids([2, 1]), Reduction::Sum));
}

/// Burn's fields, and what Burn's `Display` says.
#[test]
fn what_is_seen_of_a_loss() {
    use epl_modules::nn::loss::{CrossEntropyLossConfig, LpLossConfig};
    let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.25)).init(&device());
    assert_eq!((loss.smoothing, loss.logits), (Some(0.25), true));
    let text = loss.to_string();
    assert!(text.contains("CrossEntropyLoss") && text.contains("smoothing: 0.25"), "{text}");
    assert_eq!(LpLossConfig::l2().p, 2.0);
}
