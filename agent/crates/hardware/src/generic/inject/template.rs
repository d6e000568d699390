//! Addresses with parts of the node in them: `http://server/{node[uuid]}/{ports[0][address]}`.
//!
//! Of Python's format strings, what the step is documented with: names with keys in brackets, and doubled braces.

use std::borrow::Cow;

use ferric_types::Node;
use serde_json::Value;

/// A template cannot be filled in. Its text is not shown: an address may hold secrets.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TemplateError {
    /// A brace is alone.
    #[error("the URL has a {brace} without its counterpart; one that is meant as such is doubled")]
    Brace {
        /// Which one.
        brace: char,
    },
    /// A field is not understood.
    #[error(
        "the URL has {{{field}}}, where only {{node[KEY]}} and {{ports[NUMBER][KEY]}}, with more keys, are understood"
    )]
    Form {
        /// Between the braces.
        field: String,
    },
    /// A field names nothing.
    #[error("{{{field}}} of the URL is {found}")]
    Value {
        /// Between the braces.
        field: String,
        /// What it is instead of text, a number or a truth value.
        found: &'static str,
    },
}

/// Fills in a template.
pub(super) fn expand(template: &str, node: &Node, ports: &[Value]) -> Result<String, TemplateError> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (plain, from) = rest.split_at(at);
        text.push_str(plain);
        let opens = from.starts_with('{');
        let brace = if opens { '{' } else { '}' };
        let after = from.strip_prefix(brace).unwrap_or_default();
        if let Some(after) = after.strip_prefix(brace) {
            text.push(brace);
            rest = after;
            continue;
        }
        let (field, after) = after.split_once('}').filter(|_| opens).ok_or(TemplateError::Brace { brace })?;
        text.push_str(&value(field, node, ports)?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn value<'a>(field: &str, node: &'a Node, ports: &'a [Value]) -> Result<Cow<'a, str>, TemplateError> {
    let form = || TemplateError::Form { field: field.to_owned() };
    let missing = |found| TemplateError::Value { field: field.to_owned(), found };
    let (name, keys) = field.split_once('[').ok_or_else(form)?;
    // What is left is `KEY]`, or `KEY][KEY]` and so on.
    let mut keys = keys.strip_suffix(']').ok_or_else(form)?.split("][");
    let first = keys.next().filter(|key| is_key(key)).ok_or_else(form)?;
    let mut found = match name {
        "node" => node.get(first),
        "ports" => number(first).ok_or_else(form).map(|index| ports.get(index))?,
        _ => return Err(form()),
    };
    for key in keys {
        if !is_key(key) {
            return Err(form());
        }
        found = match found {
            Some(Value::Array(items)) => number(key).and_then(|index| items.get(index)),
            Some(Value::Object(fields)) => fields.get(key),
            _ => None,
        };
    }
    match found {
        Some(Value::String(text)) => Ok(Cow::Borrowed(text)),
        Some(Value::Number(number)) => Ok(number.to_string().into()),
        // As Python writes them.
        Some(Value::Bool(true)) => Ok("True".into()),
        Some(Value::Bool(false)) => Ok("False".into()),
        Some(Value::Object(_)) => Err(missing("an object")),
        Some(Value::Array(_)) => Err(missing("a list")),
        Some(Value::Null) | None => Err(missing("not there")),
    }
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && !key.contains(['[', ']', '{'])
}

fn number(key: &str) -> Option<usize> {
    key.parse().ok().filter(|_| key.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn expanded(template: &str) -> Result<String, TemplateError> {
        let node = json!({"uuid": "node-1", "name": null, "maintenance": false,
            "properties": {"rack": 7, "tags": ["a", "b"], "my key.x": "v{x}"}});
        expand(
            template,
            &serde_json::from_value(node).unwrap(),
            &[json!({"address": "52:54:00:00:00:01"}), json!({"address": "52:54:00:00:00:02", "extra": {"n": 1}})],
        )
    }

    #[test]
    fn fields_are_filled_in() {
        for (template, want) in [
            ("http://s/x", "http://s/x"),
            ("http://s/{node[uuid]}.conf", "http://s/node-1.conf"),
            ("http://s/{ports[0][address]}/{ports[1][address]}", "http://s/52:54:00:00:00:01/52:54:00:00:00:02"),
            ("http://s/{node[properties][rack]}/{node[properties][tags][1]}", "http://s/7/b"),
            ("http://s/{node[maintenance]}?a={ports[1][extra][n]}", "http://s/False?a=1"),
            ("http://s/{{{node[uuid]}}}", "http://s/{node-1}"),
            ("http://s/{{node[uuid]}}", "http://s/{node[uuid]}"),
            // What was filled in is not looked at again.
            ("http://s/{node[properties][my key.x]}", "http://s/v{x}"),
        ] {
            assert_eq!(expanded(template).as_deref(), Ok(want), "{template}");
        }
    }

    #[test]
    fn what_cannot_be_filled_in_is_named() {
        for (template, want) in [
            ("http://s/{", "{ without its counterpart"),
            ("http://s/{node[uuid]", "{ without its counterpart"),
            ("http://s/}", "} without its counterpart"),
            ("http://s/{node[uuid]}}", "} without its counterpart"),
            ("http://s/{}", "{} where"),
            ("http://s/{node}", "{node}, where"),
            ("http://s/{node.uuid}", "{node.uuid}, where"),
            ("http://s/{node[uuid]!r}", "{node[uuid]!r}, where"),
            ("http://s/{node[uuid]:>9}", "{node[uuid]:>9}, where"),
            ("http://s/{node[]}", "{node[]}, where"),
            ("http://s/{node[a][]}", "{node[a][]}, where"),
            ("http://s/{ports[address]}", "{ports[address]}, where"),
            ("http://s/{ports[-1][address]}", "{ports[-1][address]}, where"),
            ("http://s/{settings[x]}", "{settings[x]}, where"),
            ("http://s/{node[nothing]}", "{node[nothing]} of the URL is not there"),
            ("http://s/{node[name]}", "{node[name]} of the URL is not there"),
            ("http://s/{node[uuid][x]}", "{node[uuid][x]} of the URL is not there"),
            ("http://s/{node[properties]}", "{node[properties]} of the URL is an object"),
            ("http://s/{node[properties][tags]}", "{node[properties][tags]} of the URL is a list"),
            ("http://s/{ports[2][address]}", "{ports[2][address]} of the URL is not there"),
        ] {
            let error = expanded(template).unwrap_err().to_string();
            assert!(error.contains(&want.replace("{} where", "{}, where")), "{template}: {error}");
            assert!(!error.contains("http://s"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn templates_never_panic_and_plain_text_stays(text in "[a-z{}\\[\\]nodeports0-9!:.]{0,40}", plain in "[^{}]{0,40}") {
            let _expanded = expanded(&text);
            prop_assert_eq!(expanded(&plain), Ok(plain.clone()));
            let doubled = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(expanded(&doubled), Ok(text));
        }

        #[test]
        fn any_value_comes_out_as_it_is(value in ".{0,40}", key in "[a-zA-Z0-9 ._-]{1,20}") {
            let node: Node = serde_json::from_value(json!({"properties": {key.clone(): value.clone()}})).unwrap();
            prop_assert_eq!(expand(&format!("x://{{node[properties][{key}]}}"), &node, &[]), Ok(format!("x://{value}")));
        }
    }
}
