use super::*;
use crate::wipe::{destroy_metadata, signatures};
use ferric_sys::testing::disk::TestDisk;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const XFS: &[u8] = b"XFSB";

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A header and its entries behind each other, for sectors of this size; checksums are of no interest.
fn gpt_bytes(sector: u64, other: u64, entries: &[(u64, u64)]) -> Vec<u8> {
    let at = usize::try_from(sector).unwrap();
    let mut bytes = vec![0; at + 128 * 128];
    put(&mut bytes, 0, b"EFI PART");
    put(&mut bytes, 32, &other.to_le_bytes());
    put(&mut bytes, 72, &2_u64.to_le_bytes());
    put(&mut bytes, 80, &128_u32.to_le_bytes());
    put(&mut bytes, 84, &128_u32.to_le_bytes());
    for (number, (from, to)) in entries.iter().enumerate() {
        let entry = at + number * 128;
        put(&mut bytes, entry, &[1; 16]);
        put(&mut bytes, entry + 32, &(from / sector).to_le_bytes());
        put(&mut bytes, entry + 40, &(to / sector - 1).to_le_bytes());
    }
    bytes
}

fn record_bytes(entries: &[(u8, u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    for (number, (kind, start, size)) in entries.iter().enumerate() {
        let sectors = |bytes: u64| u32::try_from(bytes / 512).unwrap().to_le_bytes();
        put(&mut bytes, 446 + number * 16 + 4, &[*kind]);
        put(&mut bytes, 446 + number * 16 + 8, &sectors(*start));
        put(&mut bytes, 446 + number * 16 + 12, &sectors(*size));
    }
    put(&mut bytes, 510, &[0x55, 0xaa]);
    bytes
}

/// An md superblock 1.2, to be written at 4 KiB.
fn md_bytes(data: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    put(&mut bytes, 0, &0xa92b_4efc_u32.to_le_bytes());
    put(&mut bytes, 4, &1_u32.to_le_bytes());
    put(&mut bytes, 128, &(data / 512).to_le_bytes());
    put(&mut bytes, 136, &(size / 512).to_le_bytes());
    put(&mut bytes, 144, &8_u64.to_le_bytes());
    bytes
}

/// A physical volume with its description, to be written at its start.
fn pv_bytes(data: u64, text: &str) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(MIB).unwrap()];
    put(&mut bytes, 512, b"LABELONE");
    put(&mut bytes, 512 + 20, &32_u32.to_le_bytes());
    put(&mut bytes, 512 + 24, b"LVM2 001");
    let areas = [data, 0, 0, 0, 4096, MIB - 4096, 0, 0];
    for (number, value) in areas.iter().enumerate() {
        put(&mut bytes, 512 + 32 + 40 + number * 8, &value.to_le_bytes());
    }
    // The text begins near the ring's end and goes on behind its header.
    let from = MIB - 4096 - 64;
    put(&mut bytes, 4096 + 4, b" LVM2 x[5A%r0N*>");
    put(&mut bytes, 4096 + 40, &from.to_le_bytes());
    put(&mut bytes, 4096 + 48, &u64::try_from(text.len()).unwrap().to_le_bytes());
    put(&mut bytes, usize::try_from(4096 + from).unwrap(), &text.as_bytes()[..64]);
    put(&mut bytes, 4096 + 512, &text.as_bytes()[64..]);
    bytes
}

const GROUP: &str = r#"vg0 {
id = "x"
seqno = 3
extent_size = 2048              # 1024 Kilobytes
physical_volumes {
pv0 {
pe_start = 2048
pe_count = 20
}
}
logical_volumes {
root {
segment_count = 2
segment1 {
start_extent = 0
extent_count = 2        # 2 Megabytes
type = "striped"
stripe_count = 1        # linear
stripes = [
"pv0", 3
]
}
segment2 {
extent_count = 1
stripe_count = 2
stripes = [ # two
"pv0", 9,
"pv1", 4
]
}
}
}
}
"#;

/// Start in MiB, size in bytes, and whether it is current, of each layer.
fn shown(dev: &BlockDev) -> Vec<(u64, u64, bool)> {
    layers(dev).iter().map(|layer| (layer.start_bytes / MIB, layer.size_bytes / MIB, layer.is_current)).collect()
}

fn disk(size: u64, contents: &[(u64, &[u8])]) -> (TestDisk, BlockDev) {
    let disk = TestDisk::zeroed(size).unwrap();
    let dev = disk.open().unwrap();
    for (offset, bytes) in contents {
        dev.write_at(*offset, bytes).unwrap();
    }
    (disk, dev)
}

