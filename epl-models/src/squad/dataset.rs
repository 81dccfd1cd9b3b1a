//! The file format of SQuAD v1.1.
//!
//! ```text
//! {"version": "1.1", "data": [
//!   {"title": ..., "paragraphs": [
//!     {"context": ..., "qas": [
//!       {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 17}, ...]}]}]}]}
//! ```
//!
//! `answer_start` counts characters of the context, not bytes. A file in which an answer is not where it says is
//! refused: training on a shifted answer gives a worse model and no error.

use std::collections::HashSet;
use std::path::Path;

use serde::Deserialize;

use super::characters::{find, slice};
use super::{Error, Result};

/// A SQuAD file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Squad {
    /// Its articles.
    #[serde(rename = "data")]
    pub articles: Vec<Article>,
}

/// An article: paragraphs under a title.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Article {
    /// Its title; empty if the file has none.
    #[serde(default)]
    pub title: String,
    /// Its paragraphs.
    pub paragraphs: Vec<Paragraph>,
}

/// A text and the questions about it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Paragraph {
    /// The text in which the answers are.
    pub context: String,
    /// The questions.
    #[serde(rename = "qas")]
    pub questions: Vec<Question>,
}

/// A question with the answers that people gave: one in the training file, several in the validation file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Question {
    /// What tells it from all other questions.
    pub id: String,
    /// The question itself.
    #[serde(rename = "question")]
    pub text: String,
    /// The answers. None is allowed as far as predictions go; training and scoring refuse it.
    #[serde(default)]
    pub answers: Vec<Answer>,
}

/// A stretch of the context.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Answer {
    /// The stretch.
    pub text: String,
    /// Its first character in the context, from 0.
    #[serde(rename = "answer_start")]
    pub start: usize,
}

impl Squad {
    /// Reads a file such as `train-v1.1.json`.
    ///
    /// # Errors
    /// [`Error::Open`] if there is no such file; otherwise as [`parse`](Self::parse).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|cause| Error::Open { path: path.into(), cause })?;
        Self::read(&bytes, path.display().to_string())
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// [`Error::Format`] if it has not the form of SQuAD, [`Error::DoubleId`], [`Error::EmptyAnswer`], and
    /// [`Error::Misplaced`] if an answer is not where it says.
    pub fn parse(json: &str) -> Result<Self> {
        Self::read(json.as_bytes(), "the text".into())
    }

    fn read(json: &[u8], name: String) -> Result<Self> {
        let squad: Self = serde_json::from_slice(json).map_err(|cause| Error::Format { name, cause })?;
        squad.check()?;
        Ok(squad)
    }

    /// All questions, each with its paragraph, in the order of the file.
    pub fn questions(&self) -> impl Iterator<Item = (&Paragraph, &Question)> {
        let paragraphs = self.articles.iter().flat_map(|article| &article.paragraphs);
        paragraphs.flat_map(|paragraph| paragraph.questions.iter().map(move |question| (paragraph, question)))
    }

    fn check(&self) -> Result<()> {
        let mut ids = HashSet::new();
        for article in &self.articles {
            for paragraph in &article.paragraphs {
                for question in &paragraph.questions {
                    if !ids.insert(&question.id) {
                        return Err(Error::DoubleId { article: article.title.clone(), id: question.id.clone() });
                    }
                    question.check(&article.title, &paragraph.context)?;
                }
            }
        }
        Ok(())
    }
}

impl Question {
    fn check(&self, article: &str, context: &str) -> Result<()> {
        for (index, answer) in self.answers.iter().enumerate() {
            if answer.text.is_empty() {
                return Err(Error::EmptyAnswer { article: article.into(), id: self.id.clone(), number: index + 1 });
            }
            if slice(context, answer.characters()) != Some(&answer.text) {
                return Err(self.misplaced(answer, article, context));
            }
        }
        Ok(())
    }

