//! The validity period of an X.509 certificate (RFC 5280 section 4.1), read without a certificate library: it is the
//! one field the pinned-certificate check needs and the verifier does not hand out.

use std::time::Duration;

use rustls_pki_types::UnixTime;
use time::{Date, Month, PrimitiveDateTime, Time};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const EXPLICIT_VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// First and last moment of a certificate, none when the bytes are no certificate.
pub(super) fn period(certificate: &[u8]) -> Option<(UnixTime, UnixTime)> {
    let (_, outer, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut fields, _) = element(outer).filter(|(tag, ..)| *tag == SEQUENCE)?;
    // version (optional), serial number, signature algorithm, issuer, then the validity.
    for tag in [EXPLICIT_VERSION, INTEGER, SEQUENCE, SEQUENCE] {
        let (found, _, rest) = element(fields)?;
        if found == tag {
            fields = rest;
        } else if tag != EXPLICIT_VERSION {
            return None;
        }
    }
    let (_, validity, _) = element(fields).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (first_tag, first, rest) = element(validity)?;
    let (last_tag, last, _) = element(rest)?;
    Some((moment(first_tag, first)?, moment(last_tag, last)?))
}

/// Tag, content and what follows of the first DER element (X.690 section 8.1, single-byte tags only).
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let digits = usize::from(first & 0x7f);
        if digits == 0 || digits > 4 {
            return None;
        }
        let (bytes, after) = rest.split_at_checked(digits)?;
        length = bytes.iter().fold(0, |value, byte| (value << 8) | usize::from(*byte));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    Some((tag, content, after))
}

fn moment(tag: u8, text: &[u8]) -> Option<UnixTime> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (digits, rest) = text.split_at_checked(2)?;
            let short = number(digits)?;
            (if short >= 50 { 1900 + short } else { 2000 + short }, rest)
        }
        GENERALIZED_TIME => {
            let (digits, rest) = text.split_at_checked(4)?;
            (number(digits)?, rest)
        }
        _ => return None,
    };
    if rest.len() != 10 {
        return None;
    }
    let part = |at: usize| u8::try_from(number(rest.get(at..at + 2)?)?).ok();
    let date = Date::from_calendar_date(i32::from(year), Month::try_from(part(0)?).ok()?, part(2)?).ok()?;
    let clock = Time::from_hms(part(4)?, part(6)?, part(8)?).ok()?;
    let seconds = PrimitiveDateTime::new(date, clock).assume_utc().unix_timestamp();
    Some(UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).ok()?)))
}

fn number(digits: &str) -> Option<u16> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_period_of_a_generated_certificate_is_found() {
        let mut params = rcgen::CertificateParams::new(vec!["h.example".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        for (first, last) in [((2026, 1, 2), (2049, 12, 31)), ((2024, 2, 29), (2051, 6, 1))] {
            params.not_before = rcgen::date_time_ymd(first.0, first.1, first.2);
            params.not_after = rcgen::date_time_ymd(last.0, last.1, last.2);
            let certificate = params.self_signed(&key).unwrap();
            let (from, to) = period(certificate.der()).unwrap();
            assert_eq!(i64::try_from(from.as_secs()).unwrap(), params.not_before.unix_timestamp(), "{first:?}");
            assert_eq!(i64::try_from(to.as_secs()).unwrap(), params.not_after.unix_timestamp(), "{last:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _period = period(&bytes);
        }
    }
}
