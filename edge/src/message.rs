//! Messages in the body of a call: five bytes of prefix (a flag, a length), then the message, perhaps packed with gzip.

use std::fmt;
use std::io::Read;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::bufread::GzDecoder;

pub const PREFIX_BYTES: usize = 5;
const UNPACK_STEP_BYTES: usize = 16 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    TooLarge { bytes: usize, max: usize },
    UnpackedTooLarge { max: usize },
    UnknownFlag(u8),
    PackedWithoutEncoding,
    BrokenGzip,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, max } => {
                write!(out, "Received message larger than max ({bytes} vs. {max})")
            }
            Self::UnpackedTooLarge { max } => {
                write!(out, "Received message larger than max (more than {max} bytes after unpacking)")
            }
            Self::UnknownFlag(flag) => write!(out, "a message begins with {flag}; only 0 and 1 are known"),
            Self::PackedWithoutEncoding => out.write_str("a message is marked as packed, but no grpc-encoding says how"),
            Self::BrokenGzip => out.write_str("a message is not valid gzip"),
        }
    }
}

/// The bytes of a message with its prefix, as they are sent.
pub fn with_prefix(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    put_with_prefix(&mut framed, message);
    framed.freeze()
}

pub fn put_with_prefix(framed: &mut BytesMut, message: &[u8]) {
    framed.put_u8(0);
    // Python refuses longer ones before.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
}

/// Unpacks at most `max` bytes, and keeps room for no more.
pub fn unpack(packed: &[u8], max: usize) -> Result<Bytes, Unreadable> {
    let mut decoder = GzDecoder::new(packed);
    let mut unpacked = Vec::new();
    let mut step = [0u8; UNPACK_STEP_BYTES];
    loop {
        let count = decoder.read(&mut step).map_err(|_| Unreadable::BrokenGzip)?;
        let Some(read) = step.get(..count) else { return Err(Unreadable::BrokenGzip) };
        if read.is_empty() {
            return Ok(Bytes::from(unpacked));
        }
        let size = unpacked.len() + read.len();
        if size > max {
            return Err(Unreadable::UnpackedTooLarge { max });
        }
        if size > unpacked.capacity() {
            unpacked.reserve_exact((unpacked.len() * 2).clamp(size, max.max(size)) - unpacked.len());
        }
        unpacked.extend_from_slice(read);
    }
}

/// Puts messages together from chunks of any size. Holds no more than what has arrived.
pub struct MessageReader {
    bytes_max: usize,
    is_gzip: bool,
    partial: BytesMut,
}

impl MessageReader {
    pub fn new(bytes_max: usize, is_gzip: bool) -> Self {
        Self { bytes_max, is_gzip, partial: BytesMut::new() }
    }

    /// Bytes of a message that is not complete.
    pub fn partial_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Calls `on_message` for each message that `chunk` completes.
    pub fn push(&mut self, mut chunk: Bytes, mut on_message: impl FnMut(Bytes)) -> Result<(), Unreadable> {
        while !chunk.is_empty() {
            if self.partial.is_empty() {
                if let Some((flag, size)) = self.prefix(&chunk)?
                    && chunk.len() >= PREFIX_BYTES + size
                {
                    chunk.advance(PREFIX_BYTES);
                    on_message(self.unpacked(flag, chunk.split_to(size))?);
                    continue;
                }
                self.partial.extend_from_slice(&chunk);
                return Ok(());
            }
            if self.partial.len() < PREFIX_BYTES {
                let missing = (PREFIX_BYTES - self.partial.len()).min(chunk.len());
                self.partial.extend_from_slice(&chunk.split_to(missing));
            }
            let Some((flag, size)) = self.prefix(&self.partial)? else { return Ok(()) };
            let missing = (PREFIX_BYTES + size - self.partial.len()).min(chunk.len());
            self.partial.extend_from_slice(&chunk.split_to(missing));
            if self.partial.len() == PREFIX_BYTES + size {
                let mut whole = std::mem::take(&mut self.partial).freeze();
                whole.advance(PREFIX_BYTES);
                on_message(self.unpacked(flag, whole)?);
            }
        }
        Ok(())
    }