    fn misplaced(&self, answer: &Answer, article: &str, context: &str) -> Error {
        let characters = answer.characters();
        Error::Misplaced {
            article: article.into(),
            id: self.id.clone(),
            answer: answer.text.clone(),
            start: answer.start,
            found: context.chars().skip(characters.start).take(characters.len()).collect(),
            place: find(context, &answer.text),
        }
    }
}

impl Answer {
    /// The characters of the context that it covers.
    pub fn characters(&self) -> std::ops::Range<usize> {
        // A start near the largest number is misplaced in any text; it must not overflow before that is said.
        self.start..self.start.saturating_add(self.text.chars().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(context: &str, questions: &str) -> String {
        format!(
            r#"{{"version":"1.1","data":[{{"title":"Crabs","paragraphs":[{{"context":"{context}","qas":[{questions}]}}]}}]}}"#
        )
    }

    fn question(id: &str, answer: &str, start: u64) -> String {
        format!(r#"{{"id":"{id}","question":"Who?","answers":[{{"text":"{answer}","answer_start":{start}}}]}}"#)
    }

    fn message(context: &str, questions: &str) -> String {
        Squad::parse(&file(context, questions)).unwrap_err().to_string()
    }

    #[test]
    fn answers_are_placed_by_characters() {
        // Eight bytes, but four characters, stand before the answer; the crab is a pair of escapes, as Python writes.
        let squad = Squad::parse(&file(r"é \ud83e\udd80 Ada came.", &question("q", "Ada", 4))).unwrap();
        let (paragraph, found) = squad.questions().next().unwrap();
        assert_eq!(paragraph.context, "é 🦀 Ada came.");
        assert_eq!((found.text.as_str(), found.answers[0].characters()), ("Who?", 4..7));
        assert_eq!(squad.articles[0].title, "Crabs");
    }

    #[test]
    fn a_misplaced_answer_is_named() {
        let said = message("é 🦀 Ada came.", &question("q7", "Ada", 8));
        assert!(said.contains(r#"article "Crabs", question "q7": the answer "Ada" is not at character 8"#), "{said}");
        assert!(said.contains(r#"where there is "cam"; it first occurs at 4"#), "{said}");
        let said = message("Ada came.", &question("q7", "Bob", 0));
        assert!(said.contains(r#"there is "Ada"; the context has it nowhere"#), "{said}");
        let said = message("Ada came.", &question("q7", "Ada", u64::MAX));
        assert!(said.contains(r#"where there is """#), "{said}");
        let said = message("Ada came.", &question("q7", "came.", 4).replace("came.", "came. "));
        assert!(said.contains(r#"where there is "came.""#), "{said}");
    }

    #[test]
    fn files_of_another_form_are_refused() {
        let said = message("Ada came.", &question("q7", "", 0));
        assert!(said.contains(r#"question "q7": answer 1 is empty"#), "{said}");
        let twice = [question("q", "Ada", 0), question("q", "came", 4)].join(",");
        assert!(message("Ada came.", &twice).contains(r#"the id "q" belongs to two questions"#));
        let said = Squad::parse(r#"{"version":"1.1"}"#).unwrap_err().to_string();
        assert!(said.contains("the text is not SQuAD v1.1: missing field `data`"), "{said}");
        let said = message("Ada", r#"{"id":"q","question":"Who?","answers":[{"text":"Ada","answer_start":-1}]}"#);
        assert!(said.contains("-1") && said.contains("line 1 column"), "{said}");
        let said = Squad::load("no/such/file.json").unwrap_err().to_string();
        assert!(said.starts_with("cannot open no/such/file.json"), "{said}");
    }

    #[test]
    fn a_question_may_be_without_answers() {
        let squad = Squad::parse(&file("Ada came.", r#"{"id":"q","question":"Who?"}"#)).unwrap();
        assert!(squad.questions().all(|(_, question)| question.answers.is_empty()));
    }
}
