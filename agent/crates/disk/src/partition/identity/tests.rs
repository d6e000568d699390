use std::process::Command;

use ferric_sys::testing::disk::TestDisk;
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const UUID: &str = "6f3a1c5e-0b2d-4e8f-9a71-c0ffee123456";
const RAW: [u8; 16] = [0x6f, 0x3a, 0x1c, 0x5e, 0x0b, 0x2d, 0x4e, 0x8f, 0x9a, 0x71, 0xc0, 0xff, 0xee, 0x12, 0x34, 0x56];

#[expect(clippy::disallowed_methods, reason = "tests compare with the tools of the host")]
fn run(program: &str, args: &[&str], disk: &TestDisk) -> String {
    let output =
        Command::new(program).args(args).arg(disk.path()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn of(disk: &TestDisk) -> Option<Identity> {
    let dev = disk.open().unwrap();
    identify(&dev, 0, dev.size_bytes())
}

/// What the host's tools make, as the host's `blkid` sees it.
#[test]
fn file_systems_made_by_their_tools_are_told_as_blkid_tells_them() {
    for (program, args) in [
        ("mke2fs", &["-q", "-F", "-t", "ext2"][..]),
        ("mke2fs", &["-q", "-F", "-t", "ext3"]),
        ("mke2fs", &["-q", "-F", "-t", "ext4"]),
        ("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096"]),
        ("mkswap", &["-q"]),
        ("mkswap", &["-q", "-p", "65536"]),
    ] {
        let disk = TestDisk::zeroed(32 * MIB).unwrap();
        run(program, args, &disk);
        let blkid = |tag: &str| run("blkid", &["-p", "-o", "value", "-s", tag], &disk);
        let found = of(&disk).unwrap();
        assert_eq!((found.kind, found.uuid.unwrap()), (&*blkid("TYPE"), blkid("UUID")), "{program} {args:?}");
    }
}

fn written(size: u64, parts: &[(u64, &[u8])]) -> TestDisk {
    let disk = TestDisk::zeroed(size).unwrap();
    let dev = disk.open().unwrap();
    for (offset, bytes) in parts {
        dev.write_at(*offset, bytes).unwrap();
    }
    disk
}

/// Superblocks of formats for which the host need not have a tool, in their important fields; `blkid` wants more.
#[test]
fn other_formats_are_told_by_the_fields_of_their_superblocks() {
    const MD1: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const MD0: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0];
    let lvm_id: &[u8] = b"0123456789abcdefghijABCDEFGHIJxy";
    let lvm = "012345-6789-abcd-efgh-ijAB-CDEF-GHIJxy";
    let fat32 = |serial: &'static [u8]| vec![(0, &b"\xeb\x58\x90"[..]), (66, serial), (82, b"FAT32   ")];
    let fat16 = vec![(0, &b"\xeb\x3c\x90"[..]), (38, b"\x29\x78\x56\x34\x12"), (54, b"FAT16   ")];
    let md090 = |at: u64| {
        vec![(at, MD0), (at + 20, &RAW[..4]), (at + 52, &RAW[4..8]), (at + 56, &RAW[8..12]), (at + 60, &RAW[12..])]
    };
    let size = 8 * MIB + 12_345 * 4;
    let end10 = (size - 8192) / 4096 * 4096;
    let end090 = size / 65536 * 65536 - 65536;
    let luks = |version: &'static [u8]| vec![(0, &b"LUKS\xba\xbe"[..]), (6, version), (168, UUID.as_bytes())];
    let both = vec![(0, &b"LUKS\xba\xbe"[..]), (168, UUID.as_bytes()), (end10, MD1), (end10 + 16, &RAW)];
    for (parts, kind, uuid) in [
        (vec![(0, &b"XFSB"[..]), (32, &RAW)], "xfs", Some(UUID)),
        (vec![(0x1_0040, b"_BHRfS_M"), (0x1_0020, &RAW)], "btrfs", Some(UUID)),
        (fat32(b"\x29\x78\x56\x34\x12"), "vfat", Some("1234-5678")),
        (fat32(b"\x00\x78\x56\x34\x12"), "vfat", None),
        (fat16, "vfat", Some("1234-5678")),
        (luks(b"\x00\x01"), "crypto_LUKS", Some(UUID)),
        (luks(b"\x00\x02"), "crypto_LUKS", Some(UUID)),
        (vec![(512, b"LABELONE"), (532, b"\x20\0\0\0LVM2 001"), (544, lvm_id)], "LVM2_member", Some(lvm)),
        (vec![(0, MD1), (16, &RAW)], "linux_raid_member", Some(UUID)),
        (vec![(4096, MD1), (4112, &RAW)], "linux_raid_member", Some(UUID)),
        (both, "linux_raid_member", Some(UUID)),
        (md090(end090), "linux_raid_member", Some(UUID)),
        (vec![(1080, &[0x53, 0xef]), (1128, &[0; 16])], "ext2", None),
    ] {
        let disk = written(size, &parts);
        assert_eq!(of(&disk), Some(Identity { kind, uuid: uuid.map(str::to_owned) }), "{kind}");
        // The same in the middle of a disk.
        let dev = TestDisk::zeroed(32 * MIB).unwrap().open().unwrap();
        for (offset, bytes) in &parts {
            dev.write_at(5 * MIB + offset, bytes).unwrap();
        }
        assert_eq!(identify(&dev, 5 * MIB, size).unwrap().kind, kind);
    }
    assert_eq!(of(&TestDisk::used(size).unwrap()), None);
    assert_eq!(of(&TestDisk::zeroed(512).unwrap()), None);
}

