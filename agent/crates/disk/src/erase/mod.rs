//! Erasing whole disks and proving it.
//!
//! [`plan`](plan()) decides from what a disk says of itself ([`Facts`]) what is tried: erasing by the disk's own firmware (NVMe
//! Format and Sanitize, the security feature set of ATA, SCSI SANITIZE), discarding where that certainly leaves zeroes, or
//! overwrite passes, then zeroes. Samples are read back from the medium whatever the disk says.
//!
//! A pass of zeroes goes through the kernel's "zero out", which uses the device's own WRITE ZEROES (or a discard that
//! is known to read back zeroes) where it has one, and writes zeroes otherwise.
//!
//! QEMU emulates neither NVMe Sanitize nor the security of ATA nor SCSI SANITIZE: these are tested with pages and state
//! machines made from the standards, and not on a booted machine.

mod firmware;
mod overwrite;
mod pattern;
mod plan;
mod samples;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ferric_sys::block_dev::{BlockDev, BlockDevError};
use ferric_types::error::chain;
use ferric_types::{DiskProgress, ErrorClass};
use serde::Serialize;

pub use firmware::ata::Security;
pub use firmware::nvme::Controller;
pub use firmware::scsi::{Offers, Sense};
pub use firmware::{Bus, Drive, Facts, Firmware, FirmwareError};
pub use plan::{Method, Passes, Plan, Policy, Refusal, Sanitization, Sanitize, plan};

use firmware::{ata, nvme, scsi};
use overwrite::Stopped;
use samples::Samples;

/// Proof of an erasure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EraseVerdict {
    /// What the node's settings want for such a disk.
    pub asked: &'static str,
    /// What erased it.
    pub method: &'static str,
    /// What that counts as.
    pub sanitization: Sanitization,
    /// Passes of random bytes.
    pub random_passes: u32,
    /// Whether it holds zeroes now.
    pub zeroed: bool,
    /// Bytes of the disk.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Whether samples were read back from the medium and hold what they should.
    pub verified: bool,
    /// How many.
    pub samples_checked: usize,
    /// What was tried before, and what came of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_before: Vec<String>,
}

/// A disk could not be erased.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    /// No pass at all was asked for.
    #[error("erasing {} with 0 passes and no zeroes would change nothing", path.display())]
    Nothing {
        /// Disk.
        path: PathBuf,
    },
    /// Reading or writing failed, also when tried again.
    #[error("erasing {}", path.display())]
    Device {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// No randomness, or no memory for the buffers.
    #[error("preparing to erase {}", path.display())]
    Prepare {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The disk said that it had erased or written, and has not.
    #[error("{} still holds old data at byte {offset} after it was erased by {method}", path.display())]
    NotErased {
        /// Disk.
        path: PathBuf,
        /// First place found.
        offset: u64,
        /// By what.
        method: &'static str,
    },
    /// The disk did not erase itself.
    #[error("erasing {} by {method}", path.display())]
    Firmware {
        /// Disk.
        path: PathBuf,
        /// By what.
        method: &'static str,
        /// Reason; several namespaces of a controller share it.
        #[source]
        source: Arc<FirmwareError>,
    },
    /// It is not to be told to erase itself, and the node does not allow to overwrite it instead.
    #[error(
        "Block device {} cannot be erased by {method}; agent_continue_if_secure_erase_failed would have it overwritten",
        path.display()
    )]
    Refused {
        /// Disk.
        path: PathBuf,
        /// By what.
        method: &'static str,
        /// Reason.
        #[source]
        source: Refusal,
    },
    /// Several ways failed.
    #[error("{earlier}; then")]
    Again {
        /// What was tried before the last.
        earlier: String,
        /// The last.
        #[source]
        source: Box<EraseError>,
    },
}

impl EraseError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        ErrorClass::BlockDeviceErase
    }
}

/// A disk to be erased; opened for oneself.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The disk.
    pub dev: &'a BlockDev,
    /// Where its firmware gets commands: the same as a rule.
    pub firmware: &'a dyn Firmware,
    /// Where its progress goes.
    pub progress: &'a DiskProgress,
    /// Whether it is a magnetic disk.
    pub rotational: bool,
}

impl std::fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("dev", &self.dev.path()).finish_non_exhaustive()
    }
}

/// Unlocks an ATA disk that an interrupted erasure has left locked, so that it can be read. Whether it was unlocked.
pub fn unlock(firmware: &dyn Firmware) -> bool {
    ata::unlock_ours(firmware)
}

