//! Configuration files as oslo.config reads them.
//!
//! `[section]`, `key = value` or `key: value`, comments from `#` or `;` at the start of a line, lines that begin with
//! white space continue the value before them, a blank line ends it, one pair of quotes around a value is dropped.
//! A wrong line is reported with its number and passed over; the rest of the file still counts.

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Section; `DEFAULT` keeps its case, others are lower case.
    pub(super) section: String,
    /// Key, dashes turned into underscores.
    pub(super) key: String,
    /// Value; lines are joined with a line feed.
    pub(super) value: String,
}

/// A line that is none of the forms above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadLine {
    /// Number of the line, from 1.
    pub(super) number: usize,
    /// What is wrong with it.
    pub(super) reason: &'static str,
}

/// Settings in the order of the file; a repeated key is there several times and the last one counts.
pub(super) fn parse(text: &str) -> (Vec<Entry>, Vec<BadLine>) {
    let mut entries: Vec<Entry> = Vec::new();
    let mut bad = Vec::new();
    let mut section: Option<String> = None;
    let mut open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_end();
        if line.is_empty() {
            open = false;
        } else if line.starts_with([' ', '\t']) {
            match entries.last_mut().filter(|_| open) {
                Some(entry) => {
                    entry.value.push('\n');
                    entry.value.push_str(line.trim_start());
                }
                None => bad.push(BadLine { number, reason: "a continuation line with nothing before it" }),
            }
        } else if line.starts_with(['#', ';']) {
            open = false;
        } else if let Some(name) = line.strip_prefix('[') {
            open = false;
            match name.strip_suffix(']').filter(|name| !name.is_empty()) {
                Some("DEFAULT") => section = Some("DEFAULT".to_owned()),
                Some(name) => section = Some(name.to_ascii_lowercase()),
                None => {
                    section = None;
                    bad.push(BadLine { number, reason: "a section without a name or without its closing bracket" });
                }
            }
        } else {
            match entry(line, section.as_deref()) {
                Ok(entry) => {
                    entries.push(entry);
                    open = true;
                }
                Err(reason) => {
                    open = false;
                    bad.push(BadLine { number, reason });
                }
            }
        }
    }
    (entries, bad)
}

fn entry(line: &str, section: Option<&str>) -> Result<Entry, &'static str> {
    let (key, value) = line.split_once(['=', ':']).ok_or("neither a section, a comment nor key = value")?;
    let key = key.trim().replace('-', "_");
    if key.is_empty() {
        return Err("a value without a key");
    }
    let section = section.ok_or("a setting outside of any section")?.to_owned();
    Ok(Entry { section, key, value: unquote(value.trim()).to_owned() })
}

fn unquote(value: &str) -> &str {
    for quote in ['"', '\''] {
        let inner = value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flat(text: &str) -> Vec<(String, String, String)> {
        parse(text).0.into_iter().map(|entry| (entry.section, entry.key, entry.value)).collect()
    }

    #[test]
    fn settings_are_read_in_all_their_forms() {
        let text = "# comment\n; another\n[DEFAULT]\ncafile = /a b/c.crt\nlisten-port: 9998\nurl=http://x:1/y=z\n\
                    list = a,\n   b,\n\tc\nquoted = \" x \"\n\n[Disk_Utils]\npartprobe_attempts=3\npartprobe_attempts=4\n";
        let want = [
            ("DEFAULT", "cafile", "/a b/c.crt"),
            ("DEFAULT", "listen_port", "9998"),
            ("DEFAULT", "url", "http://x:1/y=z"),
            ("DEFAULT", "list", "a,\nb,\nc"),
            ("DEFAULT", "quoted", " x "),
            ("disk_utils", "partprobe_attempts", "3"),
            ("disk_utils", "partprobe_attempts", "4"),
        ];
        let want: Vec<_> = want.iter().map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into())).collect();
        assert_eq!(flat(text), want);
        assert_eq!(parse(text).1, []);
    }

    #[test]
    fn wrong_lines_are_reported_and_passed_over() {
        let cases = [
            ("debug = 1", 1, "outside"),
            ("[DEFAULT]\nnonsense", 2, "neither"),
            ("[DEFAULT]\n= 1", 2, "without a key"),
            ("[DEFAULT", 1, "closing"),
            ("[]", 1, "name"),
            ("[DEFAULT]\n  lost", 2, "continuation"),
            ("[DEFAULT]\na = 1\n\n  lost", 4, "continuation"),
            ("[DEFAULT]\na = 1\n# c\n  lost", 4, "continuation"),
        ];
        for (text, number, reason) in cases {
            let bad = parse(text).1;
            assert!(bad.len() == 1 && bad[0].number == number && bad[0].reason.contains(reason), "{text:?}: {bad:?}");
        }
        assert_eq!(flat("[DEFAULT]\nnonsense\ndebug = 1").len(), 1);
    }

    #[test]
    fn a_lone_quote_is_part_of_the_value() {
        assert_eq!(flat("[a]\nb = \"")[0].2, "\"");
        assert_eq!(flat("[a]\nb = \"x'")[0].2, "\"x'");
    }

    proptest! {
        #[test]
        fn any_text_gives_no_more_than_it_holds(text in "[\\PC\n\t =:\\[\\]#]{0,300}") {
            let (entries, _) = parse(&text);
            let total: usize = entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
            prop_assert!(total <= text.len());
        }
    }
}
