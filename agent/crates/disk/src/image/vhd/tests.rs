use proptest::prelude::*;

use super::*;

fn seal(bytes: &mut [u8], at: usize) {
    let sum = u32::try_from(checksum(bytes, at)).unwrap();
    bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
}

fn footer(kind: u8, disk_bytes: u64) -> Vec<u8> {
    let mut footer = vec![0; 512];
    footer[..8].copy_from_slice(b"conectix");
    footer[13] = 1;
    footer[16..24].copy_from_slice(&512_u64.to_be_bytes());
    footer[48..56].copy_from_slice(&disk_bytes.to_be_bytes());
    footer[63] = kind;
    seal(&mut footer, 64);
    footer
}

/// The first sectors of a dynamic file, with a change at a place of its header.
fn dynamic(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 1024];
    header[..8].copy_from_slice(b"cxsparse");
    header[16..24].copy_from_slice(&1536_u64.to_be_bytes());
    header[25] = 1;
    header[28..32].copy_from_slice(&3_u32.to_be_bytes());
    header[32..36].copy_from_slice(&(2_u32 << 20).to_be_bytes());
    header[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut header, 36);
    [footer(3, 5 << 20), header].concat()
}

#[test]
fn dynamic_headers_are_judged_field_by_field() {
    let header = parse(&dynamic(0, b"cxsparse")).unwrap();
    assert_eq!((header.virtual_bytes, header.l1_entries, header.cluster_bytes()), (5 << 20, 3, 2 << 20));
    assert_eq!(header.family, Family::Vhd { bitmap_bytes: 512 });
    for (name, at, bytes, want) in [
        ("cookie", 0, &b"cy"[..], "known version"),
        ("version", 24, &[0, 2], "known version"),
        ("table in the header", 16, &[0, 0, 0, 0, 0, 0, 2, 0], "impossible place"),
        ("table far away", 16, &[0xff; 8], "impossible place"),
        ("two entries", 31, &[2], "does not fit"),
        ("blocks of 3 MiB", 33, &[0x30], "not supported"),
        ("blocks of 512 bytes", 32, &[0, 0, 2, 0], "not supported"),
        ("blocks of 0 bytes", 32, &[0, 0, 0, 0], "not supported"),
    ] {
        let error = parse(&dynamic(at, bytes)).expect_err(name);
        assert!(error.contains(want), "{name}: {error}");
    }
    let good = dynamic(0, b"cxsparse");
    for (name, at, want) in [("footer", 30, "damaged footer"), ("header", 512 + 600, "damaged header")] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(parse(&bad).expect_err(name).contains(want), "{name}");
    }
    for (kind, disk_bytes, want) in
        [(4, 5 << 20, "has a parent"), (2, 5 << 20, "a kind without one"), (9, 5 << 20, "unknown kind"), (3, 7, "size")]
    {
        let mut bad = good.clone();
        bad[..512].copy_from_slice(&footer(kind, disk_bytes));
        assert!(parse(&bad).expect_err(want).contains(want), "{kind}");
    }
    assert!(parse(&good[..1535]).is_err() && parse(&[]).is_err());
}

#[test]
fn fixed_footers_must_fit_the_file() {
    assert_eq!(check_fixed(&footer(2, 1024), 1024), Ok(()));
    for (bytes, want) in [
        (footer(2, 2048), "not as long"),
        (footer(3, 1024), "a kind with one"),
        (footer(4, 1024), "has a parent"),
        (vec![0; 512], "no footer"),
        (footer(2, 1024)[1..].to_vec(), "no footer"),
        (Vec::new(), "no footer"),
    ] {
        let error = check_fixed(&bytes, 1024).expect_err(want);
        assert!(error.contains(want), "{want}: {error}");
    }
}

proptest! {
    #[test]
    fn any_first_sectors_end_in_a_verdict(
        changes in proptest::collection::vec((0_usize..1536, any::<u8>()), 0..8),
        len in 0_usize..1600,
    ) {
        let mut file = dynamic(0, b"cxsparse");
        for (at, byte) in changes {
            file[at] = byte;
        }
        // Checksums hold, so that all else is looked at.
        seal(&mut file[..512], 64);
        seal(&mut file[512..], 36);
        for bytes in [&file[..len.min(1536)], &file[..]] {
            if let Ok(header) = parse(bytes) {
                prop_assert!(header.l1_entries <= 8 << 20);
            }
        }
    }

    #[test]
    fn the_last_sector_is_held_back_however_the_bytes_come(len in 0_usize..5000, step in 1_usize..2000) {
        let bytes: Vec<u8> = (0..len).map(|index| u8::try_from(index % 251).unwrap()).collect();
        let mut file = std::io::BufReader::with_capacity(step, bytes.as_slice());
        let mut content = WithoutFooter::new(&mut file);
        let mut got = Vec::new();
        content.read_to_end(&mut got).unwrap();
        let border = len.saturating_sub(FOOTER_BYTES);
        prop_assert!(got == bytes[..border] && content.footer() == &bytes[border..]);
    }
}
