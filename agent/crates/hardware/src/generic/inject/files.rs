//! What `inject_files` is asked for: checked as a whole before anything is done.

use ferric_disk::inject::{self, Attributes};
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value};

/// Longest path that the kernel takes.
const MAX_PATH_BYTES: usize = 4095;
const FIELDS: [&str; 8] = ["path", "partition", "content", "deleted", "mode", "dirmode", "owner", "group"];

/// One file.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::generic) struct FileSpec<'a> {
    /// Within the file system, in its shortest form and without a slash at the beginning.
    pub(in crate::generic) path: String,
    pub(in crate::generic) partition: Option<Place<'a>>,
    pub(in crate::generic) content: Content<'a>,
    pub(in crate::generic) attributes: Attributes,
}

/// Where a file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::generic) enum Place<'a> {
    /// Partition of the root device.
    Number(u32),
    /// Any device.
    Device(&'a str),
}

/// What becomes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::generic) enum Content<'a> {
    Deleted,
    Base64(&'a str),
    /// Template of an address.
    Url(&'a str),
}

/// The files of the node, then those of the step.
///
/// # Errors
/// `InvalidCommandParamsError` with everything that is wrong. No content is repeated in it.
pub(in crate::generic) fn parse<'a>(
    of_node: Option<&'a Value>,
    of_step: Option<&'a Value>,
) -> Result<Vec<FileSpec<'a>>, CommandError> {
    let of_node = list(of_node, "The `inject_files` node property")?;
    let of_step = list(of_step, "The `files` argument")?;
    let mut problems = Vec::new();
    let mut files = Vec::with_capacity(of_node.len() + of_step.len());
    let named = [(of_node, "properties.inject_files"), (of_step, "files")];
    for (index, value, source) in
        named.into_iter().flat_map(|(items, source)| items.iter().enumerate().map(move |(at, item)| (at, item, source)))
    {
        let before = problems.len();
        let file = file(value, &format!("{source}[{index}]"), &mut problems);
        files.extend(file.filter(|_| problems.len() == before));
    }
    if problems.is_empty() {
        return Ok(files);
    }
    Err(invalid(format!("Validation of files failed: {}", problems.join("; "))))
}

/// Whether certificates are checked: only a plain `false` turns that off.
///
/// # Errors
/// `InvalidCommandParamsError`.
pub(in crate::generic) fn verify_ca(value: Option<&Value>) -> Result<bool, CommandError> {
    match value {
        None | Some(Value::Null) => Ok(true),
        Some(Value::Bool(verify)) => Ok(*verify),
        Some(_) => Err(invalid("The `verify_ca` argument must be true or false".to_owned())),
    }
}

fn invalid(text: String) -> CommandError {
    CommandError::new(ErrorClass::InvalidCommandParams, text)
}

fn list<'a>(value: Option<&'a Value>, what: &str) -> Result<&'a [Value], CommandError> {
    match value {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(invalid(format!("{what} must be a list, got {}", kind(other)))),
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// One file; `None` or an incomplete one when there are new problems.
fn file<'a>(value: &'a Value, place: &str, problems: &mut Vec<String>) -> Option<FileSpec<'a>> {
    let Value::Object(fields) = value else {
        problems.push(format!("expected an object in {place}, got {}", kind(value)));
        return None;
    };
    let given = |key: &str| fields.get(key).filter(|value| !value.is_null());
    let name = given("path").and_then(Value::as_str).filter(|path| !path.is_empty()).unwrap_or(place);
    let unknown: Vec<&str> = fields.keys().map(String::as_str).filter(|key| !FIELDS.contains(key)).collect();
    if !unknown.is_empty() {
        problems.push(format!("unexpected fields in {name}: {}", unknown.join(", ")));
    }
    let partition = partition(given("partition"), name, problems);
    let path = path(given("path"), partition.is_some(), place, problems);
    let content = content(fields, name, problems);
    let mut number = |key: &str, most: u32| match given(key)? {
        // -1 leaves it as it is, as for chown(2).
        Value::Number(number) if matches!(key, "owner" | "group") && number.as_i64() == Some(-1) => None,
        Value::Number(number) => {
            let fits = number.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number <= most);
            if fits.is_none() {
                problems.push(format!("{key} must be from 0 to {most} in {name}, got {number}"));
            }
            fits
        }
        other => {
            problems.push(format!("{key} must be a number in {name}, got {}", kind(other)));
            None
        }
    };
    let attributes = Attributes {
        // 0 counts as not given, as in the reference agent.
        mode: number("mode", 0o7777).filter(|mode| *mode != 0),
        dir_mode: number("dirmode", 0o7777).filter(|mode| *mode != 0),
        owner: number("owner", u32::MAX - 1),
        group: number("group", u32::MAX - 1),
        may_be_refused: false,
    };
    Some(FileSpec { path: path?, partition, content: content?, attributes })
}

