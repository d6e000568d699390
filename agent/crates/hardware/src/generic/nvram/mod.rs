//! `clean_uefi_nvram`: delete the boot entries that earlier systems left in the firmware (hardware section 5.7).
//!
//! An entry is known by its device path, in the text of the UEFI specification as `efibootmgr -v` prints it. Patterns are
//! matched by [`pattern`], which has what they are made of in practice; the `regex` crates would be the largest part of the
//! step by far (95 kB and more).

mod device_path;
mod pattern;

use ferric_disk::boot::efivars::EfiVars;
use ferric_types::error::{CommandError, ErrorClass, chain};
use serde_json::{Map, Value};

use self::pattern::Pattern;
use crate::context::StepContext;
use crate::manager::ArgInfo;

/// What the step may be given.
pub(super) const ARGS: &[ArgInfo] = &[ArgInfo {
    name: "match_patterns",
    description: "Regular expressions, searched in the device path of each boot entry whatever the case; entries that fit any are \
                  deleted. By default those of disk partitions, of shim and of grub.",
    required: false,
}];

/// Entries of installed systems.
const DEFAULT: [&str; 3] = [r"^HD\(", r"shim.*\.efi", r"grub.*\.efi"];

/// Deletes every boot entry that fits, also from the boot order. A machine without UEFI has none.
pub(super) fn clean_uefi_nvram(context: &StepContext<'_>, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let patterns = patterns(args.get("match_patterns"))?;
    let Some(vars) = EfiVars::of(&context.machine.root) else {
        tracing::info!("this machine has no UEFI boot entries");
        return Ok(Value::Null);
    };
    let mut deleted = Vec::new();
    let mut failures = Vec::new();
    for number in vars.boot_entries() {
        let name = format!("Boot{number:04X}");
        let path = match vars.read(&name) {
            Ok(value) => device_path::of_load_option(&value.unwrap_or_default()),
            Err(error) => {
                failures.push(chain(&error));
                continue;
            }
        };
        if !patterns.iter().any(|pattern| pattern.is_in(&path)) {
            tracing::debug!(name, path, "boot entry kept");
            continue;
        }
        tracing::info!(name, path, "deleting boot entry");
        match vars.delete(&name) {
            Ok(()) => deleted.push(number),
            Err(error) => failures.push(chain(&error)),
        }
    }
    if let Err(error) = without(&vars, &deleted) {
        failures.push(chain(&error));
    }
    if failures.is_empty() {
        return Ok(Value::Null);
    }
    let details = format!("Cleaning the UEFI boot entries failed: {}", failures.join("; "));
    Err(CommandError::new(ErrorClass::Cleaning, details))
}

/// Takes entries that are gone out of the boot order.
fn without(vars: &EfiVars, deleted: &[u16]) -> Result<(), ferric_disk::boot::efivars::EfiVarError> {
    let order = vars.boot_order()?;
    let left: Vec<u16> = order.iter().copied().filter(|number| !deleted.contains(number)).collect();
    if left.len() == order.len() { Ok(()) } else { vars.set_boot_order(&left) }
}

fn patterns(given: Option<&Value>) -> Result<Vec<Pattern>, CommandError> {
    let invalid = |what: String| CommandError::new(ErrorClass::InvalidCommandParams, what);
    let texts: Vec<&str> = match given {
        None | Some(Value::Null) => DEFAULT.to_vec(),
        Some(Value::Array(list)) => list
            .iter()
            .map(|item| item.as_str().ok_or_else(|| invalid(format!("match_patterns has {item}, which is no text"))))
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(invalid(format!("match_patterns must be a list of texts, not {other}"))),
    };
    let compile = |text: &str| {
        Pattern::new(text).map_err(|error| invalid(format!("match_patterns: {text:?}: {}", chain(&error))))
    };
    texts.into_iter().map(compile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patterns_are_a_list_of_texts_that_are_understood() {
        assert_eq!(patterns(None).unwrap().len(), 3);
        assert_eq!(patterns(Some(&json!([]))).unwrap().len(), 0);
        for (value, words) in [
            (json!("a"), "must be a list of texts"),
            (json!([1]), "which is no text"),
            (json!(["("]), "match_patterns: \"(\": "),
            (json!({"a": 1}), "must be a list of texts"),
        ] {
            let error = patterns(Some(&value)).unwrap_err();
            assert_eq!(error.class, ErrorClass::InvalidCommandParams);
            assert!(error.details.contains(words), "{error}");
        }
    }
}
