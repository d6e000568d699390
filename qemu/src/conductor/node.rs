//! The node record: what Ironic keeps about one machine, and how it looks on the wire.
//!
//! Keys and their order follow `Node.as_dict(secure=True)` (spec/conductor.md section 1) and what a real Ironic 39.0
//! was seen to send.

use super::state::ProvisionState;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

/// What a secret looks like to anybody but its owner.
pub const MASKED: &str = "******";

/// Parts of key names whose values `oslo_utils.strutils` hides.
const SECRET_KEY_PARTS: &[&str] = &[
    "password",
    "admin_pass",
    "adminpass",
    "new_pass",
    "auth_token",
    "token",
    "secret",
    "sys_pswd",
    "configdrive",
    "encrypted_key",
    "private_key",
    "passphrase",
    "sslkey",
];

/// A NIC of a node, as Ironic knows it.
#[derive(Debug, Clone)]
pub struct Port {
    /// The port's own identifier.
    pub uuid: String,
    /// MAC address, lower case with colons.
    pub address: String,
    /// Whether the machine boots from it.
    pub pxe_enabled: bool,
}

/// A move between provision states that Ironic does not make.
#[derive(Debug, thiserror::Error)]
#[error("node {node} cannot go from {from:?} to {to:?}")]
pub struct StateError {
    /// The node.
    pub node: String,
    /// The state it is in.
    pub from: ProvisionState,
    /// The state asked for.
    pub to: ProvisionState,
}

/// Inspection data as it was accepted.
#[derive(Debug, Clone)]
pub struct InspectionData {
    /// The `inventory` object.
    pub inventory: Value,
    /// Everything else that was posted.
    pub plugin_data: Map<String, Value>,
}

/// Everything Ironic keeps about one machine.
#[derive(Debug, Clone)]
pub struct Node {
    /// Identifier, lower case.
    pub uuid: String,
    /// Logical name.
    pub name: String,
    /// Where it is in its life; change it with [`Node::transition`].
    pub provision_state: ProvisionState,
    /// Where it is going.
    pub target_provision_state: Option<ProvisionState>,
    /// Who holds the node's exclusive lock.
    pub reservation: Option<String>,
    /// Maintenance mode.
    pub maintenance: bool,
    /// Why the last operation failed.
    pub last_error: Option<String>,
    /// Whether the ramdisk is kept between operations (spec/conductor.md section 9).
    pub fast_track: bool,
    /// `power on` or `power off`.
    pub powered_on: bool,
    /// Its NICs.
    pub ports: Vec<Port>,
    /// `driver_info`: credentials, burn-in settings.
    pub driver_info: Map<String, Value>,
    /// `driver_internal_info`: what the conductor notes for itself, the agent's URL and token among it.
    pub driver_internal_info: Map<String, Value>,
    /// `instance_info`: what is to be deployed.
    pub instance_info: Map<String, Value>,
    /// `properties`: facts and hints.
    pub properties: Map<String, Value>,
    /// RAID asked for.
    pub target_raid_config: Value,
    /// RAID in place.
    pub raid_config: Value,
    /// The clean step that runs, `{}` for none.
    pub clean_step: Value,
    /// The deploy step that runs, `{}` for none.
    pub deploy_step: Value,
    /// The service step that runs, `{}` for none.
    pub service_step: Value,
    /// Certificate the agent announced, as PEM. Ironic keeps a file and stores its path.
    pub agent_certificate: Option<String>,
    /// The newest accepted inspection data.
    pub inspection: Option<InspectionData>,
    /// Further top-level keys, or other values for those above, put into the node object last.
    pub overrides: Map<String, Value>,
    created_at: OffsetDateTime,
}

