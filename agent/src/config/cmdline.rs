//! Kernel command line, cut into parameters the way Ironic's own agent does it (protocol section 2).
//!
//! White space separates, a word without `=` is no parameter, the first `=` ends the name, the last of several wins,
//! and quotes mean nothing: a quoted value with a blank in it is broken apart there and here.

/// Parameters in the order of their first appearance, each once with its last value.
pub(super) fn parse(line: &str) -> Vec<(&str, &str)> {
    let mut parameters: Vec<(&str, &str)> = Vec::new();
    for (name, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
        match parameters.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => parameters.push((name, value)),
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_become_parameters_as_in_ironics_agent() {
        let cases: &[(&str, &[(&str, &str)])] = &[
            ("", &[]),
            ("quiet nofb ro", &[]),
            ("a=1 b=2\n", &[("a", "1"), ("b", "2")]),
            ("a=1 b=2 a=3", &[("a", "3"), ("b", "2")]),
            ("a=b=c", &[("a", "b=c")]),
            ("a=", &[("a", "")]),
            ("=x", &[("", "x")]),
            ("a=\"x y\"", &[("a", "\"x")]),
            ("console=tty0 console=ttyS0,115200n8", &[("console", "ttyS0,115200n8")]),
        ];
        for (line, want) in cases {
            assert_eq!(parse(line), *want, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn every_parameter_comes_from_the_line(line in "\\PC{0,200}") {
            for (name, value) in parse(&line) {
                let word = format!("{name}={value}");
                prop_assert!(line.contains(&word));
                prop_assert!(!name.contains('='));
            }
        }
    }
}
