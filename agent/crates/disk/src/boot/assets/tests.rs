use std::os::unix::fs::symlink;

use ferric_sys::testing::disk::TestDisk;
use ferric_types::error::chain;

use super::*;
use crate::boot::esp;
use crate::configdrive::Payload;
use crate::partition::make::{Content, make};
use crate::partition::{Layout, Role, Wanted};
use crate::table::TableKind;

const GIB: u64 = 1 << 30;

/// A disk with partitions, and an image in a directory that stands for its mounted file system.
struct Lab {
    _disk: TestDisk,
    dev: BlockDev,
    dir: tempfile::TempDir,
    esp: Partition,
}

fn lab(sector: u32) -> Lab {
    let disk = TestDisk::zeroed(GIB).unwrap().sector(sector);
    let dev = disk.open().unwrap();
    let (kind, uefi) = (TableKind::Gpt, true);
    let wanted = Wanted {
        kind,
        uefi,
        power: false,
        esp_mib: 550,
        bios_boot_mib: 1,
        ephemeral_mib: 0,
        swap_mib: 0,
        config_drive_bytes: 0,
        root_mib: 400,
    };
    let layout = Layout::plan(&wanted, dev.path(), GIB, sector).unwrap();
    let none: Option<&Payload<'_>> = None;
    make(&dev, &layout, &Content { config_drive: none, node: "", rebuild: false, keep: false }).unwrap();
    let number = layout.get(Role::Esp).unwrap().number;
    let table = table::validate(&dev).unwrap();
    let esp = table.partitions.into_iter().find(|partition| partition.number == number).unwrap();
    Lab { _disk: disk, dev, dir: tempfile::tempdir().unwrap(), esp }
}

impl Lab {
    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn file(&self, path: &str, content: &[u8]) -> &Self {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::fs::write(self.path(path), content).unwrap();
        self
    }

    fn copy(&self) -> Result<usize, AssetsError> {
        copy(&ImageRoot::open(self.dir.path()).unwrap(), Path::new("/dev/vda2"), &self.dev, &self.esp)
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let volume = Slice::writable(&self.dev, self.esp.start_bytes, self.esp.size_bytes);
        let fs = fatfs::FileSystem::new(volume, fatfs::FsOptions::new()).unwrap();
        let mut content = Vec::new();
        fs.root_dir().open_file(path).ok()?.read_to_end(&mut content).unwrap();
        Some(content)
    }
}

#[test]
fn the_loaders_of_an_image_arrive_on_the_efi_system_partition_and_are_found_there() {
    for sector in [512, 4096] {
        let lab = lab(sector);
        let large: Vec<u8> = (0..3_000_001_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        lab.file("boot/efi/EFI/debian/shimx64.efi", &large)
            .file("boot/efi/EFI/debian/BOOTX64.CSV", b"shimx64.efi,debian,,comment")
            .file("boot/efi/EFI/BOOT/BOOTX64.EFI", b"MZ fallback")
            .file("boot/efi/EFI/debian/a name that is long.efi", b"MZ");
        assert_eq!(lab.copy().unwrap(), 6);
        assert!(lab.read("EFI/debian/shimx64.efi").unwrap() == large, "{sector}");
        assert_eq!(lab.read("EFI/BOOT/BOOTX64.EFI").unwrap(), b"MZ fallback");
        let found = esp::loaders(&lab.dev, lab.esp.start_bytes, lab.esp.size_bytes, Some("x64")).unwrap().loaders;
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].path, found[0].label.as_deref()), ("\\EFI\\debian\\shimx64.efi", Some("debian")));
        // A second time it is all the same.
        assert_eq!(lab.copy().unwrap(), 6);
        assert!(lab.read("EFI/debian/shimx64.efi").unwrap() == large, "{sector}");
    }
}

#[test]
fn grub_gets_the_configuration_that_it_lacks_and_keeps_the_one_it_has() {
    let lab = lab(512);
    lab.file("boot/grub2/grub.cfg", b"from grub2")
        .file("boot/grub/grub.cfg", b"from grub")
        .file("boot/grub/grubenv", b"env")
        .file("boot/efi/EFI/one/grubx64.efi", b"MZ")
        .file("boot/efi/EFI/two/GRUBX64.EFI", b"MZ")
        .file("boot/efi/EFI/two/GRUB.CFG", b"own")
        .file("boot/efi/EFI/three/shimx64.efi", b"MZ");
    lab.copy().unwrap();
    assert_eq!(lab.read("EFI/one/grub.cfg").unwrap(), b"from grub2");
    assert_eq!(lab.read("EFI/one/grubenv").unwrap(), b"env");
    assert_eq!(lab.read("EFI/two/grub.cfg").unwrap(), b"own");
    assert_eq!(lab.read("EFI/three/grub.cfg"), None);
}

#[test]
fn an_image_without_a_loader_says_so() {
    let lab = lab(512);
    for prepare in [&|| {}, &|| std::fs::create_dir_all(lab.path("boot/efi/EFI")).unwrap(), &|| {
        std::fs::remove_dir(lab.path("boot/efi/EFI")).unwrap();
        std::fs::create_dir_all(lab.path("elsewhere/x")).unwrap();
        symlink("/elsewhere", lab.path("boot/efi/EFI")).unwrap();
    }] as [&dyn Fn(); 3]
    {
        prepare();
        let error = lab.copy().unwrap_err();
        assert!(matches!(error, AssetsError::NoLoader { .. }), "{error}");
        assert!(error.to_string().contains("/dev/vda2 has no directory /boot/efi/EFI"), "{error}");
    }
}