impl Node {
    /// A manageable node with one PXE port per MAC address and the settings of an Ironic with default configuration.
    #[must_use]
    pub fn new(name: &str, macs: &[&str]) -> Self {
        let ports =
            macs.iter().map(|mac| Port { uuid: new_uuid(), address: mac.to_ascii_lowercase(), pxe_enabled: true });
        Node {
            uuid: new_uuid(),
            name: name.to_owned(),
            provision_state: ProvisionState::Manageable,
            target_provision_state: None,
            reservation: None,
            maintenance: false,
            last_error: None,
            fast_track: false,
            powered_on: true,
            ports: ports.collect(),
            driver_info: object(json!({
                "ipmi_address": "198.51.100.2", "ipmi_username": "admin", "ipmi_password": "secret", "ipmi_port": 623,
                "deploy_kernel": "http://198.51.100.1:8080/agent.kernel",
                "deploy_ramdisk": "http://198.51.100.1:8080/agent.initramfs",
            })),
            driver_internal_info: Map::new(),
            instance_info: Map::new(),
            properties: object(json!({"cpu_arch": "x86_64"})),
            target_raid_config: json!({}),
            raid_config: json!({}),
            clean_step: json!({}),
            deploy_step: json!({}),
            service_step: json!({}),
            agent_certificate: None,
            inspection: None,
            overrides: Map::new(),
            created_at: OffsetDateTime::now_utc(),
        }
    }

    /// The agent's URL from its last accepted heartbeat.
    #[must_use]
    pub fn agent_url(&self) -> Option<&str> {
        self.internal_text("agent_url")
    }

    /// The token the agent was given.
    #[must_use]
    pub fn agent_token(&self) -> Option<&str> {
        self.internal_text("agent_secret_token")
    }

    /// A text of `driver_internal_info`.
    #[must_use]
    pub fn internal_text(&self, key: &str) -> Option<&str> {
        self.driver_internal_info.get(key).and_then(Value::as_str).filter(|s| !s.is_empty())
    }

    /// Sets a key of `driver_internal_info`.
    pub fn set_internal(&mut self, key: &str, value: impl Into<Value>) {
        self.driver_internal_info.insert(key.to_owned(), value.into());
    }

    /// Gives the node a token that the ramdisk is told by other means (virtual media), so that a lookup hides it.
    pub fn pregenerate_token(&mut self) -> String {
        let token = new_token();
        self.set_internal("agent_secret_token", token.as_str());
        self.set_internal("agent_secret_token_pregenerated", true);
        token
    }

    /// Creates the token of a first lookup.
    pub(crate) fn create_token(&mut self) -> String {
        let token = new_token();
        self.set_internal("agent_secret_token", token.as_str());
        token
    }

    /// Moves to another provision state, as Ironic's state machine allows.
    pub fn transition(&mut self, to: ProvisionState) -> Result<(), StateError> {
        if !self.provision_state.can_become(to) {
            return Err(StateError { node: self.uuid.clone(), from: self.provision_state, to });
        }
        self.provision_state = to;
        Ok(())
    }

    /// What Ironic forgets when a machine is powered off or rebooted (`wipe_internal_info_on_power_off`): where the agent
    /// was, its certificate, its steps, and its token unless that was generated before the boot.
    pub fn forget_agent(&mut self) {
        let pregenerated = self.driver_internal_info.get("agent_secret_token_pregenerated") == Some(&Value::Bool(true));
        for key in ["agent_url", "agent_verify_ca", "agent_cached_clean_steps", "agent_cached_deploy_steps"] {
            self.driver_internal_info.remove(key);
        }
        if !pregenerated {
            self.driver_internal_info.remove("agent_secret_token");
        }
        self.agent_certificate = None;
    }

    /// The settings Ironic writes before cleaning (`deploy_utils.agent_add_clean_params`).
    pub fn add_clean_parameters(&mut self) {
        for (key, value) in [
            ("agent_erase_devices_iterations", json!(1)),
            ("agent_erase_devices_zeroize", json!(true)),
            ("agent_continue_if_secure_erase_failed", json!(false)),
            ("agent_continue_if_ata_erase_failed", json!(false)),
            ("agent_enable_nvme_secure_erase", json!(true)),
            ("agent_enable_ata_secure_erase", json!(true)),
            ("disk_erasure_concurrency", json!(4)),
            ("agent_erase_skip_read_only", json!(false)),
        ] {
            // Kept when a test chose a value of its own.
            self.driver_internal_info.entry(key).or_insert(value);
        }
    }

