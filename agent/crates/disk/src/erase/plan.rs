//! What is tried on a disk, in order: a pure function of what it says of itself and of what the conductor asked for.

use ferric_types::ErrorClass;
use serde::Serialize;

use super::firmware::{Drive, Facts};

/// A way to sanitize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sanitize {
    /// The key of a disk that encrypts everything is thrown away.
    Crypto,
    /// The flash is erased.
    Block,
    /// Everything is written over.
    Overwrite,
}

/// A way to erase a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// NVMe Sanitize; hits all namespaces of the subsystem.
    NvmeSanitize(Sanitize),
    /// NVMe Format.
    NvmeFormat {
        /// By throwing the key away.
        crypto: bool,
        /// It hits all namespaces.
        all: bool,
    },
    /// ATA SECURITY ERASE UNIT.
    AtaSecurityErase {
        /// The enhanced kind.
        enhanced: bool,
    },
    /// SCSI SANITIZE.
    ScsiSanitize(Sanitize),
    /// Discarding what then reads as zeroes.
    Discard,
    /// Writing over everything.
    Overwrite,
}

/// Categories of NIST SP 800-88 Revision 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sanitization {
    /// Out of reach for everything that goes through the disk's interface.
    Clear,
    /// Out of reach for a laboratory as well.
    Purge,
}

impl Method {
    /// Name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvmeSanitize(Sanitize::Crypto) => "nvme-sanitize-crypto",
            Self::NvmeSanitize(Sanitize::Block) => "nvme-sanitize-block",
            Self::NvmeSanitize(Sanitize::Overwrite) => "nvme-sanitize-overwrite",
            Self::NvmeFormat { crypto: true, .. } => "nvme-format-crypto",
            Self::NvmeFormat { crypto: false, .. } => "nvme-format-user-data",
            Self::AtaSecurityErase { enhanced: true } => "ata-security-erase-enhanced",
            Self::AtaSecurityErase { enhanced: false } => "ata-security-erase",
            Self::ScsiSanitize(Sanitize::Crypto) => "scsi-sanitize-crypto",
            Self::ScsiSanitize(Sanitize::Block) => "scsi-sanitize-block",
            Self::ScsiSanitize(Sanitize::Overwrite) => "scsi-sanitize-overwrite",
            Self::Discard => "discard",
            Self::Overwrite => "overwrite",
        }
    }

    /// Whether it hits every namespace behind the controller.
    pub const fn hits_all(self) -> bool {
        matches!(self, Self::NvmeSanitize(_) | Self::NvmeFormat { all: true, .. })
    }

    /// What it counts as (SP 800-88r1, tables ). ATA's security erase purges only magnetic disks, and only in its
    /// enhanced kind.
    pub const fn sanitization(self, rotational: bool) -> Sanitization {
        match self {
            Self::NvmeSanitize(_) | Self::NvmeFormat { .. } | Self::ScsiSanitize(_) => Sanitization::Purge,
            Self::AtaSecurityErase { enhanced: true } if rotational => Sanitization::Purge,
            Self::AtaSecurityErase { .. } | Self::Discard | Self::Overwrite => Sanitization::Clear,
        }
    }
}

/// Passes over a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passes {
    /// Passes of random bytes.
    pub iterations: u32,
    /// Whether a pass of zeroes comes last.
    pub zeroize: bool,
}

impl Passes {
    /// Bytes that overwriting a disk of this size handles.
    pub fn work_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes.saturating_mul(u64::from(self.iterations) + u64::from(self.zeroize))
    }

    /// Whether a pass of zeroes is all that is wanted.
    pub(super) fn are_one_of_zeroes(self) -> bool {
        self == Self { iterations: 0, zeroize: true }
    }
}

/// What the conductor and the operator want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each setting of the node")]
pub struct Policy {
    /// How disks are overwritten.
    pub passes: Passes,
    /// Format NVMe disks (`agent_enable_nvme_secure_erase`).
    pub nvme: bool,
    /// Use the security feature set of ATA disks (`agent_enable_ata_secure_erase`).
    pub ata: bool,
    /// Sanitize disks that offer it (`agent_enable_sanitize`). Nothing stops a disk that sanitizes itself, and one that
    /// fails is of no use until it has succeeded, so this is for those who ask for it.
    pub sanitize: bool,
    /// Overwrite a disk that should have erased itself and has not (`agent_continue_if_secure_erase_failed`).
    pub go_on: bool,
}

