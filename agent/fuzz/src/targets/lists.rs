//! Texts and archives that come with an image.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ferric_disk::boot::{csv as boot_csv, load_option};
use ferric_disk::configdrive::{self as drive, MAX_BYTES};
use ferric_disk::image::checksum::{self, Algorithm};
use ferric_disk::image::source::{Fetch, FetchRequest, ImageSource, SourceError};
use ferric_disk::table::{Guid, Partition, PartitionType};
use ferric_sys::testing::disk::TestDisk;
use ferric_types::ImageInfo;

use super::choice;

/// A server with one small file.
#[derive(Debug)]
struct Served<'a>(&'a [u8]);

impl Fetch for Served<'_> {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        Err(SourceError::Changed { url: request.url.clone() })
    }

    fn get(&self, request: &FetchRequest, limit: u64) -> Result<Vec<u8>, SourceError> {
        if u64::try_from(self.0.len()).unwrap() > limit {
            return Err(SourceError::TooLarge { url: request.url.clone(), limit });
        }
        Ok(self.0.to_vec())
    }
}

/// The list of boot entries of an EFI system partition, and the content of a boot variable.
pub fn csv(data: &[u8]) {
    for entry in boot_csv::entries(data) {
        assert!(!entry.loader.is_empty() && !entry.label.is_empty());
        let clean = |text: &str| text.chars().all(|c| !c.is_control());
        assert!(clean(&entry.loader) && clean(&entry.label), "{entry:?}");
        let path = format!("\\EFI\\x\\{}", entry.loader);
        let target = load_option::Target {
            partition: 1,
            start_lba: 2048,
            sectors: 2048,
            signature: load_option::Signature::Gpt(Guid::EFI_SYSTEM),
            path,
        };
        if let Some(option) = load_option::encode(&entry.label, &target) {
            assert_eq!(load_option::label(&option), Some(entry.label));
        }
    }
    let _any = load_option::label(data);
}

/// A file of checksums: what is taken from it is a digest of the right length.
pub fn checksums(data: &[u8]) {
    const ALGORITHMS: [Option<Algorithm>; 8] = [
        None,
        None,
        Some(Algorithm::Md5),
        Some(Algorithm::Sha1),
        Some(Algorithm::Sha256),
        Some(Algorithm::Sha512),
        Some(Algorithm::Sha384),
        Some(Algorithm::Sha224),
    ];
    let (flags, list) = choice(data);
    let algorithm = ALGORITHMS[usize::from(flags & 7)];
    let (list_url, image_url) = ("http://server/SHA256SUMS".to_owned(), "http://server/disk.img?x=1".to_owned());
    let info = ImageInfo {
        id: Some("image".to_owned()),
        urls: Some(vec![image_url]),
        checksum: Some(list_url.clone()),
        os_hash_algo: algorithm.map(|algorithm| algorithm.name().to_owned()),
        os_hash_value: algorithm.map(|_| list_url),
        ..ImageInfo::default()
    };
    if let Ok(found) = checksum::resolve(&info, &Served(list), &FetchRequest::default(), flags & 8 == 0) {
        assert_eq!(found.hex.len(), found.algorithm.hex_len());
        assert!(found.hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(algorithm.is_none_or(|algorithm| algorithm == found.algorithm));
        assert!(found.algorithm != Algorithm::Md5 || algorithm.is_some() || flags & 8 == 0);
    }
}

/// A config drive: text or a download as it is, or gzip and base64 made here around the input; then written as it is or
/// rebuilt as FAT.
pub fn configdrive(data: &[u8]) {
    const START_BYTES: u64 = 1 << 20;
    let (flags, content) = choice(data);
    let packed = if flags & 2 == 0 { content.to_vec() } else { gzip(content) };
    let text = if flags & 4 == 0 { packed } else { STANDARD.encode(packed).into_bytes() };
    let served = Served(&text);
    let as_text = String::from_utf8_lossy(&text);
    let input = if flags & 1 == 0 { "http://server/drive" } else { &*as_text };
    let request = |url: &str| FetchRequest { url: url.to_owned(), ..FetchRequest::default() };
    let Ok(payload) = drive::decode(input, "node", MAX_BYTES, &served, request) else { return };
    assert!(payload.size_bytes() <= MAX_BYTES);
    if payload.size_bytes() > 1 << 20 {
        return;
    }
    let sector = if flags & 8 == 0 { 512 } else { 4096 };
    let disk = TestDisk::zeroed(START_BYTES * 2 + MAX_BYTES).unwrap().sector(sector);
    let dev = disk.open().unwrap();
    let partition = Partition {
        number: 1,
        start_bytes: START_BYTES,
        size_bytes: MAX_BYTES,
        kind: PartitionType::Gpt(Guid::LINUX_DATA),
        guid: None,
        name: String::new(),
    };
    assert!(drive::room_bytes(&payload, sector, flags & 16 == 0) <= MAX_BYTES);
    let _any = drive::write_into(&dev, &payload, &partition, "node", flags & 16 == 0);
    assert!(disk.bytes(0, 4096).unwrap() == [0; 4096], "something was written before the partition");
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}
