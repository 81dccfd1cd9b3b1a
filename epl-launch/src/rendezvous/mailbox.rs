//! What has come for a member, and who waits for it.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::message::Reply;
use crate::error::{Error, Result};

type Told = Box<dyn FnOnce(&Error) + Send>;

/// The mailbox of a member.
#[derive(Default)]
pub(super) struct Mailbox {
    contents: Mutex<Contents>,
    changed: Condvar,
}

#[derive(Default)]
struct Contents {
    next: u64,
    /// Requests under way, and their answers.
    answers: HashMap<u64, Option<Result<Option<Vec<u8>>, String>>>,
    failure: Option<Error>,
    told: Vec<Told>,
    heard: Option<Instant>,
}

impl Mailbox {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a request that is about to be made.
    pub(super) fn expect(&self) -> Result<u64> {
        let mut contents = self.contents();
        if let Some(failure) = &contents.failure {
            return Err(failure.clone());
        }
        contents.next += 1;
        let id = contents.next;
        contents.answers.insert(id, None);
        Ok(id)
    }

    /// Waits for the answer to a request, which may be that there is no value; none when `limit` is over first.
    pub(super) fn wait(&self, id: u64, limit: Duration) -> Option<Result<Option<Vec<u8>>>> {
        let begin = Instant::now();
        let mut contents = self.contents();
        loop {
            if matches!(contents.answers.get(&id), Some(Some(_))) {
                let answer = contents.answers.remove(&id).flatten()?;
                return Some(answer.map_err(|message| Error::Joining { message }));
            }
            let failure = contents.failure.clone();
            let left = limit.checked_sub(begin.elapsed()).filter(|left| !left.is_zero());
            let Some(left) = left.filter(|_| failure.is_none()) else {
                contents.answers.remove(&id);
                return failure.map(Err);
            };
            contents = self.changed.wait_timeout(contents, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes in what the server said.
    pub(super) fn receive(&self, reply: Reply) {
        let mut contents = self.contents();
        contents.heard = Some(Instant::now());
        let (id, answer) = match reply {
            Reply::Beat => return,
            Reply::Failed { worker, cause } => {
                drop(contents);
                return self.fail(Error::Worker { worker: worker as usize, cause });
            }
            Reply::Done { id, value } => (id, Ok(Some(value))),
            Reply::Unset { id } => (id, Ok(None)),
            Reply::Refused { id, why } => (id, Err(why)),
        };
        // An answer that comes after its time is nobody's.
        if let Some(place) = contents.answers.get_mut(&id) {
            *place = Some(answer);
        }
        self.changed.notify_all();
    }

    /// The first failure counts.
    pub(super) fn fail(&self, error: Error) {
        let mut contents = self.contents();
        if contents.failure.is_some() {
            return;
        }
        contents.failure = Some(error.clone());
        let told = std::mem::take(&mut contents.told);
        drop(contents);
        self.changed.notify_all();
        told.into_iter().for_each(|told| told(&error));
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.contents().failure.clone()
    }

    /// Tells of the failure, now if there is one.
    pub(super) fn on_failure(&self, told: Told) {
        let mut contents = self.contents();
        let Some(failure) = contents.failure.clone() else { return contents.told.push(told) };
        drop(contents);
        told(&failure);
    }

    /// As if something had been heard.
    pub(super) fn excuse(&self) {
        self.contents().heard = Some(Instant::now());
    }

    /// How long nothing has been heard.
    pub(super) fn silence(&self) -> Duration {
        let mut contents = self.contents();
        contents.heard.get_or_insert_with(Instant::now).elapsed()
    }
}
