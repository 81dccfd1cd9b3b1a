use std::path::Path;

use super::LineReader;
use crate::text::Result;

/// The lines of one or several text files, in one allocation: a corpus has millions.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    text: String,
    /// Where line i ends in `text`.
    ends: Vec<usize>,
}

impl Lines {
    /// The number of lines.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Line `index`, without its end.
    ///
    /// # Panics
    /// If there are not so many lines.
    pub fn get(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }

    /// All lines in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> + Send {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Appends a line.
    pub fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.ends.push(self.text.len());
    }

    /// Appends the lines of a UTF-8 file, as [`LineReader`] reads them, and returns how many there were.
    ///
    /// # Errors
    /// As [`LineReader`].
    pub fn append_file(&mut self, path: &Path) -> Result<usize> {
        let mut reader = LineReader::open(path)?;
        while let Some(line) = reader.next_line()? {
            self.push(line);
        }
        Ok(reader.number())
    }
}
