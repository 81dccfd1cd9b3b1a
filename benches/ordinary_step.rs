//! A step of the programs of `examples/ordinary` by the engine, against a plain Burn loop, on one rank.
//!
//! The plain loop has Burn's layers; the engine has them too, as one segment, or those of `epl::nn`, as one segment and as a chain; no
//! dropout. All begin with the same values, update by AdamW, clip the global norm and read the loss. Both are processes of their own, run
//! in turn: what `launch` tells the allocator and the threads of its process is no part of a plain loop. What is printed is the median
//! over the pairs of the engine's time ÷ the plain loop's, with quartiles. Bound: 0.9.
//!
//! ```text
//! cargo bench --bench ordinary_step [-- [--pairs 30] [--rows 512] [PROGRAM ..]]
//! ```

// The example prints what is not used here.
#[allow(dead_code)]
#[path = "../examples/ordinary/programs/mod.rs"]
mod programs;

use std::process::{Command, ExitCode};
use std::time::Instant;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use clap::{Parser, ValueEnum};
use epl::data::Rows;
use epl::tensors::AssignMap;
use epl::{Config, Engine, EngineSettings, Model, Place, Result, WithLoss, launch};
use epl_benches::pairs::Lines;
use epl_benches::plain::{CLIP, update};
use epl_benches::quartiles::quartiles;
use programs::{data, image, lstm, regression, text, train};

/// Steps of a process that do not count.
const WARM_UP: usize = 3;
/// By how much losses of the two sides may differ, which add in another order.
const LOSS_BOUND: f64 = 1e-3;

#[derive(Parser)]
struct Args {
    /// All, if none is named
    programs: Vec<Program>,
    #[arg(long, default_value_t = 30)]
    pairs: usize,
    /// Rows of a step. Default: 512, of the wide programs 128
    #[arg(long)]
    rows: Option<usize>,
    /// Steps of a process that count
    #[arg(long, default_value_t = 12)]
    steps: usize,
    /// Runs this side alone
    #[arg(long)]
    side: Option<Side>,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    Image,
    Text,
    /// The same program 256 wide: 4 layers, 8,000 tokens
    TextWide,
    Regression,
    Lstm,
    /// The same program with a state of 512
    LstmWide,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Side {
    /// A loop of plain Burn.
    Plain,
    /// Burn's own layers, as one segment.
    Burns,
    /// Those of `epl::nn`, as one segment.
    Whole,
    /// The same in segments.
    Chain,
}

/// What a command line calls it.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
}

