//! Finding the node of this machine (protocol section 7).

use std::time::Duration;

use fastrand::Rng;
use ferric_types::lookup::LookupAnswer;
use tokio::time::Instant;

use super::backoff;
use super::error::ConductorError;
use crate::json::{self, JsonError};

/// Longest UUID that is taken, in bytes; a canonical one has 36.
const MAX_UUID_BYTES: usize = 255;

/// How long lookups go on.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From the first lookup to giving up.
    pub timeout: Duration,
    /// Shortest pause between two.
    pub interval: Duration,
}

/// Reads an answer; the error says what is wrong with it.
pub(super) fn read(body: &[u8]) -> Result<LookupAnswer, &'static str> {
    let answer: LookupAnswer = json::from_slice(body).map_err(|error| match error {
        JsonError::TooComplex => "holds more values than any node has",
        JsonError::Json(_) => "is not a lookup answer in JSON",
    })?;
    match answer.node.uuid() {
        None | Some("") => return Err("holds no node UUID"),
        Some(uuid) if !is_uuid_like(uuid) => return Err("holds a node UUID with characters that no UUID has"),
        Some(_) => {}
    }
    if heartbeat_timeout(&answer).is_none() {
        return Err("holds no heartbeat_timeout of more than 0 seconds");
    }
    Ok(answer)
}

/// Whether a text may be part of a URL's path: Ironic's UUIDs have digits, letters and dashes, and nothing else is
/// needed but what host names have.
fn is_uuid_like(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    plain && !text.starts_with('.') && text.len() <= MAX_UUID_BYTES
}

/// Time within which the conductor expects a heartbeat. Very old APIs put it beside the node. An answer from
/// [`super::Conductor::lookup`] always has one.
pub fn heartbeat_timeout(answer: &LookupAnswer) -> Option<Duration> {
    let seconds = match &answer.config {
        Some(config) => config.heartbeat_timeout,
        None => answer.heartbeat_timeout,
    }?;
    Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero())
}