#[test]
fn partitions_of_every_table_that_is_or_was_there_are_known() {
    let size = 64 * MIB;
    let last = size - 512;
    let now = gpt_bytes(512, 9 * MIB / 512, &[(MIB, 3 * MIB)]);
    let former = gpt_bytes(4096, 7, &[(8 * MIB, 9 * MIB)]);
    let mut backup = gpt_bytes(512, 1, &[(4 * MIB, 5 * MIB)]);
    let entries = backup.split_off(512);
    put(&mut backup, 72, &((last - 16384) / 512).to_le_bytes());
    let record = record_bytes(&[(0xee, 512, size - 512), (0x83, 10 * MIB, MIB), (0x05, 20 * MIB, 8 * MIB)]);
    let logical = record_bytes(&[(0x83, MIB, 2 * MIB), (0x05, 4 * MIB, 2 * MIB)]);
    let second = record_bytes(&[(0x83, 512 * 63, MIB), (0x05, 0, 0)]);
    let (_disk, dev) = disk(
        size,
        &[
            (0, &record),
            (512, &now[..512]),
            (1024, &now[512..1024]),
            (4096, &former[..4096]),
            (8192, &former[4096..5000]),
            (last - 16384, &entries),
            (last, &backup),
            (20 * MIB, &logical),
            (24 * MIB, &second),
        ],
    );
    let found = shown(&dev);
    for want in [
        (1, 2, true),
        (4, 1, false),
        (8, 1, false),
        (10, 1, true),
        (20, 8, true),
        (21, 2, true),
        (24, 0, true),
        (24, 1, true),
        // The header in the middle, where the disk of an image ended.
        (8, 0, false),
    ] {
        assert!(found.contains(&want), "{want:?} not in {found:?}");
    }
}

#[test]
fn volumes_on_arrays_in_partitions_are_known_without_any_driver() {
    let size = 64 * MIB;
    let table = gpt_bytes(512, 1, &[(2 * MIB, 62 * MIB)]);
    let contents = [
        (0, &record_bytes(&[(0x83, 2 * MIB, 60 * MIB)])[..]),
        (512, &table),
        (2 * MIB + 4096, &md_bytes(8 * MIB, 50 * MIB)),
        (10 * MIB, &pv_bytes(MIB, GROUP)),
        (14 * MIB, XFS),
        (20 * MIB, b"LUKS\xba\xbe"),
        (15 * MIB + 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ];
    let (_disk, dev) = disk(size, &contents);
    let found = shown(&dev);
    for want in [(2, 60, true), (10, 50, true), (14, 2, true), (20, 1, true), (15, 1, true)] {
        assert!(found.contains(&want), "{want:?} not in {found:?}");
    }
    destroy_metadata(&dev).unwrap();
    assert_eq!(layers(&dev), []);
    for (offset, bytes) in contents {
        let mut now = vec![0; bytes.len()];
        dev.read_at(offset, &mut now).unwrap();
        // Of a volume group's description the middle may stay.
        let len = now.len().min(4096);
        assert!(now[..len].iter().all(|byte| *byte == 0), "at {offset}");
    }
    let part = dev.part("part", 14 * MIB, MIB).unwrap();
    assert_eq!(signatures(&part).unwrap(), []);
}

#[test]
fn data_behind_a_cache_begins_where_its_superblock_says() {
    let mut head = vec![0; 192];
    put(&mut head, 24, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]);
    for (version, offset, want) in [(1_u64, 0_u64, Some(8192)), (4, 3 * MIB / 512, Some(3 * MIB)), (0, 0, None)] {
        put(&mut head, 16, &version.to_le_bytes());
        put(&mut head, 184, &offset.to_le_bytes());
        let (_disk, dev) = disk(8 * MIB, &[(4096, &head)]);
        assert_eq!(layers(&dev).first().map(|layer| layer.start_bytes), want, "version {version}");
    }
}

#[test]
fn pieces_of_volumes_are_read_from_a_description() {
    assert_eq!(segments(GROUP), [(3 * 2048, 4096), (9 * 2048, 2048), (4 * 2048, 2048)]);
    assert_eq!(segments("stripes = [\n\"pv0\", 18446744073709551615\n]\n"), []);
    assert_eq!(segments("stripes = [\n"), []);
}

#[test]
fn what_leads_in_circles_or_has_no_end_is_bounded() {
    // Every partition is the whole disk, with the same table in it.
    let size = 8 * MIB;
    let mut table = gpt_bytes(512, 1, &[]);
    put(&mut table, 80, &u32::MAX.to_le_bytes());
    let (_disk, dev) = disk(size, &[(0, &record_bytes(&[(0x05, 512, size); 4])), (512, &table)]);
    assert!(layers(&dev).len() <= MAX_LAYERS);
    let nested: Vec<(u64, Vec<u8>)> = (0..16_u64).map(|n| (n * 65536 + 4096, md_bytes(65536, size))).collect();
    let nested: Vec<(u64, &[u8])> = nested.iter().map(|(offset, bytes)| (*offset, &bytes[..])).collect();
    let (_disk, dev) = disk(size, &nested);
    assert_eq!(layers(&dev).len(), usize::try_from(MAX_DEPTH).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_tables_never_panic(changes in proptest::collection::vec((0_u64..70_000, any::<[u8; 8]>()), 0..20)) {
        let size = 4 * MIB;
        let table = gpt_bytes(512, 1, &[(MIB, 3 * MIB)]);
        let pv = pv_bytes(MIB, GROUP);
        let (_disk, dev) = disk(size, &[
            (MIB, &pv), (0, &record_bytes(&[(0x83, MIB, MIB), (0x05, 2 * MIB, MIB)])), (512, &table),
            (MIB + 8 * 4096, &md_bytes(65536, MIB)),
        ]);
        for (offset, bytes) in changes {
            // Both the disk's own tables and the description of the group.
            dev.write_at(if offset % 2 == 0 { offset } else { MIB + offset }, &bytes).unwrap();
        }
        let found = layers(&dev);
        prop_assert!(found.iter().all(|layer| layer.start_bytes + layer.size_bytes <= size), "{:?}", found);
    }
}
