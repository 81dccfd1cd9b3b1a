//! How an attempt ended, and what the user is told.

use std::collections::BTreeMap;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::socket::Merged;
use crate::spec::{Ending, Report, RootCause};

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The exit code: that of the first worker that failed.
    pub code: i32,
    /// Who and why; none where all is well.
    pub cause: Option<String>,
    /// The last lines of who failed first.
    pub tail: Vec<String>,
    /// Whether another try can come to another end, as far as this machine knows.
    pub can_restart: bool,
    /// Whether it cannot, as all machines know.
    pub is_final: bool,
    /// What the other machines are told; none where all is well.
    pub root_cause: Option<RootCause>,
}

/// What an agent knows of an attempt.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// How the workers of this machine have ended.
    pub reports: BTreeMap<usize, Report>,
    /// Their last lines.
    pub tails: BTreeMap<usize, Vec<String>>,
    /// Processes of the programs.
    pub programs: BTreeMap<usize, u32>,
    /// Why the attempt has failed, if it has.
    pub root_cause: Option<RootCause>,
    /// The user's signal.
    pub interrupted: Option<i32>,
    /// The signal at which the agent ended all at once: what became of the workers then says nothing.
    pub given_up: Option<i32>,
    /// The workers of this machine.
    pub expected: usize,
}

impl Evidence {
    /// How many workers of this machine have not ended well.
    pub fn missing(&self) -> usize {
        self.expected - self.reports.values().filter(|report| report.ending == Ending::Exited(0)).count()
    }

    /// What the other machines are told of a failure: of who is interrupted, that.
    pub fn told(&self) -> Option<RootCause> {
        let interrupted = |signal| RootCause::of_agent(format!("interrupted by signal {signal}"), 128 + signal);
        self.given_up.map(interrupted).or_else(|| self.root_cause.clone())
    }

    /// How the attempt ended.
    pub fn outcome(&self) -> Outcome {
        let root_cause = self.told();
        let well = Outcome { code: 0, cause: None, tail: Vec::new(), can_restart: false, is_final: false, root_cause };
        if let Some(signal) = self.given_up {
            return Outcome { code: 128 + signal, cause: Some(format!("interrupted by signal {signal}")), ..well };
        }
        let Some(RootCause { worker, cause, code, is_final }) = &self.root_cause else { return well };
        let told = worker.map_or_else(String::new, |worker| {
            let process = self.programs.get(&worker).map(|process| format!(" (process {process})"));
            format!("worker {worker}{} ", process.unwrap_or_default())
        });
        let report = worker.and_then(|worker| self.reports.get(&worker));
        // The exit codes of a program that was asked to end, whether it saved first or not: whoever asked wants no other
        // start. Other machines hear of it in the restart decision.
        let was_asked = report.is_some_and(|report| match report.ending {
            Ending::Exited(code) => [128 + SIGINT, 128 + SIGTERM].contains(&code),
            Ending::Killed(signal) => [SIGINT, SIGTERM].contains(&signal),
            _ => false,
        });
        let is_started = |report: &Report| !matches!(report.ending, Ending::NotStarted(..));
        Outcome {
            code: if *code == 0 { 1 } else { *code },
            cause: Some(format!("{told}{cause}")),
            tail: worker.and_then(|worker| self.tails.get(&worker)).cloned().unwrap_or_default(),
            can_restart: self.interrupted.is_none() && !is_final && !was_asked && self.reports.values().all(is_started),
            is_final: *is_final,
            root_cause: well.root_cause,
        }
    }
}

impl Outcome {
    /// Tells the user who failed, and its last lines.
    pub fn tell(&self, merged: &Merged) {
        let Some(cause) = &self.cause else { return };
        merged.say(cause);
        if !self.tail.is_empty() {
            merged.say("its last lines:");
            self.tail.iter().for_each(|line| merged.say(&format!("  {line}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of one worker that has ended so, which is the root cause if it is one.
    fn evidence(ending: Ending) -> Evidence {
        let root_cause = ending.cause().map(|(cause, code)| RootCause::of_worker(0, format!("failed: {cause}"), code));
        let reports = BTreeMap::from([(0, Report { ending, asked: false })]);
        let tails = BTreeMap::from([(0, vec!["last".into()])]);
        Evidence { reports, tails, root_cause, expected: 1, ..Evidence::default() }
    }

    #[test]
    fn the_first_failure_counts() {
        let well = evidence(Ending::Exited(0));
        assert_eq!((well.missing(), well.outcome().code, well.outcome().cause), (0, 0, None));
        let mut killed = evidence(Ending::Killed(9));
        killed.programs.insert(0, 12);
        let outcome = killed.outcome();
        assert_eq!((killed.missing(), outcome.code, outcome.can_restart, outcome.tail.len()), (1, 137, true, 1));
        let told = "worker 0 (process 12) failed: it was killed by signal 9 (SIGKILL)";
        assert_eq!(outcome.cause.as_deref(), Some(told));
        // On another machine, only what was told is known.
        killed.root_cause = Some(RootCause::of_worker(1, "failed: rank 1: no memory", 3));
        let outcome = killed.outcome();
        assert_eq!((outcome.code, outcome.can_restart, outcome.tail.len()), (3, true, 0));
        assert_eq!(outcome.cause.as_deref(), Some("worker 1 failed: rank 1: no memory"));
    }

    #[test]
    fn silence_and_a_program_that_is_not_there_are_told() {
        let mut all = evidence(Ending::Released);
        assert_eq!((all.missing(), all.outcome().code), (1, 0));
        all.root_cause = Some(RootCause::of_worker(1, "does not answer: nothing was heard", 1));
        let outcome = all.outcome();
        assert!(outcome.code == 1 && outcome.cause.is_some_and(|cause| cause.starts_with("worker 1 does not answer")));
        all.root_cause = Some(RootCause::of_agent("no rendezvous", 1));
        let outcome = all.outcome();
        assert_eq!((outcome.code, outcome.cause.as_deref()), (1, Some("no rendezvous")));
        assert_eq!(evidence(Ending::Killed(15)).outcome().code, 143);
        let mut missing = evidence(Ending::NotStarted("x".into(), 127));
        let outcome = missing.outcome();
        assert_eq!((outcome.code, outcome.can_restart, outcome.is_final), (127, false, false));
        // Another machine knows only what was told, and hears of the rest in the restart decision.
        missing.reports.clear();
        let told = |evidence: &Evidence| {
            let outcome = evidence.outcome();
            (outcome.code, outcome.can_restart, outcome.is_final)
        };
        assert_eq!(told(&missing), (127, true, false));
        let unlike = RootCause { is_final: true, ..RootCause::of_worker(1, "failed: x", 2) };
        let unlike = Evidence { root_cause: Some(unlike), ..Evidence::default() };
        assert_eq!(told(&unlike), (2, false, true));
        let own = Some(RootCause::of_agent("mpirun was killed by signal 15", 143));
        let own = Evidence { root_cause: own, interrupted: Some(15), ..Evidence::default() };
        assert_eq!(told(&own), (143, false, false));
        // What is killed at once says nothing of who is to blame.
        let lost = Some(RootCause::of_worker(0, "was lost", 1));
        let given_up = Evidence { given_up: Some(2), root_cause: lost, ..Evidence::default() };
        assert_eq!(told(&given_up), (130, false, false));
        // A program that was asked to end is not started again, however it ends.
        for ending in [Ending::Exited(143), Ending::Killed(2), Ending::Killed(15)] {
            let outcome = evidence(ending).outcome();
            assert!(outcome.code > 128 && !outcome.can_restart, "{outcome:?}");
        }
    }
}
