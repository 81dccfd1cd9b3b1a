//! A second opinion on schedules, that shares no code with the verifier: it writes the whole graph down and sorts it.

use epl_core::schedule::{Action, ActionKind};

/// Actions of every stage.
pub type Lists = Vec<Vec<Action>>;

/// What an action needs, by the path of its micro-batch: all forwards by part, then all backwards by part reversed.
pub fn needs(stage: usize, action: Action, stages: usize, chunks: usize) -> Option<(usize, Action)> {
    let parts = stages * chunks;
    let step = match action.kind {
        ActionKind::Forward => action.chunk * stages + stage,
        ActionKind::Backward => 2 * parts - 1 - (action.chunk * stages + stage),
    };
    let before = step.checked_sub(1)?;
    let (kind, part) =
        if before < parts { (ActionKind::Forward, before) } else { (ActionKind::Backward, 2 * parts - 1 - before) };
    Some((part % stages, Action { kind, chunk: part / stages, ..action }))
}

/// Whether the lists are a schedule: complete, and their graph without a circle (Kahn's algorithm).
pub fn is_schedule(lists: &Lists, micro_batches: usize, chunks: usize) -> bool {
    lists.iter().all(|list| is_complete(list, micro_batches, chunks)) && is_acyclic(lists, chunks)
}

fn is_complete(list: &[Action], micro_batches: usize, chunks: usize) -> bool {
    let mut expected = Vec::new();
    for kind in [ActionKind::Forward, ActionKind::Backward] {
        for micro_batch in 0..micro_batches {
            expected.extend((0..chunks).map(|chunk| Action { kind, micro_batch, chunk }));
        }
    }
    let mut given = list.to_vec();
    given.sort_unstable();
    given == expected
}

fn is_acyclic(lists: &Lists, chunks: usize) -> bool {
    let nodes: Vec<(usize, Action)> =
        lists.iter().enumerate().flat_map(|(stage, list)| list.iter().map(move |action| (stage, *action))).collect();
    let index = |node: (usize, Action)| nodes.iter().position(|other| *other == node).unwrap();
    let mut incoming: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (node, &(stage, action)) in nodes.iter().enumerate() {
        incoming[node].extend(needs(stage, action, lists.len(), chunks).map(index));
        if node > 0 && nodes[node - 1].0 == stage {
            incoming[node].push(node - 1);
        }
    }
    let mut left: Vec<usize> = (0..nodes.len()).collect();
    let mut done = vec![false; nodes.len()];
    loop {
        let (ready, waiting): (Vec<usize>, Vec<usize>) =
            left.iter().partition(|node| incoming[**node].iter().all(|before| done[*before]));
        if ready.is_empty() {
            return waiting.is_empty();
        }
        ready.into_iter().for_each(|node| done[node] = true);
        left = waiting;
    }
}

/// The most micro-batches of a chunk that are between their forward and their backward, counted anew at every place.
pub fn peak(list: &[Action]) -> usize {
    let kept = |end: usize| {
        let seen = &list[..=end];
        let is_kept = |action: &&Action| {
            action.kind == ActionKind::Forward && !seen.contains(&Action { kind: ActionKind::Backward, ..**action })
        };
        seen.iter().filter(is_kept).count()
    };
    (0..list.len()).map(kept).max().unwrap_or(0)
}
