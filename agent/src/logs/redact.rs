//! Keeps secrets out of what leaves the machine.

use std::sync::{Mutex, PoisonError};

use ferric_types::Secret;

static HIDDEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Values of these parameters are secrets wherever a kernel command line is quoted.
const SECRET_PARAMETERS: &[&str] = &["ipa-agent-token=", "rootpwd=", "agent_token=", "image_server_password="];

const STARS: &[u8] = b"******";

/// Shorter texts are no secrets, and replacing them would tear other words apart.
const SHORTEST: usize = 6;

/// Replaces a secret by stars in every text that leaves the machine from now on.
pub fn hide(secret: &Secret<String>) {
    let mut hidden = HIDDEN.lock().unwrap_or_else(PoisonError::into_inner);
    if secret.expose().len() >= SHORTEST && !hidden.contains(secret.expose()) {
        hidden.push(secret.expose().clone());
    }
}

/// The text without hidden secrets, secret kernel parameters and passwords in URLs.
pub(crate) fn redact(text: &[u8]) -> Vec<u8> {
    let hidden = HIDDEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    redact_with(text, &hidden)
}

fn redact_with(text: &[u8], hidden: &[String]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        if let Some(secret) = hidden.iter().find(|secret| rest.starts_with(secret.as_bytes())) {
            out.extend_from_slice(STARS);
            rest = rest.get(secret.len()..).unwrap_or_default();
        } else if let Some((keep, skip)) = parameter(rest).or_else(|| credentials(rest)) {
            out.extend_from_slice(rest.get(..keep).unwrap_or_default());
            out.extend_from_slice(STARS);
            rest = rest.get(skip..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// How much to keep and where to go on, when the text begins with a secret parameter.
fn parameter(text: &[u8]) -> Option<(usize, usize)> {
    let name = SECRET_PARAMETERS.iter().find(|name| text.starts_with(name.as_bytes()))?;
    let value = text.get(name.len()..)?;
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'&' | b'\0');
    let length = value.iter().position(ends).unwrap_or(value.len());
    Some((name.len(), name.len() + length))
}

/// The same for `://user:password@`.
fn credentials(text: &[u8]) -> Option<(usize, usize)> {
    let authority = text.strip_prefix(b"://")?;
    let end = authority.iter().position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'"' | b'?' | b'#'));
    let authority = authority.get(..end.unwrap_or(authority.len()))?;
    let at = authority.iter().rposition(|byte| *byte == b'@')?;
    Some((3, 3 + at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_become_stars_and_the_rest_stays() {
        let hidden = ["s3cret-token".to_owned()];
        let cases: &[(&[u8], &[u8])] = &[
            (b"plain \xff text", b"plain \xff text"),
            (b"token s3cret-token.", b"token ******."),
            (b"quiet ipa-agent-token=abc ipa-debug=1", b"quiet ipa-agent-token=****** ipa-debug=1"),
            (b"rootpwd=\"$6$x\"", b"rootpwd=******"),
            (b"GET /v1/commands/?agent_token=xyz&wait=true", b"GET /v1/commands/?agent_token=******&wait=true"),
            (b"http://user:pass@host/x@y", b"http://******@host/x@y"),
            (b"http://host/x@y", b"http://host/x@y"),
        ];
        for (text, want) in cases {
            let got = redact_with(text, &hidden);
            assert_eq!(got, *want, "{}", String::from_utf8_lossy(&got));
        }
    }

    #[test]
    fn short_texts_are_not_hidden() {
        hide(&Secret::new("a".to_owned()));
        assert_eq!(redact(b"banana"), b"banana");
        hide(&Secret::new("hidden-in-this-test".to_owned()));
        assert_eq!(redact(b"x hidden-in-this-test"), b"x ******");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _redacted = redact_with(&text, &["aa".to_owned()]);
        }
    }
}
