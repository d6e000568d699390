//! Whether the conductor's list of steps was made by the managers that are running now.

use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value};

/// Checks the version object of an `execute_*_step` command: absent or null at the first run, else equal as a whole
/// (commands section 4).
///
/// # Errors
/// `VersionMismatch`.
pub fn check(current: &Map<String, Value>, sent: Option<&Value>) -> Result<(), CommandError> {
    let equal = match sent {
        None | Some(Value::Null) => true,
        Some(Value::Object(sent)) => sent == current,
        Some(_) => false,
    };
    if equal {
        return Ok(());
    }
    let details = format!(
        "Current versions: {}, versions used by ironic: {}",
        Value::Object(current.clone()),
        sent.unwrap_or(&Value::Null)
    );
    Err(CommandError::new(ErrorClass::VersionMismatch, details))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_whole_object_must_be_equal() {
        let current = json!({"generic_hardware_manager": "1.2", "other": "1"}).as_object().unwrap().clone();
        let cases = [
            (None, true),
            (Some(json!(null)), true),
            (Some(json!({"other": "1", "generic_hardware_manager": "1.2"})), true),
            (Some(json!({"generic_hardware_manager": "1.2"})), false),
            (Some(json!({"generic_hardware_manager": "1.1", "other": "1"})), false),
            (Some(json!({"generic_hardware_manager": "1.2", "other": "1", "more": "1"})), false),
            (Some(json!("1.2")), false),
        ];
        for (sent, want) in cases {
            assert_eq!(check(&current, sent.as_ref()).is_ok(), want, "{sent:?}");
        }
        let error = check(&current, Some(&json!({}))).unwrap_err();
        assert_eq!(error.class, ErrorClass::VersionMismatch);
        assert_eq!(
            error.details,
            r#"Current versions: {"generic_hardware_manager":"1.2","other":"1"}, versions used by ironic: {}"#
        );
    }
}
