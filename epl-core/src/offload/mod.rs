//! Parameters, gradients and optimizer state outside the device: in host memory, or in files of which only windows
//! are in memory; and optimizers that update them there.
//!
//! ```text
//!  Storage (host | a folder with a bound)            Ledger: bytes held now, and at most
//!     │ zeros(len, dtype)                                  ▲
//!     ▼                                                    │
//!  FlatArray   [ weight .......... ][ bias ][ weight ... ]─┘   write a tensor to a range, read it back
//!                     ┌────────┐
//!  a file's window    │ mapped │ next: the kernel reads it ahead
//!                     └────────┘
//!  HostOptimizer::step: parameters, gradients, HostState; each element read once and written once
//! ```
//!
//! - **Tiers agree to the bit**, and with Burn's own optimizers on Flex: the same operations in the same order.
//! - **Results do not depend on threads.** Loops run in the rayon pool of the caller, in blocks of fixed size.
//! - **A file is as large as it will ever be before it is mapped**, so that a full disk is an error when the array is
//!   made, and not a signal in the middle of a step. It has no name: nothing is left behind, whatever ends the process.
//! - **What is mapped stays below the bound** that was given to [`Storage::files`].
//!
//! Not here: when a parameter is brought to the device and back; that is the engine's business.

mod array;
mod arithmetic;
mod file;
mod folder;
mod lane;
mod ledger;
mod number;
mod optimizer;
mod pass;
mod rules;
mod settings;
mod state;
mod storage;
mod values;

pub(crate) use arithmetic::sum_of_squares;
pub use array::{FlatArray, Window, WindowMut};
pub use ledger::{Holding, Ledger};
pub(crate) use number::Number;
pub use optimizer::{Gradients, HostOptimizer, Update};
pub use settings::OnePass;
pub use state::HostState;
pub use storage::Storage;
pub(crate) use values::contiguous;
pub use values::is_host;
pub(crate) use values::scaled;
