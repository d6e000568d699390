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
    /// Go on with the one at hand.
    Keep,
    /// Go on without one; the text says what is wrong with the conductor's and what follows.
    None(String),
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
        _ if own.is_some() => Verdict::Keep,
        _ => Verdict::None(unusable(received)),
    }
}

/// Says what is wrong with a token that cannot be used; not the token, which may be a good one cut short.
fn unusable(received: Option<&Secret<String>>) -> String {
    let problem = match received.map(|token| token.expose().chars().count()) {
        None => "sent no agent token".to_owned(),
        Some(0) => "sent an empty agent token".to_owned(),
        Some(count) => {
            format!("sent an agent token of {count} characters, which is refused: {MIN_CHARS} are the least")
        }
    };
    format!(
        "the conductor {problem}. This agent goes on without one: its heartbeats carry none, which Ironic refuses, and \
         every command is answered with 401 (does ipa-api-url lead to Ironic, of version 1.62 or later of its API?)"
    )
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
            (Some(secret("short")), Some(own.clone()), Verdict::Keep),
            (None, Some(own), Verdict::Keep),
        ];
        for (received, own, want) in cases {
            assert_eq!(judge(received.as_ref(), own.as_ref()), want, "{}", want == Verdict::Keep);
        }
    }

    #[test]
    fn an_unusable_token_is_told_without_telling_it() {
        let secret = |text: &str| Secret::new(text.to_owned());
        let cut = secret("k3yk3yk3yk3yk3y");
        let cases = [
            (None, "sent no agent token"),
            (Some(secret("")), "sent an empty agent token"),
            (Some(cut), "sent an agent token of 15 characters, which is refused: 32 are the least"),
        ];
        for (received, want) in cases {
            match judge(received.as_ref(), None) {
                Verdict::None(text) => {
                    assert!(text.contains(want) && text.contains("401") && !text.contains("k3y"), "{text}");
                }
                other => panic!("{want}: {other:?}"),
            }
        }
    }
}
