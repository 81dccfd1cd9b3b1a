//! What README tells a newcomer agrees with the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names that stand in a text, such as of types.
fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect()
}

/// The lines of a table, after `prefix`.
fn rows<'a>(text: &'a str, prefix: &'a str) -> String {
    let rows = text.lines().filter_map(|line| line.strip_prefix(prefix)).filter(|line| line.starts_with('|'));
    rows.collect::<Vec<_>>().join("\n")
}

/// What the files of `epl::nn` make public by name.
fn public_names() -> BTreeSet<String> {
    let files = ["", "activation/", "attention/", "conv/", "norm/", "transformer/"];
    let mut names = BTreeSet::new();
    for file in files {
        let text = read(&format!("epl-modules/src/nn/{file}mod.rs"));
        for used in text.split("\npub use ").skip(1) {
            let used = used.split(';').next().unwrap_or_default();
            names.extend(words(used).into_iter().filter(|name| name.starts_with(char::is_uppercase)).map(String::from));
        }
    }
    names
}

/// What stands beside a layer: its configuration, what it takes and gives.
fn is_no_layer(name: &str) -> bool {
    const OTHERS: [&str; 6] =
        ["BatchStatistics", "GateController", "GeneratePaddingMask", "Initializer", "LinearLayout", "SeqLengthOption"];
    let ends = ["Config", "Config1d", "Config2d", "Config3d", "State", "Input", "Output", "Cache"];
    OTHERS.contains(&name) || ends.iter().any(|end| name.ends_with(end))
}

/// The layers of a module that `epl::nn` takes from Burn as a whole.
macro_rules! layers_of {
    ($module:ident: $($layer:ident),+) => {{
        $(let _ = core::any::TypeId::of::<epl::nn::$module::$layer>();)+
        [$(stringify!($layer)),+].map(String::from)
    }};
}

#[test]
fn the_tables_name_every_layer() {
    let mut layers: BTreeSet<String> = public_names().into_iter().filter(|name| !is_no_layer(name)).collect();
    layers.extend(layers_of!(activation: HardSwish, Hardtanh, LogSigmoid, Mish, Relu6, SiLU, Tanhshrink, Threshold));
    // The table of the module links these modules.
    let of_modules = [
        &layers_of!(pool: AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d)
            [..],
        &layers_of!(interpolate: Interpolate1d, Interpolate2d),
        &layers_of!(loss: BinaryCrossEntropyLoss, CTCLoss, CosineEmbeddingLoss, CrossEntropyLoss, GaussianNLLLoss,
            HingeEmbeddingLoss, HuberLoss, KLDivLoss, LpLoss, MarginRankingLoss, MseLoss, MultiMarginLoss, PoissonNllLoss,
            RNNTLoss, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss),
    ];
    assert!(layers.len() > 60 && layers.contains("Linear") && layers.contains("TransformerDecoder"), "{layers:?}");

    let module = rows(&read("epl-modules/src/nn/mod.rs"), "//! ");
    let lacks = |table: &str, layers: &BTreeSet<String>| {
        let named = words(table);
        layers.iter().filter(|layer| !named.contains(layer.as_str())).cloned().collect::<Vec<_>>()
    };
    assert_eq!(lacks(&module, &layers), Vec::<String>::new(), "the table of epl-modules/src/nn/mod.rs lacks these");
    assert!(["pool", "interpolate", "loss"].iter().all(|name| words(&module).contains(name)), "{module}");

    let table = rows(&read("docs/book/src/layers.md"), "");
    layers.extend(of_modules.concat());
    assert_eq!(lacks(&table, &layers), Vec::<String>::new(), "the table of docs/book/src/layers.md lacks these");
}

/// `.ci/run` builds that package.
#[test]
fn the_dependencies_are_those_of_a_package_that_is_built() {
    let (readme, manifest) = (read("README.md"), read("tests/downstream/Cargo.toml"));
    let burn = manifest.lines().find(|line| line.starts_with("burn = ")).expect("it depends on Burn");
    assert!(readme.contains(&format!("\n[dependencies]\n{burn}\nepl = {{ path = ")), "{burn}");
}
