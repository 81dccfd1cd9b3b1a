use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::text::{Error, Result};

/// The first two bytes of every gzip file.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

/// Reads a UTF-8 file line by line: what is not read takes no memory.
///
/// A file whose name ends in `.gz`, or that starts like gzip, is unpacked (several gzip members in a row are one text). Lines end
/// with `\n` or `\r\n`; no other character ends a line. A byte order mark at the start of the file is left out.
pub struct LineReader {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    is_gzip: bool,
    /// Lines that were read.
    number: usize,
    line: String,
}

impl LineReader {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Read`].
    pub fn open(path: &Path) -> Result<Self> {
        let open = |cause| Error::Open { path: path.into(), cause };
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(open)?);
        let head = file.fill_buf().map_err(|cause| Error::Read { path: path.into(), line: 0, cause })?;
        let is_gzip = head.starts_with(GZIP_MAGIC) || path.extension().is_some_and(|ending| ending == "gz");
        let unpacked = |file| BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file));
        let reader: Box<dyn BufRead + Send> = if is_gzip { Box::new(unpacked(file)) } else { Box::new(file) };
        Ok(Self { path: path.into(), reader, is_gzip, number: 0, line: String::new() })
    }

    /// How many lines were read: the number of the last one, from one.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The next line, without its end; none at the end of the file.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Gzip`], [`Error::Encoding`].
    pub fn next_line(&mut self) -> Result<Option<&str>> {
        // The memory of the line before is used again.
        let mut bytes = core::mem::take(&mut self.line).into_bytes();
        bytes.clear();
        let read = self.reader.read_until(b'\n', &mut bytes);
        if read.map_err(|cause| broken(&self.path, self.number, self.is_gzip, cause))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.line = String::from_utf8(bytes).map_err(|error| Error::Encoding {
            path: self.path.clone(),
            line: self.number,
            byte: error.utf8_error().valid_up_to() + 1,
        })?;
        Ok(Some(self.line()))
    }

    /// The line that was read last.
    fn line(&self) -> &str {
        let text = self.line.strip_suffix('\n').unwrap_or(&self.line);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if self.number == 1 { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text }
    }
}

impl std::fmt::Debug for LineReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} behind line {}", self.path.display(), self.number)
    }
}

/// Tells a damaged gzip file from a failing disk.
fn broken(path: &Path, line: usize, is_gzip: bool, cause: io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    let path = path.into();
    match cause.kind() {
        InvalidData | InvalidInput | UnexpectedEof if is_gzip => Error::Gzip { path, line, cause },
        _ => Error::Read { path, line, cause },
    }
}
