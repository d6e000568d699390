//! Whether UEFI firmware can boot an image, told from the first bytes of the image before anything is written.

use crate::table::{Guid, TableKind};

const SIGNATURE: &[u8; 8] = b"EFI PART";
const ENTRY_BYTES: usize = 128;
/// System ids of an MBR: protective entry of a GPT, EFI system partition.
const PROTECTIVE: u8 = 0xee;
const EFI_SYSTEM: u8 = 0xef;

/// The kind of table and the number of its partitions, where the first bytes of an image show for certain that none of them
/// is an EFI system partition (pitfalls D8 and D9). `None` where there is one, and where they do not show it: not all of the
/// table is there, it is damaged, or there may be logical partitions.
pub fn without_esp(head: &[u8], sector: u32) -> Option<(TableKind, usize)> {
    if head.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let (entries, _) = head.get(446..510)?.as_chunks::<16>();
    // A boot sector of a file system has code or text there.
    if entries.iter().any(|entry| !matches!(entry[0], 0x00 | 0x80)) {
        return None;
    }
    let kinds: Vec<u8> = entries.iter().filter(|entry| entry[12..] != [0; 4]).map(|entry| entry[4]).collect();
    let kinds: Vec<u8> = kinds.into_iter().filter(|kind| *kind != 0).collect();
    if kinds.contains(&PROTECTIVE) {
        return gpt(head, usize::try_from(sector).ok()?);
    }
    let is_open = |kind: &u8| matches!(*kind, EFI_SYSTEM | 0x05 | 0x0f | 0x85);
    if kinds.is_empty() || kinds.iter().any(is_open) { None } else { Some((TableKind::Mbr, kinds.len())) }
}

fn gpt(head: &[u8], sector: usize) -> Option<(TableKind, usize)> {
    let header = head.get(sector..).filter(|header| header.starts_with(SIGNATURE))?;
    let number = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let start = u64::from_le_bytes(header.get(72..80)?.try_into().ok()?);
    let (count, entry_bytes) = (usize::try_from(number(80)?).ok()?, usize::try_from(number(84)?).ok()?);
    if entry_bytes != ENTRY_BYTES {
        return None;
    }
    let start = usize::try_from(start).ok()?.checked_mul(sector)?;
    let entries = head.get(start..start.checked_add(count.checked_mul(ENTRY_BYTES)?)?)?;
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    let used: Vec<_> = entries.iter().filter(|entry| entry[..16] != Guid::NIL.0).collect();
    let has_esp = used.iter().any(|entry| entry[..16] == Guid::EFI_SYSTEM.0);
    if used.is_empty() || has_esp { None } else { Some((TableKind::Gpt, used.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{self, Partition, PartitionType};
    use ferric_sys::testing::disk::TestDisk;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn head(kind: TableKind, types: &[PartitionType], sector: u32) -> Vec<u8> {
        let disk = TestDisk::zeroed(64 * MIB).unwrap().sector(sector);
        let partition = |(number, kind): (u32, &PartitionType)| Partition {
            number,
            start_bytes: u64::from(number) * MIB,
            size_bytes: MIB,
            kind: *kind,
            guid: None,
            name: String::new(),
        };
        let partitions: Vec<_> = (1..).zip(types).map(partition).collect();
        table::create(&disk.open().unwrap(), kind, &partitions, None).unwrap();
        disk.bytes(0, 64 << 10).unwrap()
    }

    #[test]
    fn only_tables_without_an_efi_system_partition_are_told() {
        use PartitionType::{Gpt, Mbr};
        let (esp, data, bios) = (Gpt(Guid::EFI_SYSTEM), Gpt(Guid::LINUX_DATA), Gpt(Guid::BIOS_BOOT));
        for (kind, types, want) in [
            (TableKind::Gpt, vec![bios, data], Some((TableKind::Gpt, 2))),
            (TableKind::Gpt, vec![bios, data, esp], None),
            (TableKind::Gpt, vec![], None),
            (TableKind::Mbr, vec![Mbr(0x83)], Some((TableKind::Mbr, 1))),
            (TableKind::Mbr, vec![Mbr(0x83), Mbr(0xef)], None),
            (TableKind::Mbr, vec![Mbr(0x83), Mbr(0x0f)], None),
            (TableKind::Mbr, vec![], None),
        ] {
            for sector in [512, 4096] {
                let head = head(kind, &types, sector);
                assert_eq!(without_esp(&head, sector), want, "{types:?} {sector}");
                // Made for another size of sectors, or cut short.
                if kind == TableKind::Gpt {
                    assert_eq!(without_esp(&head, 4608 - sector), None, "{types:?} {sector}");
                    assert_eq!(without_esp(&head[..4096], sector), None, "{types:?} {sector}");
                }
                assert_eq!(without_esp(&head[..511], sector), None, "{types:?} {sector}");
            }
        }
    }

    #[test]
    fn what_is_no_table_is_not_judged() {
        let mut code = vec![0x90; 1024];
        code[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(without_esp(&code, 512), None);
        assert_eq!(without_esp(&[0; 4096], 512), None);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048), gpt in any::<bool>()) {
            let mut bytes = bytes;
            if gpt && bytes.len() > 1024 {
                bytes[446..462].copy_from_slice(&[0, 0, 2, 0, 0xee, 0, 0, 0, 1, 0, 0, 0, 255, 0, 0, 0]);
                bytes[462..510].fill(0);
                bytes[510..520].copy_from_slice(b"\x55\xaaEFI PART");
                bytes[512 + 84..512 + 88].copy_from_slice(&[128, 0, 0, 0]);
            }
            let _verdict = without_esp(&bytes, 512);
        }
    }
}
