use std::io::Read;

use proptest::prelude::*;

use super::*;
use crate::image::source::ImageSource;

/// Serves one text for every URL and remembers nothing.
#[derive(Debug)]
struct Text(&'static str);

impl Fetch for Text {
    fn open(&self, _request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        Ok(Box::new(Nothing))
    }

    fn get(&self, request: &FetchRequest, limit: u64) -> Result<Vec<u8>, SourceError> {
        if u64::try_from(self.0.len()).unwrap() > limit {
            return Err(SourceError::TooLarge { url: request.url.clone(), limit });
        }
        Ok(self.0.as_bytes().to_vec())
    }
}

struct Nothing;

impl ImageSource for Nothing {
    fn size_bytes(&self) -> Option<u64> {
        Some(0)
    }
    fn has_ranges(&self) -> bool {
        false
    }
    fn stream(&mut self, _offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        Ok(Box::new(std::io::empty()))
    }
    fn read_exact_at(&mut self, _offset: u64, _buf: &mut [u8]) -> Result<(), SourceError> {
        Ok(())
    }
}

const MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";
const SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn info(checksum: Option<&str>, pair: Option<(&str, &str)>) -> ImageInfo {
    ImageInfo {
        id: Some("cirros".to_owned()),
        urls: Some(vec!["http://h:80/images/disk.qcow2?sig=1".to_owned()]),
        checksum: checksum.map(str::to_owned),
        os_hash_algo: pair.map(|(algorithm, _)| algorithm.to_owned()),
        os_hash_value: pair.map(|(_, value)| value.to_owned()),
        ..ImageInfo::default()
    }
}

fn resolved(info: &ImageInfo, file: &'static str) -> Result<Checksum, ChecksumError> {
    resolve(info, &Text(file), &FetchRequest::default(), false)
}

#[test]
fn digests_of_nothing_and_of_abc_are_the_published_ones() {
    for (algorithm, want) in [
        (Algorithm::Md5, "900150983cd24fb0d6963f7d28e17f72"),
        (Algorithm::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (Algorithm::Sha224, "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"),
        (Algorithm::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            Algorithm::Sha384,
            "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
        ),
        (Algorithm::Sha3_256, "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
        (Algorithm::Blake2s, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"),
    ] {
        let mut hasher = algorithm.hasher();
        hasher.update(b"a");
        hasher.update(b"bc");
        let hex = hasher.finish();
        assert_eq!(hex, want, "{}", algorithm.name());
    }
    for (algorithm, name, len) in Algorithm::TABLE {
        let hex = algorithm.hasher().finish();
        assert_eq!((hex.len(), Algorithm::from_name(name)), (len, Some(algorithm)), "{name}");
    }
    assert_eq!(Algorithm::from_name("SHA3-512"), Some(Algorithm::Sha3_512));
    assert_eq!(Algorithm::from_name("crc32"), None);
}

#[test]
fn the_pair_comes_before_the_old_field() {
    let digest = "AB".repeat(64);
    let both = info(Some(MD5), Some(("sha512", &digest)));
    assert_eq!(resolved(&both, "").unwrap(), Checksum { algorithm: Algorithm::Sha512, hex: digest });
    let unknown = info(Some(SHA256), Some(("whirlpool", "ab")));
    assert_eq!(resolved(&unknown, "").unwrap().algorithm, Algorithm::Sha256);
}

#[test]
fn digits_match_in_either_case() {
    let checksum = Checksum { algorithm: Algorithm::Md5, hex: MD5.to_uppercase() };
    assert!(checksum.matches(MD5));
    assert!(!checksum.matches(&MD5.replace('e', "f")));
}

#[test]
fn what_cannot_be_used_says_why() {
    let long = "a".repeat(40);
    for (info, want) in [
        (info(None, None), "Unable to verify image cirros with available checksums."),
        (info(None, Some(("whirlpool", "ab"))), "(whirlpool)"),
        (info(None, Some(("sha256", "abc"))), "\"abc\" is not a sha256 checksum, which has 64 hexadecimal digits"),
        (info(None, Some(("sha256", "file:///etc/x"))), "is not a sha256 checksum"),
        (info(Some(&"z".repeat(64)), None), "is not a sha256 checksum"),
        (info(Some(MD5), None), "MD5 support is disabled"),
        (info(Some(&long), None), "Unable to proceed with image cirros as the checksum indicator has been used"),
    ] {
        let error = resolved(&info, "").unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
        assert_eq!(error.class(), ErrorClass::Rest, "{error}");
    }
    let md5 = resolve(&info(Some(MD5), None), &Text(""), &FetchRequest::default(), true).unwrap();
    assert_eq!(md5.algorithm, Algorithm::Md5);
}

#[test]
fn checksum_files_of_every_kind_are_read() {
    let other = "00000000000000000000000000000000000000000000000000000000000000ff";
    let cases = [
        ("one line", format!("{SHA256}\n")),
        ("blank lines around", format!("\n\n  {SHA256}  \n\n")),
        ("GNU", format!("{other}  other.qcow2\n{SHA256}  disk.qcow2\n")),
        ("GNU binary", format!("{other} *other.qcow2\n{SHA256} *disk.qcow2\n")),
        ("CRLF", format!("{other}  other.qcow2\r\n{SHA256}  disk.qcow2\r\n")),
        ("one GNU line", format!("{SHA256}  disk.qcow2")),
        ("BSD", format!("SHA256 (other.qcow2) = {other}\nSHA256 (disk.qcow2) = {SHA256}\n")),
        ("CentOS", format!("# disk.qcow2: 1024 bytes\nSHA256 (disk.qcow2) = {SHA256}\n")),
        ("BSD, several functions", format!("SHA1 (disk.qcow2) = {}\nSHA256 (disk.qcow2) = {SHA256}", "a".repeat(40))),
        ("longer name first", format!("{other}  my-disk.qcow2\n{other}  disk.qcow2.sig\n{SHA256}  disk.qcow2\n")),
        ("begins with a mark", format!("\u{feff}{SHA256}  disk.qcow2\r\n{other}  other.qcow2\r\n")),
        ("only a mark and a digest", format!("\u{feff}{SHA256}\r\n")),
        ("made here", format!("{other}  ./my/disk.qcow2\n{other} *./other.qcow2\n{SHA256} *./disk.qcow2\n")),
        ("BSD, made here", format!("SHA256 (my/disk.qcow2) = {other}\nSHA256 (./disk.qcow2) = {SHA256}\n")),
        ("OpenSSL", format!("SHA512(disk.qcow2)= {}\nSHA2-256(disk.qcow2)= {SHA256}\n", "b".repeat(127))),
        ("tabs", format!("{other}\tother.qcow2\n{SHA256}\tdisk.qcow2\n")),
        ("digest behind", format!("disk.qcow2 {other}\n(disk.qcow2) {SHA256}\n")),
        ("no newline at the end, CRLF before", format!("{other} *other.qcow2\r\n\r\n{SHA256} *disk.qcow2")),
        (
            "several of CentOS",
            format!(
                "# disk.qcow2.manifest: 9 bytes\nSHA256 (disk.qcow2.manifest) = {other}\n# disk.qcow2: 1024 bytes\n\
                 SHA256 (disk.qcow2) = {SHA256}\n# disk.raw: 2048 bytes\nSHA256 (disk.raw) = {other}\n"
            ),
        ),
        ("signed", format!("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{SHA256} *disk.qcow2\n")),
    ];
    for (name, file) in cases {
        assert_eq!(list::find(&file, "disk.qcow2", None).as_deref(), Ok(SHA256), "{name}");
        assert_eq!(list::find(&file, "disk.qcow2", Some(Algorithm::Sha256)).as_deref(), Ok(SHA256), "{name}");
    }
}

/// Every usual length is told by itself, in capitals too, and digits in capitals match what is computed.
#[test]
fn digests_of_a_list_may_be_in_capitals_and_of_any_length() {
    for (algorithm, tag) in [(Algorithm::Md5, "MD5"), (Algorithm::Sha256, "SHA256"), (Algorithm::Sha512, "sha512")] {
        let digest = algorithm.hasher().finish();
        for list in [
            digest.to_uppercase(),
            format!("{}  disk.qcow2", digest.to_uppercase()),
            format!("{tag} (disk.qcow2) = {}", digest.to_uppercase()),
        ] {
            let found = list::find(&list, "disk.qcow2", None).unwrap();
            let found = Checksum { algorithm, hex: found };
            assert!(found.matches(&digest), "{list}");
        }
    }
    // Where the conductor names the function, every function can be in a list.
    for (algorithm, name, _) in Algorithm::TABLE {
        let digest = algorithm.hasher().finish();
        let list =
            format!("{}  other\n{name} (disk.qcow2) = {digest}\n{digest} *disk.qcow2\n", "0".repeat(digest.len()));
        assert_eq!(list::find(&list, "disk.qcow2", Some(algorithm)), Ok(digest), "{name}");
    }
}

proptest! {
    #[test]
    fn any_list_is_read_or_refused(text in ".{0,200}", name in ".{0,20}") {
        let _found = list::find(&text, &name, None);
    }

    #[test]
    fn a_list_gives_the_digest_of_its_file_whatever_is_around_it(before in "[ -~\n]{0,100}", digest in "[0-9a-fA-F]{64}") {
        let list = format!("# {}\nx\n{digest} *the-image\n", before.replace("the-image", ""));
        prop_assert_eq!(list::find(&list, "the-image", None), Ok(digest));
    }
}

#[test]
fn useless_checksum_files_are_refused() {
    for (file, want) in [
        ("\n \r\n", ListError::Empty),
        ("<html>", ListError::Invalid { text: "<html>".to_owned() }),
        ("abcd", ListError::Invalid { text: "abcd".to_owned() }),
        ("ab disk.qcow2", ListError::NotListed { name: "disk.qcow2".to_owned() }),
        ("x y\nz", ListError::NotListed { name: "disk.qcow2".to_owned() }),
    ] {
        assert_eq!(list::find(file, "disk.qcow2", None).unwrap_err(), want, "{file:?}");
    }
    let commented = format!("#{SHA256}  disk.qcow2\n# end");
    assert!(list::find(&commented, "disk.qcow2", None).is_err());
    assert!(list::find(&format!("{SHA256}  \nx"), "", None).is_err());
}

#[test]
fn a_value_may_be_the_address_of_a_checksum_file() {
    let file = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  disk.qcow2\n";
    for info in [info(Some("https://h/SHA256SUMS"), None), info(None, Some(("sha256", "http://user:pw@h/SHA256SUMS")))]
    {
        let checksum = resolved(&info, file).unwrap();
        assert_eq!(checksum, Checksum { algorithm: Algorithm::Sha256, hex: SHA256.to_owned() });
    }
    let error = resolved(&info(Some("http://user:pw@h/SUMS?t=1"), None), "").unwrap_err();
    assert_eq!(error.class(), ErrorClass::ImageDownload);
    let text = ferric_types::error::chain(&error);
    assert_eq!(text, "Download of image http://h/SUMS failed: Empty checksum file");
    let error = resolved(&info(Some("http://h/SUMS"), None), "\0\u{1b}[31m\n\0").unwrap_err();
    let text = ferric_types::error::chain(&error);
    assert_eq!(text, "Download of image http://h/SUMS failed: Invalid checksum file (it is no text)");
}

#[test]
fn the_image_file_is_named_by_its_path() {
    for (url, want) in [
        ("http://h/a/b.img?x=/y", "b.img"),
        ("http://h/b.img#f", "b.img"),
        ("http://h/", ""),
        ("http://h", ""),
        ("b.img", "b.img"),
    ] {
        assert_eq!(file_name(url), want, "{url}");
    }
}
