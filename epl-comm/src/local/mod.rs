//! Ranks as threads of one process: the embedded default.
//!
//! # The protocol of one collective
//!
//! Every group has a board with a slot for each member. Time runs downwards; `n` is the number of the call.
//!
//! ```text
//! member 0                                member 1
//! ────────────────────────────────────    ────────────────────────────────────
//! put call and buffer into slot 0         put call and buffer into slot 1
//! posted[0] = n ────────────┐ ┌────────── posted[1] = n
//! wait for all posted ≥ n ◀─┼─┴─────────▶ wait for all posted ≥ n
//! compare the calls         └───────────▶ compare the calls           both come to the same verdict
//! work on the buffers                     work on the buffers         straight in the peers' memory
//! left[0] = n ──────────────┐ ┌────────── left[1] = n
//! wait for all left ≥ n ◀───┴─┴─────────▶ wait for all left ≥ n       not with a small buffer
//! take the buffer from slot 0             take the buffer from slot 1
//! ```
//!
//! No copy beyond the one the collective consists of. In a large all-reduce, member r reads and writes slice r of
//! every buffer, and nobody else does: it reduces that slice in the order of the members and leaves the result in all
//! of them. The other collectives read the peers' buffers into one of the member's own.
//!
//! A member whose buffer is small leaves without waiting: one synchronisation instead of two. Its buffer stays on the
//! board, which has two places in each slot, for calls with even and with odd numbers. So it is replaced in call n + 2:
//! by then all have posted call n + 1, which they did when they were done with call n.
//!
//! # Why nothing dangles
//!
//! The *slot* owns the posted buffer until every member has left, or come to the next call. A member that gives up
//! because the world has failed leaves its buffer behind: a peer may be reading it at that moment. It stays on the
//! board until the board goes, with the last handle of the group. A slot is not used again after a failure, because
//! failure is for ever: every call looks for it before it posts, and who has given up has seen it.
//!
//! `epl-comm/tests/loom` is a model of this: it runs `board` and `event_count` with three members in all orders of their steps,
//! within a bound that it names.
//!
//! # Who is released by whom
//!
//! | a rank | others |
//! |---|---|
//! | returns an error, panics, unwinds | find the world's failure, which names it |
//! | returns although a call of others needs it | see that it has ended and has not reserved that call |
//! | makes another call | all find the mismatch |
//! | waits in another group for one that waits for it | whoever closes the circle sees it (`wait_graph`) |
//! | makes the calls of several groups in another order | on request, found where calls take their numbers (`order`) |
//! | does not come | whoever has waited for the time limit says who keeps everybody waiting |
//!
//! A wait spins a little, then yields, then looks for a circle and sleeps on the board's event count; a failure, and a rank's
//! end, notify all of them.

mod sync;
mod backoff;
mod event_count;
mod membership;
mod wait_graph;
mod order;
mod world;
mod memory;
mod registry;
mod board;
mod work;
mod transport;
mod hosts;
mod control;
mod run;
#[cfg(feature = "mpi")]
mod inside;

pub(crate) use transport::LocalTransport;

#[cfg(feature = "mpi")]
pub(crate) use inside::Inside;
pub use run::{InProcess, Launcher, run};
