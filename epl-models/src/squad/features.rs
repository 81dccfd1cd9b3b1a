//! Questions and contexts as the rows that BERT reads.
//!
//! ```text
//! row           [CLS]  q1 q2 .. [SEP]  c1 c2 c3 c4 .. [SEP]  [PAD] ..
//! token types     0     0  0      0     1  1  1  1      1      0
//! answer                                   ^start ^end
//! ```
//!
//! A context that is too long for a row becomes several (see [`windows`]). In a row without the whole answer, start
//! and end are 0, the `[CLS]`. Of a question's answers, the first is learned.

use std::ops::Range;
use std::sync::Arc;

use burn::config::Config;

use super::dataset::{Paragraph, Question, Squad};
use super::windows::windows;
use super::{Error, Pieces, Result, WordPiece};

/// How rows are made; by default as BERT does.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub struct FeaturesConfig {
    /// Tokens in the longest row. Default: 384
    #[config(default = 384)]
    pub length: usize,
    /// Pieces of the context from the start of one window to that of the next. Default: 128
    #[config(default = 128)]
    pub stride: usize,
    /// Pieces of a question that are read; the rest is cut off, as `run_squad` does. Default: 64
    #[config(default = 64)]
    pub longest_question: usize,
}

impl FeaturesConfig {
    /// The features of all questions, in the order of the file. A paragraph is cut into pieces once.
    ///
    /// # Errors
    /// [`Error::Zero`] and [`Error::Length`] if the settings leave no room, [`Error::EmptyContext`].
    pub fn features(&self, tokenizer: &WordPiece, squad: &Squad) -> Result<Vec<Features>> {
        self.check()?;
        let mut features = Vec::new();
        for paragraph in squad.articles.iter().flat_map(|article| &article.paragraphs) {
            let context = Arc::new(Context::new(tokenizer, paragraph)?);
            for question in &paragraph.questions {
                features.push(self.question(tokenizer, question, &context)?);
            }
        }
        Ok(features)
    }

    fn check(&self) -> Result<()> {
        if self.stride == 0 {
            return Err(Error::Zero { name: "the stride between windows", usual: 128 });
        }
        // Checked for the longest question, so that no question of a long file is the first to fail.
        if self.length < self.longest_question.saturating_add(4) {
            return Err(Error::Length { length: self.length, longest_question: self.longest_question });
        }
        Ok(())
    }

    fn question(&self, tokenizer: &WordPiece, question: &Question, context: &Arc<Context>) -> Result<Features> {
        let pieces = tokenizer.encode(&question.text)?;
        let read = &pieces.ids()[..pieces.len().min(self.longest_question)];
        let head = [&[tokenizer.cls()], read, &[tokenizer.sep()]].concat();
        let windows = windows(context.pieces.len(), self.length - head.len() - 1, self.stride);
        let answer = question.answers.first().and_then(|answer| context.pieces.touching(&answer.characters()));
        Ok(Features { id: question.id.clone(), context: context.clone(), head, sep: tokenizer.sep(), windows, answer })
    }
}

/// A question with all windows of its context.
#[derive(Clone, Debug)]
pub struct Features {
    id: String,
    context: Arc<Context>,
    /// `[CLS]`, the question, `[SEP]`.
    head: Vec<i64>,
    sep: i64,
    windows: Vec<Range<usize>>,
    answer: Option<Range<usize>>,
}

/// What the questions of a paragraph share.
#[derive(Debug)]
struct Context {
    text: String,
    pieces: Pieces,
}

impl Context {
    fn new(tokenizer: &WordPiece, paragraph: &Paragraph) -> Result<Self> {
        let pieces = tokenizer.encode(&paragraph.context)?;
        match paragraph.questions.first() {
            Some(question) if pieces.is_empty() => Err(Error::EmptyContext { id: question.id.clone() }),
            _ => Ok(Self { text: paragraph.context.clone(), pieces }),
        }
    }
}

/// One window as BERT reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Pieces by number.
    pub ids: Vec<i64>,
    /// 0 for the question and padding, 1 for the context and its `[SEP]`.
    pub token_types: Vec<i64>,
    /// Tokens without padding: the model looks at these only.
    pub tokens: usize,
}

impl Row {
    /// Fills the row up to a length.
    ///
    /// # Errors
    /// [`Error::Padding`] if the row is longer already.
    pub fn padded(mut self, length: usize, pad: i64) -> Result<Self> {
        if length < self.ids.len() {
            return Err(Error::Padding { tokens: self.ids.len(), length });
        }
        self.ids.resize(length, pad);
        self.token_types.resize(length, 0);
        Ok(self)
    }
}

impl Features {
    /// The question.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The text with the answer.
    pub fn context(&self) -> &str {
        &self.context.text
    }

    /// The pieces of the context.
    pub fn pieces(&self) -> &Pieces {
        &self.context.pieces
    }

    /// Which pieces of the context each window has: one or more.
    pub fn windows(&self) -> &[Range<usize>] {
        &self.windows
    }

    /// The pieces of the context that the first answer touches; none without answer, or if it has no piece.
    pub fn answer(&self) -> Option<Range<usize>> {
        self.answer.clone()
    }

    /// The token at which the context begins, in every row of this question.
    pub fn context_at(&self) -> usize {
        self.head.len()
    }

    /// A window as a row without padding.
    ///
    /// # Errors
    /// [`Error::NoWindow`].
    pub fn row(&self, window: usize) -> Result<Row> {
        let pieces = self.window(window)?;
        let context = self.pieces().ids()[pieces].iter().copied();
        let ids: Vec<i64> = self.head.iter().copied().chain(context).chain([self.sep]).collect();
        let token_types = (0..ids.len()).map(|token| i64::from(token >= self.context_at())).collect();
        Ok(Row { tokens: ids.len(), ids, token_types })
    }

    /// The first and the last token of the answer in a row; (0, 0) if the window has not all of it.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if there is none to learn, [`Error::NoWindow`].
    pub fn positions(&self, window: usize) -> Result<(usize, usize)> {
        let pieces = self.window(window)?;
        let answer = self.answer().ok_or_else(|| Error::NoAnswer { id: self.id.clone() })?;
        if answer.start < pieces.start || pieces.end < answer.end {
            return Ok((0, 0));
        }
        let token = |piece: usize| self.context_at() + piece - pieces.start;
        Ok((token(answer.start), token(answer.end - 1)))
    }

    fn window(&self, window: usize) -> Result<Range<usize>> {
        let windows = self.windows.len();
        self.windows.get(window).cloned().ok_or_else(|| Error::NoWindow { id: self.id.clone(), windows, window })
    }
}

#[cfg(test)]
mod tests;
