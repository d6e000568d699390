//! Device paths as text (UEFI specification 2.10, section 10.6.1.6), for the nodes that boot entries have.

use std::fmt::Write as _;

/// The device path of the content of a `Boot####` variable; what makes no sense in it is left out.
pub(super) fn of_load_option(bytes: &[u8]) -> String {
    // Attributes, length of the path, a name in UTF-16 with its end.
    let length = usize::from(le16(bytes, 4));
    let name = bytes.get(6..).unwrap_or_default();
    let name_bytes = name.chunks_exact(2).take_while(|pair| *pair != [0, 0]).count() * 2 + 2;
    let path = name.get(name_bytes..).unwrap_or_default();
    text(path.get(..length).unwrap_or(path))
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |pair| u16::from_le_bytes([pair[0], pair[1]]))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

fn guid(bytes: &[u8]) -> String {
    let tail = bytes.get(8..16).unwrap_or(&[0; 8]);
    let (two, six) = tail.split_at(2);
    format!("{:08x}-{:04x}-{:04x}-{}-{}", le32(bytes, 0), le16(bytes, 4), le16(bytes, 6), hex(two), hex(six))
}

fn utf16(bytes: &[u8]) -> String {
    let words = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    char::decode_utf16(words.take_while(|word| *word != 0)).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Nodes up to the end, divided by slashes.
fn text(mut path: &[u8]) -> String {
    let mut nodes = Vec::new();
    while let [kind, sub, low, high, rest @ ..] = path {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let Some(data) = length.checked_sub(4).and_then(|length| rest.get(..length)) else { break };
        if *kind == 0x7f {
            break;
        }
        nodes.push(node(*kind, *sub, data));
        path = path.get(length..).unwrap_or_default();
    }
    nodes.join("/")
}

fn node(kind: u8, sub: u8, data: &[u8]) -> String {
    let byte = |at: usize| data.get(at).copied().unwrap_or(0);
    let rest = |from: usize| data.get(from..).unwrap_or_default();
    match (kind, sub) {
        (1, 1) => format!("Pci({:#x},{:#x})", byte(1), byte(0)),
        // The compressed identity PNP0A03 of a PCI root.
        (2, 1) if le32(data, 0) == 0x0a03_41d0 => format!("PciRoot({:#x})", le32(data, 4)),
        (2, 1) => format!("Acpi({:#x},{:#x})", le32(data, 0), le32(data, 4)),
        (3, 2) => format!("Scsi({},{})", le16(data, 0), le16(data, 2)),
        (3, 5) => format!("USB({},{})", byte(0), byte(1)),
        (3, 11) => format!("MAC({},{})", hex(data.get(..6).unwrap_or(data)), byte(32)),
        (3, 12) => format!("IPv4({}.{}.{}.{})", byte(4), byte(5), byte(6), byte(7)),
        (3, 13) => format!("IPv6({})", hex(data.get(16..32).unwrap_or_default())),
        (3, 18) => format!("Sata({},{},{})", le16(data, 0), le16(data, 2), le16(data, 4)),
        (3, 23) => format!("NVMe({:#x},{})", le32(data, 0), hex(rest(4))),
        (3, 24) => format!("Uri({})", String::from_utf8_lossy(data)),
        (4, 1) => hard_drive(data),
        (4, 2) => format!("CDROM({:#x},{:#x},{:#x})", le32(data, 0), le64(data, 4), le64(data, 12)),
        (4, 4) => format!("File({})", utf16(data)),
        (4, 6) => format!("FvFile({})", guid(data)),
        (4, 7) => format!("FvVol({})", guid(data)),
        (1, 4) | (3, 10) | (4, 3) => {
            let word = ["VenHw", "VenMsg", "VenMedia"][if kind == 1 { 0 } else { usize::from(kind) - 2 }];
            if data.len() > 16 {
                format!("{word}({},{})", guid(data), hex(rest(16)))
            } else {
                format!("{word}({})", guid(data))
            }
        }
        (5, 1) => {
            let name = String::from_utf8_lossy(rest(4));
            format!("BBS({},{})", bbs(le16(data, 0)), name.trim_end_matches('\0'))
        }
        _ => format!("Path({kind},{sub},{})", hex(data)),
    }
}

fn hard_drive(data: &[u8]) -> String {
    let (number, start, size) = (le32(data, 0), le64(data, 4), le64(data, 12));
    let signature = data.get(20..36).unwrap_or(&[0; 16]);
    match data.get(37) {
        Some(1) => format!("HD({number},MBR,{:#x},{start:#x},{size:#x})", le32(signature, 0)),
        Some(2) => format!("HD({number},GPT,{},{start:#x},{size:#x})", guid(signature)),
        _ => format!("HD({number},{},0,{start:#x},{size:#x})", data.get(36).unwrap_or(&0)),
    }
}

const fn bbs(kind: u16) -> &'static str {
    match kind {
        1 => "Floppy",
        2 => "HD",
        3 => "CDROM",
        4 => "PCMCIA",
        5 => "USB",
        6 => "Network",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node_bytes(kind: u8, sub: u8, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len() + 4).unwrap().to_le_bytes();
        [&[kind, sub, length[0], length[1]], data].concat()
    }

    fn option(nodes: &[Vec<u8>]) -> Vec<u8> {
        let path: Vec<u8> = nodes.iter().flatten().copied().chain([0x7f, 0xff, 4, 0]).collect();
        let length = u16::try_from(path.len()).unwrap().to_le_bytes();
        [&[1, 0, 0, 0, length[0], length[1]], b"H\0i\0\0\0".as_slice(), &path, b"optional data"].concat()
    }

    #[test]
    fn entries_read_as_efibootmgr_prints_them() {
        let mut disk = vec![1, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0];
        disk.extend([0x44, 0x33, 0x22, 0x11, 0x66, 0x55, 0x88, 0x77, 1, 2, 3, 4, 5, 6, 7, 8]);
        let gpt = [disk.as_slice(), &[2, 2]].concat();
        let mbr = [disk.as_slice(), &[1, 1]].concat();
        let file: Vec<u8> = "\\EFI\\A\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let root = node_bytes(2, 1, &[0xd0, 0x41, 3, 0x0a, 0, 0, 0, 0]);
        let mac = [&[0x52, 0x54, 0, 0x12, 0x34, 0x56][..], &[0; 26], &[1]].concat();
        for (nodes, want) in [
            (
                vec![node_bytes(4, 1, &gpt), node_bytes(4, 4, &file)],
                r"HD(1,GPT,11223344-5566-7788-0102-030405060708,0x800,0x100000)/File(\EFI\A)",
            ),
            (vec![node_bytes(4, 1, &mbr)], "HD(1,MBR,0x11223344,0x800,0x100000)"),
            (
                vec![root, node_bytes(1, 1, &[0, 3]), node_bytes(3, 11, &mac), node_bytes(3, 24, b"http://a/b")],
                "PciRoot(0x0)/Pci(0x3,0x0)/MAC(525400123456,1)/Uri(http://a/b)",
            ),
            (vec![node_bytes(5, 1, b"\x02\0\0\0disk\0")], "BBS(HD,disk)"),
            (vec![node_bytes(9, 8, &[0xab])], "Path(9,8,ab)"),
            (vec![node_bytes(1, 4, &[0; 16])], "VenHw(00000000-0000-0000-0000-000000000000)"),
            (vec![node_bytes(4, 3, &[0; 17])], "VenMedia(00000000-0000-0000-0000-000000000000,00)"),
            (vec![], ""),
        ] {
            assert_eq!(of_load_option(&option(&nodes)), want);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_text(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(of_load_option(&bytes).len() < 10_000);
            prop_assert!(text(&bytes).len() < 10_000);
        }
    }
}
