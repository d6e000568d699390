//! What the `extra-hardware` collector sends as `data`: lists of four, class, item, key and value, which Ironic makes an
//! object of. Names and forms are those of the `hardware-detect` tool, whose data users of inspection rules know; what
//! that tool reads from others (SMART, sensors, features of NICs) is not here.

pub mod benchmark;
mod cpu;
mod disk;
mod memory;
mod network;

use ferric_sys::attr;
use ferric_types::Inventory;
use serde_json::Value;

use crate::machine::Machine;
use crate::probe::disks::Disk;
use crate::probe::smbios::{Smbios, kind, uuid};

/// Serial numbers that are none: firmware of some boards has them in every machine.
const NO_SERIAL: [&str; 2] = ["0123456789", "0000000000"];

/// The list.
#[derive(Debug, Default)]
pub struct Items(Vec<Value>);

impl Items {
    /// Adds a fact.
    pub fn add(&mut self, class: &str, item: &str, key: &str, value: Value) {
        self.0.push(Value::Array(vec![class.into(), item.into(), key.into(), value]));
    }

    /// Adds a text that there is and that is not empty.
    fn text(&mut self, class: &str, item: &str, key: &str, value: Option<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.add(class, item, key, value.into());
        }
    }

    /// As it is sent.
    pub fn into_value(self) -> Value {
        Value::Array(self.0)
    }
}

/// Everything of the machine but what needs the agent (its kernel) and what takes time ([`benchmark`]).
pub fn items(machine: &Machine, inventory: &Inventory, disks: &[Disk]) -> Items {
    let smbios = Smbios::read(&machine.root).unwrap_or_default();
    let mut items = Items::default();
    disk::add(&mut items, &machine.root, disks);
    system(&mut items, inventory, &smbios);
    memory::add(&mut items, &smbios, inventory.memory.physical_mb);
    network::add(&mut items, machine, &inventory.interfaces);
    cpu::add(&mut items, &machine.root, &inventory.cpu);
    let bmc = [("ip-address", &inventory.bmc_address), ("mac-address", &inventory.bmc_mac)];
    bmc.into_iter().for_each(|(key, value)| items.text("ipmi", "lan", key, value.clone()));
    let kernel = attr::read_optional(&machine.root.path("proc/sys/kernel/osrelease"));
    items.text("system", "kernel", "version", kernel);
    items.text("system", "kernel", "arch", Some(inventory.cpu.architecture.clone()));
    items
}

fn system(items: &mut Items, inventory: &Inventory, smbios: &Smbios) {
    let vendor = &inventory.system_vendor;
    let system = smbios.of(kind::SYSTEM).next();
    let board = smbios.of(kind::BOARD).next();
    let of_board = |offset: usize| board.as_ref().and_then(|board| board.string(offset));
    let own_uuid = system
        .and_then(|system| system.bytes(8).first_chunk::<16>().copied())
        .filter(|bytes| *bytes != [0; 16] && *bytes != [0xff; 16])
        .map(|bytes| uuid(&bytes));
    let serial = if NO_SERIAL.contains(&vendor.serial_number.as_str()) {
        let nic = || inventory.interfaces.first().map(|nic| nic.mac_address.replace(':', ""));
        own_uuid.clone().or_else(|| of_board(7)).or_else(nic)
    } else {
        Some(vendor.serial_number.clone())
    };
    let firmware = &vendor.firmware;
    for (class, item, key, value) in [
        ("system", "product", "serial", serial),
        ("system", "product", "name", Some(vendor.product_name.clone())),
        ("system", "product", "vendor", Some(vendor.manufacturer.clone())),
        ("system", "product", "version", system.and_then(|system| system.string(6))),
        ("system", "product", "uuid", own_uuid),
        ("system", "motherboard", "name", of_board(5)),
        ("system", "motherboard", "vendor", of_board(4)),
        ("system", "motherboard", "version", of_board(6)),
        ("system", "motherboard", "serial", of_board(7)),
        ("firmware", "bios", "version", Some(firmware.version.clone())),
        ("firmware", "bios", "date", Some(firmware.build_date.clone())),
        ("firmware", "bios", "vendor", Some(firmware.vendor.clone())),
    ] {
        items.text(class, item, key, value);
    }
}

#[cfg(test)]
mod tests;
