//! Metadata of calls: what gRPC shows of the headers, and what it lets a server send.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Written without padding, read with or without, as gRPC asks.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Binary(Vec<u8>),
}

pub type Metadata = Vec<(String, Value)>;

/// Headers that belong to the protocol and that gRPC does not show to handlers.
fn is_of_protocol(name: &str) -> bool {
    matches!(
        name,
        "te" | "content-type"
            | "content-length"
            | "host"
            | "grpc-timeout"
            | "grpc-encoding"
            | "grpc-accept-encoding"
            | "grpc-internal-encoding-request"
            | "grpc-message-type"
    )
}

/// Err: the name of a header whose value is not base64, although its name ends in -bin.
pub fn received(headers: &HeaderMap) -> Result<Metadata, String> {
    let mut metadata = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        let name = name.as_str();
        if is_of_protocol(name) {
            continue;
        }
        if name.ends_with("-bin") {
            // Several values may share one header.
            for part in value.as_bytes().split(|byte| *byte == b',') {
                let binary = BASE64.decode(part.trim_ascii()).map_err(|_| name.to_owned())?;
                metadata.push((name.to_owned(), Value::Binary(binary)));
            }
        } else {
            metadata.push((name.to_owned(), Value::Text(text(value.as_bytes()))));
        }
    }
    Ok(metadata)
}

/// gRPC allows ASCII only; whatever else comes is read as UTF-8, or else as Latin-1, so that nothing is lost.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    }
}

/// Err: a sentence that says what gRPC does not allow.
pub fn to_send(metadata: &[(String, Value)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(metadata.len() + 2);
    for (name, value) in metadata {
        let is_legal = !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.'));
        if !is_legal {
            return Err(format!("the metadata key {name:?} is not allowed: only lower-case letters, digits, '_', '-' and '.' are"));
        }
        let is_reserved = (name.starts_with("grpc-") && name != "grpc-status-details-bin") || is_of_connection(name);
        if is_reserved {
            return Err(format!("the metadata key {name:?} is reserved for gRPC"));
        }
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
        let encoded = match (value, name.ends_with("-bin")) {
            (Value::Binary(bytes), true) => Bytes::from(BASE64.encode(bytes)),
            (Value::Text(text), true) => Bytes::from(BASE64.encode(text)),
            (Value::Text(text), false) => Bytes::copy_from_slice(text.as_bytes()),
            (Value::Binary(bytes), false) => Bytes::copy_from_slice(bytes),
        };
        if !encoded.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
            return Err(format!("the value of the metadata key {name:?} is not printable ASCII"));
        }
        let value = HeaderValue::from_maybe_shared(encoded).map_err(|error| error.to_string())?;
        headers.try_append(key, value).map_err(|error| error.to_string())?;
    }
    Ok(headers)
}

fn is_of_connection(name: &str) -> bool {
    matches!(
        name,
        "content-type" | "content-length" | "connection" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade"
    )
}

/// Whether two header blocks give the same metadata: all but the deadline of the call.
pub fn same(one: &HeaderMap, other: &HeaderMap) -> bool {
    let without_timeout = |(name, _): &(&HeaderName, &HeaderValue)| name.as_str() != "grpc-timeout";
    let mut mine = one.iter().filter(without_timeout);
    let mut theirs = other.iter().filter(without_timeout);
    loop {
        match (mine.next(), theirs.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn headers_of_the_protocol_are_not_shown() {
        let map = headers(&[
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "1S"),
            ("grpc-accept-encoding", "gzip"),
            ("user-agent", "test"),
            ("x-request", "7"),
        ]);
        let names: Vec<String> = received(&map).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["user-agent", "x-request"]);
    }

    #[test]
    fn binary_values_with_and_without_padding_and_several_in_one() {
        let map = headers(&[("a-bin", "AQI="), ("a-bin", "AQI"), ("b-bin", "AQ,Ag==")]);
        let values: Vec<Value> = received(&map).unwrap().into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [vec![1, 2], vec![1, 2], vec![1], vec![2]].map(Value::Binary));
        assert_eq!(received(&headers(&[("a-bin", "!")])), Err("a-bin".to_owned()));
    }

    #[test]
    fn keys_and_values_that_grpc_does_not_allow_are_refused() {
        let text = |name: &str, value: &str| to_send(&[(name.to_owned(), Value::Text(value.to_owned()))]);
        assert!(text("Upper", "x").is_err());
        assert!(text("", "x").is_err());
        assert!(text("grpc-status", "0").is_err());
        assert!(text("connection", "close").is_err());
        assert!(text("x", "line\nbreak").is_err());
        assert!(text("x", "ä").is_err());
        assert!(text("x", "fine").is_ok());
        assert!(to_send(&[("grpc-status-details-bin".to_owned(), Value::Binary(vec![8, 5]))]).is_ok());
    }

    #[test]
    fn blocks_that_differ_only_in_the_timeout_are_the_same() {
        let one = headers(&[("x", "1"), ("grpc-timeout", "1S"), ("y", "2")]);
        assert!(same(&one, &headers(&[("x", "1"), ("grpc-timeout", "9m"), ("y", "2")])));
        assert!(same(&one, &headers(&[("x", "1"), ("y", "2")])));
        assert!(!same(&one, &headers(&[("x", "1"), ("y", "3")])));
        assert!(!same(&one, &headers(&[("x", "1")])));
        assert!(!same(&one, &headers(&[("x", "1"), ("y", "2"), ("authorization", "z")])));
    }

    proptest! {
        #[test]
        fn binary_metadata_comes_back(values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..5)) {
            let metadata: Metadata =
                values.into_iter().map(|value| ("trace-bin".to_owned(), Value::Binary(value))).collect();
            prop_assert_eq!(received(&to_send(&metadata).unwrap()).unwrap(), metadata);
        }

        #[test]
        fn any_header_bytes_are_read_or_refused(value in proptest::collection::vec(32u8..=255, 0..50)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let mut map = HeaderMap::new();
                map.insert("x", value.clone());
                map.insert("x-bin", value);
                let _ = received(&map);
            }
        }
    }
}
