//! Which files and functions are too long.

use super::Source;

const MAX_FILE: usize = 300;
const MAX_FUNCTION: usize = 60;

/// The file and its functions that pass their limits.
pub fn check_size(source: &Source) -> Vec<String> {
    let (path, lines) = (source.path.display(), source.code());
    let mut faults = Vec::new();
    if lines.len() > MAX_FILE {
        faults.push(format!("{path}: {} lines of code, limit {MAX_FILE}", lines.len()));
    }
    let mut open: Option<(usize, usize)> = None;
    for (index, (number, line)) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let starts = line.trim_start().split(' ').take(4).any(|word| word == "fn");
        match open {
            None if starts && !line.trim_end().ends_with(';') && !line.trim_end().ends_with('}') => {
                open = Some((index, indent));
            }
            Some((start, depth)) if indent == depth && line.trim_start().starts_with('}') => {
                let length = index + 1 - start;
                if length > MAX_FUNCTION {
                    let first = lines[start].0;
                    faults.push(format!("{path}:{first}-{number}: {length} lines, limit {MAX_FUNCTION}"));
                }
                open = None;
            }
            _ => {}
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::source;

    /// A function with so many lines in its body.
    fn function(lines: usize) -> String {
        format!("    fn long() {{\n{}    }}\n", "        let x = 1;\n".repeat(lines))
    }

    #[test]
    fn long_functions_are_found() {
        assert!(check_size(&source("a.rs", &function(58))).is_empty());
        assert_eq!(check_size(&source("a.rs", &function(59))), ["a.rs:1-61: 61 lines, limit 60"]);
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(check_size(&source("a.rs", &function(50).repeat(6))), ["a.rs: 312 lines of code, limit 300"]);
        let comments = "// Why.\n\n".repeat(200);
        assert!(check_size(&source("a.rs", &comments)).is_empty());
    }
}
