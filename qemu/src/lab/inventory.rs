//! An inventory in a few lines.

use serde_json::Value;

/// The inventory in a few lines; what the agent does not know is left out.
#[must_use]
pub fn lines(inventory: &Value) -> Vec<String> {
    let list = |key: &str| inventory[key].as_array().cloned().unwrap_or_default();
    let (cpu, vendor, boot) = (&inventory["cpu"], &inventory["system_vendor"], &inventory["boot"]);
    let model = [&vendor["manufacturer"], &vendor["product_name"]].into_iter().filter_map(word).collect::<Vec<_>>();
    let mut lines = vec![
        line("system", &[some(&model.join(" ")), named("serial", &vendor["serial_number"])]),
        line(
            "cpu",
            &[
                word(&cpu["count"]).map(|count| format!("{count} x {}", or_dash(&cpu["model_name"]))),
                word(&cpu["architecture"]),
            ],
        ),
        line("memory", &[word(&inventory["memory"]["physical_mb"]).map(|mb| format!("{mb} MiB"))]),
        line("boot", &[word(&boot["current_boot_mode"]), named("from", &boot["pxe_interface"])]),
        line("bmc", &[word(&inventory["bmc_address"])]),
    ];
    for disk in list("disks") {
        let size = disk["size"].as_u64().map(super::display::size);
        let name = [Some(or_dash(&disk["name"])), size].into_iter().flatten().collect::<Vec<_>>().join(" ");
        lines.push(line("disk", &[Some(name), word(&disk["model"]), named("serial", &disk["serial"])]));
    }
    for nic in list("interfaces") {
        let carrier = if nic["has_carrier"] == Value::Bool(true) { "carrier" } else { "no carrier" };
        let name = [Some(or_dash(&nic["name"])), word(&nic["mac_address"]), word(&nic["ipv4_address"])];
        let name = name.into_iter().flatten().collect::<Vec<_>>().join(" ");
        lines.push(line("nic", &[Some(name), some(carrier)]));
    }
    lines
}

/// `  disk    /dev/vda 5120.0 MiB, serial LAB0`, or a dash where nothing is known.
fn line(title: &str, parts: &[Option<String>]) -> String {
    let known: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
    let text = if known.is_empty() { "-".to_owned() } else { known.join(", ") };
    format!("  {title:<7} {text}")
}

/// A value as text; `None` when the agent does not know it.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => some(text),
        other => Some(other.to_string()),
    }
}

fn or_dash(value: &Value) -> String {
    word(value).unwrap_or_else(|| "-".to_owned())
}

fn named(name: &str, value: &Value) -> Option<String> {
    word(value).map(|value| format!("{name} {value}"))
}

fn some(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_known_is_shown() {
        let inventory = json!({
            "system_vendor": {"manufacturer": "QEMU", "product_name": "Q35", "serial_number": "S1"},
            "cpu": {"count": 2, "model_name": "Xeon", "architecture": "x86_64"},
            "memory": {"physical_mb": 256},
            "boot": {"current_boot_mode": "bios", "pxe_interface": "52:54:00:12:34:56"},
            "bmc_address": "192.0.2.7",
            "disks": [{"name": "/dev/sda", "size": 5_368_709_120_u64, "model": "DISK", "serial": "LAB0"}],
            "interfaces": [{"name": "eth0", "mac_address": "m", "ipv4_address": "192.0.2.8", "has_carrier": true}],
        });
        assert_eq!(
            lines(&inventory),
            [
                "  system  QEMU Q35, serial S1",
                "  cpu     2 x Xeon, x86_64",
                "  memory  256 MiB",
                "  boot    bios, from 52:54:00:12:34:56",
                "  bmc     192.0.2.7",
                "  disk    /dev/sda 5120.0 MiB, DISK, serial LAB0",
                "  nic     eth0 m 192.0.2.8, carrier",
            ]
        );
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let inventory = json!({
            "system_vendor": {"manufacturer": "QEMU", "product_name": null, "serial_number": ""},
            "cpu": null, "boot": {"current_boot_mode": "bios", "pxe_interface": null}, "bmc_address": null,
            "disks": [{"name": "/dev/vda", "size": 5_368_709_120_u64, "model": null, "serial": null}],
            "interfaces": [{"name": "eth0", "mac_address": "m", "ipv4_address": null, "has_carrier": false}],
        });
        assert_eq!(
            lines(&inventory),
            [
                "  system  QEMU",
                "  cpu     -",
                "  memory  -",
                "  boot    bios",
                "  bmc     -",
                "  disk    /dev/vda 5120.0 MiB",
                "  nic     eth0 m, no carrier",
            ]
        );
        assert_eq!(lines(&Value::Null)[0], "  system  -");
    }
}