/// `None` for the search; also after a problem was noted.
fn partition<'a>(value: Option<&'a Value>, name: &str, problems: &mut Vec<String>) -> Option<Place<'a>> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let place = match value? {
        Value::String(text) if text.is_empty() => return None,
        Value::Number(zero) if zero.as_u64() == Some(0) => return None,
        Value::Number(value) => value.as_u64().and_then(|value| u32::try_from(value).ok()).map(Place::Number),
        Value::String(text) => match number(text) {
            Some(number) => Some(Place::Number(number)),
            None => Some(text.as_str()).filter(|text| is_device(text)).map(Place::Device),
        },
        _ => None,
    };
    if place.is_none() {
        problems.push(format!("partition must be a number or the path of a device below /dev in {name}"));
    }
    // A wrong one is no reason to complain of a missing one as well.
    place.or(Some(Place::Number(0)))
}

fn is_device(path: &str) -> bool {
    path.strip_prefix("/dev/")
        .is_some_and(|rest| !rest.contains('\0') && rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

fn path(value: Option<&Value>, has_partition: bool, place: &str, problems: &mut Vec<String>) -> Option<String> {
    let problem = match value {
        Some(Value::String(path)) if path.ends_with('/') => format!("directories not supported for {path}"),
        Some(Value::String(path)) if path.is_empty() => format!("expected a path in {place}"),
        Some(Value::String(path)) if !path.starts_with('/') => format!("path must be absolute in {place}, got {path}"),
        Some(Value::String(path)) if path.contains('\0') || path.len() > MAX_PATH_BYTES => {
            format!("path of {place} is longer than {MAX_PATH_BYTES} bytes or has a NUL in it")
        }
        Some(Value::String(path)) => match shortest(path) {
            None => format!("path must stay within the file system, not {path}"),
            Some(short) if short.is_empty() => format!("directories not supported for {path}"),
            Some(short) if !short.contains('/') && !has_partition => {
                format!("{path} in root directory requires \"partition\"")
            }
            Some(short) => return Some(short),
        },
        Some(other) => format!("path must be text in {place}, got {}", kind(other)),
        None => format!("expected a path in {place}"),
    };
    problems.push(problem);
    None
}

/// A path without `.`, `..` and empty parts; `None` when it leads above its root.
fn shortest(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn content<'a>(fields: &'a Map<String, Value>, name: &str, problems: &mut Vec<String>) -> Option<Content<'a>> {
    let deleted = match fields.get("deleted") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(deleted)) => *deleted,
        Some(other) => {
            problems.push(format!("deleted must be true or false in {name}, got {}", kind(other)));
            return None;
        }
    };
    let problem = match (fields.get("content"), deleted) {
        (Some(Value::String(text)), true) if text.is_empty() => return Some(Content::Deleted),
        (None | Some(Value::Null), true) => return Some(Content::Deleted),
        (Some(_), true) => format!("content cannot be used with deleted in {name}"),
        (None | Some(Value::Null), false) => format!("expected content, or deleted, in {name}"),
        (Some(Value::String(text)), false) if text.contains("://") => return Some(Content::Url(text)),
        (Some(Value::String(text)), false) if inject::is_base64(text) => return Some(Content::Base64(text)),
        (Some(Value::String(_)), false) => format!("content must be base64 or a URL in {name}"),
        (Some(other), false) => format!("content must be text in {name}, got {}", kind(other)),
    };
    problems.push(problem);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn one(value: &Value) -> Result<FileSpec<'_>, String> {
        let mut problems = Vec::new();
        match file(value, "files[0]", &mut problems) {
            Some(file) if problems.is_empty() => Ok(file),
            _ => Err(problems.join("; ")),
        }
    }

    #[test]
    fn files_of_the_node_come_before_those_of_the_step() {
        let (node, step) =
            (json!([{"path": "/etc/a", "content": "YQ=="}]), json!([{"path": "/etc/b", "deleted": true}]));
        let files = parse(Some(&node), Some(&step)).unwrap();
        assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["etc/a", "etc/b"]);
        for (node, step) in [(None, None), (Some(json!(null)), Some(json!([]))), (Some(json!([])), Some(json!(null)))] {
            assert_eq!(parse(node.as_ref(), step.as_ref()).unwrap(), []);
        }
    }

    #[test]
    fn every_field_is_understood() {
        let all = json!({"path": "/etc//x/./y/../z", "partition": "2", "content": "http://s/{node[uuid]}", "deleted": false,
            "mode": 0o640, "dirmode": 0o750, "owner": 0, "group": 4_294_967_294_u32});
        let attributes = Attributes {
            mode: Some(0o640),
            dir_mode: Some(0o750),
            owner: Some(0),
            group: Some(4_294_967_294),
            may_be_refused: false,
        };
        let want = FileSpec {
            path: "etc/x/z".to_owned(),
            partition: Some(Place::Number(2)),
            content: Content::Url("http://s/{node[uuid]}"),
            attributes,
        };
        assert_eq!(one(&all).unwrap(), want);
        let (partition, text) = (json!("/dev/disk/by-label/cloud-root"), "eA==");
        let few = json!({"path": "/x", "partition": partition, "content": text, "mode": 0, "owner": -1, "group": null});
        let file = one(&few).unwrap();
        assert_eq!(file.partition, Some(Place::Device("/dev/disk/by-label/cloud-root")));
        assert_eq!((file.content, file.attributes), (Content::Base64("eA=="), Attributes::default()));
        for unset in [json!(null), json!(""), json!(0)] {
            assert_eq!(one(&json!({"path": "/etc/x", "partition": unset, "content": ""})).unwrap().partition, None);
        }
        let gone = json!({"path": "/etc/x", "deleted": true, "content": ""});
        assert_eq!(one(&gone).unwrap().content, Content::Deleted);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (value, want) in [
            (json!("x"), "expected an object in files[0], got text"),
            (json!({"content": ""}), "expected a path in files[0]"),
            (json!({"path": "", "content": ""}), "expected a path in files[0]"),
            (json!({"path": 7, "content": ""}), "path must be text in files[0], got a number"),
            (json!({"path": "etc/x", "content": ""}), "path must be absolute in files[0], got etc/x"),
            (json!({"path": "/etc/", "content": ""}), "directories not supported for /etc/"),
            (json!({"path": "/etc/..", "partition": 1, "content": ""}), "directories not supported for /etc/.."),
            (
                json!({"path": "/../x", "partition": 1, "content": ""}),
                "path must stay within the file system, not /../x",
            ),
            (json!({"path": "/etc/../../x", "content": ""}), "path must stay within the file system"),
            (json!({"path": "/x", "content": ""}), "/x in root directory requires \"partition\""),
            (json!({"path": "/etc/../x", "content": ""}), "/etc/../x in root directory requires \"partition\""),
            (json!({"path": "/etc/a\0b", "content": ""}), "has a NUL in it"),
            (json!({"path": format!("/{}", "a/".repeat(3000) + "x"), "content": ""}), "longer than 4095 bytes"),
            (json!({"path": "/etc/x"}), "expected content, or deleted, in /etc/x"),
            (json!({"path": "/etc/x", "deleted": false}), "expected content, or deleted, in /etc/x"),
            (json!({"path": "/etc/x", "deleted": "yes"}), "deleted must be true or false in /etc/x, got text"),
            (
                json!({"path": "/etc/x", "content": "YQ==", "deleted": true}),
                "content cannot be used with deleted in /etc/x",
            ),
            (json!({"path": "/etc/x", "content": "s3cret!"}), "content must be base64 or a URL in /etc/x"),
            (json!({"path": "/etc/x", "content": ["YQ=="]}), "content must be text in /etc/x, got a list"),
            (json!({"path": "/etc/x", "content": "", "mode": "0644"}), "mode must be a number in /etc/x, got text"),
            (
                json!({"path": "/etc/x", "content": "", "mode": true}),
                "mode must be a number in /etc/x, got a truth value",
            ),
            (json!({"path": "/etc/x", "content": "", "mode": 4096}), "mode must be from 0 to 4095 in /etc/x, got 4096"),
            (
                json!({"path": "/etc/x", "content": "", "dirmode": 1.5}),
                "dirmode must be from 0 to 4095 in /etc/x, got 1.5",
            ),
            (json!({"path": "/etc/x", "content": "", "owner": "root"}), "owner must be a number in /etc/x, got text"),
            (json!({"path": "/etc/x", "content": "", "group": -2}), "group must be from 0 to 4294967294 in /etc/x"),
            (json!({"path": "/etc/x", "content": "", "mode": -1}), "mode must be from 0 to 4095 in /etc/x, got -1"),
            (json!({"path": "/etc/x", "content": "", "owner": 4_294_967_295_u32}), "owner must be from 0"),
            (
                json!({"path": "/x", "partition": "sda1", "content": ""}),
                "partition must be a number or the path of a device",
            ),
            (
                json!({"path": "/x", "partition": "/dev/../etc", "content": ""}),
                "partition must be a number or the path",
            ),
            (json!({"path": "/x", "partition": true, "content": ""}), "partition must be a number or the path"),
            (json!({"path": "/x", "partition": -1, "content": ""}), "partition must be a number or the path"),
            (json!({"path": "/etc/x", "content": "", "mod": 1, "b": 2}), "unexpected fields in /etc/x: mod, b"),
        ] {
            let error = one(&value).unwrap_err();
            assert!(error.contains(want), "{value}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let step = json!([{"path": "/etc/a", "content": "", "x": 1}, {"path": "/b", "content": "", "mode": "7"}]);
        let error = parse(Some(&json!([{}])), Some(&step)).unwrap_err();
        assert_eq!(error.class, ErrorClass::InvalidCommandParams);
        assert_eq!(
            error.details,
            "Validation of files failed: expected a path in properties.inject_files[0]; expected content, or deleted, in \
             properties.inject_files[0]; unexpected fields in /etc/a: x; /b in root directory requires \"partition\"; mode \
             must be a number in /b, got text"
        );
        for (node, step, want) in [
            (json!({}), json!([]), "The `inject_files` node property must be a list, got an object"),
            (json!([]), json!("x"), "The `files` argument must be a list, got text"),
        ] {
            let error = parse(Some(&node), Some(&step)).unwrap_err();
            assert_eq!((error.class, error.details.as_str()), (ErrorClass::InvalidCommandParams, want));
        }
    }

    #[test]
    fn certificates_are_checked_unless_false() {
        assert!(
            verify_ca(None).unwrap()
                && verify_ca(Some(&json!(null))).unwrap()
                && verify_ca(Some(&json!(true))).unwrap()
        );
        assert!(!verify_ca(Some(&json!(false))).unwrap());
        assert_eq!(verify_ca(Some(&json!("false"))).unwrap_err().class, ErrorClass::InvalidCommandParams);
    }

    proptest! {
        #[test]
        fn a_path_is_taken_in_its_shortest_form_or_not_at_all(parts in proptest::collection::vec("[.]{0,3}|[a-z]{1,3}", 0..9)) {
            let given = json!({"path": format!("/{}", parts.join("/")), "partition": 1, "content": ""});
            if let Ok(file) = one(&given) {
                prop_assert!(!file.path.is_empty());
                prop_assert!(file.path.split('/').all(|part| !matches!(part, "" | "." | "..")), "{}", file.path);
            }
        }

        #[test]
        fn foreign_values_never_panic(path in ".{0,20}", partition in ".{0,20}", content in ".{0,40}", mode in any::<i64>()) {
            let value = json!({"path": path, "partition": partition, "content": content, "mode": mode, "owner": mode});
            let _file = one(&value);
        }
    }
}
