use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::text::{Error, Result};

/// The first two bytes of every gzip file.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

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

    /// Appends the lines of a UTF-8 file and returns how many there were.
    ///
    /// A file whose name ends in `.gz`, or that starts like gzip, is unpacked (several gzip members in a row are
    /// one text). Lines end with `\n` or `\r\n`; no other character ends a line. A byte order mark at the start of
    /// the file is left out.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Read`], [`Error::Gzip`], [`Error::Encoding`].
    pub fn append_file(&mut self, path: &Path) -> Result<usize> {
        let before = self.len();
        let open = |cause| Error::Open { path: path.into(), cause };
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(open)?);
        let head = file.fill_buf().map_err(|cause| Error::Read { path: path.into(), line: 0, cause })?;
        let gzip = head.starts_with(GZIP_MAGIC) || path.extension().is_some_and(|ending| ending == "gz");
        let mut reader: Box<dyn BufRead> =
            if gzip { Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))) } else { Box::new(file) };
        let mut bytes = Vec::new();
        loop {
            let line = self.len() - before;
            bytes.clear();
            let read = reader.read_until(b'\n', &mut bytes).map_err(|cause| broken(path, line, gzip, cause))?;
            if read == 0 {
                return Ok(line);
            }
            let text = std::str::from_utf8(&bytes).map_err(|error| Error::Encoding {
                path: path.into(),
                line: line + 1,
                byte: error.valid_up_to() + 1,
            })?;
            let text = text.strip_suffix('\n').unwrap_or(text);
            let text = text.strip_suffix('\r').unwrap_or(text);
            self.push(if line == 0 { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text });
        }
    }
}

/// Tells a damaged gzip file from a failing disk.
fn broken(path: &Path, line: usize, gzip: bool, cause: io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    let path = path.into();
    match cause.kind() {
        InvalidData | InvalidInput | UnexpectedEof if gzip => Error::Gzip { path, line, cause },
        _ => Error::Read { path, line, cause },
    }
}
