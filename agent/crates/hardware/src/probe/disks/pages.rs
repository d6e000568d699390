//! What a SCSI disk says of itself: from sysfs where the kernel has asked it, else by asking, as udev's programs do.
//!
//! The kernel does not ask disks of old versions of SCSI, nor those of which it knows that they cannot stand it (many on
//! USB, which are therefore not asked here either); and not every adapter has the ATA information page of its disks.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ferric_sys::ioctl::scsi;
use ferric_sys::{Root, attr};

use super::device_path;
use super::sysfs::Chain;
use super::vpd::{self, AtaIdentity};

/// Longest wait for an answer; a disk that is well gives it in milliseconds.
const LIMIT: Duration = Duration::from_secs(3);

/// Identification of a SCSI disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pages {
    /// Page 0x80.
    pub(super) unit_serial: Option<Vec<u8>>,
    /// Page 0x83.
    pub(super) identification: Option<Vec<u8>>,
    /// Of an ATA disk.
    pub(super) ata: Option<AtaIdentity>,
}

impl Pages {
    /// Of a disk of the machine, or of a tree that stands for it, where nothing is asked.
    pub(super) fn of(root: &Root, kname: &str, chain: &Chain, vendor: &str) -> Self {
        let device = chain.device().join("device");
        let page = |name: &str| std::fs::read(device.join(name)).ok();
        let pages = Self {
            unit_serial: page("vpd_pg80"),
            identification: page("vpd_pg83"),
            ata: page("vpd_pg89").and_then(|page| vpd::ata_identity(&page)),
        };
        let Some(wants_ata) = pages.question(chain, vendor).filter(|_| root.is_host()) else { return pages };
        let asked = asked(root, kname, chain.device(), wants_ata);
        Self {
            unit_serial: pages.unit_serial.or(asked.unit_serial),
            identification: pages.identification.or(asked.identification),
            ata: pages.ata.or(asked.ata),
        }
    }

    /// Whether the disk is to be asked for what is missing, and if so, whether as an ATA disk.
    fn question(&self, chain: &Chain, vendor: &str) -> Option<bool> {
        let state = attr::read_optional(&chain.device().join("device/state"));
        if state.is_some_and(|state| state != "running") || chain.numbered("usb").is_some() {
            return None;
        }
        let wants_pages = self.unit_serial.is_none() && self.identification.is_none();
        let wants_ata = vendor == "ATA" && self.ata.is_none();
        (wants_pages || wants_ata).then_some(wants_ata)
    }
}

/// Answers by the disk, which the kernel numbers anew when another one comes to the same place.
static ANSWERS: Mutex<Vec<(String, Pages)>> = Mutex::new(Vec::new());

/// What a disk answers; it is asked once.
fn asked(root: &Root, kname: &str, dir: &Path, is_ata: bool) -> Pages {
    let number = attr::read_optional(&dir.join("diskseq")).unwrap_or_default();
    let key = format!("{} {number}", dir.display());
    let answers = || ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = answers().iter().find(|(known, _)| *known == key).map(|(_, pages)| pages.clone());
    if let Some(known) = known {
        return known;
    }
    // Opened only to ask: this reads nothing from the disk.
    let pages = match File::open(root.path(device_path(kname))) {
        Ok(disk) => {
            let page = |number: u8| {
                let answer = scsi::vital_product_data(&disk, number, LIMIT);
                answer.inspect_err(|error| tracing::debug!(kname, number, %error, "no page of vital product data")).ok()
            };
            let identify = is_ata.then(|| scsi::identify_ata(&disk, LIMIT).ok()).flatten();
            Pages {
                unit_serial: page(0x80),
                identification: page(0x83),
                ata: identify.and_then(|identify| vpd::identify(&identify)),
            }
        }
        Err(error) => {
            tracing::debug!(kname, %error, "not asked for its identity");
            return Pages::default();
        }
    };
    answers().push((key, pages.clone()));
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn disks_are_asked_for_what_is_missing_but_not_those_on_usb_and_those_that_do_not_run() {
        const SAS: &str = "pci0000:00/0000:00:05.0/host1/target1:0:0/1:0:0:0";
        const USB: &str = "pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/host6/target6:0:0/6:0:0:0";
        let known = Pages { unit_serial: Some(vec![1]), ..Pages::default() };
        let cases = [
            (SAS, "running", "ACME", &Pages::default(), Some(false)),
            (SAS, "running", "ATA", &Pages::default(), Some(true)),
            (SAS, "running", "ATA", &known, Some(true)),
            (SAS, "running", "ACME", &known, None),
            (SAS, "offline", "ACME", &Pages::default(), None),
            (USB, "running", "ACME", &Pages::default(), None),
            (USB, "running", "ATA", &Pages::default(), None),
        ];
        for (place, state, vendor, pages, want) in cases {
            let tree = MachineTree::new().unwrap();
            tree.disk("sda", place, "8:0", &[("size", "8"), ("device/state", state)]).unwrap();
            let chain = Chain::of(&tree.root(), "sda").unwrap();
            assert_eq!(pages.question(&chain, vendor), want, "{place} {state} {vendor}");
        }
    }
}
