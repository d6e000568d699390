//! The agent token of a request.

use ferric_types::Secret;

use super::fault::ApiError;

/// Checks the `agent_token` of a query string against the agent's own, in constant time. An agent without a token
/// refuses everyone (protocol section 8).
///
/// # Errors
/// [`ApiError::Token`].
pub fn check(own: Option<&Secret<String>>, query: Option<&str>) -> Result<(), ApiError> {
    let given = query.and_then(|query| parameter(query, "agent_token"));
    match (own, given) {
        (Some(own), Some(given)) if equal(own.expose().as_bytes(), given.as_bytes()) => Ok(()),
        _ => Err(ApiError::Token),
    }
}

/// Compares without an early exit, so that the time taken tells nothing of where two texts differ. Lengths are no
/// secret: Ironic's tokens all have the same.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0_u8, |diff, (x, y)| diff | (x ^ y))) == 0
}

/// A query parameter, percent-decoded, with `+` for a blank; the last one wins where it is repeated.
pub fn parameter(query: &str, name: &str) -> Option<String> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| {
            let spaced = value.replace('+', " ");
            percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        })
        .next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_token_passes() {
        let own = Secret::new("a-token_of~43.chars".to_owned());
        for good in ["agent_token=a-token_of~43.chars", "wait=true&agent_token=a%2dtoken_of%7E43.chars"] {
            assert!(check(Some(&own), Some(good)).is_ok(), "{good}");
        }
        for bad in [
            "",
            "agent_token=",
            "agent_token=a-token_of~43.char",
            "agent_token=a-token_of~43.charsx",
            "token=a-token_of~43.chars",
        ] {
            assert!(check(Some(&own), Some(bad)).is_err(), "{bad}");
        }
        assert!(check(Some(&own), None).is_err());
        assert!(check(None, Some("agent_token=")).is_err());
    }
}
