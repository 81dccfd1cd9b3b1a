//! The beginning of a call: all members tell each other what they call, with what is small enough to go along.
//!
//! ```text
//! to every other member:   digest | number | length of call | bytes of data | call, if it has no digest | data
//! ```
//!
//! Where all digests are the same, that is all. Where a call has none, it goes along; where it is too long for that, or
//! digests differ, whole calls are sent after it, so that all members find the same mismatch.

use core::mem::ManuallyDrop;

use super::endpoint::Endpoint;
use super::message::garbled;
use super::request_set::RequestSet;
use crate::error::{Error, Result};
use crate::host::fit::is_small;
use crate::host::mismatch::compare;
use crate::host::number::Number;
use crate::host::wire::{decode, digest, encode};
use crate::operation::Call;

/// Numbers at the head of the message.
const HEAD: usize = 4;
/// Data of so many bytes goes along.
pub(super) const EAGER: usize = 3072;
/// A call of so many numbers goes along.
const ROOM: usize = 116;
/// The longest message, in numbers: one that libraries send without asking the receiver.
const LONGEST: usize = HEAD + ROOM + EAGER / 8;
/// Stands for a number of bytes where the data does not go along.
const LATER: u64 = u64::MAX;

/// Whether so many numbers that one member has for another go along with the call. Those who reduce must all know it of
/// each other.
pub(super) fn goes_along<N>(call: &Call, numbers: usize) -> bool {
    match call.operation.reduction() {
        Some(_) => is_small(call, EAGER),
        None => numbers * size_of::<N>() <= EAGER,
    }
}

/// All members have come, and their calls fit together.
pub(super) struct Headers {
    /// What each member sent; nothing from this one.
    heads: Vec<Vec<u64>>,
}

impl Headers {
    /// Tells every member the call, and `data` for it where that is small; waits for all.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] when the calls do not fit; as [`RequestSet::wait`].
    pub(super) fn exchange<'d, N: Number>(
        group: &Endpoint,
        call: &Call,
        data: impl Fn(usize) -> Option<&'d [N]>,
    ) -> Result<Self> {
        let digest = digest(call);
        let encoded = if digest == 0 { encode(call)? } else { Vec::new() };
        let along = if encoded.len() <= ROOM { &*encoded } else { &[] };
        let members = group.members.len();
        // Left where they are when something goes wrong: messages may be on their way.
        let mut heads = ManuallyDrop::new(vec![Vec::<u64>::new(); members]);
        let mut posts = ManuallyDrop::new(Vec::with_capacity(members));
        let mut requests = RequestSet::of_heads(group, call);
        for peer in group.peers() {
            heads[peer] = vec![0; LONGEST];
            // SAFETY: as long as is said; given back only when the requests are over.
            unsafe { requests.receive(peer, heads[peer].as_mut_ptr(), LONGEST) }?;
        }
        for peer in group.peers() {
            let numbers = data(peer);
            let len = numbers.map_or(LATER, |numbers| size_of_val(numbers) as u64);
            let head = [digest, call.sequence, along.len() as u64, len];
            let post = [u64::as_bytes(&head), u64::as_bytes(along), N::as_bytes(numbers.unwrap_or_default())].concat();
            // SAFETY: as above.
            unsafe { requests.send(peer, post.as_ptr(), post.len()) }?;
            posts.push(post);
        }
        requests.wait()?;
        drop(ManuallyDrop::into_inner(posts));
        let headers = Self { heads: ManuallyDrop::into_inner(heads) };
        headers.compare(group, call, digest, !along.is_empty())?;
        Ok(headers)
    }

    /// Compares all calls, of which this member's went along or not. Every member finds the same.
    fn compare(&self, group: &Endpoint, call: &Call, digest: u64, own_went_along: bool) -> Result<()> {
        let mut heads = group.peers().map(|peer| &self.heads[peer]);
        if let Some(head) = heads.clone().find(|head| head[1] != call.sequence) {
            return Err(Error::Medium {
                message: format!(
                    "call {} of group `{}` met call {} of a peer; run the same program in all processes",
                    call.sequence, group.name, head[1]
                ),
            });
        }
        if digest != 0 && heads.clone().all(|head| head[0] == digest) {
            return Ok(());
        }
        let has_call = |head: &Vec<u64>| head[0] == 0 && head[2] > 0;
        let calls = match own_went_along && heads.all(has_call) {
            true => self.calls_along(group, call)?,
            false => calls_apart(group, call)?,
        };
        compare(&group.name, &group.members, call, |member| &calls[member])
    }

    fn calls_along(&self, group: &Endpoint, call: &Call) -> Result<Vec<Call>> {
        let read = |member: usize| match member == group.member {
            true => Ok(call.clone()),
            false => decode(&self.heads[member][HEAD..HEAD + ROOM]).ok_or_else(garbled),
        };
        (0..group.members.len()).map(read).collect()
    }

    /// What came along from another member: `count` numbers. None when they come later.
    ///
    /// # Errors
    ///
    /// When there is another number of them, which two calls that fit cannot bring about.
    pub(super) fn along<N: Number>(&self, peer: usize, count: usize) -> Result<Option<&[N]>> {
        let head = &self.heads[peer];
        if head[3] == LATER {
            return Ok(None);
        }
        let (start, len) = (8 * (HEAD + head[2].min(ROOM as u64) as usize), count * size_of::<N>());
        if head[3] != len as u64 || len > EAGER {
            let message = format!("{} bytes came where {len} were due; run the same program in all processes", head[3]);
            return Err(Error::Medium { message });
        }
        let bytes = &u64::as_bytes(head)[start..start + len];
        // SAFETY: in bounds and initialised, as it is a slice of bytes; it begins at a multiple of 8; any bits are a
        // number.
        Ok(Some(unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), count) }))
    }
}

/// The calls of all members, sent in messages of their own.
fn calls_apart(group: &Endpoint, call: &Call) -> Result<Vec<Call>> {
    let members = group.members.len();
    let own = ManuallyDrop::new(encode(call)?);
    let own_len = ManuallyDrop::new(Box::new(own.len() as u64));
    let mut lens = ManuallyDrop::new(vec![0_u64; members]);
    let place = lens.as_mut_ptr();
    let mut requests = RequestSet::of_data(group, call);
    for peer in group.peers() {
        // SAFETY: each a number of its own; given back only when the requests are over.
        unsafe {
            requests.receive(peer, place.add(peer), 1)?;
            requests.send(peer, &raw const **own_len, 1)?;
        }
    }
    requests.wait()?;
    let mut all = ManuallyDrop::new(Vec::with_capacity(members));
    for member in 0..members {
        all.push(vec![0_u64; if member == group.member { 0 } else { lens[member] as usize }]);
    }
    for peer in group.peers() {
        let len = all[peer].len();
        // SAFETY: as above.
        unsafe {
            requests.receive(peer, all[peer].as_mut_ptr(), len)?;
            requests.send(peer, own.as_ptr(), own.len())?;
        }
    }
    requests.wait()?;
    let all = ManuallyDrop::into_inner(all);
    drop((ManuallyDrop::into_inner(own), ManuallyDrop::into_inner(own_len), ManuallyDrop::into_inner(lens)));
    let read = |member: usize| if member == group.member { Some(call.clone()) } else { decode(&all[member]) };
    (0..members).map(|member| read(member).ok_or_else(garbled)).collect()
}