#[test]
fn links_of_a_hostile_image_do_not_lead_out_of_it() {
    let lab = lab(512);
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret of the agent").unwrap();
    lab.file("boot/efi/EFI/BOOT/BOOTX64.EFI", b"MZ").file("usr/lib/loader.efi", b"MZ of the image");
    let place = lab.path("boot/efi/EFI/BOOT");
    symlink(outside.path().join("secret"), place.join("a.efi")).unwrap();
    symlink("../../../../../../../../etc/passwd", place.join("b.efi")).unwrap();
    symlink("/proc/self/environ", place.join("c.efi")).unwrap();
    symlink("/proc/self/root/etc/passwd", place.join("d.efi")).unwrap();
    symlink("/usr/lib/loader.efi", place.join("e.efi")).unwrap();
    symlink("..", place.join("circle")).unwrap();
    symlink(outside.path(), place.join("dir")).unwrap();
    lab.copy().unwrap();
    for name in ["a.efi", "b.efi", "c.efi", "d.efi", "circle", "dir", "dir/secret"] {
        assert_eq!(lab.read(&format!("EFI/BOOT/{name}")), None, "{name}");
    }
    assert_eq!(lab.read("EFI/BOOT/e.efi").unwrap(), b"MZ of the image");
}

#[test]
fn more_than_there_is_room_for_is_an_error_that_names_the_file() {
    let lab = lab(512);
    lab.file("boot/efi/EFI/BOOT/BOOTX64.EFI", b"MZ");
    let sparse = std::fs::File::create(lab.path("boot/efi/EFI/BOOT/huge.bin")).unwrap();
    sparse.set_len(600 << 20).unwrap();
    let error = lab.copy().unwrap_err();
    assert!(error.to_string().contains("/boot/efi/EFI/BOOT/huge.bin"), "{error}");
    let lab = self::lab(512);
    lab.file(&format!("boot/efi/EFI/{}x.efi", "d/".repeat(12)), b"MZ");
    assert!(matches!(lab.copy(), Err(AssetsError::Copy { .. })));
}

#[test]
fn the_efi_system_partition_gets_one_line_in_fstab() {
    let line = "UUID=1234-ABCD\t/boot/efi\tvfat\tumask=0077\t0\t1\n";
    for (before, after) in [
        ("", line.to_owned()),
        ("UUID=x / ext4\n", format!("UUID=x / ext4\n{line}")),
        ("UUID=x / ext4", format!("UUID=x / ext4\n{line}")),
        (line, line.to_owned()),
        ("UUID=1234-ABCD /efi vfat\n", "UUID=1234-ABCD /efi vfat\n".to_owned()),
        ("#UUID=1234-ABCD /efi vfat\n", format!("#UUID=1234-ABCD /efi vfat\n{line}")),
    ] {
        let lab = lab(512);
        lab.file(FSTAB, before.as_bytes());
        add_to_fstab(&ImageRoot::open(lab.dir.path()).unwrap(), "UUID=1234-ABCD").unwrap();
        assert_eq!(std::fs::read_to_string(lab.path(FSTAB)).unwrap(), after, "{before:?}");
    }
}

#[test]
fn a_hostile_fstab_is_no_way_out() {
    let outside = tempfile::NamedTempFile::new().unwrap();
    let lab = lab(512);
    std::fs::create_dir_all(lab.path("etc")).unwrap();
    let image = ImageRoot::open(lab.dir.path()).unwrap();
    add_to_fstab(&image, "UUID=1").unwrap();
    assert!(!lab.path(FSTAB).exists());
    symlink(outside.path(), lab.path(FSTAB)).unwrap();
    add_to_fstab(&image, "UUID=1").unwrap();
    assert_eq!(std::fs::read(outside.path()).unwrap(), b"");
    std::fs::remove_file(lab.path(FSTAB)).unwrap();
    std::fs::create_dir(lab.path(FSTAB)).unwrap();
    assert!(add_to_fstab(&image, "UUID=1").is_err());
    std::fs::remove_dir(lab.path(FSTAB)).unwrap();
    std::fs::File::create(lab.path(FSTAB)).unwrap().set_len(2 << 20).unwrap();
    assert!(add_to_fstab(&image, "UUID=1").unwrap_err().to_string().contains("more than 1048576 bytes"));
}

#[test]
fn a_file_system_without_a_driver_is_named() {
    let lab = lab(512);
    let table = table::validate(&lab.dev).unwrap();
    let root = table.partitions.iter().find(|partition| partition.number != lab.esp.number).unwrap();
    let install = || install(&lab.dev, root, &lab.esp, &lab.path("mnt")).unwrap_err();
    assert!(chain(&install()).contains("holds no file system that is known"), "{}", chain(&install()));
    lab.dev.write_at(root.start_bytes, b"LUKS\xba\xbe").unwrap();
    assert!(chain(&install()).contains("holds crypto_LUKS, which is no file system"), "{}", chain(&install()));
    assert_eq!(install().class(), ErrorClass::InvalidImage);
}
