//! Ironic's record of this machine.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A node as the conductor sends it: an open JSON object with typed access to what the agent reads.
///
/// Unknown and future keys are kept; any value may be null (conductor section 1).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Node(Map<String, Value>);

impl Node {
    /// Takes over a JSON object.
    pub const fn new(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// UUID of the node, if the object has one.
    pub fn uuid(&self) -> Option<&str> {
        self.0.get("uuid").and_then(Value::as_str)
    }

    /// A top-level value that is not null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// A value inside `properties`, `instance_info`, `driver_internal_info` or another top-level object; null counts
    /// as absent.
    pub fn lookup(&self, object: &str, key: &str) -> Option<&Value> {
        self.get(object)?.get(key).filter(|value| !value.is_null())
    }

    /// A boolean of `driver_internal_info`; the texts Ironic's own parser takes for true and false count too.
    pub fn internal_flag(&self, key: &str, default: bool) -> bool {
        match self.lookup("driver_internal_info", key) {
            Some(Value::Bool(flag)) => *flag,
            Some(Value::String(text)) => match text.to_lowercase().as_str() {
                "true" | "1" | "on" | "yes" => true,
                "false" | "0" | "off" | "no" => false,
                _ => default,
            },
            _ => default,
        }
    }

    /// What is wrong with the object's shape, when a part that rules over disks is not what it must be. Hints or skip
    /// lists that cannot be understood must stop a step, never be passed over.
    ///
    /// # Errors
    /// The reason, for the operator.
    pub fn check_shape(&self) -> Result<(), String> {
        let expected =
            |what: &str, value: &Value| Err(format!("{what} of the node is {value} where an object was expected"));
        for key in ["properties", "instance_info", "driver_internal_info"] {
            match self.get(key) {
                None | Some(Value::Object(_)) => {}
                Some(value) => return expected(key, value),
            }
            match self.lookup(key, "root_device") {
                None | Some(Value::Object(_)) => {}
                Some(value) => return expected(&format!("{key}.root_device"), value),
            }
        }
        Ok(())
    }

    /// Drops the config drive that comes inside the node; it also comes as an argument, and is large.
    pub fn forget_configdrive(&mut self) {
        if let Some(Value::Object(info)) = self.0.get_mut("instance_info") {
            info.remove("configdrive");
        }
    }

    /// Root device hints: those of the instance win over those of the node (hardware section 4). An empty object
    /// counts as none.
    pub fn root_device_hints(&self) -> Option<&Map<String, Value>> {
        ["instance_info", "properties"]
            .into_iter()
            .filter_map(|object| self.lookup(object, "root_device").and_then(Value::as_object))
            .find(|hints| !hints.is_empty())
    }

    /// A capability: `instance_info.capabilities` wins over `properties.capabilities`; each may be an object, JSON
    /// text, or `key:value,key:value` (hardware section 10).
    pub fn capability(&self, name: &str) -> Option<String> {
        ["instance_info", "properties"]
            .into_iter()
            .filter_map(|object| self.lookup(object, "capabilities"))
            .find_map(|value| capability_in(value, name))
    }
}

fn capability_in(value: &Value, name: &str) -> Option<String> {
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        Value::Object(map) => map.get(name).filter(|v| !v.is_null()).map(plain),
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(map)) => map.get(name).filter(|v| !v.is_null()).map(plain),
            _ => text.split(',').find_map(|pair| {
                let (key, value) = pair.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            }),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn hints_of_the_instance_win_and_empty_ones_do_not_count() {
        let both = node(
            serde_json::json!({"instance_info": {"root_device": {"serial": "i"}}, "properties": {"root_device": {"serial": "p"}}}),
        );
        assert_eq!(both.root_device_hints().unwrap()["serial"], "i");
        let empty = node(
            serde_json::json!({"instance_info": {"root_device": {}}, "properties": {"root_device": {"serial": "p"}}}),
        );
        assert_eq!(empty.root_device_hints().unwrap()["serial"], "p");
        assert!(node(serde_json::json!({"properties": null})).root_device_hints().is_none());
    }

    #[test]
    fn parts_of_the_wrong_type_are_named() {
        for (value, want) in [
            (serde_json::json!({"properties": 5}), "properties of the node is 5"),
            (
                serde_json::json!({"properties": {"root_device": "serial=Z"}}),
                "properties.root_device of the node is \"serial=Z\"",
            ),
            (
                serde_json::json!({"instance_info": {"root_device": ["serial"]}, "properties": {}}),
                "instance_info.root_device",
            ),
            (serde_json::json!({"driver_internal_info": "x"}), "driver_internal_info"),
        ] {
            let problem = node(value.clone()).check_shape().unwrap_err();
            assert!(problem.contains(want), "{value}: {problem}");
        }
        assert!(
            node(serde_json::json!({"properties": null, "instance_info": {"root_device": null}})).check_shape().is_ok()
        );
    }

    #[test]
    fn the_config_drive_inside_the_node_is_dropped() {
        let mut node = node(serde_json::json!({"instance_info": {"configdrive": "H4s", "a": 1}}));
        node.forget_configdrive();
        assert_eq!(node, super::Node::new(serde_json::json!({"instance_info": {"a": 1}}).as_object().unwrap().clone()));
    }

    #[test]
    fn capabilities_come_in_three_forms() {
        for form in [
            serde_json::json!("boot_mode:uefi,secure_boot:true"),
            serde_json::json!("{\"boot_mode\": \"uefi\", \"secure_boot\": true}"),
            serde_json::json!({"boot_mode": "uefi", "secure_boot": true}),
        ] {
            let node = node(serde_json::json!({"properties": {"capabilities": form}}));
            assert_eq!(node.capability("boot_mode").as_deref(), Some("uefi"), "{form}");
            assert_eq!(node.capability("secure_boot").as_deref(), Some("true"), "{form}");
            assert_eq!(node.capability("disk_label"), None, "{form}");
        }
    }

    #[test]
    fn flags_accept_text_and_fall_back_to_the_default() {
        let node =
            node(serde_json::json!({"driver_internal_info": {"a": "False", "b": true, "c": null, "d": "perhaps"}}));
        assert!(!node.internal_flag("a", true));
        assert!(node.internal_flag("b", false));
        assert!(node.internal_flag("c", true));
        assert!(node.internal_flag("d", true));
    }
}
