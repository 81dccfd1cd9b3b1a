//! Collectives that move numbers and compute nothing.

use core::mem::ManuallyDrop;

use super::cut::{incoming, outgoing};
use super::endpoint::Endpoint;
use super::headers::{Headers, goes_along};
use super::request_set::RequestSet;
use crate::error::Result;
use crate::host::number::Number;
use crate::operation::Call;

/// Sends what is too large to go along with the calls, and puts together what comes. None for a member that gets
/// nothing.
///
/// When this returns an error, peers may still be reading `own`.
pub(super) fn moves<N: Number>(group: &Endpoint, call: &Call, headers: &Headers, own: &[N]) -> Result<Option<Vec<N>>> {
    let (me, members, arena) = (group.member, group.members.len(), &group.world.arena);
    let sources: Vec<(usize, usize)> =
        (0..members).filter_map(|from| Some((from, incoming(call, from, me)?))).collect();
    let total = sources.iter().map(|(_, count)| count).sum();
    // In the order of the members; for ever where it is when something goes wrong, as messages may be on their way.
    let mut parts = ManuallyDrop::new(arena.vec::<N>(total));
    let place = parts.as_mut_ptr();
    let mut requests = RequestSet::of_data(group, call);
    let mut start = 0;
    for (from, count) in &sources {
        let along = if *from == me { None } else { headers.along::<N>(*from, *count)? };
        let kept = if *from == me { outgoing(call, me, me).map(|part| &own[part]) } else { None };
        let to = place.wrapping_add(start);
        if let Some(numbers) = kept.or(along) {
            // SAFETY: there is room for all parts, which lie behind one another.
            unsafe { to.copy_from_nonoverlapping(numbers.as_ptr(), numbers.len()) };
        }
        if *from != me && along.is_none() {
            // SAFETY: as above; nobody looks before the requests are over.
            unsafe { requests.receive(*from, to, *count) }?;
        }
        start += count;
    }
    for peer in group.peers() {
        let Some(part) = outgoing(call, me, peer).filter(|part| !goes_along::<N>(call, part.len())) else { continue };
        let numbers = &own[part];
        // SAFETY: nobody writes them; they stay when something goes wrong.
        unsafe { requests.send(peer, numbers.as_ptr(), numbers.len()) }?;
    }
    requests.wait()?;
    let mut parts = ManuallyDrop::into_inner(parts);
    if sources.is_empty() {
        return Ok(None);
    }
    // SAFETY: all of them have been written.
    unsafe { parts.set_len(total) };
    Ok(Some(parts))
}
