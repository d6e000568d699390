use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::handover::Handover;
use crate::testing::app;
use serde_json::json;

fn write(root: &Path, path: &str, content: &[u8]) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn run(root: &Path, names: &[&str]) -> Document {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    collect(&app(root, Handover::create()), &names)
}

/// A machine with a PCI device, a USB device and SMBIOS tables that hold an empty slot for memory.
fn machine(root: &Path) {
    for (name, value) in [("vendor", "0x8086"), ("device", "0x1572"), ("class", "0x020000")] {
        write(root, &format!("sys/bus/pci/devices/0000:18:00.0/{name}"), value.as_bytes());
    }
    for (name, value) in [("busnum", "1"), ("devnum", "2"), ("product", "Keyboard")] {
        write(root, &format!("sys/bus/usb/devices/1-1/{name}"), value.as_bytes());
    }
    write(root, "sys/devices/system/node/node0/meminfo", b"Node 0 MemTotal: 1024 kB\n");
    write(root, "proc/meminfo", b"MemTotal: 1024 kB\nMemAvailable: 8 kB\n");
    let slot = [&[17, 0x15, 0, 0x11][..], &[0; 0x11], &[0, 0], &[127, 4, 0, 0, 0, 0]].concat();
    write(root, "sys/firmware/dmi/tables/DMI", &slot);
}

#[test]
fn every_collector_of_this_image_adds_its_key() {
    let dir = tempfile::tempdir().unwrap();
    machine(dir.path());
    write(dir.path(), "proc/cmdline", b"ipa-lldp-timeout=0 ipa-agent-token=very-secret");
    let names: Vec<&str> = COLLECTORS.iter().map(|collector| collector.name).collect();
    let document = run(dir.path(), &names);
    assert_eq!((document.complete, &document.body["error"]), (true, &Value::Null));
    let keys: Vec<&str> = document.body.keys().map(String::as_str).collect();
    let want = [
        "inventory",
        "boot_interface",
        "configuration",
        "logs",
        "pci_devices",
        "numa_topology",
        "dmi",
        "usb_devices",
        "lldp_raw",
        "data",
        "error",
    ];
    assert_eq!(keys, want, "without a disk there is no root_disk");
    assert_eq!(document.body["dmi"]["memory"]["devices"][0]["Size"], "No Module Installed");
    assert_eq!(document.body["usb_devices"], json!([{"product": "Keyboard", "vendor": "", "handle": "USB:1:2"}]));
    let data = document.body["data"].as_array().unwrap();
    assert!(data.iter().all(|item| item.as_array().is_some_and(|item| item.len() == 4)), "{data:?}");
    let cmdline = data.iter().find(|item| item[2] == "cmdline").unwrap();
    assert_eq!(cmdline[3], "ipa-lldp-timeout=0 ipa-agent-token=******");
    for (key, value) in [("tpm", Value::Null), ("host_interfaces", json!([]))] {
        assert_eq!(document.body["inventory"][key], value, "{key}");
    }
}

#[test]
fn failures_are_gathered_and_the_others_still_run_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let app = app(dir.path(), Handover::create());
    // Not a machine without disks, but one that does not say which it has.
    std::fs::remove_dir_all(dir.path().join("sys/block")).unwrap();
    let names = ["dmi-decode", "usb-devices", "pci-devices", "numa-topology", "default"].map(str::to_owned);
    let document = collect(&app, &names);
    assert!(!document.complete);
    let error = document.body["error"].as_str().unwrap();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[0], "The following errors were encountered:");
    assert_eq!(lines[1], "* collector dmi-decode failed: the firmware of this machine has no SMBIOS tables");
    assert!(lines[2].starts_with("* collector pci-devices failed: reading "), "{error}");
    assert!(lines[2].contains("sys/bus/pci/devices"), "{error}");
    assert!(lines[3].starts_with("* collector default failed: reading "), "{error}");
    assert!(lines[3].contains("sys/block"), "{error}");
    assert_eq!(lines.len(), 4, "{error}");
    let keys: Vec<&str> = document.body.keys().map(String::as_str).collect();
    assert_eq!(keys, ["usb_devices", "inventory", "boot_interface", "configuration", "error"]);
}

#[test]
fn an_unknown_collector_is_told_and_nothing_else_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    machine(dir.path());
    let document = run(dir.path(), &["default", "everything", "pci-devices", "x"]);
    assert!(!document.complete);
    assert_eq!(document.body.keys().collect::<Vec<_>>(), ["error"]);
    let error = document.body["error"].as_str().unwrap();
    assert!(error.contains("everything, x; this image has default, logs, "), "{error}");
}

#[test]
fn benchmarks_run_when_asked_for_and_unknown_ones_are_told() {
    let dir = tempfile::tempdir().unwrap();
    machine(dir.path());
    write(dir.path(), "proc/cmdline", b"ipa-inspection-benchmarks=mem,disk");
    let begun = Instant::now();
    let document = run(dir.path(), &["extra-hardware"]);
    assert_eq!(document.body["error"], Value::Null);
    let data = document.body["data"].as_array().unwrap();
    // There are 8 KiB: enough for the smaller blocks, and no disk at all.
    assert!(data.iter().all(|item| item[2] != "loops_per_sec"), "{data:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    write(dir.path(), "proc/cmdline", b"ipa-inspection-benchmarks=cpu,network");
    let document = run(dir.path(), &["extra-hardware"]);
    let error = document.body["error"].as_str().unwrap();
    assert!(error.ends_with("failed: there is no benchmark \"network\"; there are cpu, mem and disk"), "{error}");
    assert_eq!(document.body.get("data"), None);
}

#[test]
fn a_collector_that_panics_costs_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    machine(dir.path());
    let broken = Collector { name: "broken", collect: |_, _| panic!("on purpose") };
    let names = ["broken", "pci-devices"].map(str::to_owned);
    let document = collect_with(&[broken, pci::PCI_DEVICES], &app(dir.path(), Handover::create()), &names);
    assert_eq!(
        document.body["error"],
        "The following errors were encountered:\n* collector broken failed: it panicked; the log says why"
    );
    assert_eq!(document.body["pci_devices"][0]["bus"], "0000:18:00.0");
}

#[test]
fn logs_of_odd_bytes_under_odd_names_are_an_archive_in_plain_text() {
    use base64::Engine as _;
    use std::io::Read as _;
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "var/log/12:30 caf\u{e9}.log", b"caf\xe9 \xff\xfe\n");
    let document = run(dir.path(), &["logs"]);
    assert!(document.complete);
    let text = document.body["logs"].as_str().unwrap();
    assert!(serde_json::to_string(&document.body).unwrap().is_ascii());
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
    let mut found = None;
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap().to_str() == Some("var-log/12_30_caf_.log") {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found = Some(content);
        }
    }
    assert_eq!(found.as_deref(), Some(&b"caf\xe9 \xff\xfe\n"[..]));
}
