//! What is said of a part of the model.

use core::fmt;

/// How a part of the model uses its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StrategyKind {
    /// Every device holds the whole part; the micro-batch is divided over them.
    Replicate,
    /// Every device holds a slice of the part's split layers, and runs the whole micro-batch.
    Split,
}

impl fmt::Display for StrategyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replicate => "replicate",
            Self::Split => "split",
        })
    }
}

/// `replicate(n)` or `split(n)`, possibly named: what a scope is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    pub(crate) kind: StrategyKind,
    pub(crate) devices: usize,
    pub(crate) name: Option<String>,
}

impl Strategy {
    /// The whole part on each of so many devices, which divide the micro-batch among them.
    pub fn replicate(devices: usize) -> Self {
        Self { kind: StrategyKind::Replicate, devices, name: None }
    }

    /// A slice of the part on each of so many devices.
    pub fn split(devices: usize) -> Self {
        Self { kind: StrategyKind::Split, devices, name: None }
    }

    /// The same, under a name by which plans and errors call it. Otherwise it is numbered.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.to_string()), ..self }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "`{name}` ")?;
        }
        write!(f, "{}({})", self.kind, self.devices)
    }
}

/// A part of the model under one strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGraph {
    /// Its name, or its number.
    pub name: String,
    /// How it uses its devices.
    pub kind: StrategyKind,
    /// How many devices of a replica it uses.
    pub devices: usize,
}

impl fmt::Display for TaskGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}({})", self.name, self.kind, self.devices)
    }
}
