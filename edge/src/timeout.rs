//! The header `grpc-timeout`.

use std::time::Duration;

/// At most eight digits and a unit. None: the value is malformed.
pub fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let mut amount: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        amount = amount * 10 + u64::from(digit - b'0');
    }
    match unit {
        b'H' => Some(Duration::from_secs(amount * 3600)),
        b'M' => Some(Duration::from_secs(amount * 60)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units() {
        assert_eq!(parse(b"1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse(b"2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse(b"99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parse(b"250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse(b"7u"), Some(Duration::from_micros(7)));
        assert_eq!(parse(b"7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn malformed() {
        for value in [&b""[..], b"S", b"100000000S", b"-1S", b"1", b"1s", b"1.5S", b" 1S", b"1S "] {
            assert_eq!(parse(value), None, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(value in proptest::collection::vec(any::<u8>(), 0..12)) {
            let _ = parse(&value);
        }

        #[test]
        fn reads_what_clients_write(amount in 0u64..100_000_000, unit in 0usize..6) {
            let letter = "HMSmun".as_bytes()[unit] as char;
            let nanos = [3_600_000_000_000u128, 60_000_000_000, 1_000_000_000, 1_000_000, 1_000, 1][unit];
            let read = parse(format!("{amount}{letter}").as_bytes()).unwrap();
            prop_assert_eq!(read.as_nanos(), u128::from(amount) * nanos);
        }
    }
}
