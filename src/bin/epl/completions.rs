//! What a shell completes: commands, and the options of the library, as `epl plan` and programs are given them.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use epl::config::OPTIONS;

use crate::{Arguments, PROGRAMS};

/// Stands in zsh's script for what its function completes: the generator knows words alone, each with a space behind it.
const OPTION: &str = "EPL_OPTION";

/// The keys of all options, as they are followed by a value.
fn keys() -> Vec<String> {
    OPTIONS.iter().map(|option| format!("{}=", option.key())).collect()
}

/// The script of a shell for this program: its commands, those of the programs that it runs, and options behind `plan`.
pub(crate) fn of_epl(shell: Shell) -> String {
    let programs = PROGRAMS.map(|(name, about)| Command::new(name).about(about));
    let mut command = Arguments::command().subcommands(programs);
    if shell == Shell::Zsh {
        command = command.mut_subcommand("plan", |plan| {
            let plan = plan.mut_arg("settings", |settings| settings.value_parser(PossibleValuesParser::new([OPTION])));
            // What is changed goes behind the others, and of two that take several words the first is completed.
            plan.mut_arg("command", |command| command)
        });
    }
    let mut script = Vec::new();
    generate(shell, &mut command, "epl", &mut script);
    // The other shells' generators leave out what positions take, all of them or all but the first.
    let options = match shell {
        Shell::Bash => {
            "
_epl_and_options() {
    _epl \"$@\"
    if [[ \"${COMP_WORDS[1]}\" == plan && \"${COMP_CWORD}\" -gt 1 && \"$2\" != -* ]]; then
        _epl_options \"$@\"
    fi
}
complete -F _epl_and_options -o bashdefault -o default epl
"
            .to_string()
                + &bash()
        }
        Shell::Fish => format!("complete -c epl -n \"__fish_seen_subcommand_from plan\" -a \"{}\"\n", keys().join(" ")),
        _ => String::new(),
    };
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        // Behind the first line, which names the program, and before the last ones, which may call it.
        Shell::Zsh => script.replace(&format!("({OPTION})"), "_epl_options").replacen('\n', &format!("\n{}", zsh()), 1),
        _ => script + &options,
    }
}

/// The script of a shell for a program that takes options on its command line.
pub(crate) fn of_program(shell: Shell, program: &str) -> Result<String, String> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    if program.is_empty() || !program.chars().all(is_word) {
        return Err(format!(
            "{program:?} is no name of a program that a shell can be told; it has letters, digits, and - _ . /"
        ));
    }
    let keys = keys().join(" ");
    match shell {
        Shell::Bash => Ok(format!("{}complete -F _epl_options -o bashdefault -o default {program}\n", bash())),
        Shell::Zsh => Ok(format!("{}compdef _epl_options {program}\n", zsh())),
        Shell::Fish => Ok(format!("complete -c {program} -a \"{keys}\"\n")),
        other => Err(format!("options of programs are completed in bash, zsh and fish, not in {other}")),
    }
}

/// A function of zsh that completes options; `_arguments` gives it words for `compadd`.
fn zsh() -> String {
    format!(
        "
_epl_options() {{
    # A value follows at once.
    compadd \"$@\" -S '' -- {}
}}
",
        keys().join(" ")
    )
}

/// A function of bash that adds options to what is completed.
fn bash() -> String {
    format!(
        "
_epl_options() {{
    # A value follows at once.
    compopt -o nospace 2>/dev/null
    COMPREPLY+=( $(compgen -W \"{}\" -- \"$2\") )
}}
",
        keys().join(" ")
    )
}
