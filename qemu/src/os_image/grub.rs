//! GRUB for BIOS, put in place without `grub-install`: its images are made by `grub-mkimage` and joined here.
//!
//! What `grub-bios-setup` would write is described by GRUB's own `grub-core/boot/i386/pc/boot.S` and `diskboot.S`
//! (offsets of the fields in the first sector of each image).

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::ext4::ROOT_UUID;
use super::layout::{DiskLabel, Layout, MIB, Role};
use super::{system, tool};

const BIOS_DIR: &str = "/usr/lib/grub/i386-pc";
const SECTOR: usize = 512;
const CONFIG: &str = include_str!("../../assets/os-image/grub.cfg");
const MODULES: &[&str] = &[
    "part_gpt",
    "part_msdos",
    "ext2",
    "normal",
    "linux",
    "search",
    "search_fs_uuid",
    "configfile",
    "serial",
    "terminal",
    "echo",
    "test",
    "halt",
    "reboot",
    "ls",
    "cat",
];
/// `boot.S`: sector number of the core image, 8 bytes.
const KERNEL_SECTOR: usize = 0x5c;
/// `boot.S`: a jump over the check of the drive number, which some firmware needs left out.
const DRIVE_CHECK: usize = 0x66;
/// Length of boot code in the first sector: the disk signature and the partition table follow.
const BOOT_CODE: usize = 440;
/// `diskboot.S`: the first block list entry: start sector (8 bytes), number of sectors (2), load segment (2).
const BLOCK_LIST: usize = 0x1f4;
const LOAD_SEGMENT: u16 = 0x820;

/// `grub.cfg` of the system for that kernel release.
pub(super) fn config(release: &str) -> String {
    CONFIG
        .replace("@RELEASE@", release)
        .replace("@ROOT_UUID@", ROOT_UUID)
        .replace("@COMMAND_LINE@", &system::command_line())
}

/// GRUB for BIOS: boot code for the first sector, and the core image with the byte where it lies.
#[derive(Debug)]
pub(super) struct BiosGrub {
    pub(super) boot_code: Vec<u8>,
    pub(super) core: Vec<u8>,
    pub(super) core_start_bytes: u64,
}

/// Makes GRUB for BIOS, or nothing when the layout has no place for it.
pub(super) fn bios(layout: &Layout, work: &Path) -> Result<Option<BiosGrub>> {
    let (core_start_bytes, room_bytes, scheme) = match layout.label {
        DiskLabel::Gpt => match layout.partition(Role::BiosBoot) {
            Some((_, partition)) => (partition.start_bytes, partition.size_bytes, "gpt"),
            None => return Ok(None),
        },
        // Between the MBR and the first partition.
        DiskLabel::Mbr => (512, MIB - 512, "msdos"),
    };
    let (root, _) = layout.root()?;
    let out = work.join("core.img");
    let mut mkimage = tool::command("grub-mkimage");
    // A prefix without a drive means the drive the firmware started from.
    mkimage.args(["-O", "i386-pc", "-p", &format!("(,{scheme}{root})/boot/grub"), "-o"]).arg(&out);
    tool::run(mkimage.arg("biosdisk").args(MODULES)).context("making GRUB for BIOS")?;
    let core = fs::read(&out).with_context(|| format!("reading {}", out.display()))?;
    let boot =
        fs::read(Path::new(BIOS_DIR).join("boot.img")).with_context(|| format!("reading {BIOS_DIR}/boot.img"))?;
    embed(&boot, core, core_start_bytes, room_bytes).map(Some)
}

/// Points boot code at the core image and the core image's first sector at the rest of it.
fn embed(boot: &[u8], mut core: Vec<u8>, core_start_bytes: u64, room_bytes: u64) -> Result<BiosGrub> {
    let core_sector = core_start_bytes / 512;
    let sectors = core.len().div_ceil(SECTOR);
    core.resize(sectors * SECTOR, 0);
    if u64::try_from(core.len())? > room_bytes {
        bail!("GRUB's core image of {} bytes does not fit the {room_bytes} bytes for it", core.len());
    }
    let mut boot_code = boot.get(..BOOT_CODE).context("boot.img is shorter than a boot sector")?.to_vec();
    put(&mut boot_code, KERNEL_SECTOR, &core_sector.to_le_bytes())?;
    put(&mut boot_code, DRIVE_CHECK, &[0x90, 0x90])?;
    let rest = u16::try_from(sectors.saturating_sub(1)).context("GRUB's core image is too large")?;
    put(&mut core, BLOCK_LIST, &(core_sector + 1).to_le_bytes())?;
    put(&mut core, BLOCK_LIST + 8, &rest.to_le_bytes())?;
    put(&mut core, BLOCK_LIST + 10, &LOAD_SEGMENT.to_le_bytes())?;
    Ok(BiosGrub { boot_code, core, core_start_bytes })
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) -> Result<()> {
    image.get_mut(at..at + bytes.len()).context("GRUB's image is shorter than a sector")?.copy_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_names_kernel_initrd_root_and_serial_console() {
        let text = config("6.1.0-57-amd64");
        for part in [
            "linux /boot/vmlinuz-6.1.0-57-amd64 root=UUID=",
            "initrd /boot/initrd.img-6.1.0-57-amd64",
            "console=ttyS0,115200n8",
            ROOT_UUID,
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(!text.contains('@'), "a placeholder is left in:\n{text}");
    }

    #[test]
    fn embedded_images_point_at_each_other() {
        let grub = embed(&[7; 512], vec![9; 1300], 2048 * 512, 4096).unwrap();
        assert_eq!(grub.boot_code.len(), BOOT_CODE);
        assert_eq!(grub.boot_code[0x5c..0x64], 2048u64.to_le_bytes());
        assert_eq!(grub.boot_code[0x66..0x68], [0x90, 0x90]);
        assert_eq!(grub.core.len(), 3 * 512);
        assert_eq!(grub.core[0x1f4..0x1fc], 2049u64.to_le_bytes());
        assert_eq!(grub.core[0x1fc..0x200], [2, 0, 0x20, 0x08]);
        assert_eq!((grub.core[0], grub.core[1535]), (9, 0));
    }

    #[test]
    fn core_image_larger_than_its_place_is_refused() {
        let error = embed(&[0; 512], vec![0; 5000], 512, 4096).unwrap_err().to_string();
        assert!(error.contains("5120"), "{error}");
        assert!(embed(&[0; 100], vec![0; 600], 512, 4096).is_err());
    }
}
