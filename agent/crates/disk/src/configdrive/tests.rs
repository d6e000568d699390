use std::io::Write as _;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ferric_sys::block_dev::Access;
use ferric_sys::testing::disk::TestDisk;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::filesystem::Slice;
use crate::image::source::ImageSource;

const MIB: u64 = 1 << 20;

/// Serves one body under every URL.
#[derive(Debug)]
struct OneFile(Vec<u8>);

impl Fetch for OneFile {
    fn open(&self, _request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        unreachable!("config drives are small files")
    }

    fn get(&self, request: &FetchRequest, limit: u64) -> Result<Vec<u8>, SourceError> {
        if u64::try_from(self.0.len()).unwrap() > limit {
            return Err(SourceError::TooLarge { url: request.url.clone(), limit });
        }
        Ok(self.0.clone())
    }
}

#[expect(clippy::disallowed_methods, reason = "tests use the tools of the host")]
fn run(program: &str, args: &[&std::ffi::OsStr]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn iso() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let latest = dir.path().join("tree/openstack/latest");
    std::fs::create_dir_all(&latest).unwrap();
    std::fs::write(latest.join("meta_data.json"), br#"{"hostname": "node-1"}"#).unwrap();
    std::fs::write(latest.join("a file with a long name.txt"), vec![7_u8; 10_000]).unwrap();
    let (out, tree) = (dir.path().join("c.iso"), dir.path().join("tree"));
    run(
        "xorrisofs",
        &[
            "-quiet".as_ref(),
            "-J".as_ref(),
            "-r".as_ref(),
            "-V".as_ref(),
            "config-2".as_ref(),
            "-o".as_ref(),
            out.as_ref(),
            tree.as_ref(),
        ],
    );
    std::fs::read(out).unwrap()
}

fn packed(image: &[u8]) -> String {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(image).unwrap();
    STANDARD.encode(gzip.finish().unwrap())
}

fn content(payload: &Payload<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    payload.reader().read_to_end(&mut bytes).unwrap();
    bytes
}

fn request(url: &str) -> FetchRequest {
    FetchRequest { url: url.to_owned(), ..FetchRequest::default() }
}

fn gpt_disk(size: u64, sector: u32) -> TestDisk {
    let disk = TestDisk::zeroed(size).unwrap().sector(sector);
    let dev = BlockDev::open_file_as(disk.path(), Access::Exclusive, sector).unwrap();
    let mut gpt = gptman::GPT::new_from(&mut dev.cursor(), u64::from(sector), [9; 16]).unwrap();
    let start = MIB / u64::from(sector);
    gpt[1] = gptman::GPTPartitionEntry {
        partition_type_guid: table::Guid::LINUX_DATA.0,
        unique_partition_guid: [1; 16],
        starting_lba: start,
        ending_lba: 2 * start - 1,
        attribute_bits: 0,
        partition_name: "".into(),
    };
    gptman::GPT::write_protective_mbr_into(&mut dev.cursor(), u64::from(sector)).unwrap();
    gpt.write_into(&mut dev.cursor()).unwrap();
    disk
}

#[test]
fn inline_and_downloaded_content_give_the_same_image() {
    let iso = iso();
    let text = packed(&iso);
    let none = OneFile(Vec::new());
    assert_eq!(content(&decode(&text, "n", u64::MAX, &none, request).unwrap()), iso);
    let wrapped: String =
        text.as_bytes().chunks(76).map(|line| format!("{}\n", std::str::from_utf8(line).unwrap())).collect();
    assert_eq!(content(&decode(&wrapped, "n", u64::MAX, &none, request).unwrap()), iso);
    for body in [text.into_bytes(), iso.clone()] {
        assert_eq!(content(&decode("http://x/configdrive", "n", u64::MAX, &OneFile(body), request).unwrap()), iso);
    }
}

#[test]
fn text_from_a_server_is_refused_and_what_else_is_no_file_system_is_named() {
    for (body, want) in [
        ("\n<!DOCTYPE html>\n<html><body>404 \u{2014} not here</body></html>", "the URL has HTML or XML text"),
        ("{\"error\": \"no such container\"}", "the URL has plain text"),
    ] {
        for body in [body.to_owned(), body.repeat(40)] {
            let error = decode("http://x/c", "n", u64::MAX, &OneFile(body.clone().into_bytes()), request).unwrap_err();
            assert!(matches!(error, ConfigDriveError::NotBase64 { .. }), "{body}: {error}");
            assert!(ferric_types::error::chain(&error).ends_with(want), "{error}");
        }
    }
    let twice = STANDARD.decode(packed(b"x")).unwrap();
    for (image, want) in
        [(&b""[..], "nothing"), (&twice, "gzip inside of gzip"), (b"<html>", "text"), (&[0; 9], "unknown")]
    {
        let text = packed(image);
        let none = OneFile(Vec::new());
        assert_eq!(decode(&text, "n", u64::MAX, &none, request).unwrap().describe(), want);
    }
    let empty = decode("http://x/c", "n", u64::MAX, &OneFile(Vec::new()), request);
    assert!(matches!(empty, Err(ConfigDriveError::Gzip { .. })), "{empty:?}");
}

#[test]
fn malformed_and_oversized_content_is_refused() {
    let none = OneFile(Vec::new());
    assert!(matches!(decode("not base64!", "n", u64::MAX, &none, request), Err(ConfigDriveError::NotBase64 { .. })));
    assert!(matches!(decode("aGVsbG8=", "n", u64::MAX, &none, request), Err(ConfigDriveError::Gzip { .. })));
    let mut cut = packed(&iso());
    cut.truncate(cut.len() / 8 * 4);
    assert!(matches!(decode(&cut, "n", u64::MAX, &none, request), Err(ConfigDriveError::Gzip { .. })));
    let bomb = packed(&vec![0_u8; 65 << 20]);
    assert!(matches!(decode(&bomb, "n", u64::MAX, &none, request), Err(ConfigDriveError::TooLarge { .. })));
    let url = |size: usize, memory| decode("http://x/c", "n", memory, &OneFile(vec![0; size]), request);
    assert!(matches!(url(65 << 20, u64::MAX), Err(ConfigDriveError::TooLarge { .. })));
    assert!(matches!(url(90 << 20, u64::MAX), Err(ConfigDriveError::TooLarge { .. })));
    let error = url(9 << 20, 8 << 20).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the config drive for node n does not fit into the 8 MiB of memory that this machine can spare"
    );
    // Only base64, but not whole: never taken for the image of a file system.
    let cut = OneFile(b"AAAAA".to_vec());
    assert!(matches!(decode("http://x/c", "n", u64::MAX, &cut, request), Err(ConfigDriveError::NotBase64 { .. })));
}

