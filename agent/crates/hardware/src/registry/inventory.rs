//! What the managers together say of the machine.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use ferric_types::Inventory;
use ferric_types::error::chain;
use ferric_types::inventory::NetworkInterface;

use super::Registry;
use crate::error::HardwareError;
use crate::machine::Machine;
use crate::manager::{BmcAddresses, ProbeFn, Probes};
use crate::probe::disks::Disk;
use crate::probe::smbios::Smbios;
use crate::probe::smbios::host_interface::host_interfaces;
use crate::probe::usb::{self, UsbDevice};
use crate::probe::{lldp, system, tpm, vlan};
use crate::settings::Settings;

/// A BMC that has not told everything is left in peace for this long.
const BMC_PAUSE: Duration = Duration::from_secs(5);

impl Registry {
    /// Runs a probe on the first manager, best first, that has it and handles this machine.
    fn probe<T>(
        &self,
        what: &'static str,
        pick: impl Fn(&Probes) -> Option<ProbeFn<T>>,
        machine: &Machine,
        settings: &Settings,
    ) -> Result<T, HardwareError> {
        for entry in &self.entries {
            let Some(probe) = pick(entry.manager.probes()) else { continue };
            match probe(machine, settings) {
                Err(HardwareError::Incompatible { manager, what }) => {
                    tracing::debug!(manager, what, "probe left to other managers");
                }
                result => return result,
            }
        }
        Err(HardwareError::NoProbe { what })
    }

    /// Disks in the order of `lsblk`, without those that a manager hides.
    ///
    /// # Errors
    /// The disks cannot be listed.
    pub fn disks(&self, machine: &Machine, settings: &Settings) -> Result<Vec<Disk>, HardwareError> {
        let mut disks = self.probe("the disks", |probes| probes.disks, machine, settings)?;
        for keeps in self.entries.iter().filter_map(|entry| entry.manager.probes().keeps_disk) {
            disks.retain(keeps);
        }
        Ok(disks)
    }

    /// Network interfaces, without those that a manager hides.
    ///
    /// # Errors
    /// The interfaces cannot be listed.
    pub fn interfaces(&self, machine: &Machine, settings: &Settings) -> Result<Vec<NetworkInterface>, HardwareError> {
        let mut interfaces = self.probe("the network interfaces", |probes| probes.interfaces, machine, settings)?;
        for keeps in self.entries.iter().filter_map(|entry| entry.manager.probes().keeps_interface) {
            interfaces.retain(keeps);
        }
        Ok(interfaces)
    }

    /// USB devices, without those that a manager hides.
    pub fn usb_devices(&self, machine: &Machine) -> Vec<UsbDevice> {
        let mut devices = usb::devices(&machine.root);
        for keeps in self.entries.iter().filter_map(|entry| entry.manager.probes().keeps_usb) {
            devices.retain(keeps);
        }
        devices
    }

    /// Addresses of the BMC, asked until it has answered: it is slow, and it does not move. Whoever comes while it is
    /// being asked, or soon after it was asked in vain, gets the same answer. Not asked at all when the conductor said so.
    pub fn bmc(&self, machine: &Machine, settings: &Settings) -> BmcAddresses {
        if settings.skip_bmc_detect {
            return BmcAddresses::default();
        }
        let mut known = self.bmc.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, found)) = known.as_ref()
            && (when.elapsed() < BMC_PAUSE || (found.v4.is_some() && found.v6.is_some()))
        {
            return found.clone();
        }
        let found = or_default("the BMC", self.probe("the BMC", |probes| probes.bmc, machine, settings));
        *known = Some((Instant::now(), found.clone()));
        found
    }

    /// LLDP frames of these interfaces; waits for them ([`Settings::lldp_timeout`]).
    pub fn lldp(
        &self,
        machine: &Machine,
        settings: &Settings,
        interfaces: &[NetworkInterface],
    ) -> BTreeMap<String, Vec<lldp::Tlv>> {
        lldp::stop_firmware_agents(&machine.root, interfaces);
        let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
        lldp::collect(&machine.root, &names, settings.lldp_timeout)
    }

    /// Network interfaces with their LLDP frames, when those are wanted, and the VLANs that the operator or these frames
    /// name.
    fn interfaces_with_frames(
        &self,
        machine: &Machine,
        settings: &Settings,
    ) -> Result<Vec<NetworkInterface>, HardwareError> {
        let mut interfaces = self.interfaces(machine, settings)?;
        let mut frames = BTreeMap::new();
        if settings.collect_lldp {
            frames = self.lldp(machine, settings, &interfaces);
        }
        let vlans = vlan::wanted(&settings.enable_vlan_interfaces, &interfaces, &frames);
        if vlan::make_missing(&machine.root, &vlans) {
            interfaces = self.interfaces(machine, settings)?;
        }
        interfaces.iter_mut().for_each(|interface| interface.lldp = frames.remove(&interface.name));
        Ok(interfaces)
    }

    /// The inventory, read now. What cannot be read is empty or null, and logged: an incomplete inventory is of more
    /// use to the conductor than none.
    pub fn inventory(&self, machine: &Machine, settings: &Settings) -> Inventory {
        self.look(machine, settings).0
    }

    /// The inventory, and why it has no disks or no network interfaces though there may be some. A machine without disks
    /// and one whose disks could not be listed look the same otherwise.
    pub fn look(&self, machine: &Machine, settings: &Settings) -> (Inventory, Vec<HardwareError>) {
        let mut unlisted = Vec::new();
        let disks = or_told("the disks", self.disks(machine, settings), &mut unlisted);
        let bmc = self.bmc(machine, settings);
        let cpu = self.probe("the processors", |probes| probes.cpu, machine, settings);
        let memory = self.probe("the memory", |probes| probes.memory, machine, settings);
        let vendor = self.probe("the maker", |probes| probes.system_vendor, machine, settings);
        let boot = self.probe("the boot mode", |probes| probes.boot, machine, settings);
        let interfaces = self.interfaces_with_frames(machine, settings);
        let interfaces = or_told("the network interfaces", interfaces, &mut unlisted);
        let smbios = Smbios::read(&machine.root);
        let inventory = Inventory {
            interfaces,
            cpu: or_default("the processors", cpu),
            disks: disks.into_iter().map(|disk| disk.info).collect(),
            memory: or_default("the memory", memory),
            bmc_address: bmc.v4,
            bmc_v6address: bmc.v6,
            bmc_mac: bmc.mac,
            system_vendor: or_default("the maker", vendor),
            boot: or_default("the boot mode", boot),
            hostname: system::hostname(&machine.root),
            tpm: tpm::tpm(&machine.root, smbios.as_ref()),
            host_interfaces: smbios.as_ref().map(host_interfaces).unwrap_or_default(),
        };
        (inventory, unlisted)
    }
}

fn or_told<T>(what: &str, result: Result<Vec<T>, HardwareError>, unlisted: &mut Vec<HardwareError>) -> Vec<T> {
    result.unwrap_or_else(|error| {
        tracing::error!(what, reason = chain(&error), "left out of the inventory");
        unlisted.push(error);
        Vec::new()
    })
}

fn or_default<T: Default>(what: &str, result: Result<T, HardwareError>) -> T {
    result.unwrap_or_else(|error| {
        tracing::error!(what, reason = chain(&error), "left out of the inventory");
        T::default()
    })
}
