//! What cannot be laid out.

use super::strategy::TaskGraph;

/// Task graphs and ranks that do not fit together, with both numbers and the remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A scope inside a scope.
    #[error("scope {inner} is opened inside scope {outer}; strategies do not nest: close the outer one first")]
    Nested {
        /// The open scope.
        outer: String,
        /// The one that was to be opened in it.
        inner: String,
    },
    /// Two scopes of one name.
    #[error("two scopes are named `{name}`; give each its own name, or none")]
    SameName {
        /// The name.
        name: String,
    },
    /// A part on no device.
    #[error("{graph} is a task graph on 0 devices; give it at least 1")]
    NoDevice {
        /// The task graph.
        graph: TaskGraph,
    },
    /// A `split` around parameters that nobody cuts.
    #[error("{graph}: none of its parameters is cut, so that each of the {} devices would hold all of them and run the same \
             rows; use replicate({}), or change its layers:{}", .graph.devices, .graph.devices, by_kind(.layers))]
    NothingCut {
        /// The task graph.
        graph: TaskGraph,
        /// All layers in it.
        layers: Vec<WholeLayer>,
    },
    /// Replicas cannot be made of the ranks.
    #[error("{} need {devices} devices a replica{how}, and {ranks} ranks do not divide by that; use {below}{above} ranks{remedy}",
        listed(.graphs))]
    RanksDoNotDivide {
        /// All task graphs.
        graphs: Vec<TaskGraph>,
        /// The devices of a replica.
        devices: usize,
        /// How the devices of a replica were counted.
        how: &'static str,
        /// Ranks that exist.
        ranks: usize,
        /// The number of ranks below that would do, with "or"; empty where there is none.
        below: String,
        /// The number of ranks above that would do.
        above: usize,
        /// What else would help.
        remedy: &'static str,
    },
    /// Colocated task graphs of different sizes.
    #[error("{first} and {second} are colocated, and colocated task graphs share all their devices; give both {} devices",
        .first.devices.max(.second.devices))]
    ColocatedSizes {
        /// One of them.
        first: TaskGraph,
        /// Another one.
        second: TaskGraph,
    },
    /// What `dist.*` says is something else.
    #[error("the scopes make {axis} {scopes}, but {key} = {given}; leave the option out, or change the scopes")]
    Disagree {
        /// The axis of the mesh.
        axis: &'static str,
        /// Its size by the scopes.
        scopes: usize,
        /// The option.
        key: &'static str,
        /// Its value.
        given: usize,
    },
}

/// A layer that every device would hold whole where something is to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeLayer {
    /// Its path in the model; empty, where it is the model.
    pub path: String,
    /// Its type.
    pub kind: String,
    /// What to use in its place.
    pub remedy: String,
}

/// A result whose error is [`LayoutError`].
pub type Result<T, E = LayoutError> = core::result::Result<T, E>;

fn listed(graphs: &[TaskGraph]) -> String {
    graphs.iter().map(TaskGraph::to_string).collect::<Vec<_>>().join(" and ")
}

/// A line for each kind of layer and remedy, in the order in which they come: the paths of all, and what to use.
fn by_kind(layers: &[WholeLayer]) -> String {
    let mut lines: Vec<(&WholeLayer, Vec<String>)> = Vec::new();
    for layer in layers {
        let path = if layer.path.is_empty() { "the model itself".to_string() } else { format!("`{}`", layer.path) };
        match lines.iter_mut().find(|(first, _)| (&first.kind, &first.remedy) == (&layer.kind, &layer.remedy)) {
            Some((_, paths)) => paths.push(path),
            None => lines.push((layer, vec![path])),
        }
    }
    lines.iter().map(|(first, paths)| format!("\n- {} ({}): {}", first.kind, paths.join(", "), first.remedy)).collect()
}
