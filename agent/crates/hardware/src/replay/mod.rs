//! A captured tree of files in place of a machine ([`crate::capture`]).

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferric_sys::ioctl::net::NicFacts;
use ferric_sys::{Cmd, Exec, ExecError, Output, Root, attr};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::machine::{Machine, NicQuery};
use crate::probe::bmc::Exchange;
use crate::probe::lldp::Tlv;
use crate::probe::text::with_colons;
use crate::settings::Settings;

mod tree;

/// File with [`NicRecord`]s by interface.
pub const NICS: &str = "nics.json";
/// File with the answers of the BMC: what was asked and what it said, in hex.
pub const IPMI: &str = "ipmi.json";
/// File with the TLVs of an LLDP frame by interface: type, and value in hex.
pub const LLDP: &str = "lldp.json";
/// File with the machine name of the kernel, as the kernel itself has it since 6.1.
pub const ARCHITECTURE: &str = "proc/sys/kernel/arch";

/// A tree cannot stand for a machine.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It has no folder of devices.
    #[error("{} is no captured machine: there is no sys folder in it", path.display())]
    NoTree {
        /// The folder.
        path: PathBuf,
    },
    /// It is a file.
    #[error("{} is a file where the folder of a captured machine was expected: unpack it first", path.display())]
    Packed {
        /// The file.
        path: PathBuf,
    },
    /// It has something that no captured machine has.
    #[error("{} is not what a captured machine has: {expected} was expected", path.display())]
    Refused {
        /// The file, folder or link.
        path: PathBuf,
        /// What may be there.
        expected: &'static str,
    },
    /// A record cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A record is not in its form.
    #[error("reading {}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: serde_json::Error,
    },
}

/// [`NicFacts`] in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NicRecord {
    /// Address burnt into the hardware, hex bytes with colons between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permanent: Option<String>,
    /// Fastest link mode, Mbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_speed_mbps: Option<u64>,
    /// Version of the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// First IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// First IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
}

impl NicRecord {
    /// The record of facts.
    pub fn of(facts: &NicFacts) -> Self {
        Self {
            permanent: facts.permanent_address.as_deref().map(with_colons),
            max_speed_mbps: facts.max_speed_mbps,
            firmware: facts.firmware.clone(),
            ipv4: facts.ipv4,
            ipv6: facts.ipv6,
        }
    }

    /// With addresses for documentation (RFC 5737, RFC 3849) in place of real ones.
    #[must_use]
    pub fn without_ip(mut self) -> Self {
        self.ipv4 = self.ipv4.map(|_| Ipv4Addr::new(192, 0, 2, 1));
        self.ipv6 = self.ipv6.map(|address| {
            if address.is_unicast_link_local() {
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)
            } else {
                Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)
            }
        });
        self
    }

    /// The facts of a record; an address that is none is left out.
    pub fn facts(&self) -> NicFacts {
        let bytes = |text: &String| text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        NicFacts {
            permanent_address: self.permanent.as_ref().and_then(bytes),
            max_speed_mbps: self.max_speed_mbps,
            firmware: self.firmware.clone(),
            ipv4: self.ipv4,
            ipv6: self.ipv6,
        }
    }
}

/// The machine that a tree stands for. Nothing of the real machine is read, and no program is run.
///
/// # Errors
/// The folder is no captured tree, has something in it that leads out of it or is too large, or a record in it is malformed.
pub fn machine(folder: &Path) -> Result<Machine, ReplayError> {
    if folder.is_file() {
        return Err(ReplayError::Packed { path: folder.to_owned() });
    }
    if !folder.join("sys").is_dir() {
        return Err(ReplayError::NoTree { path: folder.to_owned() });
    }
    tree::check(folder)?;
    let records: BTreeMap<String, NicRecord> = record(folder, NICS)?;
    // These are read where they are needed.
    let _well_formed: Vec<Exchange> = record(folder, IPMI)?;
    let _well_formed: BTreeMap<String, Vec<Tlv>> = record(folder, LLDP)?;
    let mut machine = Machine::at(Root::at(folder), Arc::new(NoPrograms));
    machine.net = NicQuery::new(move |name| records.get(name).map(NicRecord::facts).unwrap_or_default());
    Ok(machine)
}

/// A record of a tree; an empty one if it has none.
fn record<T: DeserializeOwned + Default>(folder: &Path, name: &str) -> Result<T, ReplayError> {
    let path = folder.join(name);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|source| ReplayError::Json { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(source) => Err(ReplayError::Read { path, source }),
    }
}

/// Settings that show all that is known of a machine without its agent's configuration: over which interface it was
/// booted, as the kernel's command line has it, and the LLDP frames that a captured tree may have.
pub fn settings(root: &Root) -> Settings {
    let command_line = attr::read_trimmed(&root.path("proc/cmdline")).unwrap_or_default();
    let pxe_interface =
        command_line.split_whitespace().find_map(|word| word.strip_prefix("BOOTIF=")).map(str::to_owned);
    let collect_lldp = !root.is_host() && root.path(LLDP).exists();
    Settings { pxe_interface, collect_lldp, ..Settings::default() }
}

#[derive(Debug)]
struct NoPrograms;

impl Exec for NoPrograms {
    fn run(&self, cmd: &Cmd) -> Result<Output, ExecError> {
        Err(ExecError::NotFound { program: cmd.program.clone() })
    }
}
