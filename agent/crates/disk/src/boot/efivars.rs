//! EFI variables through efivarfs (kernel documentation: `filesystems/efivarfs`).
//!
//! A file holds four bytes of attributes and the value; it is immutable until told otherwise, so that nobody bricks
//! a machine by `rm -r`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use ferric_sys::{Root, attr};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

/// GUID of the variables that the UEFI specification defines.
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// More than any boot entry or order takes; the firmware's own limit is about half of it.
const MAX_VALUE_BYTES: u64 = 64 << 10;
/// Non-volatile, boot service access, runtime access.
const ATTRIBUTES: u32 = 7;

/// An EFI variable could not be used.
#[derive(Debug, thiserror::Error)]
pub enum EfiVarError {
    /// It could not be read.
    #[error("reading EFI variable {name}")]
    Read {
        /// Variable.
        name: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// It could not be written; the firmware's store may be full.
    #[error("writing EFI variable {name}")]
    Write {
        /// Variable.
        name: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// It could not be deleted.
    #[error("deleting EFI variable {name}")]
    Delete {
        /// Variable.
        name: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

/// The machine's EFI variables.
#[derive(Debug, Clone)]
pub struct EfiVars {
    directory: PathBuf,
}

impl EfiVarError {
    /// Whether the firmware cannot take the variable, now or ever, while all else is well: its store is full (`ENOSPC`, on
    /// some firmware `EINVAL`), protected against writing, or out of reach once an operating system runs (pitfall D5).
    pub fn is_refusal(&self) -> bool {
        let Self::Write { source, .. } = self else { return false };
        let refusals = [Errno::NOSPC, Errno::INVAL, Errno::ROFS, Errno::NOSYS];
        source.raw_os_error().is_some_and(|code| refusals.iter().any(|errno| errno.raw_os_error() == code))
    }
}

impl EfiVars {
    /// The variables of the machine, or `None` when its firmware has none (BIOS) or efivarfs is not mounted.
    pub fn of(root: &Root) -> Option<Self> {
        let directory = root.path("sys/firmware/efi/efivars");
        let has_any = std::fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_some());
        has_any.then_some(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}-{GLOBAL}"))
    }

    /// Value of a variable without its attributes; `None` when there is none.
    ///
    /// # Errors
    /// [`EfiVarError::Read`].
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, EfiVarError> {
        let mut bytes = Vec::new();
        let read = File::open(self.path(name)).and_then(|file| file.take(MAX_VALUE_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(Some(bytes.get(4..).unwrap_or_default().to_vec())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(EfiVarError::Read { name: name.to_owned(), source }),
        }
    }

    /// Writes a variable in one call, as efivarfs wants it.
    ///
    /// # Errors
    /// [`EfiVarError::Write`].
    pub fn write(&self, name: &str, value: &[u8]) -> Result<(), EfiVarError> {
        let path = self.path(name);
        let mut bytes = ATTRIBUTES.to_le_bytes().to_vec();
        bytes.extend_from_slice(value);
        make_mutable(&path);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .and_then(|mut file| file.write_all(&bytes))
            .map_err(|source| EfiVarError::Write { name: name.to_owned(), source })
    }

    /// Bytes that the firmware still has for variables; `None` when it does not say (kernels before 6.7, and firmware that
    /// gives nonsense).
    pub fn free_bytes(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.directory).ok()?;
        free_bytes(found.f_blocks, found.f_bavail, found.f_frsize)
    }

    /// Deletes a variable; one that is not there is fine.
    ///
    /// # Errors
    /// [`EfiVarError::Delete`].
    pub fn delete(&self, name: &str) -> Result<(), EfiVarError> {
        let path = self.path(name);
        make_mutable(&path);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(|source| EfiVarError::Delete { name: name.to_owned(), source }),
        }
    }

    /// Numbers of all `Boot####` variables, in order.
    pub fn boot_entries(&self) -> Vec<u16> {
        let number = |name: &String| {
            let digits = name.strip_prefix("Boot")?.strip_suffix(&format!("-{GLOBAL}"))?;
            let hex = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            u16::from_str_radix(digits, 16).ok().filter(|_| hex)
        };
        attr::list(&self.directory).iter().filter_map(number).collect()
    }

    /// The order in which the firmware tries entries.
    ///
    /// # Errors
    /// [`EfiVarError::Read`].
    pub fn boot_order(&self) -> Result<Vec<u16>, EfiVarError> {
        let bytes = self.read("BootOrder")?.unwrap_or_default();
        Ok(bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect())
    }

    /// Writes the order, each entry once (pitfall D1).
    ///
    /// # Errors
    /// [`EfiVarError::Write`].
    pub fn set_boot_order(&self, order: &[u16]) -> Result<(), EfiVarError> {
        let mut unique = Vec::with_capacity(order.len());
        for number in order {
            if !unique.contains(number) {
                unique.push(*number);
            }
        }
        let bytes: Vec<u8> = unique.into_iter().flat_map(u16::to_le_bytes).collect();
        self.write("BootOrder", &bytes)
    }
}

const fn free_bytes(blocks: u64, available: u64, block_bytes: u64) -> Option<u64> {
    if blocks == 0 || available > blocks { None } else { Some(available.saturating_mul(block_bytes)) }
}

/// Clears the immutable flag where there is one; a file system without flags needs nothing.
fn make_mutable(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    if let Ok(flags) = ioctl_getflags(&file)
        && flags.contains(IFlags::IMMUTABLE)
        && let Err(error) = ioctl_setflags(&file, flags - IFlags::IMMUTABLE)
    {
        tracing::warn!(path = %path.display(), %error, "clearing the immutable flag");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_only_told_by_who_knows_it() {
        assert_eq!(free_bytes(0, 0, 4096), None);
        assert_eq!(free_bytes(262_144, 300, 1), Some(300));
        assert_eq!(free_bytes(64, 0, 4096), Some(0));
        assert_eq!(free_bytes(64, u64::MAX, 4096), None);
    }

    #[test]
    fn only_what_firmware_cannot_take_is_a_refusal() {
        let write = |errno: Errno| EfiVarError::Write { name: "Boot0000".into(), source: errno.into() };
        for (errno, want) in [
            (Errno::NOSPC, true),
            (Errno::INVAL, true),
            (Errno::ROFS, true),
            (Errno::NOSYS, true),
            (Errno::IO, false),
            (Errno::PERM, false),
        ] {
            assert_eq!(write(errno).is_refusal(), want, "{errno}");
        }
        let delete = EfiVarError::Delete { name: "Boot0000".into(), source: Errno::INVAL.into() };
        assert!(!delete.is_refusal());
    }

    #[test]
    fn a_variable_without_end_is_read_up_to_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let efivars = dir.path().join("sys/firmware/efi/efivars");
        std::fs::create_dir_all(&efivars).unwrap();
        std::os::unix::fs::symlink("/dev/zero", efivars.join(format!("BootOrder-{GLOBAL}"))).unwrap();
        let vars = EfiVars::of(&Root::at(dir.path())).unwrap();
        assert_eq!(vars.read("BootOrder").unwrap().unwrap().len(), (64 << 10) - 4);
    }
}