/// What a side says: the median of its steps, and the last loss.
fn timed(steps: usize, mut step: impl FnMut() -> f64) -> String {
    let (mut took, mut loss) = (Vec::new(), f64::NAN);
    for _ in 0..WARM_UP + steps {
        let begin = Instant::now();
        loss = step();
        took.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    format!("ms={:.4} loss={loss:.9}", quartiles(took.split_off(WARM_UP))[1])
}

/// The net whose values both sides begin with.
fn first<N>(net: impl Fn(&Device) -> N) -> N {
    let device = Device::default().autodiff();
    device.seed(0);
    net(&device)
}

fn plain<N: Module, B>(
    steps: usize,
    net: impl Fn(&Device) -> N,
    loss: impl Fn(&N, &B) -> Tensor<1>,
    batch: impl Fn(&Device) -> B,
) -> String {
    let (mut net, mut optimizer) = (Some(first(net)), AdamWConfig::new().init());
    let batch = batch(&Device::default().autodiff());
    timed(steps, || {
        let own = net.take().expect("it is there");
        let loss = loss(&own, &batch);
        let (next, value) = update(own, &mut optimizer, loss, train::RATE);
        net = Some(next);
        value
    })
}

fn engine<N: Module, B: Rows, M: Model<Batch = B>>(
    steps: usize,
    net: impl Fn(&Device) -> N,
    model: impl Fn(&Place) -> M + Sync,
    batch: impl Fn(&Device) -> B + Sync,
) -> Result<String> {
    let record = train::record(&first(net))?;
    let ran = launch(&Config::new(), |epl| {
        let built = epl.build(&model)?.assign(&record, &AssignMap::identity())?;
        let settings = EngineSettings { clip_norm: Some(CLIP), ..EngineSettings::from_config(epl.config()) };
        let mut engine = Engine::new(built, &AdamWConfig::new(), settings)?;
        let batch = batch(epl.place().device());
        Ok(timed(steps, || engine.train_batch(&batch, train::RATE).expect("a step of the engine").loss))
    });
    Ok(ran?.swap_remove(0))
}

macro_rules! side {
    ($side:expr, $steps:expr, $batch:expr, $program:ident::$net:ident, $config:ident($($size:expr),+) $(.$with:ident($value:expr))*) => {{
        let burns = $program::burns::$config::new($($size),+)$(.$with($value))*;
        let epls = $program::epls::$config::new($($size),+)$(.$with($value))*;
        let (net, batch, steps) = (|device: &Device| burns.init(device), $batch, $steps);
        match $side {
            Side::Plain => Ok(plain(steps, net, $program::burns::$net::loss, batch)),
            Side::Burns => engine(steps, net, |at| WithLoss::new(burns.init(at), $program::burns::$net::loss), batch),
            Side::Whole => engine(steps, net, |at| WithLoss::new(epls.init(at), $program::epls::$net::loss), batch),
            Side::Chain => engine(steps, net, |at| epls.chain(at), batch),
        }
    }};
}

impl Args {
    /// One side of a program in this process.
    fn alone(&self, program: Program, side: Side) -> Result<String> {
        let is_wide = matches!(program, Program::TextWide | Program::LstmWide);
        let (steps, rows) = (self.steps, self.rows.unwrap_or(if is_wide { 128 } else { 512 }));
        let (images, texts) = (|at: &Device| data::images(rows, 0, at), |at: &Device| data::texts(rows, 0, at));
        let (points, curves) = (|at: &Device| data::points(rows, 0, at), |at: &Device| data::curves(rows, 0, at));
        match program {
            Program::Image => {
                side!(side, steps, images, image::ImageClassifier, ImageClassifierConfig(4).with_dropout(0.0))
            }
            Program::Text => {
                side!(side, steps, texts, text::TextClassifier, TextClassifierConfig(20, 2).with_dropout(0.0))
            }
            Program::TextWide => side!(
                side,
                steps,
                texts,
                text::TextClassifier,
                TextClassifierConfig(8_000, 2)
                    .with_width(256)
                    .with_hidden(1024)
                    .with_heads(8)
                    .with_layers(4)
                    .with_dropout(0.0)
            ),
            Program::Regression => side!(side, steps, points, regression::Regression, RegressionConfig(8)),
            Program::Lstm => side!(side, steps, curves, lstm::Forecast, ForecastConfig(1).with_dropout(0.0)),
            Program::LstmWide => {
                side!(side, steps, curves, lstm::Forecast, ForecastConfig(1).with_hidden(512).with_dropout(0.0))
            }
        }
    }

    /// One side as a process.
    fn process(&self, program: Program, side: Side) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args([&name(&program), "--side", &name(&side)]);
        command.args(["--steps", &self.steps.to_string()]);
        if let Some(rows) = self.rows {
            command.args(["--rows", &rows.to_string()]);
        }
        command
    }

    fn against_plain(&self, program: Program, side: Side) -> std::result::Result<(), String> {
        let lines = Lines::in_turn(self.pairs, || self.process(program, Side::Plain), || self.process(program, side))?;
        let [low, ratio, high] = lines.ratio("ms");
        let off = lines.ratio("loss").map(|ratio| (ratio - 1.0).abs());
        if !off.iter().all(|off| *off <= LOSS_BOUND) {
            return Err(format!(
                "{program:?} under {side:?}: its loss is {off:?} off that of the plain loop, {LOSS_BOUND} at most"
            ));
        }
        let [plain, ours] = [0, 1].map(|side| lines.median(side, "ms"));
        println!(
            "{program:?}, {side:?} ÷ plain loop: {ratio:.3} (quartiles {low:.3}-{high:.3}, {} pairs), {ours:.1} ms against {plain:.1} ms",
            self.pairs
        );
        Ok(())
    }

    fn run(&self) -> std::result::Result<(), String> {
        let programs = if self.programs.is_empty() { Program::value_variants() } else { &self.programs };
        for program in programs {
            match self.side {
                Some(side) => println!("{}", self.alone(*program, side).map_err(|error| error.to_string())?),
                None => {
                    for side in [Side::Burns, Side::Whole, Side::Chain] {
                        self.against_plain(*program, side)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
