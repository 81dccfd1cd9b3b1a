//! Frames on a connection whose both ends know each other: encrypted, and authenticated in their order.
//!
//! A frame is its length (4 bytes, little end first) and its contents. It goes as one message of Noise or, as those have
//! at most 65,535 bytes, as several. Before each message stands its length (2 bytes, big end first), which is all that can
//! be read on the way. The number of a message is its nonce: one that is changed, left out, repeated or out of turn is
//! not decrypted, and the connection is of no use any more.

use std::io::{self, Read, Write};

use snow::StatelessTransportState;

use super::message::MAX_FRAME;

/// What authentication adds to a message.
pub(super) const TAG: usize = 16;
/// The longest message of Noise, without that.
const LONGEST: usize = u16::MAX as usize - TAG;

/// The keys of a connection, one a direction.
pub(super) struct Session(StatelessTransportState);

/// One direction of a session: the number of its next message.
#[derive(Debug, Default)]
pub(super) struct Direction(u64);

impl Session {
    pub(super) fn new(keys: StatelessTransportState) -> Self {
        Self(keys)
    }

    /// Sends a frame.
    pub(super) fn write(&self, to: &mut impl Write, sent: &mut Direction, frame: &[u8]) -> io::Result<()> {
        if frame.len() > MAX_FRAME {
            return Err(too_long(frame.len()));
        }
        let text = [&(frame.len() as u32).to_le_bytes(), frame].concat();
        let mut sealed = Vec::with_capacity(text.len() + 2 * (2 + TAG));
        for part in text.chunks(LONGEST) {
            let length = part.len() + TAG;
            sealed.extend((length as u16).to_be_bytes());
            let begin = sealed.len();
            sealed.resize(begin + length, 0);
            self.0.write_message(sent.0, part, &mut sealed[begin..]).map_err(io::Error::other)?;
            sent.0 += 1;
        }
        to.write_all(&sealed)
    }

    /// Receives a frame; none at the end of the connection.
    ///
    /// # Errors
    ///
    /// What the connection says; [`InvalidData`](io::ErrorKind::InvalidData) for a frame that is longer than the bound,
    /// before memory is taken for it, and for a message that is not the next one of the other end.
    pub(super) fn read(&self, from: &mut impl Read, received: &mut Direction) -> io::Result<Option<Vec<u8>>> {
        let Some(mut frame) = self.message(from, received)? else { return Ok(None) };
        let Some((length, _)) = frame.split_first_chunk() else { return Err(uneven()) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME {
            return Err(too_long(length));
        }
        frame.drain(..size_of::<u32>());
        while frame.len() < length {
            let more = self.message(from, received)?.ok_or_else(cut)?;
            if more.is_empty() {
                return Err(uneven());
            }
            frame.extend(more);
        }
        if frame.len() == length { Ok(Some(frame)) } else { Err(uneven()) }
    }

    /// The text of the next message.
    fn message(&self, from: &mut impl Read, received: &mut Direction) -> io::Result<Option<Vec<u8>>> {
        let mut length = Vec::with_capacity(2);
        if from.by_ref().take(2).read_to_end(&mut length)? == 0 {
            return Ok(None);
        }
        let length = <[u8; 2]>::try_from(length).map_err(|_| cut())?;
        let mut sealed = vec![0; usize::from(u16::from_be_bytes(length))];
        from.read_exact(&mut sealed).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => cut(),
            _ => error,
        })?;
        let mut text = vec![0; sealed.len().saturating_sub(TAG)];
        self.0.read_message(received.0, &sealed, &mut text).map_err(|_| {
            invalid(
                "a message from it was changed, left out or repeated on the way, by something between the two that is \
                 faulty or hostile",
            )
        })?;
        received.0 += 1;
        Ok(Some(text))
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection in the middle of a message")
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

fn too_long(length: usize) -> io::Error {
    invalid(format!("a frame of {length} bytes, allowed are {MAX_FRAME}"))
}

fn uneven() -> io::Error {
    invalid("it sent a frame that does not have the length it says")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two ends that have met.
    pub(crate) fn pair() -> [Session; 2] {
        let suite = || "Noise_NN_25519_ChaChaPoly_SHA256".parse().unwrap();
        let mut one = snow::Builder::new(suite()).build_initiator().unwrap();
        let mut other = snow::Builder::new(suite()).build_responder().unwrap();
        let (mut message, mut nothing) = ([0; 100], [0; 100]);
        let length = one.write_message(&[], &mut message).unwrap();
        other.read_message(&message[..length], &mut nothing).unwrap();
        let length = other.write_message(&[], &mut message).unwrap();
        one.read_message(&message[..length], &mut nothing).unwrap();
        [one, other].map(|end| Session::new(end.into_stateless_transport_mode().unwrap()))
    }

    /// The messages of one text each, without their lengths' bounds.
    fn sealed(from: &Session, texts: &[&[u8]]) -> Vec<u8> {
        let message = |(number, text): (usize, &&[u8])| {
            let mut sealed = vec![0; text.len() + TAG];
            from.0.write_message(number as u64, text, &mut sealed).unwrap();
            [&(sealed.len() as u16).to_be_bytes()[..], &sealed].concat()
        };
        texts.iter().enumerate().flat_map(message).collect()
    }

    #[test]
    fn frames_of_all_lengths_go_both_ways() {
        let ends = pair();
        for (from, to) in [(0, 1), (1, 0)] {
            let (mut sent, mut received) = (Direction::default(), Direction::default());
            for length in [0, 1, 100, LONGEST - 5, LONGEST - 4, LONGEST - 3, MAX_FRAME] {
                let frame: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
                let mut way = Vec::new();
                ends[from].write(&mut way, &mut sent, &frame).unwrap();
                assert_eq!(ends[to].read(&mut way.as_slice(), &mut received).unwrap(), Some(frame));
            }
        }
        let end = ends[0].read(&mut [].as_slice(), &mut Direction::default());
        assert!(end.unwrap().is_none());
    }

    #[test]
    fn a_connection_that_ends_in_the_middle_of_a_message_is_told_so() {
        let [one, other] = pair();
        let mut way = Vec::new();
        one.write(&mut way, &mut Direction::default(), &[7; LONGEST]).unwrap();
        let whole = 2 + LONGEST + TAG;
        for length in [1, 2, 3, whole - 1, whole, whole + 1, way.len() - 1] {
            let error = other.read(&mut &way[..length], &mut Direction::default()).unwrap_err();
            assert_eq!(error.to_string(), "it closed the connection in the middle of a message", "{length}");
        }
    }

    #[test]
    fn a_frame_beyond_the_bound_is_refused_by_its_length() {
        let [one, other] = pair();
        let told = format!("a frame of {} bytes, allowed are {MAX_FRAME}", MAX_FRAME + 1);
        let refused = |error: io::Error| assert_eq!(error.to_string(), told);
        refused(one.write(&mut Vec::new(), &mut Direction::default(), &vec![0; MAX_FRAME + 1]).unwrap_err());
        let way = sealed(&one, &[&(MAX_FRAME as u32 + 1).to_le_bytes()]);
        refused(other.read(&mut way.as_slice(), &mut Direction::default()).unwrap_err());
        // Nor is one of another length than it says.
        let length = 5_u32.to_le_bytes();
        for texts in [&[&b"abc"[..]][..], &[&length, b"too long"], &[&length, b"abc", b""]] {
            let way = sealed(&one, texts);
            let error = other.read(&mut way.as_slice(), &mut Direction::default()).unwrap_err();
            assert_eq!(error.to_string(), "it sent a frame that does not have the length it says", "{texts:?}");
        }
    }
}
