//! One member's buffer, for all.
//!
//! ```text
//! root 0    A B C  ──▶  B to member 1, C to member 2, A to both        each part leaves the root once or so,
//! member 1    B    ──▶  B to member 2                                  not the whole for every member
//! member 2      C  ──▶  C to member 1
//! ```

use core::mem::ManuallyDrop;

use super::endpoint::Endpoint;
use super::headers::{Headers, goes_along};
use super::moves::moves;
use super::request_set::RequestSet;
use crate::error::Result;
use crate::host::fit::own_lines;
use crate::host::number::Number;
use crate::operation::Call;

/// Sends the root's numbers to all. None at the root, which has them.
///
/// When this returns an error, peers may still be reading `own`.
pub(super) fn broadcast<N: Number>(
    group: &Endpoint,
    call: &Call,
    headers: &Headers,
    own: &[N],
    root: usize,
) -> Result<Option<Vec<N>>> {
    let (me, members, len) = (group.member, group.members.len(), call.shape.num_elements());
    let goes_along = super::cut::outgoing(call, root, root).is_some_and(|part| goes_along::<N>(call, part.len()));
    let part = |member: usize| own_lines::<N>(len, members, member);
    if me == root {
        if goes_along {
            return Ok(None);
        }
        let mut requests = RequestSet::of_data(group, call);
        for peer in group.peers() {
            let parts = if members == 2 { [0..len, 0..0] } else { [part(peer), part(root)] };
            for part in parts {
                // SAFETY: nobody writes it; it stays when something goes wrong.
                unsafe { requests.send(peer, own[part.clone()].as_ptr(), part.len()) }?;
            }
        }
        requests.wait()?;
        return Ok(None);
    }
    if goes_along || members == 2 {
        return moves(group, call, headers, own);
    }
    let mut all = ManuallyDrop::new(group.world.arena.vec::<N>(len));
    let start = all.as_mut_ptr();
    let place = |member: usize| (start.wrapping_add(part(member).start), part(member).len());
    let (mut first, mut second) = (RequestSet::of_data(group, call), RequestSet::of_data(group, call));
    // SAFETY: all parts lie apart; each is received once, and sent when it has come; all stay when something goes wrong.
    unsafe {
        first.receive(root, place(me).0, place(me).1)?;
        second.receive(root, place(root).0, place(root).1)?;
        for peer in group.peers().filter(|peer| *peer != root) {
            second.receive(peer, place(peer).0, place(peer).1)?;
        }
        first.wait()?;
        for peer in group.peers().filter(|peer| *peer != root) {
            second.send(peer, place(me).0, place(me).1)?;
        }
        second.wait()?;
        let mut all = ManuallyDrop::into_inner(all);
        all.set_len(len);
        Ok(Some(all))
    }
}
