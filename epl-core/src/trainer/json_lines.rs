//! Files with one JSON object a line, which a crash may have left with half a line at their end.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The objects of a file; none if there is no file. A last line that is cut off is left out.
///
/// # Errors
///
/// When the file cannot be read, or another line is not an object: it is no file of ours.
pub fn read(path: &Path) -> Result<Vec<Map<String, Value>>> {
    read_to(path, |_| false)
}

/// The same up to the first object that is the last one to be read: what follows may be anything.
///
/// # Errors
///
/// As [`read`], of a line up to there.
pub fn read_to(path: &Path, is_last: impl Fn(&Map<String, Value>) -> bool) -> Result<Vec<Map<String, Value>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file(path, error)),
    };
    let mut objects = Vec::new();
    let mut broken = None;
    for (number, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(|error| Error::file(path, error))?;
        if let Some((number, cause)) = broken {
            return Err(Error::file(path, format!("line {number} is not a JSON object: {cause}")));
        }
        match serde_json::from_slice(&line) {
            Ok(object) => {
                let ends = is_last(&object);
                objects.push(object);
                if ends {
                    break;
                }
            }
            Err(cause) => broken = Some((number + 1, cause)),
        }
    }
    Ok(objects)
}
