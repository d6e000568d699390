//! The calls between an agent and Ironic in the order in which they were made, to be compared with what the reference
//! agent's protocol has.

use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use regex::Regex;
use time::PrimitiveDateTime;
use time::macros::format_description;

use crate::gate::Call;

/// The calls as words: `a.` by the agent, `c.` by the conductor.
pub(crate) fn words(calls: &[Call], log: &str, node: &str, since: SystemTime) -> Result<Vec<String>> {
    let mut all: Vec<(SystemTime, String)> = calls.iter().map(|call| (call.at, agent_word(call))).collect();
    let pattern = Regex::new(
        r"^(\S+ \S+) .*agent_client.* (?:Executing agent command (\S+) for node (\S+)|Fetching status of agent commands for node ([0-9a-f-]+))",
    )?;
    for line in log.lines() {
        let Some(found) = pattern.captures(line) else { continue };
        let at = found.get(1).context("no time")?.as_str();
        let at = time_of(at).with_context(|| format!("the time {at:?} of the log"))?;
        let whose = found.get(3).or(found.get(4)).map_or("", |part| part.as_str());
        if at < since || whose != node {
            continue;
        }
        all.push((at, format!("c.{}", found.get(2).map_or("commands", |part| part.as_str()))));
    }
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, word)| word).collect())
}

/// What was called, and all about it that is not as it should be: the status, the version of the API.
fn agent_word(call: &Call) -> String {
    let path = call.target.split('?').next().unwrap_or_default();
    let (word, status, version) = match (call.method.as_str(), path) {
        ("GET", "/") => ("root".to_owned(), 200, None),
        ("GET", "/v1/lookup") if call.target.contains("node_uuid=") => ("lookup-again".to_owned(), 200, Some("1.62")),
        ("GET", "/v1/lookup") => ("lookup".to_owned(), 200, Some("1.62")),
        ("POST", "/v1/continue_inspection") => ("inspection".to_owned(), 202, None),
        ("POST", path) if path.starts_with("/v1/heartbeat/") => ("heartbeat".to_owned(), 202, Some("1.68")),
        (method, _) => (format!("{method}-{}", call.target), 200, None),
    };
    let mut word = format!("a.{word}");
    if call.status != status {
        word += &format!("={}", call.status);
    }
    if call.version.as_deref() != version {
        word += &format!("@{}", call.version.as_deref().unwrap_or("none"));
    }
    word
}

fn time_of(text: &str) -> Result<SystemTime> {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]");
    // Ironic runs with TZ=UTC.
    Ok(PrimitiveDateTime::parse(text, format)?.assume_utc().into())
}

/// Checks a sequence against a pattern of words: a regular expression in which each word ends with a space.
pub(crate) fn check(words: &[String], expected: &str) -> Result<()> {
    let spaced: String = words.iter().map(|word| format!("{word} ")).collect();
    let expected: String = expected.split_whitespace().map(word_pattern).collect();
    ensure!(
        Regex::new(&format!("^{expected}$"))?.is_match(&spaced),
        "the calls were\n  {spaced}\nand should be as in\n  {expected}"
    );
    Ok(())
}

/// `word`, `word*`, `word?`, `(word`, `word)*`: the word stands for itself, what is around it is the expression's.
fn word_pattern(token: &str) -> String {
    let word = token.trim_matches(|c| "()*+?|".contains(c));
    if word.is_empty() {
        return token.to_owned();
    }
    let start = token.find(word).unwrap_or(0);
    let (before, after) = (&token[..start], &token[start + word.len()..]);
    // A quantifier directly behind the word is the word's own.
    let group = format!("(?:{} )", regex::escape(word));
    format!("{before}{group}{after}")
}