    /// The node object of step commands, secrets masked; `instance_info.configdrive` is left readable only for
    /// `deploy.execute_deploy_step`.
    #[must_use]
    pub fn as_dict(&self, mask_configdrive: bool) -> Value {
        let mut instance_info = mask_secrets(&self.instance_info);
        if !mask_configdrive && let Some(drive) = self.instance_info.get("configdrive") {
            instance_info.insert("configdrive".to_owned(), drive.clone());
        }
        let mut node = object(json!({
            "id": 1, "uuid": self.uuid, "name": self.name, "chassis_id": null, "instance_uuid": null,
            "driver": "ipmi",
            "driver_info": mask_secrets(&self.driver_info),
            "driver_internal_info": mask_secrets(&self.driver_internal_info),
            "clean_step": self.clean_step, "deploy_step": self.deploy_step, "service_step": self.service_step,
            "raid_config": self.raid_config, "target_raid_config": self.target_raid_config,
            "properties": self.properties,
            "reservation": self.reservation, "conductor_affinity": 1, "conductor_group": "",
            "power_state": if self.powered_on { "power on" } else { "power off" }, "target_power_state": null,
            "provision_state": self.provision_state.as_str(), "provision_updated_at": timestamp(),
            "target_provision_state": self.target_provision_state.map(ProvisionState::as_str),
            "maintenance": self.maintenance, "maintenance_reason": null, "fault": null, "console_enabled": false,
            "last_error": self.last_error, "resource_class": null,
            "inspection_finished_at": null, "inspection_started_at": null, "extra": {}, "automated_clean": true,
            "protected": false, "protected_reason": null, "allocation_id": null,
        }));
        node.extend(object(json!({
            "bios_interface": "no-bios", "boot_interface": "ipxe", "console_interface": "no-console",
            "deploy_interface": "direct", "firmware_interface": "no-firmware", "inspect_interface": "agent",
            "management_interface": "ipmitool", "network_interface": "noop", "power_interface": "ipmitool",
            "raid_interface": "agent", "rescue_interface": "agent", "storage_interface": "noop",
            "vendor_interface": "no-vendor", "traits": {"objects": []}, "owner": null, "lessee": null,
            "description": null, "retired": false, "retired_reason": null, "network_data": {}, "boot_mode": null,
            "secure_boot": null, "shard": null, "parent_node": null, "disable_power_off": false,
            "instance_name": null, "health": null, "created_at": format_time(self.created_at),
            "updated_at": timestamp(), "instance_info": instance_info,
        })));
        node.extend(self.overrides.clone());
        Value::Object(node)
    }

    /// The `ports` list of step commands.
    #[must_use]
    pub fn ports_list(&self) -> Value {
        self.ports
            .iter()
            .enumerate()
            .map(|(index, port)| {
                json!({
                    "id": index + 1, "uuid": port.uuid, "node_id": 1, "node_uuid": self.uuid, "address": port.address,
                    "extra": {}, "local_link_connection": {}, "portgroup_id": null, "pxe_enabled": port.pxe_enabled,
                    "internal_info": {}, "physical_network": null, "is_smartnic": false, "name": null,
                    "description": null, "vendor": null, "category": null, "available_for_dynamic_portgroup": true,
                    "created_at": format_time(self.created_at), "updated_at": null,
                })
            })
            .collect()
    }

