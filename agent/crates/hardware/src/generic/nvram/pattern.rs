//! Regular expressions in the words that Python and Rust have in common, searched in a short text whatever the case.
//!
//! Characters, `.`, classes such as `[a-z_]` and `\d`, groups, `|`, `^`, `$`, and repetition by `*`, `+`, `?` and `{2,5}`. What
//! a pattern may take of time and stack is bounded, since matching goes back and tries again: a pattern that needs more than
//! that does not fit.

/// Longest pattern.
const PATTERN_CHARS: usize = 1024;
/// So much of a text is looked at, which is more than a device path has.
const TEXT_CHARS: usize = 512;
/// Steps of one search.
const STEPS: u32 = 200_000;
/// Groups within groups.
const DEPTH: u32 = 16;
/// Most repetitions that a pattern can ask for.
const MOST: u32 = 1000;

/// Why a pattern is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    #[error("it has more than {PATTERN_CHARS} characters, or groups deeper than {DEPTH}")]
    TooLong,
    #[error("it ends where more was expected")]
    Cut,
    #[error("{0:?} stands where it means nothing, or is not offered here")]
    Unexpected(char),
}

#[derive(Debug)]
enum Item {
    Char(char),
    Any,
    Class { negated: bool, ranges: Vec<(char, char)> },
    Start,
    End,
    Group(Vec<Sequence>),
}

#[derive(Debug)]
struct Repeated {
    item: Item,
    least: u32,
    most: u32,
}

type Sequence = Vec<Repeated>;

/// A pattern that was understood.
#[derive(Debug)]
pub(super) struct Pattern(Vec<Sequence>);

impl Pattern {
    pub(super) fn new(text: &str) -> Result<Self, PatternError> {
        let chars: Vec<char> = text.to_lowercase().chars().collect();
        // Lower case would make other classes of `\D`, `\W` and `\S`.
        let chars = if chars.len() == text.chars().count() {
            let both = text.chars().zip(chars);
            let mut escaped = false;
            both.map(|(original, lower)| {
                let kept = escaped;
                escaped = original == '\\' && !escaped;
                if kept { original } else { lower }
            })
            .collect()
        } else {
            text.chars().collect()
        };
        Parser { chars, at: 0 }.whole().map(Self)
    }

