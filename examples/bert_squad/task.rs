//! What is learned: questions as rows of tokens, and how predictions are scored.

use std::error::Error;

use burn::tensor::TensorData;
use epl::models::bert::BertItem;
use epl::models::squad::{
    AnswersConfig, Error as SquadError, Features, Logits, Predictions, Squad, SquadScore, Vocabulary, WordPiece,
};
use epl::trainer::fingerprint;

use crate::args::Args;

/// A row, and the first and last token of the answer in it.
pub type Row = BertItem<(usize, usize)>;

/// Questions to learn and to predict.
pub struct Task {
    pub tokenizer: WordPiece,
    pub vocabulary: Vocabulary,
    pub train: Questions,
    /// None: those that were learned.
    valid: Option<Questions>,
}

/// The questions of a file, and the rows that they make.
pub struct Questions {
    squad: Squad,
    features: Vec<Features>,
    pub rows: Vec<Row>,
}

impl Task {
    /// Reads the questions, and reads or learns the vocabulary.
    pub fn prepare(args: &Args) -> Result<Self, Box<dyn Error>> {
        let squad = match &args.data {
            Some(file) => Squad::load(file)?,
            None => Squad::parse(include_str!("../../fixtures/squad/sample.json"))?,
        };
        let vocabulary = match &args.vocab {
            Some(file) => Vocabulary::load(file)?,
            None => Vocabulary::learn(texts(&squad), args.pieces)?,
        };
        let tokenizer = WordPiece::new(vocabulary.clone())?;
        let train = Questions::new(args, &tokenizer, squad)?;
        let valid = args.valid.as_ref().map(|file| Questions::new(args, &tokenizer, Squad::load(file)?)).transpose()?;
        let task = Self { tokenizer, vocabulary, train, valid };
        println!(
            "{} questions to learn in {} rows, {} to predict in {}, {} pieces",
            task.train.features.len(),
            task.train.rows.len(),
            task.predicted().features.len(),
            task.predicted().rows.len(),
            task.tokenizer.vocab_size()
        );
        Ok(task)
    }

    /// What is predicted.
    pub fn predicted(&self) -> &Questions {
        self.valid.as_ref().unwrap_or(&self.train)
    }
}

fn texts(squad: &Squad) -> impl Iterator<Item = &str> {
    let contexts = squad.articles.iter().flat_map(|article| &article.paragraphs).map(|paragraph| &*paragraph.context);
    contexts.chain(squad.questions().map(|(_, question)| &*question.text))
}

impl Questions {
    fn new(args: &Args, tokenizer: &WordPiece, squad: Squad) -> Result<Self, SquadError> {
        let features = args.features().features(tokenizer, &squad)?;
        let row = |features: &Features, window: usize| -> Result<Row, SquadError> {
            let row = features.row(window)?;
            Ok(BertItem::new(row.ids, row.token_types, features.positions(window)?))
        };
        let windows = |features: &Features| 0..features.windows().len();
        let rows = features.iter().flat_map(|features| windows(features).map(|window| row(features, window)));
        Ok(Self { rows: rows.collect::<Result<_, _>>()?, features, squad })
    }

    /// What tells these rows from others: a run does not go on with other ones.
    pub fn fingerprint(&self) -> String {
        let bytes = |row: &Row| -> Vec<u8> {
            let (start, end) = row.label;
            let lengths = [row.tokens, start, end].map(|number| number as i64);
            let numbers = lengths.iter().chain(&row.ids).chain(&row.token_types);
            numbers.flat_map(|number| number.to_le_bytes()).collect()
        };
        fingerprint(self.rows.iter().map(bytes))
    }

    /// The answers that the logits of start and end say, of all tokens of all rows, and what they are worth.
    pub fn answered(&self, logits: &TensorData) -> Result<(Predictions, SquadScore), SquadError> {
        let values: Vec<f32> = logits.iter::<f32>().collect();
        let (start, end): (Vec<f32>, Vec<f32>) = values.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
        let (mut predictions, mut rows, mut at) = (Predictions::new(), self.rows.iter(), 0);
        for features in &self.features {
            let mut windows = Vec::new();
            for row in rows.by_ref().take(features.windows().len()) {
                let tokens = at..(at + row.tokens).min(start.len());
                at = tokens.end;
                windows.push(Logits { start: &start[tokens.clone()], end: &end[tokens] });
            }
            predictions.add(features.id(), AnswersConfig::new().ranked(features, &windows)?)?;
        }
        let score = SquadScore::of(&self.squad, &predictions)?;
        Ok((predictions, score))
    }
}