    /// The part of the node an anonymous lookup may see.
    pub(crate) fn lookup_view(&self, base_url: &str) -> Value {
        let mut instance_info = mask_secrets(&self.instance_info);
        if instance_info.contains_key("image_url") {
            instance_info.insert("image_url".to_owned(), json!(MASKED));
        }
        json!({
            "uuid": self.uuid,
            "properties": self.properties,
            "instance_info": instance_info,
            "driver_internal_info": mask_secrets(&self.driver_internal_info),
            "links": [
                {"href": format!("{base_url}/v1/nodes/{}", self.uuid), "rel": "self"},
                {"href": format!("{base_url}/nodes/{}", self.uuid), "rel": "bookmark"},
            ],
        })
    }
}

/// Hides the values of keys that look secret, at every depth of objects.
#[must_use]
pub fn mask_secrets(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .map(|(key, value)| {
            let lower = key.to_ascii_lowercase();
            let masked = match value {
                Value::Object(inner) => Value::Object(mask_secrets(inner)),
                _ if SECRET_KEY_PARTS.iter().any(|part| lower.contains(part)) => json!(MASKED),
                other => other.clone(),
            };
            (key.clone(), masked)
        })
        .collect()
}

/// Time as Ironic writes it into node objects.
pub(crate) fn timestamp() -> String {
    format_time(OffsetDateTime::now_utc())
}

fn format_time(time: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]");
    time.format(format).unwrap_or_default() // fails only for formats without the needed fields
}

pub(crate) fn new_uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// 32 random bytes in URL-safe base64: the 43 characters of Python's `secrets.token_urlsafe()`.
fn new_token() -> String {
    use base64::Engine as _;
    let mut bytes = [0u8; 32];
    bytes[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    bytes[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// The map of a JSON object literal.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_at_every_depth_and_the_configdrive_only_when_asked() {
        let mut node = Node::new("n", &["52:54:00:00:00:01"]);
        node.create_token();
        node.instance_info = object(json!({"configdrive": "H4sI", "deep": {"admin_password": "x", "size": 1}}));
        let masked = node.as_dict(true);
        assert_eq!(masked["driver_info"]["ipmi_password"], MASKED);
        assert_eq!(masked["driver_internal_info"]["agent_secret_token"], MASKED);
        assert_eq!(masked["instance_info"]["configdrive"], MASKED);
        assert_eq!(masked["instance_info"]["deep"], json!({"admin_password": MASKED, "size": 1}));
        assert_eq!(node.as_dict(false)["instance_info"]["configdrive"], "H4sI");
    }

    #[test]
    fn the_node_object_has_every_key_of_a_real_one() {
        // spec/conductor.md section 1
        let keys = "id uuid name chassis_id instance_uuid driver driver_info driver_internal_info clean_step \
            deploy_step service_step raid_config target_raid_config instance_info properties reservation \
            conductor_affinity conductor_group power_state target_power_state provision_state provision_updated_at \
            target_provision_state maintenance maintenance_reason fault console_enabled last_error resource_class \
            inspection_finished_at inspection_started_at extra automated_clean protected protected_reason \
            allocation_id bios_interface boot_interface console_interface deploy_interface firmware_interface \
            inspect_interface management_interface network_interface power_interface raid_interface \
            rescue_interface storage_interface vendor_interface traits owner lessee description retired \
            retired_reason network_data boot_mode secure_boot shard parent_node disable_power_off instance_name \
            health created_at updated_at";
        let node = Node::new("n", &[]).as_dict(true);
        for key in keys.split_whitespace() {
            assert!(node.get(key).is_some(), "{key}");
        }
        assert_eq!(node.as_object().unwrap().len(), keys.split_whitespace().count());
    }

    #[test]
    fn a_power_cycle_drops_a_token_unless_it_was_generated_before_the_boot() {
        let mut node = Node::new("n", &[]);
        assert_eq!(node.create_token().len(), 43);
        node.set_internal("agent_url", "https://192.0.2.1:9999");
        node.forget_agent();
        assert_eq!((node.agent_token(), node.agent_url()), (None, None));
        let token = node.pregenerate_token();
        node.forget_agent();
        assert_eq!(node.agent_token(), Some(token.as_str()));
    }
}