/// Why a disk is not told to erase itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// NVMe without Format.
    #[error("its controller has no Format NVM")]
    NoFormat,
    /// No answer.
    #[error("it does not answer: {reason}")]
    Silent {
        /// What was tried.
        reason: String,
    },
    /// Other namespaces would be erased, too.
    #[error("its controller erases all of its namespaces at once, and {others} must stay as it is")]
    Shared {
        /// The others.
        others: String,
    },
    /// ATA security frozen.
    #[error(
        "its security settings are frozen, by the firmware of the machine as a rule. A power cycle of the disk, or another \
         firmware setting, would end that"
    )]
    Frozen,
}

impl Refusal {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        ErrorClass::BlockDeviceErase
    }
}

/// What is tried, in order, until something works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What the policy wants for such a disk, whether it can be had or not.
    pub asked: Method,
    /// What is tried; empty when the refusal is final.
    pub methods: Vec<Method>,
    /// Why the method asked for is not among them.
    pub refusal: Option<Refusal>,
}

/// Makes the plan. `spared` names other namespaces of the same controller that must not be erased.
pub fn plan(facts: &Facts, policy: &Policy, spared: &[String]) -> Plan {
    let overwrite = overwriting(facts, policy);
    match &facts.drive {
        Drive::Nvme(controller) if policy.nvme || policy.sanitize && controller.sanitize != 0 => {
            let mut methods = Vec::new();
            if policy.sanitize {
                methods.extend(
                    [(1, Sanitize::Crypto), (2, Sanitize::Block), (4, Sanitize::Overwrite)]
                        .into_iter()
                        .filter(|(bit, _)| controller.sanitize & bit != 0)
                        .map(|(_, how)| Method::NvmeSanitize(how)),
                );
            }
            if policy.nvme && controller.has_format {
                let all = controller.format_hits_all;
                methods.extend(controller.has_crypto.then_some(Method::NvmeFormat { crypto: true, all }));
                methods.push(Method::NvmeFormat { crypto: false, all });
            }
            let asked = methods.first().copied().unwrap_or(Method::NvmeFormat { crypto: false, all: false });
            let refusal = if methods.is_empty() {
                Some(Refusal::NoFormat)
            } else if spared.is_empty() {
                None
            } else {
                methods.retain(|method| !method.hits_all());
                methods.is_empty().then(|| Refusal::Shared { others: spared.join(", ") })
            };
            with_fallback(asked, methods, refusal, overwrite, policy)
        }
        Drive::Silent { reason } if policy.nvme => {
            let asked = Method::NvmeFormat { crypto: false, all: false };
            with_fallback(asked, Vec::new(), Some(Refusal::Silent { reason: reason.clone() }), overwrite, policy)
        }
        Drive::Ata(security) if policy.ata => {
            let asked = Method::AtaSecurityErase { enhanced: security.has_enhanced };
            let (methods, refusal) =
                if security.frozen { (Vec::new(), Some(Refusal::Frozen)) } else { (vec![asked], None) };
            with_fallback(asked, methods, refusal, overwrite, policy)
        }
        Drive::Scsi(offers) if policy.sanitize && (offers.crypto || offers.block || offers.overwrite) => {
            let methods: Vec<Method> = [
                (offers.crypto, Sanitize::Crypto),
                (offers.block, Sanitize::Block),
                (offers.overwrite, Sanitize::Overwrite),
            ]
            .into_iter()
            .filter(|(offered, _)| *offered)
            .map(|(_, how)| Method::ScsiSanitize(how))
            .collect();
            let asked = methods.first().copied().unwrap_or(Method::Overwrite);
            with_fallback(asked, methods, None, overwrite, policy)
        }
        Drive::Nvme(_) | Drive::Silent { .. } | Drive::Ata(_) | Drive::Scsi(_) | Drive::Plain => {
            Plan { asked: overwrite[0], methods: overwrite, refusal: None }
        }
    }
}

fn with_fallback(
    asked: Method,
    mut methods: Vec<Method>,
    refusal: Option<Refusal>,
    overwrite: Vec<Method>,
    policy: &Policy,
) -> Plan {
    if policy.go_on {
        methods.extend(overwrite);
    }
    Plan { asked, methods, refusal }
}

/// Discarding stands for a single pass of zeroes only, and only where it is certain to read as zeroes.
fn overwriting(facts: &Facts, policy: &Policy) -> Vec<Method> {
    if facts.discard_reads_zero && policy.passes.are_one_of_zeroes() {
        vec![Method::Discard, Method::Overwrite]
    } else {
        vec![Method::Overwrite]
    }
}
