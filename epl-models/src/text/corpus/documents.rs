use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use std::{fs, io};

use serde_json::Value;

use super::LineReader;
use crate::text::{Error, Result};

/// How documents stand in a text file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentForm {
    /// One a line. Lines without a character but spaces are none.
    Lines,
    /// Lines up to an empty one (or one of spaces alone), which keep their ends between them.
    Paragraphs,
    /// A JSON object a line, whose text is the string of this field, as Megatron's `preprocess_data` reads it: `{"text": "…"}`.
    Json {
        /// The field.
        field: String,
    },
}

/// A text that belongs together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The text.
    pub text: String,
    /// The file that it is from, and the line that it begins at, from one; none where it is from no file.
    pub place: Option<(Arc<Path>, usize)>,
}

impl From<String> for Document {
    fn from(text: String) -> Self {
        Self { text, place: None }
    }
}

/// The documents of text files, plain or gzip, one after the other, read as they are asked for ([`LineReader`] says how).
///
/// Behind an error comes nothing more.
#[derive(Debug)]
pub struct Documents {
    /// With what is open already of those that can be read once only.
    files: std::vec::IntoIter<(PathBuf, Option<LineReader>)>,
    form: DocumentForm,
    reader: Option<(LineReader, Arc<Path>)>,
}

impl Documents {
    /// The documents of these files, all of which can be opened now. They may be pipes, too.
    ///
    /// # Errors
    /// [`Error::NoFile`] without a file; [`Error::Open`], [`Error::Read`].
    pub fn open(files: Vec<PathBuf>, form: DocumentForm) -> Result<Self> {
        if files.is_empty() {
            return Err(Error::NoFile);
        }
        let open = |file: PathBuf| {
            let reader = LineReader::open(&file)?;
            // What came through a pipe does not come again. Of files more may be given than can be open at a time.
            let is_file = fs::metadata(&file).is_ok_and(|about| about.is_file());
            Ok((file, (!is_file).then_some(reader)))
        };
        let files = files.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        Ok(Self { files: files.into_iter(), form, reader: None })
    }

    /// What tells files from others without reading them: their places, sizes, and when they were changed.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn identities(files: &[PathBuf]) -> Result<Vec<String>> {
        let identity = |file: &PathBuf| -> io::Result<String> {
            let (path, about) = (fs::canonicalize(file)?, fs::metadata(file)?);
            let changed = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok(format!("{} of {} bytes, {changed:?}", path.display(), about.len()))
        };
        let open = |file: &PathBuf| identity(file).map_err(|cause| Error::Open { path: file.clone(), cause });
        files.iter().map(open).collect()
    }

    /// The next document, in this file or a later one.
    fn find(&mut self) -> Result<Option<Document>> {
        loop {
            let Some((reader, path)) = &mut self.reader else {
                let Some((file, open)) = self.files.next() else { return Ok(None) };
                let reader = open.map_or_else(|| LineReader::open(&file), Ok)?;
                self.reader = Some((reader, file.into()));
                continue;
            };
            let found = match self.form {
                DocumentForm::Paragraphs => paragraph(reader)?,
                DocumentForm::Lines | DocumentForm::Json { .. } => line(reader)?,
            };
            let Some((text, line)) = found else {
                self.reader = None;
                continue;
            };
            let text = match &self.form {
                DocumentForm::Json { field } => {
                    of_json(&text, field).map_err(|cause| Error::Record { path: path.to_path_buf(), line, cause })?
                }
                DocumentForm::Lines | DocumentForm::Paragraphs => text,
            };
            return Ok(Some(Document { text, place: Some((path.clone(), line)) }));
        }
    }
}

/// The next line that has more than spaces, and its number.
fn line(reader: &mut LineReader) -> Result<Option<(String, usize)>> {
    while let Some(line) = reader.next_line()? {
        if !line.trim().is_empty() {
            let line = line.to_string();
            return Ok(Some((line, reader.number())));
        }
    }
    Ok(None)
}

/// The next lines up to an empty one, and the number of the first.
fn paragraph(reader: &mut LineReader) -> Result<Option<(String, usize)>> {
    let Some((mut text, begin)) = line(reader)? else { return Ok(None) };
    while let Some(line) = reader.next_line()?.filter(|line| !line.trim().is_empty()) {
        text.push('\n');
        text.push_str(line);
    }
    Ok(Some((text, begin)))
}

/// The text of an object's field, or what is wrong.
fn of_json(line: &str, field: &str) -> Result<String, String> {
    let object: Value =
        serde_json::from_str(line).map_err(|error| format!("not JSON: {error}; give one object a line"))?;
    match object {
        Value::Object(mut fields) => match fields.remove(field) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(format!("its field \"{field}\" is no string; name one that is, or mend the line")),
            None if fields.is_empty() => {
                Err(format!("the object has no field at all; give it \"{field}\", or leave the line out"))
            }
            None => {
                let found = fields.keys().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(", ");
                Err(format!("the object has no field \"{field}\", but {found}; name the one with the text"))
            }
        },
        _ => Err(format!("it is no object; give one a line, such as {{\"{field}\": \"…\"}}")),
    }
}

impl Iterator for Documents {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find();
        if found.is_err() {
            (self.files, self.reader) = (Vec::new().into_iter(), None);
        }
        found.transpose()
    }
}
