//! How a run ended, who was the cause, and what the user is told.

use std::collections::BTreeMap;

use epl_launch::rendezvous::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::socket::Merged;
use crate::spec::{Ending, Report, is_final, parse_cause};

/// The exit codes of a program that was asked to end, whether it saved first or not: whoever asked wants no other start.
const ASKED_TO_END: [i32; 2] = [128 + SIGINT, 128 + SIGTERM];

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The exit code: that of the first worker that failed.
    pub code: i32,
    /// Who and why; none where all is well.
    pub cause: Option<String>,
    /// The last lines of the culprit.
    pub tail: Vec<String>,
    /// Whether another try can come to another end.
    pub can_restart: bool,
    /// Whether all machines have been told that it cannot.
    pub is_final: bool,
}

/// What is known when all processes have ended.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// Reports, and the order in which they came.
    pub reports: BTreeMap<usize, (usize, Report)>,
    /// What keepers told each other, if this machine holds their rendezvous.
    pub failure: Option<Failure>,
    /// What the programs did.
    pub said: Option<Failure>,
    /// Processes of the programs.
    pub programs: BTreeMap<usize, u32>,
    /// The user's signal.
    pub interrupted: Option<i32>,
    /// The signal at which the launcher ended all at once: what became of the workers then says nothing.
    pub given_up: Option<i32>,
    /// What the launcher itself had to end the run for.
    pub own: Option<(i32, String)>,
    /// The workers of this machine.
    pub expected: usize,
}

impl Evidence {
    /// The worker that failed first, with what others were told of it.
    fn culprit(&self) -> Option<(usize, Option<String>)> {
        let by_program = self.said.as_ref().map(|failure| (failure.worker, Some(failure.fault.to_string())));
        let by_keepers = || self.failure.as_ref().map(|failure| (failure.worker, Some(failure.fault.to_string())));
        let mut reports: Vec<_> =
            self.reports.iter().map(|(worker, (number, report))| (number, *worker, report)).collect();
        reports.sort_by_key(|(number, ..)| *number);
        let told = || {
            reports.iter().find_map(|(_, _, report)| match &report.ending {
                Ending::Released { worker: Some(other), cause } => Some((*other, Some(cause.clone()))),
                _ => None,
            })
        };
        let bad =
            |asked: bool| reports.iter().find(|(_, _, report)| report.asked == asked && report.ending.code() != 0);
        let alone = || {
            let (_, worker, report) = bad(false).or_else(|| bad(true))?;
            let why = match &report.ending {
                Ending::Released { cause, .. } => Some(format!("ended: {cause}")),
                _ => None,
            };
            Some((*worker, why))
        };
        by_program.or_else(by_keepers).or_else(told).or_else(alone)
    }

    /// The exit code of a worker of another machine, as its keeper has told it.
    fn code_of_other(&self, worker: usize) -> Option<i32> {
        let by_keepers = self.failure.iter().filter(|failure| failure.worker == worker).map(|f| f.fault.to_string());
        let released = self.reports.values().filter_map(|(_, report)| match &report.ending {
            Ending::Released { worker: Some(other), cause } if *other == worker => Some(cause.clone()),
            _ => None,
        });
        by_keepers.chain(released).map(|cause| parse_cause(&cause).0).find(|code| *code != 1)
    }

    /// Whether what all machines were told, which is the same, says that no restart comes to another end.
    fn is_final(&self) -> bool {
        let released = || {
            self.reports.values().find_map(|(_, report)| match &report.ending {
                Ending::Released { worker: Some(_), cause } => Some(cause.clone()),
                _ => None,
            })
        };
        let own = || self.reports.values().find_map(|(_, report)| report.ending.cause());
        // What one machine finds in its own workers, the others find, too: both were told the other's terms.
        let told = self.failure.as_ref().map(|failure| failure.fault.to_string()).or_else(released).or_else(own);
        told.is_some_and(|cause| is_final(&cause))
    }

