//! What is said between a member and the server once both know each other.

use std::io;

use serde::{Deserialize, Serialize};

/// The longest key of a store, in bytes.
pub const MAX_KEY: usize = 256;
/// The longest value of a store, in bytes.
pub const MAX_VALUE: usize = 64 << 10;
/// The longest frame, in bytes: a key, a value, and their lengths.
pub const MAX_FRAME: usize = MAX_KEY + MAX_VALUE + 64;

/// From a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    Beat,
    Set { id: u64, key: String, value: Vec<u8> },
    Get { id: u64, key: String, wait_ms: u64 },
    Barrier { id: u64, name: String, wait_ms: u64 },
    Fail { cause: String },
    Leave,
    Forget { id: u64, key: String },
}

/// From the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Beat,
    /// The request was granted; a value where one was asked for.
    Done {
        id: u64,
        value: Vec<u8>,
    },
    /// Nobody has set the value that was asked for.
    Unset {
        id: u64,
    },
    /// The request was not granted.
    Refused {
        id: u64,
        why: String,
    },
    Failed {
        worker: u32,
        cause: String,
    },
}

impl Request {
    /// That this worker failed. A text that would not fit is cut.
    pub(super) fn fail(cause: &str) -> Self {
        Self::Fail { cause: cut(cause).to_string() }
    }
}

impl Reply {
    /// That a request was not granted. A text that would not fit is cut.
    pub(super) fn refused(id: u64, why: &str) -> Self {
        Self::Refused { id, why: cut(why).to_string() }
    }

    /// That a worker failed. A text that would not fit is cut.
    pub(super) fn failed(worker: u32, cause: &str) -> Self {
        Self::Failed { worker, cause: cut(cause).to_string() }
    }
}

/// A text that fits into a frame.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_VALUE)]
}

/// A message as the contents of a frame.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(io::Error::other)
}

/// The message of a frame, which it fills.
///
/// # Errors
///
/// A frame that is no message is [`InvalidData`](io::ErrorKind::InvalidData).
pub(super) fn decode<'a, M: Deserialize<'a>>(frame: &'a [u8]) -> io::Result<M> {
    match postcard::take_from_bytes(frame) {
        Ok((message, [])) => Ok(message),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it sent a message that has no meaning")),
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;

    fn goes_round<M: Serialize + DeserializeOwned + PartialEq + Debug>(messages: impl IntoIterator<Item = M>) {
        for message in messages {
            let frame = encode(&message).unwrap();
            assert_eq!(decode::<M>(&frame).unwrap(), message);
            assert!(decode::<M>(&[&frame[..], &[255; 3]].concat()).is_err(), "{message:?} and more");
            assert!(decode::<M>(&frame[..frame.len() - 1]).is_err(), "{message:?} cut");
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in_and_nothing_else_does() {
        goes_round([
            Request::Beat,
            Request::Set { id: 1, key: "k".into(), value: vec![1, 2] },
            Request::Get { id: 2, key: "key".into(), wait_ms: 9 },
            Request::Barrier { id: 3, name: String::new(), wait_ms: u64::MAX },
            Request::fail("why"),
            Request::Leave,
            Request::Forget { id: 4, key: "key".into() },
        ]);
        goes_round([
            Reply::Beat,
            Reply::Done { id: 7, value: vec![] },
            Reply::Unset { id: 6 },
            Reply::refused(8, "no"),
            Reply::failed(3, "gone"),
        ]);
        // No message; an unknown one; one with too much, with too little, with a length beyond its end, with no text.
        let bad = [&[][..], &[9], &[0, 0], &[1, 8, 1], &[1, 8, 255, 255, 255, 255, 15], &[4, 1, 0xff]];
        for frame in bad {
            assert!(decode::<Request>(frame).is_err(), "{frame:?}");
        }
    }

    #[test]
    fn the_longest_messages_fit_into_a_frame() {
        assert_eq!(cut(&"ä".repeat(MAX_VALUE)).len(), MAX_VALUE);
        let (key, value) = ("k".repeat(MAX_KEY), vec![255; MAX_VALUE]);
        assert!(encode(&Request::Set { id: u64::MAX, key, value: value.clone() }).unwrap().len() <= MAX_FRAME);
        assert!(encode(&Reply::Done { id: u64::MAX, value }).unwrap().len() <= MAX_FRAME);
        assert!(encode(&Reply::failed(u32::MAX, &"x".repeat(2 * MAX_VALUE))).unwrap().len() <= MAX_FRAME);
    }
}