#[test]
fn a_partition_without_a_file_system_goes_by_its_own_uuid() {
    let gpt = TestDisk::zeroed(64 * MIB).unwrap();
    let args = ["-n", "1:2048:+16M", "-u", &format!("1:{UUID}"), "-n", "2:40960:+8M"];
    run("sgdisk", &args, &gpt);
    let dev = gpt.open().unwrap();
    dev.write_at(20 * MIB, b"XFSB").unwrap();
    dev.write_at(20 * MIB + 32, &[0xaa; 16]).unwrap();
    let table = table::read(&dev).unwrap().unwrap();
    assert_eq!(uuid_of(&dev, &table.partitions[0]), UUID);
    let inner = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa";
    assert_eq!(uuid_of(&dev, &table.partitions[1]), inner);
    for (uuid, number) in [(UUID, Some(1)), (&*UUID.to_uppercase(), Some(1)), (inner, Some(2)), ("0x12345678", None)] {
        assert_eq!(find(&dev, &table, uuid).map(|partition| partition.number), number, "{uuid}");
    }
    dev.write_at(MIB + 1080, &[0x53, 0xef]).unwrap();
    for (label, at) in [("Root", MIB), (inner, MIB)] {
        dev.write_at(at + 1024 + 120, &label.as_bytes()[..label.len().min(16)]).unwrap();
        // Labels are told apart by case, and never hide a UUID.
        let number = |text: &str| find(&dev, &table, text).map(|partition| partition.number);
        assert_eq!(
            (number("Root"), number("root"), number("")),
            (if label == "Root" { Some(1) } else { None }, None, None)
        );
        assert_eq!(number(inner), Some(2));
    }
    let mbr = TestDisk::zeroed(64 * MIB).unwrap();
    let dev = mbr.open().unwrap();
    let mut sector = [0_u8; 512];
    sector[440..444].copy_from_slice(&[0x78, 0x56, 0x34, 0x12]);
    sector[446 + 4] = 0x83;
    (sector[446 + 9], sector[446 + 13]) = (8, 8);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    dev.write_at(0, &sector).unwrap();
    let table = table::read(&dev).unwrap().unwrap();
    assert_eq!(uuid_of(&dev, &table.partitions[0]), "12345678-01");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn hostile_superblocks_never_panic(
        which in 0_usize..16, bytes in proptest::collection::vec(any::<u8>(), 2048), size in 0_u64..200_000, cut in any::<bool>(),
    ) {
        let magics: [(usize, &[u8]); 14] = [
            (0, b"LUKS\xba\xbe"), (0, b"LABELONE"), (512, b"LABELONE"), (0, b"XFSB"), (1080, &[0x53, 0xef]),
            (82, b"FAT32"), (54, b"FAT16"), (0, &[0xfc, 0x4e, 0x2b, 0xa9, 0]), (0, &[0xfc, 0x4e, 0x2b, 0xa9, 1]),
            (24, b"LVM2 001"), (536, b"LVM2 001"), (1024, b"SWAP"), (0, &[0xeb]), (6, &[0, 2]),
        ];
        let mut head = bytes;
        if let Some((offset, magic)) = magics.get(which) {
            head[*offset..offset + magic.len()].copy_from_slice(magic);
        }
        for at in [0, 512] {
            if head[at..].starts_with(b"LABELONE") {
                head[at + 24..at + 32].copy_from_slice(b"LVM2 001");
            }
        }
        let _found = in_head(&head);
        let _found = in_head(&head[..usize::try_from(size).unwrap() % 2048]);
        let disk = TestDisk::zeroed(size).unwrap();
        let dev = disk.open().unwrap();
        let len = head.len().min(usize::try_from(size).unwrap());
        dev.write_at(0, &head[..len]).unwrap();
        if size > 8192 && cut {
            dev.write_at((size - 8192) / 4096 * 4096, &head[..len.min(4096)]).unwrap();
        }
        let _found = identify(&dev, 0, size);
        let _found = identify(&dev, size / 2, size);
    }
}