/// 64 MiB and not a byte more, in whatever form they come; and as little beyond what pipes and buffers hold.
#[test]
fn the_limit_is_that_of_the_partition_to_the_byte() {
    let none = OneFile(Vec::new());
    let most = usize::try_from(MAX_BYTES).unwrap();
    for (size, fits) in [((64 << 10) + 1, true), (most, true), (most + 1, false)] {
        let image = vec![0; size];
        let text = packed(&image);
        let gzip = STANDARD.decode(&text).unwrap();
        let inline = decode(&text, "n", u64::MAX, &none, request);
        let served = [image, gzip, text.clone().into_bytes()]
            .map(|body| decode("http://x/c", "n", u64::MAX, &OneFile(body), request));
        for (form, payload) in [inline].into_iter().chain(served).enumerate() {
            match payload {
                Ok(payload) => {
                    assert!(fits && payload.size_bytes() == u64::try_from(size).unwrap(), "{size} in form {form}")
                }
                Err(error) => assert!(!fits && matches!(error, ConfigDriveError::TooLarge { .. }), "{size}: {error}"),
            }
        }
    }
}

#[test]
fn a_bomb_is_not_unpacked_to_its_end() {
    // 12.5 GiB in members of 64 MiB each.
    let member = STANDARD.decode(packed(&vec![0; 64 << 20])).unwrap();
    let bomb = STANDARD.encode(member.repeat(200));
    let begun = std::time::Instant::now();
    let error = decode(&bomb, "n", u64::MAX, &OneFile(Vec::new()), request).unwrap_err();
    assert!(matches!(error, ConfigDriveError::TooLarge { .. }), "{error}");
    assert!(begun.elapsed().as_secs() < 20, "{:?} for {} bytes", begun.elapsed(), bomb.len());
}