    /// Whether any part of the text fits.
    pub(super) fn is_in(&self, text: &str) -> bool {
        let text: Vec<char> = text.to_lowercase().chars().take(TEXT_CHARS).collect();
        let mut search = Search { text: &text, steps: STEPS };
        (0..=text.len()).any(|start| search.any(&self.0, start, &mut |_, _| true))
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
}

impl Parser {
    fn whole(mut self) -> Result<Vec<Sequence>, PatternError> {
        if self.chars.len() > PATTERN_CHARS {
            return Err(PatternError::TooLong);
        }
        let alternatives = self.alternatives(0)?;
        self.peek().map_or(Ok(alternatives), |c| Err(PatternError::Unexpected(c)))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Result<char, PatternError> {
        let c = self.peek().ok_or(PatternError::Cut)?;
        self.at += 1;
        Ok(c)
    }

    fn takes(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn alternatives(&mut self, depth: u32) -> Result<Vec<Sequence>, PatternError> {
        if depth > DEPTH {
            return Err(PatternError::TooLong);
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.takes('|') {
            alternatives.push(self.sequence(depth)?);
        }
        Ok(alternatives)
    }

    fn sequence(&mut self, depth: u32) -> Result<Sequence, PatternError> {
        let mut sequence = Vec::new();
        while let Some(c) = self.peek().filter(|c| !matches!(c, '|' | ')')) {
            self.at += 1;
            let item = match c {
                '.' => Item::Any,
                '^' => Item::Start,
                '$' => Item::End,
                '(' => self.group(depth)?,
                '[' => self.class()?,
                '\\' => self.escape()?,
                '*' | '+' | '?' => return Err(PatternError::Unexpected(c)),
                c => Item::Char(c),
            };
            let (least, most) = self.repetition()?;
            sequence.push(Repeated { item, least, most });
        }
        Ok(sequence)
    }

    fn group(&mut self, depth: u32) -> Result<Item, PatternError> {
        // Only the kind that is not numbered; nothing refers to groups here anyway.
        if self.takes('?') && !self.takes(':') {
            return Err(PatternError::Unexpected(self.next()?));
        }
        let alternatives = self.alternatives(depth + 1)?;
        if self.takes(')') { Ok(Item::Group(alternatives)) } else { Err(PatternError::Cut) }
    }

    fn escape(&mut self) -> Result<Item, PatternError> {
        let c = self.next()?;
        Ok(match known(c) {
            Some((negated, ranges)) => Item::Class { negated, ranges: ranges.to_vec() },
            None if c.is_ascii_alphanumeric() => return Err(PatternError::Unexpected(c)),
            None => Item::Char(c),
        })
    }

    fn class(&mut self) -> Result<Item, PatternError> {
        let negated = self.takes('^');
        let mut ranges = Vec::new();
        loop {
            let first = match self.next()? {
                ']' if !ranges.is_empty() => return Ok(Item::Class { negated, ranges }),
                '\\' => {
                    let c = self.next()?;
                    match known(c) {
                        Some((false, known)) => {
                            ranges.extend_from_slice(known);
                            continue;
                        }
                        None if !c.is_ascii_alphanumeric() => c,
                        _ => return Err(PatternError::Unexpected(c)),
                    }
                }
                c => c,
            };
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            if is_range {
                self.at += 1;
                let last = self.next()?;
                if last < first || last == '\\' {
                    return Err(PatternError::Unexpected(last));
                }
                ranges.push((first, last));
            } else {
                ranges.push((first, first));
            }
        }
    }

    fn repetition(&mut self) -> Result<(u32, u32), PatternError> {
        let counts = match self.peek() {
            Some('*') => (0, u32::MAX),
            Some('+') => (1, u32::MAX),
            Some('?') => (0, 1),
            Some('{') if self.chars.get(self.at + 1).is_some_and(char::is_ascii_digit) => return self.counted(),
            _ => return Ok((1, 1)),
        };
        self.at += 1;
        // The shortest first: the same when only asked whether.
        self.takes('?');
        Ok(counts)
    }

    fn counted(&mut self) -> Result<(u32, u32), PatternError> {
        self.at += 1;
        let least = self.number()?.unwrap_or(0);
        let most = if self.takes(',') { self.number()?.unwrap_or(u32::MAX) } else { least };
        match self.next()? {
            '}' if least <= most => Ok((least, most)),
            c => Err(PatternError::Unexpected(c)),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, PatternError> {
        let mut number = None;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            self.at += 1;
            number = Some(number.unwrap_or(0) * 10 + digit);
            if number > Some(MOST) {
                return Err(PatternError::TooLong);
            }
        }
        Ok(number)
    }
}

type Ranges = &'static [(char, char)];

/// Classes with a letter, and whether they are the contrary.
const fn known(letter: char) -> Option<(bool, Ranges)> {
    const DIGITS: Ranges = &[('0', '9')];
    const WORDS: Ranges = &[('a', 'z'), ('0', '9'), ('_', '_')];
    const BLANKS: Ranges = &[(' ', ' '), ('\t', '\r')];
    match letter {
        'd' => Some((false, DIGITS)),
        'D' => Some((true, DIGITS)),
        'w' => Some((false, WORDS)),
        'W' => Some((true, WORDS)),
        's' => Some((false, BLANKS)),
        'S' => Some((true, BLANKS)),
        _ => None,
    }
}

struct Search<'a> {
    text: &'a [char],
    steps: u32,
}

/// What is to fit after a part, from a place on.
type Then<'a> = &'a mut dyn FnMut(&mut Search<'_>, usize) -> bool;

impl Search<'_> {
    fn any(&mut self, alternatives: &[Sequence], at: usize, then: Then<'_>) -> bool {
        alternatives.iter().any(|sequence| self.sequence(sequence, at, then))
    }

    fn sequence(&mut self, sequence: &[Repeated], at: usize, then: Then<'_>) -> bool {
        match sequence.split_first() {
            None => then(self, at),
            Some((first, rest)) => self.repeated(first, rest, at, 0, then),
        }
    }

    fn repeated(&mut self, first: &Repeated, rest: &[Repeated], at: usize, count: u32, then: Then<'_>) -> bool {
        let Some(steps) = self.steps.checked_sub(1) else { return false };
        self.steps = steps;
        // Once more; a part of no length only as often as it must be there.
        if count < first.most
            && self.item(&first.item, at, &mut |search, next| {
                (next > at || count < first.least) && search.repeated(first, rest, next, count + 1, then)
            })
        {
            return true;
        }
        count >= first.least && self.sequence(rest, at, then)
    }

    fn item(&mut self, item: &Item, at: usize, then: Then<'_>) -> bool {
        let here = self.text.get(at).copied();
        let fits = match item {
            Item::Group(alternatives) => return self.any(alternatives, at, then),
            Item::Start => return at == 0 && then(self, at),
            Item::End => return at == self.text.len() && then(self, at),
            Item::Any => here.is_some(),
            Item::Char(wanted) => here == Some(*wanted),
            Item::Class { negated, ranges } => {
                here.is_some_and(|c| ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != *negated)
            }
        };
        fits && then(self, at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_fit_what_they_fit_in_python() {
        let entry = r"HD(1,GPT,8e2c3b1d-0000-0000-0000-000000000001,0x800,0x100000)/File(\EFI\debian\shimx64.efi)";
        for (pattern, text, want) in [
            (r"^HD\(", entry, true),
            (r"^hd\(", entry, true),
            (r"^HD\(", "PciRoot(0x0)/HD(1)", false),
            (r"shim.*\.efi", entry, true),
            (r"SHIM.*\.EFI$", entry, false),
            (r"shim.*\.efi\)$", entry, true),
            (r"grub.*\.efi", entry, false),
            (r"\\EFI\\(debian|ubuntu)\\", entry, true),
            (r"\\EFI\\(?:redhat|ubuntu)\\", entry, false),
            (r"HD\(\d+,GPT,[0-9a-f-]{36},", entry, true),
            (r"HD\(\d+,GPT,[0-9a-f-]{37},", entry, false),
            (r"HD\(\D", entry, false),
            (r"[^\w]{2}", "a:/b", true),
            (r"^a{2,3}$", "aaa", true),
            (r"^a{2,3}$", "aaaa", false),
            (r"^a{2,}$", "aaaaa", true),
            (r"^(ab|a)(bc)?$", "abc", true),
            (r"^(a*)*$", "aaa", true),
            (r"^(a|)+b", "aab", true),
            (r"^[]a]+$", "]a", true),
            (r"^[a\-z]+$", "-az", true),
            (r"^[a-]+$", "-a", true),
            (r"a.c", "a\u{e9}c", true),
            (r"\S\s\S", "a b", true),
            (r"x{", "x{", true),
            ("", "", true),
            ("$^", "", true),
            ("a|b|", "c", true),
            (r"ab+?c", "abbbc", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().is_in(text), want, "{pattern:?} in {text:?}");
        }
    }

    #[test]
    fn what_is_not_understood_is_told() {
        for (pattern, want) in [
            ("(", PatternError::Cut),
            ("a)", PatternError::Unexpected(')')),
            ("*", PatternError::Unexpected('*')),
            ("a**", PatternError::Unexpected('*')),
            ("[a", PatternError::Cut),
            ("[z-a]", PatternError::Unexpected('a')),
            ("\\", PatternError::Cut),
            (r"\b", PatternError::Unexpected('b')),
            (r"(a)\1", PatternError::Unexpected('1')),
            ("(?=a)", PatternError::Unexpected('=')),
            ("a{3,2}", PatternError::Unexpected('}')),
            ("a{5000}", PatternError::TooLong),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap_err(), want, "{pattern:?}");
        }
        assert_eq!(Pattern::new(&"(".repeat(500)).unwrap_err(), PatternError::TooLong);
        assert_eq!(Pattern::new(&"a".repeat(2000)).unwrap_err(), PatternError::TooLong);
    }

    #[test]
    fn a_pattern_that_tries_for_ever_ends() {
        let text = "a".repeat(5000);
        assert!(!Pattern::new("^(a*)*(a*)*(a|a)*b").unwrap().is_in(&text));
        assert!(Pattern::new("(.*)*").unwrap().is_in(&text));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(pattern in r"[\\()\[\]{}|^$.*+?,a-d0-9-]{0,40}", text in "[a-d0-9]{0,60}") {
            if let Ok(pattern) = Pattern::new(&pattern) {
                pattern.is_in(&text);
            }
        }

        #[test]
        fn a_text_that_is_quoted_fits_itself(text in r"\PC{0,30}") {
            let quoted: String =
                text.chars().map(|c| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() }).collect();
            let is_simple = text.to_lowercase().chars().count() == text.chars().count();
            prop_assume!(is_simple);
            prop_assert!(Pattern::new(&quoted).unwrap().is_in(&format!("x{text}y")), "{quoted}");
        }
    }
}
