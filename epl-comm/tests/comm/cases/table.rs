//! Which case is run where, and why not elsewhere.

use super::world::World;

/// What not every world has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// That ranks which wait for each other in a circle are found.
    Circles,
    /// That a call reads tensors as numbers, so that one which Burn could not make is a panic of the call.
    ReadsNumbers,
    /// That a call is one of all members, not made of those of smaller groups.
    OneStage,
    /// Variables that all ranks see.
    SharedMemory,
    /// That who has waited too long finds whom all the others wait for in the end.
    SourceOfWaits,
    /// Sums that are taken in the order of the members.
    SumsInOrder,
}

pub struct Case {
    pub name: &'static str,
    pub needs: &'static [Need],
    pub run: fn(&World),
}

macro_rules! rows {
    ($($module:ident { $($(#[$cfg:meta])* $case:ident $([$($need:ident),*])?,)* })*) => {
        &[$($(
            $(#[$cfg])*
            Case {
                name: concat!(stringify!($module), "::", stringify!($case)),
                needs: &[$($(Need::$need),*)?],
                run: super::$module::$case,
            },
        )*)*]
    };
}

pub const CASES: &[Case] = cases!(rows);

/// The case of this name.
pub fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("it stands in the list")
}

/// A kind of world.
pub struct Column {
    pub name: &'static str,
    #[allow(dead_code, reason = "not every program prints the table")]
    pub what: &'static str,
    pub lacks: &'static [(Need, &'static str)],
}

macro_rules! column {
    ($name:ident $what:literal { $($lack:ident: $why:literal,)* }) => {
        Column { name: stringify!($name), what: $what, lacks: &[$((Need::$lack, $why)),*] }
    };
}

pub const WORLDS: &[Column] = &[
    world!(threads, column),
    world!(hosts, column),
    world!(nccl, column),
    world!(workers, column),
    world!(mpi, column),
];

impl Column {
    /// Why a case is not run here; none if it is.
    pub fn why_not(&self, case: &Case) -> Option<(Need, &'static str)> {
        self.lacks.iter().copied().find(|(need, _)| case.needs.contains(need))
    }
}

/// What the world of this name lacks, and why.
pub fn lacks(name: &str) -> impl Iterator<Item = (Need, &'static str)> {
    let world = WORLDS.iter().find(|world| world.name == name).expect("it stands in the list");
    world.lacks.iter().copied()
}
