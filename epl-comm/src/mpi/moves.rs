//! Collectives that move numbers and compute nothing.

use core::mem::ManuallyDrop;

use super::cut::{incoming, outgoing};
use super::endpoint::Endpoint;
use super::flight::Flight;
use super::meeting::{Meeting, goes_along};
use crate::error::Result;
use crate::host::number::Number;
use crate::operation::Call;

/// Sends what is too large to go along with the calls, and puts together what comes. None for a member that gets
/// nothing.
///
/// When this returns an error, peers may still be reading `own`.
pub(super) fn moves<N: Number>(group: &Endpoint, call: &Call, meeting: &Meeting, own: &[N]) -> Result<Option<Vec<N>>> {
    let (me, members, arena) = (group.member, group.members.len(), &group.world.arena);
    let sources: Vec<(usize, usize)> =
        (0..members).filter_map(|from| Some((from, incoming(call, from, me)?))).collect();
    let total = sources.iter().map(|(_, count)| count).sum();
    // In the order of the members; for ever where it is when something goes wrong, as messages may be on their way.
    let mut parts = ManuallyDrop::new(arena.vec::<N>(total));
    let place = parts.as_mut_ptr();
    let mut flight = Flight::of_data(group, call);
    let mut start = 0;
    for (from, count) in &sources {
        let along = if *from == me { None } else { meeting.along::<N>(*from, *count)? };
        let cut = if *from == me { outgoing(call, me, me) } else { None };
        let mut to = place.wrapping_add(start);
        for piece in cut.iter().flat_map(|cut| cut.pieces(own)).chain(along) {
            // SAFETY: there is room for all parts, which lie behind one another.
            unsafe { to.copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
            to = to.wrapping_add(piece.len());
        }
        if *from != me && along.is_none() {
            // SAFETY: as above; nobody looks before the flight is over.
            unsafe { flight.receive(*from, to, *count) }?;
        }
        start += count;
    }
    let mut packed = ManuallyDrop::new(Vec::new());
    for peer in group.peers() {
        let Some(cut) = outgoing(call, me, peer).filter(|cut| !goes_along::<N>(call, *cut)) else { continue };
        let numbers = match cut.in_a_row(own) {
            Some(numbers) => numbers.as_ptr(),
            None => {
                let mut numbers = arena.vec(cut.len());
                cut.pieces(own).for_each(|piece| numbers.extend_from_slice(piece));
                packed.push(numbers);
                packed[packed.len() - 1].as_ptr()
            }
        };
        // SAFETY: both stay when something goes wrong.
        unsafe { flight.send(peer, numbers, cut.len()) }?;
    }
    flight.wait()?;
    drop(ManuallyDrop::into_inner(packed));
    let mut parts = ManuallyDrop::into_inner(parts);
    if sources.is_empty() {
        return Ok(None);
    }
    // SAFETY: all of them have been written.
    unsafe { parts.set_len(total) };
    Ok(Some(if call.rows > 1 && sources.len() > 1 { side_by_side(group, call, parts) } else { parts }))
}

/// Parts of several rows, put side by side.
fn side_by_side<N: Number>(group: &Endpoint, call: &Call, parts: Vec<N>) -> Vec<N> {
    let mut all = group.world.arena.vec(parts.len());
    for row in 0..call.rows {
        let mut start = 0;
        for width in call.receive.iter() {
            all.extend_from_slice(&parts[start + row * width..][..width]);
            start += call.rows * width;
        }
    }
    all
}
