//! Checksum files: one digest, GNU lines (`digest  name`, `digest *name`) and BSD lines (`SHA256 (name) = digest`).

use super::{Algorithm, ListError};

/// The digest that a checksum file gives for the file `name`.
///
/// A file of one line without blanks is a digest by itself. Otherwise blank lines, comments and everything that does
/// not name the file (signatures, other images) are passed over. `algorithm` picks the right one among several
/// digests of the same file; without it the first of a usual length is taken.
pub(super) fn find(text: &str, name: &str, algorithm: Option<Algorithm>) -> Result<String, ListError> {
    // Editors of some systems begin a file with a mark of its encoding.
    let text = text.trim_start_matches('\u{feff}');
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match *lines.as_slice() {
        [] => return Err(ListError::Empty),
        [line] if !line.contains(char::is_whitespace) => {
            return if is_digest(line, algorithm) {
                Ok(line.to_owned())
            } else {
                Err(ListError::Invalid { text: line.chars().take(100).collect() })
            };
        }
        _ => {}
    }
    lines
        .iter()
        .filter(|line| !line.starts_with('#') && names(line, name))
        .filter(|line| says_algorithm(line, algorithm))
        .find_map(|line| digest_of(line, algorithm))
        .ok_or_else(|| ListError::NotListed { name: name.to_owned() })
}

/// Whether a line is about the file: ` name` or ` *name` at its end, or `(name)` anywhere; the name may begin with `./`.
fn names(line: &str, name: &str) -> bool {
    if name.is_empty() {
        return false;
    }
    let at_end = line
        .strip_suffix(name)
        .map(|before| before.strip_suffix("./").unwrap_or(before))
        .map(|before| before.strip_suffix('*').unwrap_or(before))
        .is_some_and(|before| before.ends_with(char::is_whitespace));
    at_end || ["", "./"].iter().any(|here| line.contains(&format!("({here}{name})")))
}

/// A BSD line begins with the function's name; one of another function is not what is looked for.
fn says_algorithm(line: &str, wanted: Option<Algorithm>) -> bool {
    let Some((said, _)) = line.split_once('(') else { return true };
    match (Algorithm::from_name(said), wanted) {
        (Some(said), Some(wanted)) => said == wanted,
        // Without a function the length decides, and only these three lengths have a meaning then.
        (Some(said), None) => matches!(said, Algorithm::Md5 | Algorithm::Sha256 | Algorithm::Sha512),
        (None, _) => true,
    }
}

/// The digest at the beginning or at the end of a line.
fn digest_of(line: &str, algorithm: Option<Algorithm>) -> Option<String> {
    let mut words = line.split_whitespace();
    let (first, last) = (words.next(), words.next_back());
    [first, last].into_iter().flatten().find(|word| is_digest(word, algorithm)).map(str::to_owned)
}

fn is_digest(word: &str, algorithm: Option<Algorithm>) -> bool {
    let long_enough = match algorithm {
        Some(algorithm) => word.len() == algorithm.hex_len(),
        None => matches!(word.len(), 32 | 64 | 128),
    };
    long_enough && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}
