//! What is said between a member and the server once both know each other, as frames of bounded length.
//!
//! A frame is its length (4 bytes), its kind (1 byte) and its fields, little end first. Every field but the last has its
//! length before it. A frame that is longer than the bound, has an unknown kind, or whose fields do not fill it is
//! refused, and the connection with it.

use std::io::{self, Read, Write};

/// The longest key of a store, in bytes.
pub const MAX_KEY: usize = 256;
/// The longest value of a store, in bytes.
pub const MAX_VALUE: usize = 64 << 10;
/// The longest frame, in bytes: a key, a value, and their lengths.
pub const MAX_FRAME: usize = MAX_KEY + MAX_VALUE + 64;

/// From a member.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Beat => frame(0, &[], &[]),
            Self::Set { id, key, value } => frame(1, &[&id.to_le_bytes(), key.as_bytes()], value),
            Self::Get { id, key, wait_ms } => frame(2, &[&id.to_le_bytes(), &wait_ms.to_le_bytes()], key.as_bytes()),
            Self::Barrier { id, name, wait_ms } => {
                frame(3, &[&id.to_le_bytes(), &wait_ms.to_le_bytes()], name.as_bytes())
            }
            Self::Fail { cause } => frame(4, &[], cut(cause).as_bytes()),
            Self::Leave => frame(5, &[], &[]),
            Self::Forget { id, key } => frame(6, &[&id.to_le_bytes()], key.as_bytes()),
        }
    }

    pub(super) fn decode(frame: &[u8]) -> Option<Self> {
        let (kind, mut fields) = Fields::of(frame)?;
        let request = match kind {
            0 => Self::Beat,
            1 => Self::Set { id: fields.number()?, key: text(fields.next()?)?, value: fields.rest().to_vec() },
            2 => Self::Get { id: fields.number()?, wait_ms: fields.number()?, key: text(fields.rest())? },
            3 => Self::Barrier { id: fields.number()?, wait_ms: fields.number()?, name: text(fields.rest())? },
            4 => Self::Fail { cause: text(fields.rest())? },
            5 => Self::Leave,
            6 => Self::Forget { id: fields.number()?, key: text(fields.rest())? },
            _ => return None,
        };
        fields.is_empty().then_some(request)
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Beat => frame(0, &[], &[]),
            Self::Done { id, value } => frame(1, &[&id.to_le_bytes()], value),
            Self::Refused { id, why } => frame(2, &[&id.to_le_bytes()], cut(why).as_bytes()),
            Self::Failed { worker, cause } => frame(3, &[&worker.to_le_bytes()], cut(cause).as_bytes()),
            Self::Unset { id } => frame(4, &[&id.to_le_bytes()], &[]),
        }
    }

    pub(super) fn decode(frame: &[u8]) -> Option<Self> {
        let (kind, mut fields) = Fields::of(frame)?;
        let reply = match kind {
            0 => Self::Beat,
            1 => Self::Done { id: fields.number()?, value: fields.rest().to_vec() },
            2 => Self::Refused { id: fields.number()?, why: text(fields.rest())? },
            3 => Self::Failed {
                worker: u32::from_le_bytes(fields.next()?.try_into().ok()?),
                cause: text(fields.rest())?,
            },
            4 => Self::Unset { id: fields.number()? },
            _ => return None,
        };
        fields.is_empty().then_some(reply)
    }
}

/// A text that fits into a frame.
fn cut(text: &str) -> &str {
    let end = (0..=MAX_VALUE.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

fn frame(kind: u8, fields: &[&[u8]], last: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 4];
    frame.push(kind);
    for field in fields {
        frame.extend((field.len() as u32).to_le_bytes());
        frame.extend(*field);
    }
    frame.extend(last);
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame
}

/// The fields of a frame that are left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn of(frame: &'a [u8]) -> Option<(u8, Self)> {
        let (kind, fields) = frame.split_first()?;
        Some((*kind, Self(fields)))
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_at_checked(4)?;
        let length = u32::from_le_bytes(length.try_into().ok()?);
        let (field, rest) = rest.split_at_checked(length as usize)?;
        self.0 = rest;
        Some(field)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.next()?.try_into().ok()?))
    }

    fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Sends a frame.
pub(super) fn write_frame(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    if frame.len() > MAX_FRAME + 4 {
        return Err(io::Error::other(format!("a frame of {} bytes, allowed are {MAX_FRAME}", frame.len() - 4)));
    }
    to.write_all(frame)
}

/// Receives a frame, without its length; none at the end of the connection.
///
/// # Errors
///
/// A frame that is longer than the bound, before memory is taken for it; or what the connection says.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if let Err(error) = from.read_exact(&mut length) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::other(format!("a frame of {length} bytes, allowed are {MAX_FRAME}")));
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_and_nothing_else_does() {
        let requests = [
            Request::Beat,
            Request::Set { id: 1, key: "k".into(), value: vec![1, 2] },
            Request::Get { id: 2, key: "key".into(), wait_ms: 9 },
            Request::Barrier { id: 3, name: String::new(), wait_ms: u64::MAX },
            Request::Fail { cause: "why".into() },
            Request::Leave,
            Request::Forget { id: 4, key: "key".into() },
        ];
        for request in requests {
            let bytes = request.encode();
            let frame = read_frame(&mut bytes.as_slice()).unwrap().unwrap();
            assert_eq!(Request::decode(&frame), Some(request));
            assert!(Request::decode(&[&frame[..], &[255; 3]].concat()).is_none_or(|other| other.encode() != bytes));
        }
        let replies = [
            Reply::Beat,
            Reply::Done { id: 7, value: vec![] },
            Reply::Unset { id: 6 },
            Reply::Refused { id: 8, why: "no".into() },
            Reply::Failed { worker: 3, cause: "gone".into() },
        ];
        for reply in replies {
            let frame = read_frame(&mut reply.encode().as_slice()).unwrap().unwrap();
            assert_eq!(Reply::decode(&frame), Some(reply));
        }
        for bad in [&[][..], &[9], &[0, 0], &[1, 8, 0, 0, 0, 1], &[1, 255, 255, 255, 255], &[4, 0xff]] {
            assert_eq!(Request::decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_frame_beyond_the_bound_is_refused_by_its_length() {
        let long = (MAX_FRAME as u32 + 1).to_le_bytes();
        let error = read_frame(&mut long.as_slice()).unwrap_err().to_string();
        assert_eq!(error, format!("a frame of {} bytes, allowed are {MAX_FRAME}", MAX_FRAME + 1));
        assert!(read_frame(&mut [].as_slice()).unwrap().is_none());
        assert!(write_frame(&mut Vec::new(), &vec![0; MAX_FRAME + 5]).is_err());
        assert_eq!(cut(&"ä".repeat(MAX_VALUE)).len(), MAX_VALUE);
    }
}
