//! No notification is lost, no slot is taken before all are done with it, and nothing is freed that a peer reads.
//!
//! Three members make three calls in every order of their steps in which one thread at most is interrupted where it could
//! have gone on; two members with up to three interruptions. Threads that wait take turns in all ways. Without such a bound
//! the orders of three members are too many to be walked through.

use board_model::Kind::{Hidden, Large, Small, Written};
use board_model::{Unwinds, meet};

/// Of one thread where it could have gone on.
const INTERRUPTIONS: usize = 1;

#[test]
fn small_buffers_stay_until_the_call_after_the_next() {
    meet(3, &[Small, Small, Small], None, INTERRUPTIONS);
}

#[test]
fn large_buffers_are_taken_back_when_all_have_left() {
    meet(3, &[Small, Large, Small], None, INTERRUPTIONS);
}

#[test]
fn what_each_writes_a_part_of_is_whole_when_all_have_left() {
    meet(3, &[Written, Small], None, INTERRUPTIONS);
    meet(2, &[Written, Small, Written], None, 2);
}

#[test]
fn who_has_nothing_to_be_read_does_not_wait() {
    meet(3, &[Hidden, Small, Hidden], None, INTERRUPTIONS);
}

#[test]
fn one_that_unwinds_releases_the_others_and_leaves_them_what_they_read() {
    let second = Some(Unwinds { member: 1, sequence: 2 });
    meet(3, &[Large, Large, Small], second, INTERRUPTIONS);
    meet(3, &[Small, Small, Small], second, INTERRUPTIONS);
    meet(2, &[Large, Small], Some(Unwinds { member: 1, sequence: 1 }), 3);
}

#[test]
fn one_that_unwinds_before_what_all_write_is_whole_releases_the_others() {
    let first = Some(Unwinds { member: 1, sequence: 1 });
    meet(3, &[Written], first, INTERRUPTIONS);
    meet(2, &[Written, Small], first, 2);
    meet(2, &[Small, Written], Some(Unwinds { member: 1, sequence: 2 }), 2);
}

#[test]
fn two_members() {
    meet(2, &[Small, Small, Small], None, 3);
}
