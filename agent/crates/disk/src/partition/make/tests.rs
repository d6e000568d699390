use std::process::Command;

use ferric_sys::block_dev::Access;
use ferric_sys::testing::disk::TestDisk;

use super::*;
use crate::filesystem;
use crate::partition::{Wanted, identity};
use crate::table::{TableKind, validate};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[expect(clippy::disallowed_methods, reason = "tests compare with the tools of the host")]
fn run(program: &str, args: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(args).arg(path).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn wanted(kind: TableKind, uefi: bool) -> Wanted {
    let (ephemeral_mib, swap_mib, config_drive_bytes, root_mib) = (100, 64, 5, 300);
    Wanted {
        kind,
        uefi,
        power: false,
        esp_mib: 550,
        bios_boot_mib: 1,
        ephemeral_mib,
        swap_mib,
        config_drive_bytes,
        root_mib,
    }
}

/// A used disk of 2 GiB with old signatures where partitions will begin.
fn disk(sector: u32) -> (TestDisk, BlockDev) {
    let disk = TestDisk::zeroed(2 * GIB).unwrap().sector(sector);
    let dev = disk.open().unwrap();
    for at in 0..1024 {
        dev.write_at(at * MIB + 1080, &[0x53, 0xef]).unwrap();
        dev.write_at(at * MIB, b"XFSB").unwrap();
    }
    (disk, dev)
}

const DRIVE: Content<'_> = Content { config_drive: None, node: "node-1", rebuild: false, keep: false };

fn made(dev: &BlockDev, wanted: &Wanted, keep: bool) -> Layout {
    let layout = Layout::plan(wanted, dev.path(), dev.size_bytes(), dev.logical_sector()).unwrap();
    let payload = Payload::plain(&b"drive"[..]);
    make(dev, &layout, &Content { config_drive: Some(&payload), keep, ..DRIVE }).unwrap();
    layout
}

#[test]
fn tables_are_what_the_plan_says_and_what_the_hosts_tools_like() {
    for (kind, uefi, sector) in [
        (TableKind::Gpt, true, 512),
        (TableKind::Gpt, true, 4096),
        (TableKind::Gpt, false, 512),
        (TableKind::Mbr, false, 512),
        (TableKind::Mbr, false, 4096),
    ] {
        let (disk, dev) = disk(sector);
        let layout = made(&dev, &wanted(kind, uefi), false);
        let table = validate(&dev).unwrap();
        layout.check_same(dev.path(), Some(&table)).unwrap();
        assert!(table.partitions.iter().all(|part| kind == TableKind::Mbr || part.name == "primary"), "{table:?}");
        // Nothing old is left where a partition begins; the root partition is cleared, too, before the image comes.
        for part in &layout.partitions {
            let found = identity::identify(&dev, part.start_bytes, part.size_bytes).map(|found| found.kind);
            let want = match part.role {
                Role::Esp => Some("vfat"),
                Role::Swap => Some("swap"),
                _ => None,
            };
            assert_eq!(found, want, "{kind:?} {uefi} {sector} {part:?}");
        }
        let drive = layout.get(Role::ConfigDrive).unwrap();
        assert_eq!(disk.bytes(drive.start_bytes, 6).unwrap(), b"drive\0");
        if sector == 512 {
            match kind {
                TableKind::Gpt => assert!(run("sgdisk", &["-v"], disk.path()).contains("No problems found")),
                TableKind::Mbr => assert!(run("sfdisk", &["--verify"], disk.path()).contains("No errors")),
            }
        }
        if kind == TableKind::Mbr {
            let active: Vec<u8> = (0..4).map(|n| disk.bytes(446 + 16 * n, 1).unwrap()[0]).collect();
            assert_eq!(active, [0, 0, 0, 0x80]);
            assert_ne!(table::disk_id(&dev).unwrap(), "0x00000000");
        }
    }
}

#[test]
fn identifiers_differ_from_one_disk_to_the_next() {
    let uuids = || {
        let (_disk, dev) = disk(512);
        made(&dev, &wanted(TableKind::Gpt, true), false);
        let table = validate(&dev).unwrap();
        let mut all: Vec<String> = table.partitions.iter().map(|part| identity::uuid_of(&dev, part)).collect();
        all.extend(table.partitions.iter().filter_map(|part| identity::partition_uuid(&dev, part)));
        all.sort();
        all.dedup();
        all
    };
    let (first, second) = (uuids(), uuids());
    // ESP and swap have one of their own besides that of the partition.
    assert_eq!((first.len(), second.len()), (7, 7));
    assert!(first.iter().all(|uuid| !second.contains(uuid)));
}

#[test]
fn the_efi_system_partition_is_an_empty_fat32_with_its_label_for_both_sector_sizes() {
    for sector in [512, 4096] {
        let (disk, dev) = disk(sector);
        let layout = made(&dev, &wanted(TableKind::Gpt, true), false);
        let esp = layout.get(Role::Esp).unwrap();
        assert_eq!(filesystem::label(&dev, esp.start_bytes, esp.size_bytes).as_deref(), Some("efi-part"));
        let fs = filesystem::fat(&dev, esp.start_bytes, esp.size_bytes).unwrap();
        assert_eq!((fs.fat_type(), fs.root_dir().iter().count()), (fatfs::FatType::Fat32, 0));
        drop(fs);
        // FAT32 by the number of its clusters, which is what counts (Microsoft's FAT specification).
        let head = disk.bytes(esp.start_bytes, 512).unwrap();
        assert_eq!(u32::from(u16::from_le_bytes([head[11], head[12]])), sector);
        let clusters = 550 * MIB / u64::from(sector) / u64::from(head[13]);
        assert!((65_525..0x0fff_fff5).contains(&clusters), "{clusters}");
        if Path::new("/usr/sbin/fsck.vfat").exists() {
            let copy = disk.path().with_extension("esp");
            std::fs::write(&copy, disk.bytes(esp.start_bytes, 550 << 20).unwrap()).unwrap();
            let text = run("fsck.vfat", &["-n", "-v"], &copy);
            std::fs::remove_file(&copy).unwrap();
            // The label counts as a file.
            assert!(
                text.contains(&format!("{sector} bytes per logical sector")) && text.contains(": 1 files"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_smaller_efi_system_partition_has_the_fat_that_fits() {
    for (sector, esp_mib) in [(512, 1), (512, 20), (512, 64), (512, 300), (4096, 20), (4096, 200), (4096, 300)] {
        let (_disk, dev) = disk(sector);
        let layout = made(&dev, &Wanted { esp_mib, ..wanted(TableKind::Gpt, true) }, false);
        let esp = layout.get(Role::Esp).unwrap();
        assert_eq!(filesystem::label(&dev, esp.start_bytes, esp.size_bytes).as_deref(), Some("efi-part"), "{esp_mib}");
        assert_eq!(identity::identify(&dev, esp.start_bytes, esp.size_bytes).unwrap().kind, "vfat");
    }
}

#[test]
fn the_hosts_tools_see_the_swap_space() {
    let (disk, dev) = disk(512);
    let layout = made(&dev, &wanted(TableKind::Gpt, true), false);
    let swap = layout.get(Role::Swap).unwrap();
    let copy = disk.path().with_extension("swap");
    std::fs::write(&copy, disk.bytes(swap.start_bytes, 64 << 20).unwrap()).unwrap();
    let text = run("blkid", &["-p", "-o", "export"], &copy);
    std::fs::remove_file(&copy).unwrap();
    let uuid = identity::identify(&dev, swap.start_bytes, swap.size_bytes).unwrap().uuid.unwrap();
    for want in ["TYPE=swap".to_owned(), "LABEL=swap1".to_owned(), format!("UUID={uuid}"), "VERSION=1".to_owned()] {
        assert!(text.contains(&want), "no {want} in {text}");
    }
    let last = disk.bytes(swap.start_bytes + 1028, 4).unwrap();
    assert_eq!(last, (64_u32 * 256 - 1).to_le_bytes());
}

#[test]
fn kept_scratch_space_and_table_stay_byte_for_byte() {
    let (disk, dev) = disk(512);
    let layout = made(&dev, &wanted(TableKind::Gpt, true), false);
    let scratch = *layout.get(Role::Ephemeral).unwrap();
    let data = vec![0x77; usize::try_from(scratch.size_bytes).unwrap()];
    dev.write_at(scratch.start_bytes, &data).unwrap();
    let (head, tail) = (disk.bytes(0, 1 << 20).unwrap(), disk.bytes(2 * GIB - MIB, 1 << 20).unwrap());
    let esp = layout.get(Role::Esp).unwrap();
    dev.write_at(esp.start_bytes, &[0xff; 4096]).unwrap();
    made(&dev, &wanted(TableKind::Gpt, true), true);
    assert!(disk.bytes(scratch.start_bytes, data.len()).unwrap() == data);
    assert!(disk.bytes(0, 1 << 20).unwrap() == head && disk.bytes(2 * GIB - MIB, 1 << 20).unwrap() == tail);
    assert_eq!(identity::identify(&dev, esp.start_bytes, esp.size_bytes).unwrap().kind, "vfat");
}

#[test]
fn a_config_drive_for_cds_becomes_fat_on_large_sectors() {
    // 32 KiB of nothing, a primary volume descriptor with its label, and an empty root directory.
    let Some(iso) = iso() else { return };
    let payload = Payload::plain(iso);
    assert_eq!(configdrive::room_bytes(&payload, 512, false), payload.size_bytes());
    for (sector, rebuild) in [(4096, false), (512, true)] {
        let room = configdrive::room_bytes(&payload, sector, rebuild);
        assert_eq!(room, 64 * MIB);
        let (_disk, dev) = disk(sector);
        let wanted = Wanted { config_drive_bytes: room, ..wanted(TableKind::Gpt, true) };
        let layout = Layout::plan(&wanted, dev.path(), dev.size_bytes(), sector).unwrap();
        make(&dev, &layout, &Content { config_drive: Some(&payload), rebuild, ..DRIVE }).unwrap();
        let drive = layout.get(Role::ConfigDrive).unwrap();
        let label = filesystem::label(&dev, drive.start_bytes, drive.size_bytes);
        assert_eq!(label.as_deref(), Some("CONFIG-2"), "{sector}");
        assert!(filesystem::fat(&dev, drive.start_bytes, drive.size_bytes).is_ok());
    }
}

/// A small image for CDs, by the host's tool; said to be skipped where there is none.
fn iso() -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("meta_data.json"), "{}").unwrap();
    let out = dir.path().join("drive.iso");
    let args = ["-quiet", "-V", "config-2", "-J", "-R", "-o", out.to_str().unwrap()];
    #[expect(clippy::disallowed_methods, reason = "tests compare with the tools of the host")]
    let made = Command::new("xorrisofs").args(args).arg(dir.path().join("meta_data.json")).status();
    if !made.is_ok_and(|status| status.success()) {
        use std::io::Write as _;
        let name = "a_config_drive_for_cds_becomes_fat_on_large_sectors";
        writeln!(std::io::stderr(), "SKIPPED: {name}: no xorrisofs").unwrap();
        return None;
    }
    Some(std::fs::read(out).unwrap())
}

#[test]
fn a_disk_that_cannot_be_written_is_named() {
    let (disk, dev) = disk(512);
    let layout = Layout::plan(&wanted(TableKind::Gpt, true), dev.path(), dev.size_bytes(), 512).unwrap();
    let read_only = BlockDev::open(disk.path(), Access::Read).unwrap();
    let error = make(&read_only, &layout, &DRIVE).unwrap_err();
    assert!(error.to_string().contains(&*disk.path().to_string_lossy()), "{error}");
}
