//! Network boot: a TFTP folder with an iPXE script, a kernel and an initramfs.
//!
//! QEMU's network cards carry iPXE as their option ROM, for BIOS and for UEFI. It asks QEMU's own DHCP server, is told
//! the boot file `boot.ipxe`, sees that this is a script, and runs it; a second-stage boot program (`undionly.kpxe`,
//! `snponly.efi`) and the user-class trick that goes with it are not needed.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::artifacts::{self, Image};
use crate::net::Tftp;

/// Name of the script in the TFTP folder.
const SCRIPT: &str = "boot.ipxe";

/// The folder a machine boots from.
#[derive(Debug)]
pub struct PxeTree {
    dir: TempDir,
}

impl PxeTree {
    /// A folder from which `image` boots with `cmdline`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(image: &Image, cmdline: &str) -> Result<Self> {
        let tree = Self::with_script(&script(cmdline))?;
        tree.put("vmlinuz", &image.kernel)?;
        tree.put("initramfs.img", &image.initramfs)?;
        Ok(tree)
    }

    /// A folder with the iPXE script `text` and nothing else.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn with_script(text: &str) -> Result<Self> {
        let tree = Self { dir: artifacts::temp_dir("tftp")? };
        tree.set_script(text)?;
        Ok(tree)
    }

    /// Replaces the script; the next boot runs it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_script(&self, text: &str) -> Result<()> {
        let path = self.dir.path().join(SCRIPT);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Serves the file `from` as `name`. The folder gets a link, so `from` must stay.
    ///
    /// # Errors
    /// When `from` does not exist or the link cannot be made.
    pub fn put(&self, name: &str, from: &Path) -> Result<()> {
        let target = from.canonicalize().with_context(|| format!("looking for {}", from.display()))?;
        let link = self.dir.path().join(name);
        std::os::unix::fs::symlink(target, &link).with_context(|| format!("linking {}", link.display()))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn tftp(&self) -> Tftp {
        Tftp { dir: PathBuf::from(self.path()), boot_file: SCRIPT.to_owned() }
    }
}

/// The script that boots `vmlinuz` and `initramfs.img` of the same server, with the booting card's address in `BOOTIF` as
/// Ironic's own template has it. When a download fails it says so and gives the firmware its next boot device.
pub fn script(cmdline: &str) -> String {
    format!(
        "#!ipxe\n\
         imgfree\n\
         kernel vmlinuz initrd=initramfs.img BOOTIF=${{mac}} {cmdline} || goto failed\n\
         initrd initramfs.img || goto failed\n\
         boot\n\
         :failed\n\
         echo network boot failed\n\
         exit 1\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_holds_script_kernel_and_initramfs() {
        let files = tempfile::tempdir().unwrap();
        let image = Image { kernel: files.path().join("k"), initramfs: files.path().join("i") };
        std::fs::write(&image.kernel, "kernel").unwrap();
        assert!(PxeTree::new(&image, "").is_err(), "no initramfs");
        std::fs::write(&image.initramfs, "initramfs").unwrap();
        let tree = PxeTree::new(&image, "console=ttyS0 ipa-debug=1").unwrap();
        let read = |name: &str| std::fs::read_to_string(tree.path().join(name)).unwrap();
        assert_eq!(read("vmlinuz"), "kernel");
        assert_eq!(read("initramfs.img"), "initramfs");
        let text = read("boot.ipxe");
        assert!(text.starts_with("#!ipxe\n"), "{text}");
        assert!(
            text.contains("kernel vmlinuz initrd=initramfs.img BOOTIF=${mac} console=ttyS0 ipa-debug=1 "),
            "{text}"
        );
        tree.set_script("#!ipxe\nshell\n").unwrap();
        assert_eq!(read("boot.ipxe"), "#!ipxe\nshell\n");
    }
}
