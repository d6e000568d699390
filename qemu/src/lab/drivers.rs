//! Disks that the image cannot see, because it was built without their driver.

use super::options::DiskSpec;
use crate::artifacts::Image;
use crate::disk::DiskBus;
use serde_json::Value;
use std::fs;

/// What is to be warned of: one line for each bus whose drivers the image's manifest does not name. An image without a
/// manifest beside it is taken to have them all.
pub(super) fn missing(image: &Image, disks: &[DiskSpec]) -> Vec<String> {
    let manifest = image.kernel.with_file_name("manifest.json");
    let Ok(text) = fs::read(&manifest) else { return Vec::new() };
    let Ok(manifest) = serde_json::from_slice(&text) else { return Vec::new() };
    let mut lines = Vec::new();
    for disk in disks {
        let Some(line) = trouble(&manifest, disk.bus) else { continue };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn trouble(manifest: &Value, bus: DiskBus) -> Option<String> {
    manifest["modules"].as_array()?;
    let (name, needed) = needs(bus);
    let lacking: Vec<&str> = needed.iter().copied().filter(|module| !has(manifest, module)).collect();
    if lacking.is_empty() {
        return None;
    }
    let profile = manifest["profile"].as_str().unwrap_or("?");
    Some(format!(
        "this image (profile {profile}) lacks the driver {}, so the agent will see no {name} disk",
        lacking.join(" and ")
    ))
}

/// Whether the image has a module, or the kernel has it built in.
fn has(manifest: &Value, module: &str) -> bool {
    let named = |entry: &Value| entry.as_str().or_else(|| entry["name"].as_str()) == Some(module);
    ["modules", "builtin"].iter().any(|list| manifest[*list].as_array().into_iter().flatten().any(named))
}

/// Name of a bus, and Linux's modules that make a disk of it appear; what these depend on is the image's to know.
fn needs(bus: DiskBus) -> (&'static str, &'static [&'static str]) {
    match bus {
        DiskBus::VirtioBlk => ("virtio", &["virtio_pci", "virtio_blk"]),
        DiskBus::VirtioScsi => ("scsi", &["virtio_pci", "virtio_scsi", "sd_mod"]),
        DiskBus::Ahci => ("ahci", &["ahci", "sd_mod"]),
        DiskBus::Nvme => ("nvme", &["nvme"]),
        DiskBus::Usb => ("usb", &["xhci_pci", "usb_storage", "sd_mod"]),
        DiskBus::Sas => ("sas", &["mptsas", "sd_mod"]),
        DiskBus::MegaRaid => ("megaraid", &["megaraid_sas", "sd_mod"]),
        DiskBus::Cdrom => ("cdrom", &["ahci", "sr_mod"]),
        DiskBus::SdCard => ("sdcard", &["sdhci_pci", "mmc_block"]),
        DiskBus::Floppy => ("floppy", &["floppy"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn image_with(manifest: Option<&str>) -> (tempfile::TempDir, Image) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["vmlinuz", "initramfs.img"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        if let Some(text) = manifest {
            fs::write(dir.path().join("manifest.json"), text).unwrap();
        }
        let image = Image::in_dir(dir.path()).unwrap();
        (dir, image)
    }

    fn disks(specs: &[&str]) -> Vec<DiskSpec> {
        specs.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_disk_without_a_driver_is_told_once_and_the_others_are_not() {
        let modules: Vec<Value> =
            ["virtio_pci", "virtio_blk", "mptsas"].iter().map(|name| json!({"name": name})).collect();
        let manifest = json!({"profile": "small", "modules": modules, "builtin": ["sd_mod"]}).to_string();
        let (_dir, image) = image_with(Some(&manifest));
        let lines = missing(&image, &disks(&["virtio:5G", "sas:5G", "megaraid:5G", "megaraid:6G", "usb:5G"]));
        assert_eq!(
            lines,
            [
                "this image (profile small) lacks the driver megaraid_sas, so the agent will see no megaraid disk",
                "this image (profile small) lacks the driver xhci_pci and usb_storage, so the agent will see no usb disk",
            ]
        );
    }

    #[test]
    fn an_image_that_does_not_say_what_it_has_is_not_doubted() {
        for manifest in [None, Some("no JSON"), Some("{}"), Some("[]")] {
            let (_dir, image) = image_with(manifest);
            assert_eq!(missing(&image, &disks(&["megaraid:5G"])), [""; 0], "{manifest:?}");
        }
    }
}