/// Erases disks one after the other: a single one, or the namespaces of one NVMe controller, on which some commands hit
/// all. `spared` names namespaces of that controller that are not among them. One that fails does not stop the others.
pub fn erase(
    targets: &[Target<'_>],
    bus: Bus,
    spared: &[String],
    policy: &Policy,
) -> Vec<Result<EraseVerdict, EraseError>> {
    // Before anything is erased: what hits all leaves nothing to compare with.
    let begun: Vec<(Facts, Result<Samples, BlockDevError>)> =
        targets.iter().map(|target| (Facts::ask(target.firmware, bus, policy), Samples::take(target.dev))).collect();
    let ids: Vec<u32> = begun
        .iter()
        .filter_map(|(facts, _)| match &facts.drive {
            Drive::Nvme(controller) => Some(controller.nsid),
            _ => None,
        })
        .collect();
    let mut of_all = Vec::new();
    let each = targets.iter().zip(begun);
    each.map(|(target, (facts, samples))| {
        let unlisted = unlisted(&facts, &ids);
        let plan = plan(&facts, policy, if spared.is_empty() { &unlisted } else { spared });
        Job { target, facts: &facts, policy, of_all: &mut of_all }.run(samples, &plan)
    })
    .collect()
}

/// Namespaces of the controller that are no disks of this machine, or do not answer.
fn unlisted(facts: &Facts, ids: &[u32]) -> Vec<String> {
    let Drive::Nvme(controller) = &facts.drive else { return Vec::new() };
    controller.namespaces.iter().filter(|id| !ids.contains(id)).map(|id| format!("namespace {id}")).collect()
}

/// How commands that hit all namespaces ended.
type OfAll = Vec<(Method, Result<(), Arc<FirmwareError>>)>;

struct Job<'a> {
    target: &'a Target<'a>,
    facts: &'a Facts,
    policy: &'a Policy,
    of_all: &'a mut OfAll,
}

