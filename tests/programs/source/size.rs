//! Which functions are too long.

use super::Source;

const MAX_FUNCTION: usize = 60;

/// The functions of a file that pass the limit.
pub fn check_size(source: &Source) -> Vec<String> {
    let (path, lines) = (source.path.display(), source.code());
    let mut faults = Vec::new();
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
}