/// Repeats an attempt until it succeeds or the time is over: random pauses with a doubling upper end, and longer ones
/// while the node is locked, so that a rack of waiting agents does not keep the conductor busy with refusing them.
pub(super) async fn until_found<T, F>(
    limits: Limits,
    mut rng: Rng,
    mut attempt: impl FnMut() -> F,
) -> Result<T, ConductorError>
where
    F: Future<Output = Result<T, ConductorError>>,
{
    let begun = Instant::now();
    let mut tries = 0;
    let mut conflicts = 0;
    loop {
        tries += 1;
        let error = match attempt().await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let waited = begun.elapsed();
        if waited >= limits.timeout {
            return Err(ConductorError::LookupTimedOut { waited, last: Box::new(error) });
        }
        let mut pause = backoff::lookup_pause(&mut rng, tries, limits.interval);
        if error.is_conflict() {
            conflicts += 1;
            pause += backoff::conflict_pause(conflicts);
        }
        let pause = pause.min(limits.timeout.saturating_sub(waited));
        tracing::warn!(
            "{}; next try in {:.0} s, giving up in {} s",
            error.explain(),
            pause.as_secs_f64().ceil(),
            limits.timeout.saturating_sub(waited).as_secs()
        );
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    const LIMITS: Limits = Limits { timeout: Duration::from_secs(600), interval: Duration::from_secs(1) };

    fn refused(status: u16) -> ConductorError {
        ConductorError::Refused {
            what: "lookup",
            url: "http://192.0.2.1:6385".parse().unwrap(),
            status: StatusCode::from_u16(status).unwrap(),
            text: "x".into(),
        }
    }

    /// Runs attempts that answer with the given statuses (then 200) and gives the seconds at which they were made.
    async fn attempts(statuses: impl Fn(usize) -> Option<u16>) -> (Result<(), ConductorError>, Vec<f64>) {
        let begun = Instant::now();
        let mut times = Vec::new();
        let attempt = || {
            times.push(begun.elapsed().as_secs_f64());
            std::future::ready(statuses(times.len()).map_or(Ok(()), |status| Err(refused(status))))
        };
        let result = until_found(LIMITS, Rng::with_seed(3), attempt).await;
        (result, times)
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_end_with_the_first_success() {
        let (result, times) = attempts(|n| (n < 4).then_some(404)).await;
        result.unwrap();
        assert_eq!(times.len(), 4);
        for (pause, high) in times.windows(2).map(|pair| pair[1] - pair[0]).zip([1.0, 2.0, 4.0]) {
            assert!(pause >= 1.0 && pause <= high + 0.01, "{times:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_end_when_the_time_is_over() {
        let begun = Instant::now();
        let (result, times) = attempts(|_| Some(500)).await;
        let error = result.unwrap_err();
        assert!(matches!(error, ConductorError::LookupTimedOut { .. }));
        assert_eq!(error.status(), Some(StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(begun.elapsed().as_secs(), 600);
        assert!(times.len() > 15 && times.len() < 100, "{}", times.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_locked_node_is_asked_for_less_often() {
        let (_, times) =
            attempts(|n| [None, Some(409), Some(404), Some(409), Some(409), Some(409)].get(n)?.to_owned()).await;
        let pauses: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses.len(), 5);
        // (extra, upper end of the ordinary pause)
        for (index, (extra, high)) in
            [(5.0, 1.0), (0.0, 2.0), (10.0, 4.0), (30.0, 8.0), (30.0, 16.0)].into_iter().enumerate()
        {
            let pause = pauses[index];
            assert!(pause >= extra + 1.0 - 0.01 && pause <= extra + high + 0.01, "{index}: {pauses:?}");
        }
    }

    #[test]
    fn answers_need_a_uuid_and_a_heartbeat_timeout() {
        let good = [
            (r#"{"node":{"uuid":"u"},"config":{"heartbeat_timeout":300,"agent_token":null,"new":{}}}"#, 300),
            (r#"{"node":{"uuid":"u"},"heartbeat_timeout":60}"#, 60),
            (r#"{"node":{"uuid":"u"},"config":null,"heartbeat_timeout":60.0}"#, 60),
        ];
        for (text, seconds) in good {
            let answer = read(text.as_bytes()).unwrap_or_else(|problem| panic!("{text}: {problem}"));
            assert_eq!(heartbeat_timeout(&answer), Some(Duration::from_secs(seconds)), "{text}");
        }
        let bad = [
            "",
            "[]",
            r#"{"node":{}}"#,
            r#"{"node":{"uuid":""},"heartbeat_timeout":1}"#,
            r#"{"node":{"uuid":"u"}}"#,
            r#"{"node":{"uuid":"u"},"config":{},"heartbeat_timeout":60}"#,
            r#"{"node":{"uuid":"u"},"config":{"heartbeat_timeout":-5}}"#,
            r#"{"node":{"uuid":"u"},"config":{"heartbeat_timeout":1e300}}"#,
        ];
        for text in bad {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_is_a_path_segment_is_taken_as_uuid() {
        let answer = |uuid: &str| serde_json::json!({"node": {"uuid": uuid}, "heartbeat_timeout": 60}).to_string();
        for uuid in ["1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "1BE26C0B03F24D2EAE87C02D7F33C123", "node_1.rack-2"] {
            assert!(read(answer(uuid).as_bytes()).is_ok(), "{uuid}");
        }
        let long = "a".repeat(256);
        for uuid in ["../../x?y=", "..", ".", ".x", "a/b", "a?b", "a#b", "a%2fb", "a b", "a\r\nb", "\u{e9}", &long] {
            let problem = read(answer(uuid).as_bytes()).unwrap_err();
            assert_eq!(problem, "holds a node UUID with characters that no UUID has", "{uuid}");
        }
    }

    #[test]
    fn answers_of_countless_values_are_not_read() {
        let extra = vec![r#"{"a":0}"#; 500_000].join(",");
        let body = format!(r#"{{"node":{{"uuid":"u","x":[{extra}]}},"heartbeat_timeout":60}}"#);
        assert_eq!(read(body.as_bytes()).unwrap_err(), "holds more values than any node has");
    }
}
