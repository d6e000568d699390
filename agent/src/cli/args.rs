//! What the program is asked for by its arguments.

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command<'a> {
    /// Be the agent.
    Run,
    /// Show a machine: this one, or the one captured in a folder.
    Inventory {
        /// The folder.
        root: Option<&'a str>,
        /// As JSON instead of tables.
        json: bool,
    },
    /// Write a capture of this machine.
    Capture {
        /// The archive.
        file: &'a str,
        /// With what the switches say.
        lldp: bool,
    },
    /// Print the reference of options.
    Options,
    /// Let a command panic.
    Panic,
    /// Print the version.
    Version,
    /// Print the help.
    Help,
    /// Load a module for the kernel.
    Modprobe(&'a str),
}

/// The arguments make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UsageError {
    /// There are none.
    #[error("no command given")]
    Nothing,
    /// The command is none.
    #[error("there is no command {word:?}")]
    Command {
        /// What was given.
        word: String,
    },
    /// Something that the command does not take.
    #[error("{command} does not take {word:?}")]
    Word {
        /// The command.
        command: String,
        /// What was given.
        word: String,
    },
    /// An option that stands last.
    #[error("{option} needs a value after it")]
    Value {
        /// The option.
        option: &'static str,
    },
    /// A capture of a capture.
    #[error("--root is for inventory only")]
    Root,
    /// A capture to nowhere.
    #[error("capture needs -o FILE.tar.gz")]
    File,
}

/// Reads the words after the program's name.
pub(super) fn parse<'a>(words: &[&'a str]) -> Result<Command<'a>, UsageError> {
    match words {
        // Its options are read with the configuration.
        ["run", rest @ ..] if !matches!(rest, ["--help" | "-h"]) => return Ok(Command::Run),
        // How the kernel asks for a module.
        ["-q", "--", name] => return Ok(Command::Modprobe(name)),
        _ => {}
    }
    let mut left = words.iter().copied();
    let (mut command, mut root, mut file, mut json, mut lldp) = (None, None, None, false, false);
    while let Some(word) = left.next() {
        let mut value = |option| left.next().ok_or(UsageError::Value { option });
        match (command, word) {
            (_, "--help" | "-h") => return Ok(Command::Help),
            (None, "--version" | "help" | "options" | "inventory" | "capture" | "self-test" | "run") => {
                command = Some(word);
            }
            (None | Some("inventory" | "capture"), "--root") => root = Some(value("--root")?),
            (None | Some("inventory" | "capture"), _) if word.starts_with("--root=") => {
                root = word.strip_prefix("--root=");
            }
            (Some("inventory"), "--json") => json = true,
            (Some("capture"), "--lldp") => lldp = true,
            (Some("capture"), "-o") => file = Some(value("-o")?),
            (Some("self-test"), "panic") => command = Some("self-test panic"),
            (Some(command), _) => {
                return Err(UsageError::Word { command: command.to_owned(), word: word.to_owned() });
            }
            (None, _) => return Err(UsageError::Command { word: word.to_owned() }),
        }
    }
    match command {
        Some("inventory") => Ok(Command::Inventory { root, json }),
        _ if root.is_some() => Err(UsageError::Root),
        Some("capture") => file.map(|file| Command::Capture { file, lldp }).ok_or(UsageError::File),
        Some("options") => Ok(Command::Options),
        Some("self-test panic") => Ok(Command::Panic),
        Some("self-test") => Err(UsageError::Value { option: "self-test" }),
        Some("--version") => Ok(Command::Version),
        Some("help") => Ok(Command::Help),
        _ => Err(UsageError::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_commands_wherever_their_options_stand() {
        let inventory = |root, json| Command::Inventory { root, json };
        let capture = |lldp| Command::Capture { file: "a.tar", lldp };
        for (words, want) in [
            ("run", Command::Run),
            ("run --api-url https://x", Command::Run),
            ("run --help", Command::Help),
            ("inventory", inventory(None, false)),
            ("inventory --json", inventory(None, true)),
            ("--root d inventory", inventory(Some("d"), false)),
            ("--root d inventory --json", inventory(Some("d"), true)),
            ("inventory --root d", inventory(Some("d"), false)),
            ("inventory --json --root=d", inventory(Some("d"), true)),
            ("--root=d inventory", inventory(Some("d"), false)),
            ("inventory --help", Command::Help),
            ("capture -o a.tar", capture(false)),
            ("capture --lldp -o a.tar", capture(true)),
            ("capture -o a.tar --lldp", capture(true)),
            ("capture --help", Command::Help),
            ("capture -o a.tar -h", Command::Help),
            ("options", Command::Options),
            ("self-test panic", Command::Panic),
            ("--version", Command::Version),
            ("--help", Command::Help),
            ("-h", Command::Help),
            ("help", Command::Help),
            ("-q -- nls_ascii", Command::Modprobe("nls_ascii")),
        ] {
            assert_eq!(parse(&words.split_whitespace().collect::<Vec<_>>()), Ok(want), "{words}");
        }
    }

    #[test]
    fn wrong_words_are_told_in_one_line() {
        for (words, want) in [
            ("", "no command given"),
            ("inventroy", "there is no command \"inventroy\""),
            ("\u{1b}[2J", "there is no command \"\\u{1b}[2J\""),
            ("--json inventory", "there is no command \"--json\""),
            ("inventory --jsn", "inventory does not take \"--jsn\""),
            ("inventory x.tar.gz", "inventory does not take \"x.tar.gz\""),
            ("inventory --root", "--root needs a value after it"),
            ("--root", "--root needs a value after it"),
            ("--root d", "--root is for inventory only"),
            ("--root d capture -o a.tar", "--root is for inventory only"),
            ("capture --root d -o a.tar", "--root is for inventory only"),
            ("capture", "capture needs -o FILE.tar.gz"),
            ("capture -o", "-o needs a value after it"),
            ("capture a.tar", "capture does not take \"a.tar\""),
            ("options --json", "options does not take \"--json\""),
            ("self-test", "self-test needs a value after it"),
            ("self-test abort", "self-test does not take \"abort\""),
            ("-q --", "there is no command \"-q\""),
        ] {
            let error = parse(&words.split_whitespace().collect::<Vec<_>>()).unwrap_err();
            assert_eq!(error.to_string(), want, "{words}");
        }
    }
}
