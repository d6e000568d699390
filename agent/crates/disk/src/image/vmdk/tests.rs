use std::io::Write;

use flate2::write::ZlibEncoder;
use proptest::prelude::*;

use super::*;

/// A `streamOptimized` file as VMware's programs write it: grains, tables, directory and a footer, each with a marker.
pub(in crate::image) fn stream_optimized(content: &[u8]) -> Vec<u8> {
    const GRAIN: usize = 65536;
    let sector = |len: usize| u64::try_from(len).unwrap() / 512;
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID=7f2a51d2\nparentCID=ffffffff\ncreateType=\"streamOptimized\"\n\n\
         # Extent description\nRDONLY {} SPARSE \"disk.vmdk\"\n\n#DDB\nddb.adapterType = \"lsilogic\"\n",
        sector(content.len())
    );
    let mut first = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| first[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"KDMV");
    put(4, &3_u32.to_le_bytes());
    put(8, &(LINE_ENDS | COMPRESSED | MARKERS).to_le_bytes());
    put(12, &sector(content.len()).to_le_bytes());
    put(20, &128_u64.to_le_bytes());
    put(28, &1_u64.to_le_bytes());
    put(36, &20_u64.to_le_bytes());
    put(44, &512_u32.to_le_bytes());
    put(56, &AT_END.to_le_bytes());
    put(64, &128_u64.to_le_bytes());
    put(73, b"\n \r\n");
    put(77, &1_u16.to_le_bytes());
    let mut file = first.clone();
    file.extend(text.as_bytes());
    file.resize(128 * 512, 0);
    let marker = |file: &mut Vec<u8>, value: u64, kind: u32| {
        file.extend(value.to_le_bytes());
        file.extend([0; 4]);
        file.extend(kind.to_le_bytes());
        file.resize(file.len().next_multiple_of(512), 0);
    };
    let mut directory: Vec<u8> = Vec::new();
    for (number, part) in content.chunks(512 * GRAIN).enumerate() {
        let mut table: Vec<u8> = Vec::new();
        for (index, grain) in part.chunks(GRAIN).enumerate() {
            if grain.iter().all(|byte| *byte == 0) {
                table.extend([0; 4]);
                continue;
            }
            table.extend(u32::try_from(sector(file.len())).unwrap().to_le_bytes());
            let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(grain).unwrap();
            let packed = encoder.finish().unwrap();
            file.extend(sector((number * 512 + index) * GRAIN).to_le_bytes());
            file.extend(u32::try_from(packed.len()).unwrap().to_le_bytes());
            file.extend(packed);
            file.resize(file.len().next_multiple_of(512), 0);
        }
        if table.iter().all(|byte| *byte == 0) {
            directory.extend([0; 4]);
            continue;
        }
        table.resize(2048, 0);
        marker(&mut file, 4, TABLE);
        directory.extend(u32::try_from(sector(file.len())).unwrap().to_le_bytes());
        file.extend(table);
    }
    directory.resize(directory.len().next_multiple_of(512), 0);
    marker(&mut file, sector(directory.len()), DIRECTORY);
    let at = sector(file.len());
    file.extend(directory);
    marker(&mut file, 1, FOOTER);
    first[56..64].copy_from_slice(&at.to_le_bytes());
    file.extend(first);
    marker(&mut file, 0, END);
    file
}

fn small() -> Vec<u8> {
    stream_optimized(&[7; 100 * 512])
}

#[test]
fn headers_are_judged_field_by_field() {
    let file = small();
    let sparse = Sparse::parse(&file).unwrap();
    assert!(sparse.tables_at_end);
    assert_eq!((sparse.header.virtual_bytes, sparse.header.cluster_bits, sparse.data_offset), (51_200, 16, 65_536));
    let header = sparse.with_footer(&file[file.len() - FOOTER_BYTES..]).unwrap();
    assert!(header.l1_offset > 65_536 && header.l1_entries == 1, "{header:?}");
    for (name, at, bytes, want) in [
        ("magic", 0, &b"COWD"[..], "single sparse extent"),
        ("version", 4, &[4], "unknown version"),
        ("features", 9, &[0x10], "unknown features"),
        ("line ends", 74, b"\r", "transfer as text"),
        ("no algorithm", 77, &[0], "compressed"),
        ("algorithm", 77, &[2], "compressed"),
        ("no markers", 10, &[1], "compressed"),
        ("markers alone", 10, &[2], "compressed"),
        ("grain of 100 sectors", 20, &[100], "grains"),
        ("grain of 4 sectors", 20, &[4], "grains"),
        ("huge grains", 20, &[0, 0, 1], "grains"),
        ("long tables", 44, &[0, 4], "grains"),
        ("descriptor elsewhere", 28, &[2], "second sector"),
        ("no descriptor", 36, &[0], "second sector"),
        ("long descriptor", 36, &[0xff; 8], "descriptor"),
        ("descriptor beyond what is read", 36, &[200], "descriptor"),
        ("size beyond 64 bits", 12, &[0xff; 8], "impossible size"),
        ("size of 2 EiB", 12, &[0, 0, 0, 0, 0, 0, 16, 0], "too long a grain directory"),
        ("directory in the header", 56, &[3, 0, 0, 0, 0, 0, 0, 0], "impossible place"),
        ("directory beyond 64 bits", 56, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "impossible place"),
    ] {
        let mut bad = file[..65_536].to_vec();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let error = Sparse::parse(&bad).expect_err(name);
        assert!(error.contains(want), "{name}: {error}");
    }
}

#[test]
fn footers_must_repeat_the_header() {
    let file = small();
    let sparse = Sparse::parse(&file).unwrap();
    let tail = &file[file.len() - FOOTER_BYTES..];
    for (name, at, bytes, want) in [
        ("no marker", 12, &[0][..], "no footer"),
        ("no end", 1024, &[1], "no footer"),
        ("version", 512 + 4, &[1], "does not fit"),
        ("size", 512 + 12, &[1], "does not fit"),
        ("descriptor", 512 + 28, &[9], "does not fit"),
        ("no directory", 512 + 56, &[0xff; 8], "does not fit"),
        ("directory", 512 + 56, &[0; 8], "impossible place"),
    ] {
        let mut bad = tail.to_vec();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let error = sparse.with_footer(&bad).expect_err(name);
        assert!(error.contains(want), "{name}: {error}");
    }
    assert!(sparse.with_footer(&tail[1..]).is_err());
}

proptest! {
    #[test]
    fn any_first_sectors_end_in_a_verdict(
        changes in proptest::collection::vec((0_usize..1024, any::<u8>()), 0..8),
        len in 0_usize..65_536,
    ) {
        let mut file = small();
        for (at, byte) in changes {
            file[at] = byte;
        }
        for bytes in [&file[..len], &file[..]] {
            if let Ok(sparse) = Sparse::parse(bytes) {
                prop_assert!(sparse.header.l1_entries * 4 <= MAX_DIRECTORY_BYTES);
                let _any = sparse.with_footer(&file[file.len() - FOOTER_BYTES..]);
            }
        }
    }
}
