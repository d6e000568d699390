//! Addresses and names on networks that stand in attributes, in the kernel's command line and in names of links.

use std::path::{Component, Path};

use super::super::Entry;
use super::Identities;
use super::words::is_automatic_interface;

impl Identities {
    /// Takes note of the names in a path: of an interface that a person has named, and of a disk on a network.
    pub(in super::super) fn learn_path(&mut self, path: &Path, entry: &Entry) {
        let mut parts = path.components().filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        if path.starts_with("sys") && parts.any(|part| part == "net") {
            parts.next().into_iter().for_each(|name| self.learn_interface(name));
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.starts_with("dev/disk/by-path") && matches!(entry, Entry::Link(_)) {
            self.learn_place(name);
        }
    }

    fn learn_interface(&mut self, name: &str) {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let base = name.rsplit_once('.').filter(|(_, vlan)| is_number(vlan)).map_or(name, |(base, _)| base);
        if base.len() > 1 && !is_automatic_interface(base) && self.known.get(base.as_bytes()).is_none() {
            let invented = self.invent(base, None);
            self.known.insert(base.into(), invented.into(), true);
        }
    }

    /// `ip-ADDRESS:PORT-iscsi-TARGET-lun-0`, `fc-0xNAME-lun-0` and the like, behind the place of the adapter.
    fn learn_place(&mut self, name: &str) {
        name.split('-').filter(|part| part.starts_with("0x")).for_each(|part| self.learn_number(part));
        let Some((portal, target)) = name.split_once("-iscsi-") else { return };
        let portal = portal.rsplit_once("ip-").map_or(portal, |(_, portal)| portal);
        let address = portal.rsplit_once(':').map_or(portal, |(address, _)| address);
        self.learn_ip(address.trim_matches(['[', ']']));
        self.learn_target(target.rsplit_once("-lun-").map_or(target, |(target, _)| target));
    }

    /// The name of an iSCSI target, behind its kind and the month.
    pub(super) fn learn_target(&mut self, name: &str) {
        self.learn_text(name.splitn(3, '.').nth(2).unwrap_or(name), true);
    }

    /// Where a controller of NVMe over fabrics is: `traddr=10.0.0.1,trsvcid=4420` or `traddr=nn-0x…:pn-0x…`.
    pub(super) fn learn_fabric(&mut self, text: &str) {
        for (_, value) in text.split(',').filter_map(|part| part.trim().split_once('=')) {
            self.learn_ip(value.trim_matches(['[', ']']));
            value.split([':', '-']).filter(|part| part.starts_with("0x")).for_each(|part| self.learn_number(part));
        }
    }

    /// The address of the interface that the machine was booted over, with or without the type of hardware before it.
    pub(super) fn learn_boot_interface(&mut self, command_line: &str) {
        for value in command_line.split_whitespace().filter_map(|word| word.strip_prefix("BOOTIF=")) {
            let parts: Vec<&str> = value.split(['-', ':']).collect();
            let address = if parts.len() == 7 { parts.get(1..).unwrap_or_default() } else { &parts };
            self.learn_number(&address.join(":"));
        }
    }
}
