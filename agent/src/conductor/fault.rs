//! The conductor's error texts (protocol section 6).

use serde_json::Value;

/// Longest text that is shown, in characters.
const MAX_CHARS: usize = 500;

/// How much of a body is looked at, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// What an error body says, as one line.
///
/// Ironic puts JSON text inside `error_message`; older releases an object; some proxies a flat object or no JSON at all.
pub(super) fn text(body: &[u8]) -> String {
    let raw = String::from_utf8_lossy(body.get(..MAX_BODY_BYTES).unwrap_or(body));
    let found = serde_json::from_str::<Value>(&raw).ok().and_then(|value| inner(&value));
    let line = found.as_deref().unwrap_or(&raw).split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = line.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    if shown.is_empty() { "no explanation".to_owned() } else { shown }
}

fn inner(value: &Value) -> Option<String> {
    let message = match value.get("error_message") {
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(inside @ Value::Object(_)) => inside,
            _ => return Some(text.clone()),
        },
        Some(inside @ Value::Object(_)) => inside.clone(),
        _ => value.clone(),
    };
    ["faultstring", "title"]
        .iter()
        .find_map(|key| message.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_of_error_body_gives_its_text() {
        let cases = [
            (
                r#"{"error_message": "{\"faultcode\": \"Client\", \"faultstring\": \"Node is locked\", \"debuginfo\": null}"}"#,
                "Node is locked",
            ),
            (r#"{"error_message": {"faultcode": "Client", "faultstring": "Not found"}}"#, "Not found"),
            (r#"{"error_message": "plain words"}"#, "plain words"),
            (r#"{"faultstring": "flat", "title": "other"}"#, "flat"),
            (r#"{"title": "Bad Request"}"#, "Bad Request"),
            (r#"{"code": 5}"#, r#"{"code": 5}"#),
            ("<html>\r\n  <h1>502 Bad\tGateway</h1>\n</html>", "<html> <h1>502 Bad Gateway</h1> </html>"),
            ("", "no explanation"),
            ("\"text\"", "\"text\""),
        ];
        for (body, want) in cases {
            assert_eq!(text(body.as_bytes()), want, "{body}");
        }
    }

    proptest! {
        #[test]
        fn any_body_becomes_one_short_line(body in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let shown = text(&body);
            prop_assert!(shown.chars().count() <= MAX_CHARS && !shown.contains('\n'));
        }
    }
}
