//! All ranks go on together, or leave together with an error.

use std::hash::{DefaultHasher, Hash, Hasher};

use epl_comm::ProcessGroup;
use epl_core::{Axis, Context, Error, Result};

use super::config::GenerationConfig;
use crate::rows::is_token;

/// Checks prompts and settings for a model of so many tokens, with its [`longest_text`](super::Generative::longest_text): what
/// [`generate`](super::generate) checks first, for who wants to know before weights are read. Not collective.
///
/// # Errors
///
/// The first thing that cannot be, with the remedy.
pub fn check(
    prompts: &[Vec<i64>],
    config: &GenerationConfig,
    (vocabulary, longest): (usize, Option<usize>),
) -> Result<()> {
    config.validate()?;
    let too_long = || longest.and_then(|longest| too_long(prompts, config.longest, longest));
    let fault = unknown_stop(&config.stop, vocabulary).or_else(|| fault(prompts, vocabulary)).or_else(too_long);
    fault.map_or(Ok(()), |fault| Err(Error::invalid(fault)))
}

/// Compares what ranks are asked for: the number of this rank's first prompt over all replicas. Collective.
pub(super) fn agree(
    context: &Context,
    (prompts, vocabulary, longest): (&[Vec<i64>], usize, Option<usize>),
    config: &GenerationConfig,
) -> Result<u64> {
    let world = context.world();
    let others = [context.tensor(), context.axis(Axis::Pipeline)].map(|group| other_prompts(group, prompts));
    let [in_slices, in_stages] = others;
    let own = check(prompts, config, (vocabulary, longest)).err().map(|error| error.to_string());
    let fault = own.or(in_slices?).or(in_stages?);
    let (longest, settings) = (config.longest as i64, hashed(&config.to_string()));
    let asked = world.all_gather_counts(&[i64::from(fault.is_some()), longest, settings])?;
    if let Some(other) = asked.iter().position(|asked| asked[0] != 0) {
        // The rank at fault says why.
        let elsewhere = || format!("{} was given prompts or settings that cannot be used", world.global(other));
        return Err(Error::invalid(fault.unwrap_or_else(elsewhere)));
    }
    if let Some(other) = asked.iter().position(|other| other[1..] != asked[0][1..]) {
        let (first, other_rank) = (world.global(0), world.global(other));
        return Err(Error::invalid(match asked[other][1] == asked[0][1] {
            true => format!(
                "{first} and {other_rank} were given different settings of a generation; give every rank the same"
            ),
            false => format!(
                "{first} generates at most {} tokens, but {other_rank} at most {}: give every rank the same `longest`",
                asked[0][1] as u64, asked[other][1] as u64
            ),
        }));
    }
    let data = context.data();
    let counts = data.all_gather_counts(&[prompts.len() as i64])?;
    Ok(counts[..data.rank()].iter().map(|count| count[0] as u64).sum())
}

fn hashed(value: &impl Hash) -> i64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish() as i64
}

/// What is wrong if ranks that hold parts of one replica have different prompts. Collective over them.
fn other_prompts(group: &ProcessGroup, prompts: &[Vec<i64>]) -> Result<Option<String>> {
    let hashes = group.all_gather_counts(&[hashed(&prompts)])?;
    let other = hashes.iter().position(|hash| *hash != hashes[0]);
    Ok(other.map(|member| {
        let (first, other) = (group.global(0), group.global(member));
        format!("{first} and {other} hold parts of one replica, but were given different prompts")
    }))
}

/// What is wrong if a prompt and what is written behind it are longer than a model reads. What is written last, nothing reads.
fn too_long(prompts: &[Vec<i64>], written: usize, positions: usize) -> Option<String> {
    let read = |prompt: &Vec<i64>| prompt.len().saturating_add(written.saturating_sub(1));
    let row = prompts.iter().position(|prompt| read(prompt) > positions)?;
    let tokens = prompts[row].len();
    let remedy = match positions.saturating_add(1).checked_sub(tokens).filter(|room| *room > 0) {
        Some(room) => format!("give a `longest` of at most {room}, or a shorter prompt"),
        None => "give a shorter prompt".to_string(),
    };
    Some(format!(
        "prompt {row} has {tokens} tokens, and {written} may be written behind it; the model has {positions} positions for all \
         but the last: {remedy}"
    ))
}

/// What is wrong with the tokens that are to end a text.
fn unknown_stop(stop: &[i64], vocabulary: usize) -> Option<String> {
    let token = stop.iter().find(|token| !is_token(**token, vocabulary))?;
    Some(format!(
        "`stop` has token {token}, which is never written; the tokens are 0 to {}: leave it out, or give the one that the \
         tokenizer has",
        vocabulary - 1
    ))
}

/// What is wrong with this rank's prompts.
fn fault(prompts: &[Vec<i64>], vocabulary: usize) -> Option<String> {
    let known = |token: &i64| is_token(*token, vocabulary);
    let (row, prompt) = prompts.iter().enumerate().find(|(_, row)| row.is_empty() || !row.iter().all(known))?;
    Some(match prompt.iter().find(|token| !known(token)) {
        Some(token) => format!("prompt {row} has token {token}; the tokens are 0 to {}", vocabulary - 1),
        None => format!("prompt {row} has no token; give it at least one, such as the end token"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_that_is_written_last_needs_no_position() {
        let prompts = [vec![1; 3], vec![1; 1023]];
        assert_eq!(too_long(&prompts, 2, 1024), None);
        assert_eq!(too_long(&[vec![1; 1024]], 1, 1024), None);
        let told = too_long(&prompts, 3, 1024).unwrap();
        assert!(told.starts_with("prompt 1 has 1023 tokens, and 3 may be written") && told.contains("1024 positions"));
        assert!(told.contains("a `longest` of at most 2"), "{told}");
        assert!(too_long(&prompts, usize::MAX, 1024).unwrap().starts_with("prompt 0 has 3 tokens"));
        let told = too_long(&[vec![1; 1025]], 1, 1024).unwrap();
        assert!(told.ends_with("the last: give a shorter prompt"), "{told}");
    }

    #[test]
    fn tokens_that_are_none_of_the_model_do_not_end_a_text() {
        assert_eq!(unknown_stop(&[0, 9], 10), None);
        for token in [10, -1] {
            let told = unknown_stop(&[3, token], 10).unwrap();
            assert!(told.contains(&format!("`stop` has token {token}")) && told.contains("are 0 to 9"), "{told}");
        }
    }
}
