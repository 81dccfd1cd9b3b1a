//! Four programs as a Burn user writes them, trained by plain Burn and by EPL: an image classifier, a text classifier, a
//! regression, an LSTM.
//!
//! `cargo run --release --example ordinary -- image --set dist.tensor_parallel_size=2`

mod programs;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use clap::{Parser, ValueEnum};
use epl::data::Rows;
use epl::prelude::*;
use programs::{data, image, lstm, regression, text, train};

/// Train ordinary Burn models by plain Burn, and by EPL across ranks.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// What to train; all, if none is named
    programs: Vec<Program>,
    /// EPL trains Burn's own layers too, in place of those of `epl::nn`
    #[arg(long)]
    burn: bool,
    /// EPL trains the whole net with its loss as one segment, which stages, ZeRO v3 and offloaded parameters cannot
    #[arg(long)]
    whole: bool,
    /// The rate of dropout, whose masks are not plain Burn's
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    dropout: f64,
    /// Steps of 64 rows
    #[arg(long, value_name = "N", default_value_t = 100)]
    steps: u64,
    /// Any option; without one, two replicas
    #[arg(long, value_name = "KEY=VALUE", default_value = "dist.data_parallel_size=2")]
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    Image,
    Text,
    Regression,
    Lstm,
}

const ROWS: usize = 64;

/// Trains a net by plain Burn, and from the same values in a chain by EPL.
fn compare<N: Module, B: Rows, M: Model<Batch = B>>(
    args: &Args,
    net: impl Fn(&Device) -> N,
    loss: impl Fn(&N, &B) -> Tensor<1>,
    chain: impl Fn(&Place) -> M + Sync,
    batch: impl Fn(usize, u64, &Device) -> B + Sync,
) -> epl::Result<()> {
    let batches = |device: &Device| (0..args.steps).map(|step| batch(ROWS, step, device)).collect::<Vec<_>>();
    let device = Device::default().autodiff();
    device.seed(0);
    let net = net(&device);
    let config = Config::load(None, &args.set)?;
    let ranks = train::parallel(&config, &train::record(&net)?, chain, batches)?;
    let alone = train::plain(net, &batches(&device), loss);
    println!("step   plain Burn   {} rank(s)", ranks.len());
    for step in (0..alone.len()).step_by(alone.len().div_ceil(10).max(1)) {
        println!("{step:4}   {:.8}   {:.8}", alone[step], ranks[0][step]);
    }
    Ok(())
}

/// The net of Burn's layers, beside one chain or the other.
macro_rules! compare {
    ($args:expr, $program:ident::$net:ident, $config:ident($($size:expr),+) $(.$with:ident)?, $batch:path) => {{
        let burns = $program::burns::$config::new($($size),+)$(.$with($args.dropout))?;
        let epls = $program::epls::$config::new($($size),+)$(.$with($args.dropout))?;
        let net = |device: &Device| burns.init(device);
        let loss = |net: &_, batch: &_| $program::burns::$net::loss(net, batch);
        match ($args.burn, $args.whole) {
            (true, false) => compare($args, net, loss, |at| burns.chain(at), $batch),
            (false, false) => compare($args, net, loss, |at| epls.chain(at), $batch),
            (true, true) => {
                compare($args, net, loss, |at| WithLoss::new(burns.init(at), $program::burns::$net::loss), $batch)
            }
            (false, true) => {
                compare($args, net, loss, |at| WithLoss::new(epls.init(at), $program::epls::$net::loss), $batch)
            }
        }
    }};
}

fn main() -> epl::Result<()> {
    let args = Args::parse();
    let programs = if args.programs.is_empty() { Program::value_variants() } else { &args.programs };
    for program in programs {
        println!("{program:?}");
        match program {
            Program::Image => {
                compare!(&args, image::ImageClassifier, ImageClassifierConfig(4).with_dropout, data::images)?
            }
            Program::Text => {
                compare!(&args, text::TextClassifier, TextClassifierConfig(20, 2).with_dropout, data::texts)?
            }
            Program::Regression => compare!(&args, regression::Regression, RegressionConfig(8), data::points)?,
            Program::Lstm => compare!(&args, lstm::Forecast, ForecastConfig(1).with_dropout, data::curves)?,
        }
    }
    Ok(())
}
