//! What to do with the token of a lookup (protocol section 8).

use ferric_types::Secret;

/// Ironic sends this when it has handed the token out before.
const MASKED: &str = "******";

/// Shortest token that is taken.
const MIN_CHARS: usize = 32;

/// Said on the console when there is no token and never will be.
pub const REFUSED_MESSAGE: &str = "the conductor has already handed out this boot's agent token, to an agent that is gone, and does not hand it \
     out twice. This agent cannot serve commands: power the machine off and on through Ironic to get a new token";

/// What the agent does about its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Use this one from now on.
    Adopt(Secret<String>),
    /// Go on with the one at hand, or with none for a conductor that has no tokens.
    Keep,
    /// There is no token and no way to get one before the machine is rebooted: see [`REFUSED_MESSAGE`].
    Refused,
}

/// Judges the token of a lookup answer against the one at hand.
pub fn judge(received: Option<&Secret<String>>, own: Option<&Secret<String>>) -> Verdict {
    match received {
        Some(token) if token.expose() == MASKED && own.is_none() => Verdict::Refused,
        Some(token) if token.expose() != MASKED && token.expose().chars().count() >= MIN_CHARS => {
            Verdict::Adopt(token.clone())
        }
        _ => Verdict::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_adopted_kept_or_refused() {
        let secret = |text: &str| Secret::new(text.to_owned());
        let long = secret(&"t".repeat(43));
        let own = secret(&"o".repeat(43));
        let cases = [
            (Some(long.clone()), None, Verdict::Adopt(long.clone())),
            (Some(long.clone()), Some(own.clone()), Verdict::Adopt(long)),
            (Some(secret(MASKED)), Some(own.clone()), Verdict::Keep),
            (Some(secret(MASKED)), None, Verdict::Refused),
            (Some(secret("short")), None, Verdict::Keep),
            (None, Some(own), Verdict::Keep),
            (None, None, Verdict::Keep),
        ];
        for (received, own, want) in cases {
            assert_eq!(judge(received.as_ref(), own.as_ref()), want, "{}", want == Verdict::Keep);
        }
    }
}
