//! Whether a worker failed by itself, or because another one had.

use std::time::{Duration, Instant};

use epl_launch::rendezvous::Client;
use epl_launch::{Error, Store};

use crate::spec::Ending;

/// The key of the worker whose program was the first to fail, as programs that meet were told.
pub(crate) const FIRST: &str = "the first program that fails";
/// The key of what the user has said that must be the same on all machines.
pub(crate) const TERMS: &str = "what machines are given";
/// How long programs that know of a failure may take to end by themselves.
pub(crate) const AFTER_WORDS: Duration = Duration::from_secs(2);
/// How long it may take to be known which program was the first, once one has ended badly.
const FIRST_IS_KNOWN: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(20);

/// The end of a worker that is told of a failure.
pub(crate) fn released(error: &Error) -> Ending {
    match error {
        Error::Worker { worker, cause } => Ending::Released { worker: Some(*worker), cause: cause.clone() },
        other => Ending::Released { worker: None, cause: other.to_string() },
    }
}

/// The end of a worker whose launcher was given something else than one that came before.
pub(crate) fn unlike(client: &Client, own: &str, error: &Error) -> Ending {
    if client.failure().is_some() {
        return released(error);
    }
    let other = client.get(TERMS, Duration::ZERO).unwrap_or_default();
    let other = String::from_utf8_lossy(&other);
    let ending = Ending::Unlike(format!("this machine has `{own}`, and another `{other}`; give all machines the same"));
    client.fail(&ending.cause().unwrap_or_default());
    ending
}

/// The end of a program that has failed by itself, or because another one had: where programs meet, all hear of the first
/// failure, and whose keeper sees an end first is chance.
pub(crate) fn blamed(client: &Client, own: usize, meet: bool, ending: Ending) -> Ending {
    if ending.cause().is_none() {
        return ending;
    }
    let of_another = |error: &Error| matches!(error, Error::Worker { worker, .. } if *worker != own);
    let first = || {
        let told = client.get(FIRST, FIRST_IS_KNOWN).ok()?;
        String::from_utf8_lossy(&told).parse().ok().filter(|worker| *worker != own)
    };
    let first = if meet && client.failure().is_none() { first() } else { None };
    // Its own keeper knows more.
    let begin = Instant::now();
    while first.is_some() && client.failure().is_none() && begin.elapsed() < AFTER_WORDS {
        client.pause(LOOK);
    }
    match (client.failure().filter(of_another), first) {
        (Some(error), _) => released(&error),
        (None, Some(worker)) if client.failure().is_none() => {
            Ending::Released { worker: Some(worker), cause: "failed, and its program was the first".into() }
        }
        _ => ending,
    }
}
