//! `predictions.json` and `nbest_predictions.json`, in the form in which BERT's `run_squad` writes them, so that the
//! official `evaluate-v1.1.py` reads the first as it is.
//!
//! ```text
//! predictions.json          {id: text}
//! nbest_predictions.json    {id: [{text, probability, start_logit, end_logit}, ...]}      the best first
//! ```
//!
//! Questions stand in the order in which they were added. Only ASCII is written (`é` is `\u00e9`): the official
//! script opens the file in whatever encoding the machine prefers.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use epl_core::checkpoint::durable::{Disk, FileSystem, Unpublished};
use serde::ser::{Serialize, Serializer};
use serde_json::ser::PrettyFormatter;

use super::{Error, RankedAnswer, Result};

/// The file with one text for each question.
const PREDICTIONS: &str = "predictions.json";

/// The file with the ranked answers to each question.
const NBEST: &str = "nbest_predictions.json";

/// The answers to many questions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predictions {
    answers: Vec<(String, Vec<RankedAnswer>)>,
    places: HashMap<String, usize>,
}

impl Predictions {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the answers to a question, the best first, as [`AnswersConfig::ranked`](super::AnswersConfig::ranked)
    /// gives them. Without any, the question stays unanswered.
    ///
    /// # Errors
    /// [`Error::DoublePrediction`], [`Error::Number`] if a number is not finite.
    pub fn add(&mut self, id: impl Into<String>, ranked: Vec<RankedAnswer>) -> Result<()> {
        let id = id.into();
        if self.places.contains_key(&id) {
            return Err(Error::DoublePrediction { id });
        }
        for (index, answer) in ranked.iter().enumerate() {
            if let Some((name, value)) = answer.unwritable() {
                return Err(Error::Number { id, number: index + 1, name, value });
            }
        }
        if !ranked.is_empty() {
            self.places.insert(id.clone(), self.answers.len());
            self.answers.push((id, ranked));
        }
        Ok(())
    }

    /// How many questions have an answer.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether no question has one.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// The best answer to a question.
    pub fn text(&self, id: &str) -> Option<&str> {
        self.ranked(id)?.first().map(|best| best.text.as_str())
    }

    /// All answers to a question, the best first.
    pub fn ranked(&self, id: &str) -> Option<&[RankedAnswer]> {
        self.places.get(id).map(|&place| self.answers[place].1.as_slice())
    }

    /// Writes both files into a folder that exists, in place of those of another run. When that fails or is stopped, what is
    /// there is whole and of one run, though `nbest_predictions.json` may be missing.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.replace(folder.as_ref()).map_err(|cause| Error::Write { cause: Box::new(cause) })
    }

    fn replace(&self, folder: &Path) -> epl_core::Result<()> {
        let written =
            |name: &str, content: String| Unpublished::write(&folder.join(name), |write| write(content.as_bytes()));
        let (best, ranked) = (written(PREDICTIONS, self.to_json())?, written(NBEST, self.to_nbest_json())?);
        // Two names cannot change at once; so one of the old files goes before the other is replaced.
        let old = folder.join(NBEST);
        let removed = match FileSystem.remove_file(&old) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(cause),
            Ok(()) => FileSystem.sync_folder(folder),
        };
        removed.map_err(|cause| epl_core::Error::file(&old, cause))?;
        best.publish()?;
        ranked.publish()
    }

    /// The content of `predictions.json`.
    pub fn to_json(&self) -> String {
        let best = self.answers.iter().filter_map(|(id, ranked)| Some((id, &ranked.first()?.text)));
        json(&InOrder(best.collect()))
    }

    /// The content of `nbest_predictions.json`.
    pub fn to_nbest_json(&self) -> String {
        json(&InOrder(self.answers.iter().map(|(id, ranked)| (id, ranked)).collect()))
    }
}

impl RankedAnswer {
    /// A number that JSON cannot hold.
    fn unwritable(&self) -> Option<(&'static str, f64)> {
        let numbers =
            [("probability", self.probability), ("start_logit", self.start_logit), ("end_logit", self.end_logit)];
        numbers.into_iter().find(|(_, value)| !value.is_finite())
    }
}

/// A JSON object whose keys keep their order.
struct InOrder<'a, T>(Vec<(&'a String, &'a T)>);

