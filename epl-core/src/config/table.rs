//! The options as documentation.

use std::fmt::Write as _;

use super::sections::{OPTIONS, Status};

/// Every option as a Markdown table: what `OPTIONS.md` holds, and this module's documentation.
pub fn option_table() -> String {
    let mut text = String::from(
        "## Options\n\n\
         Generated from the list of options in the code. *not yet*: only the default is accepted.\n\n\
         | option | default | values | status | meaning |\n\
         |---|---|---|---|---|\n",
    );
    for option in OPTIONS {
        let status = match option.status {
            Status::Implemented => "implemented",
            Status::NotYet => "*not yet*",
        };
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} | {status} | {} |",
            option.key(),
            option.default(),
            option.kind,
            option.meaning.trim(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `EPL_WRITE_OPTIONS=1 cargo test --workspace the_option_table` writes the file anew.
    #[test]
    fn the_option_table_in_the_docs_is_the_one_in_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/OPTIONS.md");
        if std::env::var_os("EPL_WRITE_OPTIONS").is_some() {
            std::fs::write(path, option_table()).expect("OPTIONS.md can be written");
        }
        let written = std::fs::read_to_string(path).expect("OPTIONS.md exists");
        assert!(
            written == option_table(),
            "OPTIONS.md is not the table of the code; run: \
             EPL_WRITE_OPTIONS=1 cargo test --workspace the_option_table"
        );
    }
}