#[test]
fn only_http_is_fetched() {
    for input in ["file:///dev/zero", "ftp://h/c", "oci://h/c", "/dev/zero"] {
        let error = decode(input, "n", u64::MAX, &OneFile(iso()), request).unwrap_err();
        assert!(
            matches!(error, ConfigDriveError::NotBase64 { .. } | ConfigDriveError::Gzip { .. }),
            "{input}: {error}"
        );
    }
}

fn mbr_disk(size: u64, primaries: u32) -> TestDisk {
    let disk = TestDisk::zeroed(size).unwrap();
    let partition = |number: u32| Partition {
        number,
        start_bytes: u64::from(number) * MIB,
        size_bytes: MIB,
        kind: table::PartitionType::Mbr(0x83),
        guid: None,
        name: String::new(),
    };
    let partitions: Vec<Partition> = (1..=primaries).map(partition).collect();
    table::create(&disk.open().unwrap(), TableKind::Mbr, &partitions, None).unwrap();
    disk
}

/// Where it comes to lie on disks of every kind, and that it is found there again.
#[test]
fn every_disk_has_a_place_for_it() {
    const TIB: u64 = 1 << 40;
    let payload = Payload::plain(iso());
    for (case, disk, number, end) in [
        ("MBR", mbr_disk(256 * MIB, 1), 2, 256 * MIB),
        ("MBR with three", mbr_disk(256 * MIB, 3), 4, 256 * MIB),
        ("MBR, 3 TiB", mbr_disk(3 * TIB, 1), 2, 2 * TIB),
        ("GPT, 3 TiB", gpt_disk(3 * TIB, 512), 2, 3 * TIB),
        ("GPT, 4Kn, 15 TiB", gpt_disk(15 * TIB, 4096), 2, 15 * TIB),
    ] {
        let dev = disk.open().unwrap();
        let made = write(&dev, &payload, "n", false).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(made.number, number, "{case}");
        let made_end = made.start_bytes + made.size_bytes;
        assert!(made_end <= end && end - made_end <= 2 * MIB && made.size_bytes >= MAX_BYTES, "{case}: {made:?}");
        let label = filesystem::label(&dev, made.start_bytes, made.size_bytes);
        assert!(label.is_some_and(|label| label.eq_ignore_ascii_case(LABEL)), "{case}");
        assert_eq!(table::read(&dev).unwrap().unwrap().partitions.last(), Some(&made), "{case}");
        assert_eq!(write(&dev, &payload, "n", false).unwrap(), made, "{case}: not found again");
    }
}

#[test]
fn a_full_mbr_and_a_place_that_is_too_small_are_refused_in_words() {
    let full = mbr_disk(256 * MIB, 4);
    let error = write(&full.open().unwrap(), &Payload::plain(iso()), "n", false).unwrap_err();
    let shown = full.path().display();
    assert_eq!(
        error.to_string(),
        format!(
            "Config drive cannot be created for node n. Disk ({shown}) uses MBR partitioning and already has 4 primary \
             partitions."
        )
    );
    let disk = mbr_disk(256 * MIB, 1);
    let dev = disk.open().unwrap();
    dev.write_at(MIB, &iso()).unwrap();
    let mut large = iso();
    large.resize((1 << 20) + 1, 0);
    let error = write(&dev, &Payload::plain(large), "n", false).unwrap_err();
    let want = format!("partition 1 of {} has 1048576 bytes, the config drive has 1048577", disk.path().display());
    assert_eq!(error.to_string(), want);
    // One as small as the partition is put there.
    assert_eq!(write(&dev, &Payload::plain(iso()), "n", false).unwrap().number, 1);
}

