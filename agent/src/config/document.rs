//! The reference of options, made from the table.

use std::fmt::Write as _;

use super::options::{OPTIONS, OptionSpec, Support};

const HEAD: &str = "# Options

Made from the agent's table of options by `ferric-agent options`; a test compares the two.

Where they are read, the later place overriding the earlier one: defaults, kernel command line, virtual media,
`/etc/ironic-python-agent/*.conf`, `/etc/ironic-python-agent.d/*.conf`, flags of `ferric-agent run` (`--listen-port 9998`),
the conductor's answer to the lookup. On the kernel command line white space separates parameters, quotes mean nothing
and the last of several wins. A value of the wrong form never stops the agent: it says so and uses what it had.

Options marked *later* are read and checked but do nothing yet. Options marked *not needed* steer something that
Ironic's own agent has and Ferric has not.
";

/// The text of `docs/options.md`.
pub fn document() -> String {
    let mut text = HEAD.to_owned();
    let mut sections: Vec<&str> = Vec::new();
    for option in OPTIONS {
        if !sections.contains(&option.section) {
            sections.push(option.section);
        }
    }
    for section in sections {
        // Writing to a String cannot fail.
        let _infallible = write!(
            text,
            "\n## [{section}]\n\n| option | kernel parameter | value | default | meaning |\n|---|---|---|---|---|\n"
        );
        for option in OPTIONS.iter().filter(|option| option.section == section) {
            text.push_str(&row(option));
        }
    }
    text
}

fn row(option: &OptionSpec) -> String {
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    let mark = match option.support {
        Support::Full => "",
        Support::Later => " *Later.*",
        Support::NotNeeded => " *Not needed.*",
    };
    let secret = if option.secret { " Never shown." } else { "" };
    let (name, kernel, default) = (code(option.name), code(option.kernel), code(option.default));
    format!("| {name} | {kernel} | {} | {default} | {}{secret}{mark} |\n", option.form, option.doc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_in_docs_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/options.md");
        if std::env::var_os("FERRIC_UPDATE_GOLDEN").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == document(), "docs/options.md is out of date; run this test with FERRIC_UPDATE_GOLDEN=1");
    }
}