impl Job<'_> {
    fn path(&self) -> PathBuf {
        self.target.dev.path().to_owned()
    }

    fn device(&self) -> impl Fn(BlockDevError) -> EraseError {
        let path = self.path();
        move |source| EraseError::Device { path: path.clone(), source }
    }

    fn run(mut self, samples: Result<Samples, BlockDevError>, plan: &Plan) -> Result<EraseVerdict, EraseError> {
        let began = Instant::now();
        let mut failed_before = Vec::new();
        if let Some(refusal) = &plan.refusal {
            let refused = EraseError::Refused { path: self.path(), method: plan.asked.name(), source: refusal.clone() };
            if plan.methods.is_empty() {
                return Err(refused);
            }
            tracing::warn!(device = %self.target.dev.path().display(), reason = %refusal, "overwriting instead");
            failed_before.push(format!("{}: {refusal}", plan.asked.name()));
        }
        // A locked disk cannot be read, and is erased all the same.
        let samples = match samples {
            Ok(samples) => Some(samples),
            Err(error) if plan.methods.first() == Some(&Method::Overwrite) => return Err(self.device()(error)),
            Err(error) => {
                tracing::warn!(reason = chain(&error), "there is nothing to compare with after erasing");
                None
            }
        };
        let mut last = None;
        for method in &plan.methods {
            tracing::info!(device = %self.target.dev.path().display(), method = method.name(), "erasing");
            match self.try_method(*method, samples.as_ref()) {
                Ok(samples_checked) => {
                    let overwritten = *method == Method::Overwrite;
                    let tenths = u32::try_from(began.elapsed().as_millis() / 100).unwrap_or(u32::MAX);
                    return Ok(EraseVerdict {
                        asked: plan.asked.name(),
                        method: method.name(),
                        sanitization: method.sanitization(self.target.rotational),
                        random_passes: if overwritten { self.policy.passes.iterations } else { 0 },
                        zeroed: *method == Method::Discard || overwritten && self.policy.passes.zeroize,
                        bytes: self.target.dev.size_bytes(),
                        seconds: f64::from(tenths) / 10.0,
                        verified: samples_checked > 0,
                        samples_checked,
                        failed_before,
                    });
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "this did not erase the disk");
                    failed_before.push(chain(&error));
                    last = Some(error);
                }
            }
        }
        let error = last.unwrap_or(EraseError::Nothing { path: self.path() });
        failed_before.pop();
        Err(if failed_before.is_empty() {
            error
        } else {
            EraseError::Again { earlier: failed_before.join("; then "), source: Box::new(error) }
        })
    }

    /// Erases by one method; gives how many places were looked at afterwards.
    fn try_method(&mut self, method: Method, samples: Option<&Samples>) -> Result<usize, EraseError> {
        let Target { dev, progress, .. } = *self.target;
        match method {
            Method::Overwrite => self.overwrite(),
            Method::Discard => {
                progress.begin(method.name(), None);
                overwrite::discard(dev, progress).map_err(self.device())?;
                dev.flush().map_err(self.device())?;
                let samples = Samples::take(dev).map_err(self.device())?;
                self.none_left(samples.must_be_zero(dev).map_err(self.device())?, method)?;
                Ok(samples.len())
            }
            Method::NvmeSanitize(_)
            | Method::NvmeFormat { .. }
            | Method::AtaSecurityErase { .. }
            | Method::ScsiSanitize(_) => {
                self.by_firmware(method).map_err(|source| EraseError::Firmware {
                    path: self.path(),
                    method: method.name(),
                    source,
                })?;
                // What the kernel has read before must not be taken for what is on the disk.
                dev.flush().map_err(self.device())?;
                match samples {
                    Some(samples) => {
                        self.none_left(samples.must_be_gone(dev).map_err(self.device())?, method)?;
                        Ok(samples.len())
                    }
                    // It can be read again, which proves nothing.
                    None => Samples::take(dev).map_err(self.device()).map(|_| 0),
                }
            }
        }
    }

    fn none_left(&self, found: Option<u64>, method: Method) -> Result<(), EraseError> {
        match found {
            None => Ok(()),
            Some(offset) => Err(EraseError::NotErased { path: self.path(), offset, method: method.name() }),
        }
    }

    fn by_firmware(&mut self, method: Method) -> Result<(), Arc<FirmwareError>> {
        let known = self.of_all.iter().find(|(done, _)| *done == method && method.hits_all());
        if let Some((_, outcome)) = known {
            return outcome.clone();
        }
        let Target { firmware, progress, .. } = *self.target;
        let tell = |part| progress.tell(part);
        let expected = match (&self.facts.drive, method) {
            (Drive::Ata(security), Method::AtaSecurityErase { enhanced }) => security.estimate_of(enhanced),
            _ => None,
        };
        progress.begin(method.name(), expected);
        let outcome = match (&self.facts.drive, method) {
            (Drive::Nvme(controller), Method::NvmeFormat { crypto, all }) => {
                nvme::format(firmware, controller, crypto, all)
            }
            (_, Method::NvmeSanitize(how)) => nvme::sanitize(firmware, how, &tell),
            (_, Method::ScsiSanitize(how)) => scsi::sanitize(firmware, how, &tell),
            (_, Method::AtaSecurityErase { enhanced }) => ata::erase(firmware, enhanced),
            _ => Err(FirmwareError::NotOffered),
        };
        let outcome = outcome.map_err(Arc::new);
        if method.hits_all() {
            self.of_all.push((method, outcome.clone()));
        }
        outcome
    }

    /// Passes of random bytes, then of zeroes, each with samples read back.
    fn overwrite(&self) -> Result<usize, EraseError> {
        let Target { dev, progress, .. } = *self.target;
        let device = self.device();
        let Passes { iterations, zeroize } = self.policy.passes;
        if iterations == 0 && !zeroize {
            return Err(EraseError::Nothing { path: self.path() });
        }
        let mut samples = Samples::take(dev).map_err(&device)?;
        for pass in 1..=iterations {
            tracing::info!(device = %dev.path().display(), pass, "overwriting with random bytes");
            progress.begin("overwrite", None);
            overwrite::random(dev, progress).map_err(|stopped| match stopped {
                Stopped::Device(source) => device(source),
                Stopped::Randomness(source) => EraseError::Prepare { path: self.path(), source },
            })?;
            dev.flush().map_err(&device)?;
            self.none_left(samples.must_have_changed(dev).map_err(&device)?, Method::Overwrite)?;
            samples = Samples::take(dev).map_err(&device)?;
        }
        if zeroize {
            tracing::info!(device = %dev.path().display(), "writing zeroes");
            progress.begin("zeroes", None);
            overwrite::zeroes(dev, progress).map_err(&device)?;
            dev.flush().map_err(&device)?;
            self.none_left(samples.must_be_zero(dev).map_err(&device)?, Method::Overwrite)?;
        }
        Ok(samples.len())
    }
}

#[cfg(test)]
mod tests;
