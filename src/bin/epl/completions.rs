//! What a shell completes.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use epl::config::OPTIONS;

use crate::{Arguments, PROGRAMS};

/// The script of a shell: this program's commands, with those of the programs that it runs, and `epl plan` with all options of the
/// library.
pub(crate) fn script(shell: Shell) -> Vec<u8> {
    // Once, for as long as this program runs.
    let keys: Vec<&'static str> = OPTIONS.iter().map(|option| &*format!("{}=", option.key()).leak()).collect();
    let programs = PROGRAMS.map(|(name, about)| Command::new(name).about(about));
    let mut command = Arguments::command().subcommands(programs).mut_subcommand("plan", |plan| {
        plan.mut_arg("settings", |settings| settings.value_parser(PossibleValuesParser::new(keys)))
    });
    let mut script = Vec::new();
    generate(shell, &mut command, "epl", &mut script);
    script
}