    /// None: fewer than five bytes are there.
    fn prefix(&self, bytes: &[u8]) -> Result<Option<(u8, usize)>, Unreadable> {
        let &[flag, a, b, c, d, ..] = bytes else { return Ok(None) };
        if flag > 1 {
            return Err(Unreadable::UnknownFlag(flag));
        }
        if flag == 1 && !self.is_gzip {
            return Err(Unreadable::PackedWithoutEncoding);
        }
        let size = u32::from_be_bytes([a, b, c, d]) as usize;
        if size > self.bytes_max {
            return Err(Unreadable::TooLarge { bytes: size, max: self.bytes_max });
        }
        Ok(Some((flag, size)))
    }

    fn unpacked(&self, flag: u8, message: Bytes) -> Result<Bytes, Unreadable> {
        if flag == 1 { unpack(&message, self.bytes_max) } else { Ok(message) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn packed(message: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(message).unwrap();
        encoder.finish().unwrap()
    }

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![flag];
        bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
        bytes.extend_from_slice(message);
        bytes
    }

    fn read(reader: &mut MessageReader, chunk: &[u8]) -> Result<Vec<Bytes>, Unreadable> {
        let mut messages = Vec::new();
        reader.push(Bytes::copy_from_slice(chunk), |message| messages.push(message))?;
        Ok(messages)
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_the_message_arrives() {
        let mut reader = MessageReader::new(10, false);
        let error = read(&mut reader, &[0, 0, 0, 0, 11]).unwrap_err();
        assert_eq!(error, Unreadable::TooLarge { bytes: 11, max: 10 });
    }

    #[test]
    fn a_small_message_that_unpacks_to_much_is_refused_and_never_held() {
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(unpack(&bomb, 100_000).unwrap_err(), Unreadable::UnpackedTooLarge { max: 100_000 });
    }

    #[test]
    fn exactly_the_limit_is_allowed() {
        assert_eq!(unpack(&packed(&vec![7; 100_000]), 100_000).unwrap().len(), 100_000);
        assert_eq!(unpack(&packed(&vec![7; 100_001]), 100_000).unwrap_err(), Unreadable::UnpackedTooLarge { max: 100_000 });
    }

    #[test]
    fn a_packed_message_needs_an_encoding() {
        let mut reader = MessageReader::new(10, false);
        assert_eq!(read(&mut reader, &[1, 0, 0, 0, 0]).unwrap_err(), Unreadable::PackedWithoutEncoding);
    }

    proptest! {
        #[test]
        fn messages_do_not_depend_on_how_they_are_cut(
            messages in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200)), 0..8),
            cuts in proptest::collection::vec(1usize..60, 1..40),
        ) {
            let mut bytes = Vec::new();
            for (is_packed, message) in &messages {
                bytes.extend(if *is_packed { framed(1, &packed(message)) } else { framed(0, message) });
            }
            let mut reader = MessageReader::new(1_000, true);
            let mut out = Vec::new();
            let (mut rest, mut turn) = (&bytes[..], 0);
            while !rest.is_empty() {
                let count = cuts[turn % cuts.len()].min(rest.len());
                turn += 1;
                out.extend(read(&mut reader, &rest[..count]).unwrap());
                rest = &rest[count..];
            }
            prop_assert_eq!(reader.partial_bytes(), 0);
            let sent: Vec<Bytes> = messages.into_iter().map(|(_, message)| Bytes::from(message)).collect();
            prop_assert_eq!(out, sent);
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10),
            is_gzip: bool,
        ) {
            let mut reader = MessageReader::new(100, is_gzip);
            for chunk in chunks {
                match read(&mut reader, &chunk) {
                    Ok(messages) => for message in messages { prop_assert!(message.len() <= 100) },
                    Err(_) => break,
                }
                prop_assert!(reader.partial_bytes() < 105);
            }
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), max in 0usize..100) {
            if let Ok(unpacked) = unpack(&bytes, max) {
                prop_assert!(unpacked.len() <= max);
            }
        }

        #[test]
        fn what_is_sent_is_read(message in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = MessageReader::new(300, false);
            prop_assert_eq!(read(&mut reader, &with_prefix(&message)).unwrap(), vec![Bytes::from(message)]);
        }
    }
}
