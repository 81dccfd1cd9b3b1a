//! What only a GPU can show. With one: `-- --ignored --test-threads=1`. Without, what is left is that nothing panics.
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "not all of the suite is run here")]
#[path = "../comm/exercise.rs"]
mod exercise;
#[allow(dead_code, reason = "as above")]
#[path = "../comm/model.rs"]
mod model;
#[path = "../comm/watchdog.rs"]
mod watchdog;

mod file_store;

mod absence;
mod collectives;
mod custom_vjp;
mod processes;
mod streams;
