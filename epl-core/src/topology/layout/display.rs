//! The printed layout.

use core::fmt;

use super::resolve::Layout;

/// Replicas and ranks beyond these are left out.
const SHOWN: usize = 8;

/// One line a task graph, with its ranks in every replica:
///
/// ```text
/// 8 ranks = 4 replicas × 2 stages
///   `encoder` replicate(1)  [0] [2] [4] [6]
///   `decoder` replicate(1)  [1] [3] [5] [7]
/// ```
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replicas = self.replicas();
        let devices = |graph| self.ranks(0, graph).len();
        let a_replica: usize = match self.arrangement.colocated {
            true => devices(0),
            false => (0..self.task_graphs.len()).map(devices).sum(),
        };
        write!(f, "{} ranks = {}", replicas * a_replica, counted(replicas, "replica"))?;
        match self.stages() {
            1 if self.task_graphs.len() > 1 => write!(f, ", task graphs colocated")?,
            1 => {}
            stages => write!(f, " × {stages} stages")?,
        }
        let names: Vec<String> = self.task_graphs.iter().map(ToString::to_string).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        for (graph, name) in names.iter().enumerate() {
            write!(f, "\n  {name:width$} ")?;
            for replica in 0..replicas.min(SHOWN) {
                write!(f, " [{}]", listed(self.ranks(replica, graph)))?;
            }
            if replicas > SHOWN {
                write!(f, " … {} more replicas", replicas - SHOWN)?;
            }
        }
        Ok(())
    }
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn listed(ranks: &[usize]) -> String {
    let mut shown: Vec<_> = ranks.iter().take(SHOWN).map(usize::to_string).collect();
    if ranks.len() > SHOWN {
        shown.push(format!("… {} more", ranks.len() - SHOWN));
    }
    shown.join(" ")
}
