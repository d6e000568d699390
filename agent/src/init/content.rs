//! Label and identifier of a file system, from its first bytes: only what the names in `/dev/disk` need.

/// How much of a file system is looked at.
pub(super) const HEAD_BYTES: usize = 68 * 1024;

/// Label and UUID as `blkid` shows them; `None` for what is not there or not known.
pub(super) fn identify(head: &[u8]) -> (Option<String>, Option<String>) {
    ext(head)
        .or_else(|| xfs(head))
        .or_else(|| fat(head))
        .or_else(|| iso(head))
        .or_else(|| swap(head))
        .unwrap_or_default()
}

type Identity = (Option<String>, Option<String>);

fn at(head: &[u8], offset: usize, length: usize) -> Option<&[u8]> {
    head.get(offset..offset + length)
}

/// Text up to the first zero byte, without blanks at its end.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(bytes.get(..end)?);
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

fn uuid(bytes: &[u8]) -> Option<String> {
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    (bytes != [0; 16]).then(|| uuid::Uuid::from_bytes(bytes).to_string())
}

/// ext2, 3 and 4: superblock at 1024, magic at 56, UUID at 104, name at 120.
fn ext(head: &[u8]) -> Option<Identity> {
    at(head, 1024 + 56, 2).filter(|magic| *magic == [0x53, 0xef])?;
    Some((text(at(head, 1024 + 120, 16)?), uuid(at(head, 1024 + 104, 16)?)))
}

/// XFS: UUID at 32, name at 108.
fn xfs(head: &[u8]) -> Option<Identity> {
    at(head, 0, 4).filter(|magic| *magic == b"XFSB")?;
    Some((text(at(head, 108, 12)?), uuid(at(head, 32, 16)?)))
}

/// FAT: serial number and label in the extended boot record, at 39 and 43 (12 and 16 bits) or 67 and 71 (32 bits).
fn fat(head: &[u8]) -> Option<Identity> {
    at(head, 510, 2).filter(|magic| *magic == [0x55, 0xaa])?;
    let base = if at(head, 82, 5)? == b"FAT32" {
        67
    } else if at(head, 54, 3)? == b"FAT" {
        39
    } else {
        return None;
    };
    let [a, b, c, d] = at(head, base, 4)?.try_into().ok()?;
    let label = text(at(head, base + 4, 11)?).filter(|label| label != "NO NAME");
    Some((label, Some(format!("{d:02X}{c:02X}-{b:02X}{a:02X}"))))
}

/// ISO 9660: volume name at 32808; its UUID is the time of its creation, at 33581.
fn iso(head: &[u8]) -> Option<Identity> {
    at(head, 32_769, 5).filter(|magic| *magic == b"CD001")?;
    let time = at(head, 32_768 + 813, 16).filter(|time| time.iter().all(u8::is_ascii_digit));
    let time = time.map(|time| String::from_utf8_lossy(time).into_owned());
    let parts = time.and_then(|time| {
        let part = |from: usize, to: usize| time.get(from..to).map(str::to_owned);
        Some(
            [part(0, 4)?, part(4, 6)?, part(6, 8)?, part(8, 10)?, part(10, 12)?, part(12, 14)?, part(14, 16)?]
                .join("-"),
        )
    });
    Some((text(at(head, 32_808, 32)?), parts))
}

/// Swap: magic in the last ten bytes of the first page, UUID at 1036, name at 1052.
fn swap(head: &[u8]) -> Option<Identity> {
    at(head, 4086, 10).filter(|magic| *magic == b"SWAPSPACE2")?;
    Some((text(at(head, 1052, 16)?), uuid(at(head, 1036, 16)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: [u8; 16] = [0xde, 0xad, 0xbe, 0xef, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    const UUID_TEXT: &str = "deadbeef-0001-0203-0405-060708090a0b";

    fn head(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        for (offset, bytes) in parts {
            head[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    #[test]
    fn file_systems_are_identified() {
        let some = |text: &str| Some(text.to_owned());
        let cases = [
            (head(&[(1080, &[0x53, 0xef]), (1128, &UUID), (1144, b"root\0junk")]), some("root"), some(UUID_TEXT)),
            (head(&[(0, b"XFSB"), (32, &UUID)]), None, some(UUID_TEXT)),
            (
                head(&[(510, &[0x55, 0xaa]), (82, b"FAT32   "), (67, &[0x78, 0x56, 0x34, 0x12]), (71, b"ESP        ")]),
                some("ESP"),
                some("1234-5678"),
            ),
            (
                head(&[(510, &[0x55, 0xaa]), (54, b"FAT16   "), (39, &[1, 0, 0, 0xab]), (43, b"NO NAME    ")]),
                None,
                some("AB00-0001"),
            ),
            (
                head(&[(32_769, b"CD001"), (32_808, b"config-2        "), (33_581, b"2026113014410700")]),
                some("config-2"),
                some("2026-11-30-14-41-07-00"),
            ),
            (head(&[(4086, b"SWAPSPACE2"), (1036, &UUID)]), None, some(UUID_TEXT)),
            (head(&[(510, &[0x55, 0xaa])]), None, None),
            (head(&[]), None, None),
        ];
        for (number, (head, label, uuid)) in cases.into_iter().enumerate() {
            assert_eq!(identify(&head), (label, uuid), "case {number}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(head in proptest::collection::vec(any::<u8>(), 0..2000), magic in 0_usize..3) {
            let mut head = head;
            let (offset, bytes): (usize, &[u8]) = [(1080, &[0x53, 0xef][..]), (0, b"XFSB"), (510, &[0x55, 0xaa])][magic];
            if head.len() >= offset + bytes.len() {
                head[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            let _identity = identify(&head);
        }
    }
}
