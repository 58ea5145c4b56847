//! The status of a call in headers: `grpc-status` and the percent-encoded `grpc-message`.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    Ok = 0,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DeadlineExceeded = 4,
}

pub static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Everything but printable ASCII, and the percent sign, becomes %XX.
pub fn percent_encode(message: &str) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let hex = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
    let mut encoded = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            encoded.push(byte);
        } else {
            encoded.extend_from_slice(&[b'%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
    encoded
}

/// `trailing` with the status added.
pub fn trailers(code: u32, message: &str, mut trailing: HeaderMap) -> HeaderMap {
    trailing.insert(&GRPC_STATUS, code_value(code));
    if !message.is_empty()
        && let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(percent_encode(message)))
    {
        trailing.insert(&GRPC_MESSAGE, value);
    }
    trailing
}

fn code_value(code: u32) -> HeaderValue {
    if code == 0 { HeaderValue::from_static("0") } else { HeaderValue::from(code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn percent_decode(encoded: &[u8]) -> Vec<u8> {
        let mut decoded = Vec::new();
        let mut rest = encoded;
        while let [first, tail @ ..] = rest {
            if *first == b'%' {
                let digits = std::str::from_utf8(&tail[..2]).unwrap();
                decoded.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &tail[2..];
            } else {
                decoded.push(*first);
                rest = tail;
            }
        }
        decoded
    }

    #[test]
    fn plain_text_stays() {
        assert_eq!(percent_encode("worker w-1 is unknown"), b"worker w-1 is unknown");
        assert_eq!(percent_encode("100% ä\n"), b"100%25 %C3%A4%0A");
    }

    #[test]
    fn a_status_without_message_has_no_message_header() {
        let map = trailers(0, "", HeaderMap::new());
        assert_eq!(map.len(), 1);
        assert_eq!(map.get("grpc-status").unwrap(), "0");
    }

    proptest! {
        #[test]
        fn every_message_comes_back(message in ".*") {
            let map = trailers(3, &message, HeaderMap::new());
            let sent = map.get("grpc-message").map_or(&b""[..], |value| value.as_bytes());
            prop_assert_eq!(percent_decode(sent), message.into_bytes());
        }
    }
}
