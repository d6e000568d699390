//! Settings that the conductor sends with the answer of a lookup (protocol section 7).

use std::time::Duration;

use ferric_types::lookup::LookupConfig;
use serde_json::Value;

use super::Warning;
use super::options::Config;
use super::value;

const ORIGIN: &str = "lookup";

/// Longest heartbeat timeout believed, a week; a larger one is a mistake that would make the node look dead.
const MAX_HEARTBEAT_TIMEOUT: f64 = 7.0 * 86_400.0;

impl Config {
    /// Takes over what the conductor wants; a value of the wrong type is reported and changes nothing.
    ///
    /// The agent token is not a setting and stays untouched.
    pub fn apply_lookup(&mut self, answer: &LookupConfig) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if let Some(seconds) = answer.heartbeat_timeout {
            if seconds > 0.0 && seconds <= MAX_HEARTBEAT_TIMEOUT {
                self.heartbeat_timeout = Some(Duration::from_secs_f64(seconds));
            } else {
                warnings.push(bad(
                    "heartbeat_timeout",
                    &seconds.to_string(),
                    "seconds, more than 0 and at most a week",
                ));
            }
        }
        for (key, value) in answer.other.iter().filter(|(_, value)| !value.is_null()) {
            if let Some(form) = self.apply(key, value) {
                warnings.push(bad(key, &value.to_string(), form));
            }
        }
        warnings
    }

    /// Gives the form that was expected when the value does not have it.
    fn apply(&mut self, key: &str, value: &Value) -> Option<&'static str> {
        match key {
            "agent_skip_bmc_detect" => flag(&mut self.skip_bmc_detect, value),
            "enable_bios_bootloader_install" if value == &Value::Bool(false) => None,
            "enable_bios_bootloader_install" => flag(&mut self.enable_bios_bootloader_install, value),
            "disable_deep_image_inspection" => flag(&mut self.disable_deep_image_inspection, value),
            "agent_md5_checksum_enable" => flag(&mut self.md5_enabled, value),
            "permitted_image_formats" => match formats(value) {
                Some(formats) => {
                    self.permitted_image_formats = formats;
                    None
                }
                None => Some("list of format names"),
            },
            "tls_min_version" => match value.as_str() {
                Some("") => None,
                text => match text.and_then(value::tls_version) {
                    Some(version) => {
                        self.tls_min_version = version;
                        None
                    }
                    None => Some(value::TLS_VERSION),
                },
            },
            "tls_cipher_suites" => match value.as_str() {
                Some("") => None,
                Some(suites) => {
                    self.tls_cipher_suites = Some(suites.to_owned());
                    None
                }
                None => Some(value::TEXT),
            },
            // Metrics go nowhere, containers come later, and a newer conductor may send more.
            _ => None,
        }
    }
}

fn bad(key: &str, value: &str, form: &'static str) -> Warning {
    let value = value.chars().take(200).collect();
    Warning::BadValue {
        origin: ORIGIN.to_owned(),
        key: key.to_owned(),
        value,
        form,
        used: "what was set before".to_owned(),
    }
}

fn flag(field: &mut bool, value: &Value) -> Option<&'static str> {
    let read = value.as_bool().or_else(|| value.as_str().and_then(value::boolean));
    match read {
        Some(read) => {
            *field = read;
            None
        }
        None => Some(value::BOOLEAN),
    }
}

/// A list of names, or one text with commas.
fn formats(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => value::list(text),
        Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::TlsVersion;
    use super::*;

    fn apply(config: &mut Config, json: &str) -> Vec<Warning> {
        config.apply_lookup(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn what_a_default_ironic_sends_is_taken_over() {
        let mut config = Config::default();
        let warnings = apply(
            &mut config,
            r#"{"heartbeat_timeout": 300, "agent_token": "x", "agent_token_required": true,
                "agent_md5_checksum_enable": false, "disable_deep_image_inspection": true,
                "permitted_image_formats": ["raw","gpt","qcow2","iso"], "agent_skip_bmc_detect": true,
                "enable_bios_bootloader_install": false, "tls_min_version": "1.3", "tls_cipher_suites": null,
                "metrics": {"backend":"noop"}, "agent_containers": {"runner":"podman"}}"#,
        );
        assert_eq!(warnings, []);
        assert_eq!(config.heartbeat_timeout, Some(Duration::from_secs(300)));
        assert!(!config.md5_enabled && config.disable_deep_image_inspection && config.skip_bmc_detect);
        assert_eq!(config.permitted_image_formats, ["raw", "gpt", "qcow2", "iso"]);
        assert_eq!(config.tls_min_version, TlsVersion::V1_3);
        assert_eq!(config.tls_cipher_suites, None);
    }

    #[test]
    fn wrong_types_are_reported_and_change_nothing() {
        for json in [
            r#"{"heartbeat_timeout": 0}"#,
            r#"{"heartbeat_timeout": -3}"#,
            r#"{"heartbeat_timeout": 1e300}"#,
            r#"{"agent_md5_checksum_enable": "perhaps"}"#,
            r#"{"permitted_image_formats": 3}"#,
            r#"{"permitted_image_formats": [1]}"#,
            r#"{"tls_min_version": "1.0"}"#,
            r#"{"tls_min_version": 1.3}"#,
            r#"{"tls_cipher_suites": []}"#,
            r#"{"agent_skip_bmc_detect": {}}"#,
        ] {
            let mut config = Config::default();
            assert_eq!(apply(&mut config, json).len(), 1, "{json}");
            assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()), "{json}");
        }
    }

    #[test]
    fn bios_boot_loaders_can_only_be_switched_on() {
        let mut config = Config { enable_bios_bootloader_install: true, ..Config::default() };
        apply(&mut config, r#"{"enable_bios_bootloader_install": false, "tls_min_version": ""}"#);
        assert!(config.enable_bios_bootloader_install);
    }
}