    /// How the run ended.
    pub fn outcome(&self) -> Outcome {
        if let Some(signal) = self.given_up {
            let cause = Some(format!("interrupted by signal {signal}"));
            return Outcome { code: 128 + signal, cause, tail: Vec::new(), can_restart: false, is_final: false };
        }
        if let (Some((code, cause)), None) = (&self.own, self.culprit()) {
            return Outcome {
                code: *code,
                cause: Some(cause.clone()),
                tail: Vec::new(),
                can_restart: self.interrupted.is_none(),
                is_final: false,
            };
        }
        let Some((worker, told)) = self.culprit() else {
            let missing = self.expected - self.reports.len();
            let cause = (missing > 0).then(|| format!("{missing} of {} workers ended without a word", self.expected));
            let code = i32::from(cause.is_some());
            return Outcome { code, cause, tail: Vec::new(), can_restart: self.interrupted.is_none(), is_final: false };
        };
        let report = self.reports.get(&worker).map(|(_, report)| report);
        let is_final = self.is_final();
        let own = report.filter(|report| report.ending.cause().is_some());
        let (told_code, told) = told.as_deref().map_or((1, None), |told| {
            let (code, text) = parse_cause(told);
            (if code == 1 { self.code_of_other(worker).unwrap_or(1) } else { code }, Some(text.to_string()))
        });
        // What others were told has a meaning where the worker's own end has none: it was silent, or said why it fails.
        let is_silent = told.is_some() && own.is_none_or(|report| report.asked);
        let code = if is_silent { told_code } else { own.map_or(told_code, |report| report.ending.code()) };
        let ended = own.filter(|_| !is_silent || told.is_none()).and_then(|report| report.ending.cause());
        let ended = ended.map(|cause| format!("failed: {}", parse_cause(&cause).1));
        let mut causes: Vec<String> = told.into_iter().chain(ended).collect();
        causes.dedup();
        if causes.is_empty() {
            causes.push("ended before its time".into());
        }
        let process = self.programs.get(&worker).map(|process| format!(" (process {process})")).unwrap_or_default();
        // Other machines hear of it in a vote.
        let was_asked = own.is_some_and(|report| ASKED_TO_END.contains(&report.ending.code()));
        Outcome {
            code: if code == 0 { 1 } else { code },
            cause: Some(format!("worker {worker}{process} {}", causes.join("; it "))),
            tail: report.map(|report| report.tail.clone()).unwrap_or_default(),
            can_restart: self.interrupted.is_none()
                && !is_final
                && !was_asked
                && !self.reports.values().any(|(_, report)| matches!(report.ending, Ending::NotStarted(..))),
            is_final,
        }
    }
}

impl Outcome {
    /// Something that ended a run before it began.
    pub fn of_launcher(cause: String) -> Self {
        Self { code: 1, cause: Some(cause), tail: Vec::new(), can_restart: false, is_final: false }
    }

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
    use epl_launch::rendezvous::Fault;

    use super::*;

    fn report(ending: Ending, asked: bool) -> Report {
        Report { ending, asked, tail: vec!["last".into()] }
    }

    fn evidence(reports: Vec<(usize, Report)>) -> Evidence {
        let expected = reports.len();
        let reports =
            reports.into_iter().enumerate().map(|(number, (worker, report))| (worker, (number, report))).collect();
        Evidence { reports, expected, ..Evidence::default() }
    }

