//! A step of the four programs of `examples/ordinary` by the engine, against a plain Burn loop, on one rank.
//!
//! The plain loop has Burn's layers; the engine has them too, as one segment, or those of `epl::nn` with the same values, as one segment
//! and as a chain; no dropout. Both update by AdamW, clip the global norm and read the loss. They are alternated, pair by pair; what is
//! printed is the median of the pairs' ratios, with quartiles. Bound: 0.9.
//!
//! ```text
//! cargo bench --bench ordinary_step [-- [PAIRS [ROWS]] [PROGRAM ..]]
//! ```

// The example prints what is not used here.
#[allow(dead_code)]
#[path = "../examples/ordinary/programs/mod.rs"]
mod programs;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use epl::data::Rows;
use epl::tensors::AssignMap;
use epl::{Config, Engine, EngineSettings, Model, Place, WithLoss, launch};
use epl_benches::pairs;
use epl_benches::plain::{CLIP, update};
use programs::{data, image, lstm, regression, text, train};

/// One program, the layers of plain Burn beside a model of the engine.
fn against_plain<N: Module, B: Rows, M: Model<Batch = B>>(
    (what, pairs): (&str, usize),
    net: impl Fn(&Device) -> N + Sync,
    loss: impl Fn(&N, &B) -> Tensor<1> + Sync,
    model: impl Fn(&Place) -> M + Sync,
    batch: impl Fn(&Device) -> B + Sync,
) {
    let ran = launch(&Config::new(), |epl| {
        let device = epl.place().device();
        let net = net(device);
        let built = epl.build(&model)?.assign(&train::record(&net)?, &AssignMap::identity())?;
        let settings = EngineSettings { clip_norm: Some(CLIP), ..EngineSettings::from_config(epl.config()) };
        let mut engine = Engine::new(built, &AdamWConfig::new(), settings)?;
        let (mut net, mut optimizer) = (Some(net), AdamWConfig::new().init());
        let batch = batch(device);
        let ours = || engine.train_batch(&batch, train::RATE).map(drop).expect("a step of the engine");
        let plain = || {
            let own = net.take().expect("it is there");
            let loss = loss(&own, &batch);
            let (next, value) = update(own, &mut optimizer, loss, train::RATE);
            net = Some(next);
            assert!(value.is_finite());
        };
        pairs::alternate(pairs, ours, plain).print(what);
        Ok(())
    });
    ran.expect("the program runs");
}

macro_rules! program {
    ($pairs:expr, $rows:expr, $batch:path, $program:ident::$net:ident, $config:ident($($size:expr),+) $(.$with:ident)?) => {
        if is_asked(stringify!($program)) {
            let burns = $program::burns::$config::new($($size),+)$(.$with(0.0))?;
            let epls = $program::epls::$config::new($($size),+)$(.$with(0.0))?;
            let net = |device: &Device| burns.init(device);
            let loss = $program::burns::$net::loss;
            let batch = |device: &Device| $batch($rows, 0, device);
            let whole = |at: &Place| WithLoss::new(epls.init(at), $program::epls::$net::loss);
            let of_burn = |at: &Place| WithLoss::new(burns.init(at), $program::burns::$net::loss);
            let name = stringify!($program);
            against_plain((&format!("{name}, Burn's layers, one segment ÷ plain loop"), $pairs), net, loss, of_burn, batch);
            against_plain((&format!("{name}, one segment ÷ plain loop"), $pairs), net, loss, whole, batch);
            against_plain((&format!("{name}, in segments ÷ plain loop"), $pairs), net, loss, |at| epls.chain(at), batch);
        }
    };
}

/// Whether a program is to run: those that are named, or all.
fn is_asked(program: &str) -> bool {
    // `cargo bench` passes `--bench`.
    let is_name = |argument: &String| !argument.starts_with('-') && argument.parse::<usize>().is_err();
    let named: Vec<String> = std::env::args().skip(1).filter(is_name).collect();
    named.is_empty() || named.iter().any(|name| name == program)
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (pairs, rows) = (numbers.next().unwrap_or(60), numbers.next().unwrap_or(64));
    program!(pairs, rows, data::images, image::ImageClassifier, ImageClassifierConfig(4).with_dropout);
    program!(pairs, rows, data::texts, text::TextClassifier, TextClassifierConfig(20, 2).with_dropout);
    program!(pairs, rows, data::points, regression::Regression, RegressionConfig(8));
    program!(pairs, rows, data::curves, lstm::Forecast, ForecastConfig(1).with_dropout);
}
