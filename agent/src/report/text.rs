//! Tables for a person, of what machines say: it comes from firmware and from the captures of strangers, and is shown on
//! a terminal.

use std::fmt::Write as _;

/// Widest cell of a table, in characters; `--json` has it all.
const CELL_CHARS: usize = 80;

/// Whether a terminal may do something at a character instead of showing it: control characters, and those that turn the
/// direction of writing (Unicode Standard Annex 9, section 2) or break lines.
pub(super) fn is_command(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(character, '\u{feff}')
}

/// A text for a terminal, with U+FFFD for what is a command to it, and cut to a number of characters.
pub(crate) fn shown(text: &str, limit: usize) -> String {
    let safe = |character| if is_command(character) { char::REPLACEMENT_CHARACTER } else { character };
    let mut characters = text.chars().map(safe);
    let mut shown: String = characters.by_ref().take(limit).collect();
    if characters.next().is_some() {
        shown.pop();
        shown.push('\u{2026}');
    }
    shown
}

/// GiB with tenths.
pub(super) fn gib(bytes: u64) -> String {
    let tenths = ((bytes >> 20) * 10 + 512) / 1024;
    format!("{}.{}", tenths / 10, tenths % 10)
}

pub(super) fn option(value: Option<&String>) -> String {
    or_dash(value.map_or("", String::as_str))
}

pub(super) fn or_dash(text: &str) -> String {
    shown(if text.is_empty() { "-" } else { text }, CELL_CHARS)
}

/// A table after an empty line, unless it has no rows.
pub(super) fn table_of<const N: usize>(text: &mut String, head: [&str; N], rows: Vec<[String; N]>) {
    if !rows.is_empty() {
        text.push('\n');
        columns(text, head, rows);
    }
}

/// Rows below a head, each column as wide as its widest cell.
pub(super) fn columns<const N: usize>(text: &mut String, head: [&str; N], rows: Vec<[String; N]>) {
    let head = head.map(str::to_owned);
    let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(|cell| shown(&cell, CELL_CHARS))).collect();
    let width = |column: usize| {
        let cells = std::iter::once(&head).chain(&rows).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _infallible = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_command_to_a_terminal_is_replaced_and_what_is_long_is_cut() {
        for character in ['\0', '\u{7}', '\t', '\n', '\r', '\u{1b}', '\u{7f}', '\u{80}', '\u{9b}', '\u{202a}'] {
            assert_eq!(shown(&format!("a{character}b"), 9), "a\u{fffd}b", "{character:?}");
        }
        for character in ['\u{202e}', '\u{2066}', '\u{2069}', '\u{200f}', '\u{feff}'] {
            assert_eq!(shown(&format!("a{character}b"), 9), "a\u{fffd}b", "{character:?}");
        }
        for (text, limit, want) in
            [("abc", 3, "abc"), ("abcd", 3, "ab\u{2026}"), ("\u{e9}\u{1f600}", 2, "\u{e9}\u{1f600}")]
        {
            assert_eq!(shown(text, limit), want);
        }
    }

    #[test]
    fn sizes_are_shown_whole_however_large() {
        for (bytes, want) in [
            (0, "0.0"),
            (1 << 30, "1.0"),
            (1_610_612_736, "1.5"),
            (4 << 50, "4194304.0"),
            (8 << 50, "8388608.0"),
            (u64::MAX, "17179869184.0"),
        ] {
            assert_eq!(gib(bytes), want, "{bytes}");
        }
    }
}
