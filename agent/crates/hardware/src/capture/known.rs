//! Names and what stands in their place, and the search for them in any bytes.

use std::collections::{BTreeMap, BTreeSet};

/// Names, each with its replacement of the same length.
#[derive(Debug, Default)]
pub(super) struct Known {
    names: BTreeMap<Vec<u8>, Name>,
    /// Lengths of the names that begin with two bytes.
    lengths: BTreeMap<[u8; 2], BTreeSet<usize>>,
}

#[derive(Debug)]
struct Name {
    invented: Vec<u8>,
    /// Only replaced where no letter or digit is beside it: it is so short that it may be a part of other texts.
    whole: bool,
}

impl Known {
    /// Adds a name, unless it is known already.
    pub(super) fn insert(&mut self, name: Vec<u8>, invented: Vec<u8>, whole: bool) {
        let Some(start) = name.first_chunk().copied().filter(|_| name.len() == invented.len()) else { return };
        self.lengths.entry(start).or_default().insert(name.len());
        self.names.entry(name).or_insert(Name { invented, whole });
    }

    /// What stands in the place of a name.
    pub(super) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.names.get(name).map(|name| name.invented.as_slice())
    }

    /// The bytes with the longest name that begins at each place replaced.
    pub(super) fn replaced(&self, content: &[u8]) -> Vec<u8> {
        let mut result = Vec::with_capacity(content.len());
        let mut rest = content;
        while let Some((first, after)) = rest.split_first() {
            let before = result.len().checked_sub(1).and_then(|place| content.get(place));
            if let Some(invented) = self.longest(before.copied(), rest) {
                result.extend_from_slice(invented);
                rest = rest.get(invented.len()..).unwrap_or_default();
            } else {
                result.push(*first);
                rest = after;
            }
        }
        result
    }

    fn longest(&self, before: Option<u8>, rest: &[u8]) -> Option<&[u8]> {
        let is_apart = |beside: Option<u8>| beside.is_none_or(|byte| !byte.is_ascii_alphanumeric());
        let lengths = self.lengths.get(rest.first_chunk::<2>()?)?;
        lengths.iter().rev().find_map(|length| {
            let name = self.names.get(rest.get(..*length)?)?;
            let stands = !name.whole || is_apart(before) && is_apart(rest.get(*length).copied());
            stands.then_some(name.invented.as_slice())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_wins_and_short_ones_only_stand_alone() {
        let mut known = Known::default();
        known.insert(b"AB12".to_vec(), b"XY99".to_vec(), true);
        known.insert(b"AB12-CD".to_vec(), b"ZZ00-ZZ".to_vec(), false);
        known.insert(b"not this".to_vec(), b"its length differs".to_vec(), false);
        for (content, want) in [
            ("AB12", "XY99"),
            ("AB12-CD", "ZZ00-ZZ"),
            ("xAB12-CDx", "xZZ00-ZZx"),
            ("1AB12 AB123 (AB12)", "1AB12 AB123 (XY99)"),
            ("not this", "not this"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8(known.replaced(content.as_bytes())).unwrap(), want);
        }
    }
}