impl<T: Serialize> Serialize for InOrder<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

/// Four spaces a level and a line feed at the end, as `run_squad` writes.
fn json(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b"    "));
    value.serialize(&mut serializer).expect("texts and numbers have a JSON form, and memory takes it");
    let text = String::from_utf8(bytes).expect("JSON is UTF-8");
    ascii(&text) + "\n"
}

/// The same JSON with `\u` escapes for every other character than ASCII: these are in its strings only.
fn ascii(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter.is_ascii() {
            escaped.push(letter);
        } else {
            escaped.extend(letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, probability: f64) -> RankedAnswer {
        RankedAnswer { text: text.into(), probability, start_logit: 1.5, end_logit: -2.0 }
    }

    fn two() -> Predictions {
        let mut predictions = Predictions::new();
        predictions.add("z", vec![answer("Zo\u{eb} \"\u{1f980}\"\n", 0.75), answer("b", 0.25)]).unwrap();
        predictions.add("none", Vec::new()).unwrap();
        predictions.add("a", vec![answer("c", 1.0)]).unwrap();
        predictions
    }

    #[test]
    fn files_are_written_as_by_the_official_program() {
        let expected = "{\n    \"z\": \"Zo\\u00eb \\\"\\ud83e\\udd80\\\"\\n\",\n    \"a\": \"c\"\n}\n";
        assert_eq!(two().to_json(), expected);
        assert_eq!(Predictions::new().to_json(), "{}\n");
        let mut one = Predictions::new();
        one.add("a", vec![answer("c", 1.0)]).unwrap();
        let expected = r#"{
    "a": [
        {
            "text": "c",
            "probability": 1.0,
            "start_logit": 1.5,
            "end_logit": -2.0
        }
    ]
}
"#;
        assert_eq!(one.to_nbest_json(), expected);
    }

    #[test]
    fn saved_files_hold_the_same_texts() {
        let folder = tempfile::tempdir().unwrap();
        two().save(folder.path()).unwrap();
        let read = |name: &str| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(folder.path().join(name)).unwrap()).unwrap()
        };
        let (best, ranked) = (read("predictions.json"), read("nbest_predictions.json"));
        assert_eq!(best, serde_json::json!({"z": "Zo\u{eb} \"\u{1f980}\"\n", "a": "c"}));
        assert_eq!((ranked["z"][1]["text"].as_str(), ranked["z"].as_array().unwrap().len()), (Some("b"), 2));
        assert!(two().save(folder.path().join("none")).unwrap_err().to_string().contains("predictions.json"));
    }

    /// A disk that is full, or a kill, leaves no half of a file; and not one file of this run and one of another.
    #[test]
    fn both_files_are_of_one_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        two().save(folder.path()).unwrap();
        let before = two().to_json();
        std::fs::hard_link(path(PREDICTIONS), path("before.json")).unwrap();
        let mut one = Predictions::new();
        one.add("a", vec![answer("other", 1.0)]).unwrap();
        one.save(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(path("before.json")).unwrap(), before, "it is not written to");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        // The second file cannot be written.
        std::fs::remove_file(path(NBEST)).unwrap();
        std::fs::create_dir(path(NBEST)).unwrap();
        assert!(two().save(folder.path()).unwrap_err().to_string().contains(NBEST));
        assert_eq!(std::fs::read_to_string(path(PREDICTIONS)).unwrap(), one.to_json());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_question_is_answered_once() {
        let mut predictions = two();
        assert_eq!((predictions.len(), predictions.is_empty()), (2, false));
        assert_eq!((predictions.text("a"), predictions.text("none")), (Some("c"), None));
        assert_eq!(predictions.ranked("z").map(<[_]>::len), Some(2));
        let said = predictions.add("a", vec![answer("d", 1.0)]).unwrap_err().to_string();
        assert!(said.contains(r#"question "a" already has a prediction"#), "{said}");
        let said = predictions.add("e", vec![answer("d", 1.0), answer("e", f64::NAN)]).unwrap_err().to_string();
        assert!(said.contains(r#"question "e": the probability of answer 2 is NaN"#), "{said}");
        assert_eq!(predictions.text("e"), None);
    }
}