#[test]
fn a_new_partition_at_the_end_holds_the_image_and_a_second_time_it_is_reused() {
    let disk = gpt_disk(256 * MIB, 512);
    let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
    let iso = iso();
    let text = packed(&iso);
    let payload = decode(&text, "n", u64::MAX, &OneFile(Vec::new()), request).unwrap();
    let first = write(&dev, &payload, "n", false).unwrap();
    assert_eq!(first.number, 2);
    assert_eq!(filesystem::label(&dev, first.start_bytes, first.size_bytes).as_deref(), Some("config-2"));
    let second = write(&dev, &Payload::plain(iso.clone()), "n", false).unwrap();
    assert_eq!(first, second);
    assert_eq!(table::validate(&dev).unwrap().partitions.len(), 2);
    let mut back = vec![0_u8; iso.len()];
    dev.read_at(first.start_bytes, &mut back).unwrap();
    assert!(back == iso);
}

#[test]
fn a_4kn_disk_gets_a_fat_with_the_same_files() {
    let disk = gpt_disk(256 * MIB, 4096);
    let dev = BlockDev::open_file_as(disk.path(), Access::Exclusive, 4096).unwrap();
    let text = packed(&iso());
    let payload = decode(&text, "n", u64::MAX, &OneFile(Vec::new()), request).unwrap();
    let made = write(&dev, &payload, "n", false).unwrap();
    assert_eq!(filesystem::label(&dev, made.start_bytes, made.size_bytes).as_deref(), Some("CONFIG-2"));
    let fs = fatfs::FileSystem::new(
        Slice::read_only(&dev, made.start_bytes, made.size_bytes),
        fatfs::FsOptions::new().update_accessed_date(false),
    )
    .unwrap();
    let mut text = String::new();
    fs.root_dir().open_file("openstack/latest/meta_data.json").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, r#"{"hostname": "node-1"}"#);
    let mut long = Vec::new();
    fs.root_dir().open_file("openstack/latest/a file with a long name.txt").unwrap().read_to_end(&mut long).unwrap();
    assert_eq!(long, vec![7_u8; 10_000]);
}

#[test]
fn behind_a_stale_gpt_it_goes_where_the_system_looks() {
    let disk = gpt_disk(256 * MIB, 512);
    let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
    // One Linux partition instead of the protective one.
    let mut entry = [0_u8; 16];
    (entry[4], entry[9], entry[13]) = (0x83, 8, 8);
    dev.write_at(446, &entry).unwrap();
    let made = write(&dev, &Payload::plain(iso()), "n", false).unwrap();
    assert_eq!(made.kind, table::PartitionType::Mbr(0x0c));
    assert_eq!(table::read(&dev).unwrap().unwrap().partitions[1], made);
}

#[test]
fn two_labelled_partitions_are_an_error_and_nothing_is_written() {
    let disk = gpt_disk(256 * MIB, 512);
    let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
    let iso = iso();
    let made = write(&dev, &Payload::plain(iso.clone()), "n", false).unwrap();
    dev.write_at(MIB, &iso).unwrap();
    let before = std::fs::read(disk.path()).unwrap();
    let error = write(&dev, &Payload::plain(iso.clone()), "n", false).unwrap_err();
    assert!(matches!(&error, ConfigDriveError::Ambiguous { numbers, .. } if *numbers == [1, made.number]), "{error}");
    assert!(std::fs::read(disk.path()).unwrap() == before);
}