    #[test]
    fn the_first_failure_counts() {
        assert_eq!(evidence(vec![(0, report(Ending::Exited(0), false))]).outcome().code, 0);
        let cause = "failed: it was killed by signal 9 (SIGKILL) [code 137]";
        let released = || Ending::Released { worker: Some(1), cause: cause.into() };
        let all = vec![(0, report(released(), false)), (1, report(Ending::Killed(9), false))];
        let outcome = evidence(all).outcome();
        assert_eq!((outcome.code, outcome.can_restart, outcome.tail.len()), (137, true, 1));
        assert_eq!(outcome.cause.as_deref(), Some("worker 1 failed: it was killed by signal 9 (SIGKILL)"));
        // On another machine, only what was told is known.
        let outcome = evidence(vec![(0, report(released(), false))]).outcome();
        assert_eq!((outcome.code, outcome.cause.is_some()), (137, true));
        // Those that MPI took along come after who failed, whenever their reports do.
        let mut all = evidence(vec![(0, report(Ending::Killed(15), true)), (1, report(Ending::Exited(3), false))]);
        assert_eq!(all.outcome().code, 3);
        // What a program said of itself names it even where another process ended first.
        all.said = Some(Failure { worker: 0, fault: Fault::Failed("rank 1: no memory".into()) });
        assert!(all.outcome().cause.is_some_and(|cause| cause.contains("worker 0 failed: rank 1: no memory")));
    }

    #[test]
    fn silence_and_a_program_that_is_not_there_are_told() {
        let mut all = evidence(vec![(0, report(Ending::Released { worker: None, cause: "asked".into() }, true))]);
        all.failure = Some(Failure { worker: 1, fault: Fault::Silent(std::time::Duration::from_secs(5)) });
        let outcome = all.outcome();
        assert!(outcome.code == 1 && outcome.cause.is_some_and(|cause| cause.starts_with("worker 1 does not answer")));
        let alone = report(Ending::Released { worker: None, cause: "no rendezvous".into() }, false);
        let outcome = evidence(vec![(1, alone)]).outcome();
        assert_eq!((outcome.code, outcome.cause.as_deref()), (1, Some("worker 1 ended: no rendezvous")));
        assert_eq!(evidence(vec![(0, report(Ending::Killed(15), true))]).outcome().code, 143);
        let outcome = evidence(vec![(0, report(Ending::NotStarted("x".into(), 127), false))]).outcome();
        assert_eq!((outcome.code, outcome.can_restart, outcome.is_final), (127, false, false));
        // Another machine knows only what was told, and hears of the rest in a vote.
        let told = |ending: Ending| {
            let cause = format!("failed: {}", ending.cause().expect("one"));
            let outcome = evidence(vec![(0, report(Ending::Released { worker: Some(1), cause }, false))]).outcome();
            (outcome.code, outcome.can_restart, outcome.is_final)
        };
        assert_eq!(told(Ending::NotStarted("x".into(), 127)), (127, true, false));
        assert_eq!(told(Ending::Unlike("x".into())), (2, false, true));
        let nobody = Evidence { expected: 2, ..Evidence::default() };
        assert_eq!(nobody.outcome().cause.as_deref(), Some("2 of 2 workers ended without a word"));
        let own = Evidence { own: Some((143, "interrupted".into())), interrupted: Some(15), ..Evidence::default() };
        assert_eq!((own.outcome().code, own.outcome().can_restart), (143, false));
        // What a program says has no code; its keeper, on another machine, tells it.
        let cause = format!("failed: {}", Ending::Exited(9).cause().expect("one"));
        let mut all = evidence(vec![(0, report(Ending::Released { worker: Some(1), cause }, false))]);
        all.said = Some(Failure { worker: 1, fault: Fault::Failed("no memory".into()) });
        assert_eq!((all.outcome().code, all.outcome().cause.as_deref()), (9, Some("worker 1 failed: no memory")));
        // What is killed at once says nothing of who is to blame.
        let lost = Some(Failure { worker: 0, fault: Fault::Lost });
        let given_up = Evidence { given_up: Some(2), failure: lost, ..Evidence::default() };
        assert_eq!((given_up.outcome().code, given_up.outcome().can_restart), (130, false));
        // A program that was asked to end is not started again, however it ends.
        for ending in [Ending::Exited(143), Ending::Killed(2), Ending::Killed(15)] {
            let outcome = evidence(vec![(0, report(ending, false))]).outcome();
            assert!(outcome.code > 128 && !outcome.can_restart, "{outcome:?}");
        }
    }
}
