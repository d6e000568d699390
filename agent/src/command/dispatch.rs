//! From `extension.command` to an entry of the table.

use ferric_types::{CommandError, ErrorClass};

use super::entry::{CommandEntry, Extension};

/// Splits a name at its first dot.
///
/// # Errors
/// `InvalidCommandError` when there is no dot.
pub fn split(name: &str) -> Result<(&str, &str), CommandError> {
    name.split_once('.').ok_or_else(|| {
        CommandError::new(ErrorClass::InvalidCommand, "Command name must be of the form <extension>.<name>")
    })
}

/// Finds a command.
///
/// # Errors
/// `RequestedObjectNotFoundError` for an unknown extension, `InvalidCommandError` for an unknown command of a known
/// one (protocol section 12).
pub fn find(extensions: &[&'static Extension], extension: &str, command: &str) -> Result<CommandEntry, CommandError> {
    let found = extensions.iter().find(|entry| entry.name == extension).ok_or_else(|| {
        CommandError::new(ErrorClass::RequestedObjectNotFound, format!("Extension with id {extension} not found."))
    })?;
    found
        .commands
        .iter()
        .find(|entry| entry.name == command)
        .copied()
        .ok_or_else(|| CommandError::new(ErrorClass::InvalidCommand, format!("Unknown command: {command}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Extension = Extension { name: "clean", commands: &[] };

    #[test]
    fn each_wrong_name_has_its_own_answer() {
        assert_eq!(
            split("nodot").unwrap_err().to_string(),
            "Invalid command: Command name must be of the form <extension>.<name>"
        );
        assert_eq!(split("a.b.c").unwrap(), ("a", "b.c"));
        assert_eq!(
            find(&[&NONE], "nope", "x").unwrap_err().to_string(),
            "Not found: Extension with id nope not found."
        );
        assert_eq!(
            find(&[&NONE], "clean", "cache_image").unwrap_err().to_string(),
            "Invalid command: Unknown command: cache_image"
        );
    }
}
