//! A new project.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The files of a project, in which `@name@` stands for its name, `@crate@` for that of its library, `@epl@` for the folder of EPL's
/// sources.
const FILES: [(&str, &str); 6] = [
    ("Cargo.toml", include_str!("../../../templates/project/Cargo.toml.in")),
    ("train.toml", include_str!("../../../templates/project/train.toml")),
    (".gitignore", "/out\n/target\n"),
    ("src/lib.rs", include_str!("../../../templates/project/src/lib.rs")),
    ("src/main.rs", include_str!("../../../templates/project/src/main.rs.in")),
    ("tests/ranks.rs", include_str!("../../../templates/project/tests/ranks.rs.in")),
];

/// Makes a project in a folder that is not there yet.
pub(crate) fn project(path: &Path, epl: Option<PathBuf>) -> Result<(), String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !is_name(name) {
        return Err(format!(
            "{name:?} is no name of a package; give a folder whose last part has a letter first, then letters, digits, - and _"
        ));
    }
    let epl = epl.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    let sources = match epl.canonicalize() {
        Ok(sources) if sources.join("epl-core/Cargo.toml").is_file() => sources,
        _ => return Err(format!("the sources of EPL are not in {}; give their folder by --epl", epl.display())),
    };
    let failed = |path: &Path, error: std::io::Error| format!("cannot make {}: {error}", path.display());
    fs::create_dir(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => format!("{} is there already; give a folder that is not", path.display()),
        _ => failed(path, error),
    })?;
    for (file, text) in FILES {
        let file = path.join(file);
        let text = text.replace("@name@", name).replace("@crate@", &name.replace('-', "_"));
        // As a string of TOML, in which a path of Windows may stand, too.
        let text = text.replace("@epl@", &format!("{:?}", sources.display().to_string()));
        let folder = file.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        fs::write(&file, text).map_err(|error| failed(&file, error))?;
    }
    println!(
        "made {0}: the model is in src/lib.rs, the options are in train.toml\n\n    cd {0}\n    cargo run --release                      # \
         on two ranks\n    cargo run --release -- zero.level=v1     # any option\n    cargo test --release                     # \
         two ranks compute what one does",
        path.display()
    );
    Ok(())
}

/// Whether cargo takes it as the name of a package, and Rust as that of a crate.
fn is_name(name: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let reserved = ["epl", "burn", "test", "core", "std", "alloc", "proc_macro"];
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(is_word)
        && !reserved.contains(&name)
}
