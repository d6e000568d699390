//! The image that `lab deploy` is given: what can be said about it before a machine is booted.

use super::options::{DeployOptions, ImageFormat};
use crate::image_server::Content;
use crate::net::HOST_ADDRESS;
use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Sha224, Sha256, Sha384, Sha512};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// How long a server may take to answer when the lab looks whether it is there.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// The longest status line that is read.
const STATUS_LINE_BYTES: u64 = 1024;

/// Hash functions that the lab takes and computes: Ironic's name, hex digits of a digest.
const ALGORITHMS: [(&str, usize); 4] = [("sha256", 64), ("sha512", 128), ("sha384", 96), ("sha224", 56)];

/// A checksum on the command line: `sha256:HEX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    /// Ironic's name of the hash function.
    pub algorithm: &'static str,
    /// Digest in lower-case hex.
    pub hex: String,
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, hex) = text.split_once(':').ok_or_else(|| format!("{text:?} is not ALGORITHM:HEX"))?;
        let known = ALGORITHMS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let (algorithm, digits) = known.ok_or_else(|| {
            let names: Vec<&str> = ALGORITHMS.iter().map(|(name, _)| *name).collect();
            format!("{name:?} is no algorithm that is known here: {}", names.join(", "))
        })?;
        if let Some(wrong) = hex.chars().find(|c| !c.is_ascii_hexdigit()) {
            return Err(format!("{wrong:?} is no hex digit"));
        }
        if hex.len() != *digits {
            return Err(format!("{algorithm} has {digits} hex digits, not {}", hex.len()));
        }
        Ok(Checksum { algorithm, hex: hex.to_ascii_lowercase() })
    }
}

impl Checksum {
    /// The checksum of a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of_file(algorithm: &'static str, file: &Path) -> Result<Self> {
        let content = Content::File(file.to_owned());
        let hex = match algorithm {
            "sha224" => content.digest::<Sha224>()?,
            "sha256" => content.digest::<Sha256>()?,
            "sha384" => content.digest::<Sha384>()?,
            "sha512" => content.digest::<Sha512>()?,
            other => bail!("no function {other} is known here"),
        };
        Ok(Checksum { algorithm, hex })
    }

    /// Checks a file against this checksum.
    ///
    /// # Errors
    /// When it is another one, with both digests.
    pub fn check_file(&self, file: &Path) -> Result<()> {
        let found = Self::of_file(self.algorithm, file)?.hex;
        ensure!(
            found == self.hex,
            "{} is not the image that --checksum is of, and nothing was booted\n  {} of the file: {found}\n  \
             {} given:       {}",
            file.display(),
            self.algorithm,
            self.algorithm,
            self.hex
        );
        Ok(())
    }
}

/// Whether the image is on a server of its own, and not a file of this machine.
#[must_use]
pub fn is_url(image: &str) -> bool {
    image.contains("://")
}

/// What a deployment needs to know of its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedImage {
    /// Format of the image.
    pub format: ImageFormat,
    /// Checksum of the file.
    pub checksum: Checksum,
}

/// Looks at the image of `lab deploy`: all that can be known without a machine.
///
/// # Errors
/// When a file cannot be read or is not what the options say, when a URL has no checksum or is none of http or https.
pub fn check(options: &DeployOptions) -> Result<CheckedImage> {
    if is_url(&options.image) {
        let format = format_of_url(options)?;
        let checksum = options.checksum.clone().context("an image given by URL needs --checksum ALGORITHM:HEX")?;
        return Ok(CheckedImage { format, checksum });
    }
    let file = Path::new(&options.image);
    let format = format_of_file(file, options.format)?;
    let checksum = match &options.checksum {
        None => Checksum::of_file("sha256", file)?,
        Some(given) => given.check_file(file).map(|()| given.clone())?,
    };
    Ok(CheckedImage { format, checksum })
}

fn format_of_url(options: &DeployOptions) -> Result<ImageFormat> {
    let scheme = options.image.split("://").next().unwrap_or_default();
    ensure!(
        scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"),
        "{}: the agent downloads by http and https only",
        options.image
    );
    let path = options.image.split(['?', '#']).next().unwrap_or_default();
    let by_name = if path.ends_with(".qcow2") { ImageFormat::Qcow2 } else { ImageFormat::Raw };
    Ok(options.format.unwrap_or(by_name))
}

/// Files that begin like this are no disks: bytes, what they are. A disk image in one of these is to be unpacked or
/// converted first; what gzip, xz and zstd have packed the agent unpacks.
const NO_DISK: [(&[u8], &str); 5] = [
    (b"KDMV", "a VMDK image"),
    (b"# Disk DescriptorFile", "the description of a VMDK image"),
    (b"vhdxfile", "a VHDX image"),
    (b"<<< ", "a VDI image"),
    (b"BZh", "compressed with bzip2"),
];

/// Format of an image file: qcow2 is known by its first four bytes (`docs/interop/qcow2.txt` of QEMU), what is not known
/// for another format is raw. With `given` everything is taken as it is.
///
/// # Errors
/// When the file cannot be read, or is of a format that the agent does not write.
fn format_of_file(file: &Path, given: Option<ImageFormat>) -> Result<ImageFormat> {
    let mut start = Vec::new();
    let opened = fs::File::open(file).with_context(|| format!("opening the image {}", file.display()))?;
    opened.take(32).read_to_end(&mut start).with_context(|| format!("reading {}", file.display()))?;
    if let Some(format) = given {
        return Ok(format);
    }
    if let Some((_, what)) = NO_DISK.iter().find(|(magic, _)| start.starts_with(magic)) {
        let name = file.display();
        bail!(
            "{name} is {what}; the agent writes raw and qcow2 images (`qemu-img convert -O qcow2` makes one of others)"
        );
    }
    Ok(if start.starts_with(b"QFI\xfb") { ImageFormat::Qcow2 } else { ImageFormat::Raw })
}

/// What is wrong with an image's URL, as far as this machine can see; the guest's view may be another, so that this is
/// to warn of only.
#[must_use]
pub fn url_trouble(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    let (user, server) = authority.rsplit_once('@').map_or((None, authority), |(user, server)| (Some(user), server));
    let (host, port) = host_and_port(server, if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 });
    if host == "localhost" || host == "::1" || host.starts_with("127.") {
        return Some(format!("to the machine {host} is the machine itself; this host is {HOST_ADDRESS} to it"));
    }
    let seen_from_here = if host == HOST_ADDRESS { "127.0.0.1" } else { host };
    let stream = match connect(seen_from_here, port) {
        Ok(stream) => stream,
        Err(error) => return Some(format!("from here {host} port {port} does not answer ({error})")),
    };
    // Behind TLS and behind a log-in the answer is the agent's to see.
    if scheme.eq_ignore_ascii_case("https") || user.is_some() {
        return None;
    }
    let target = target.split('#').next().unwrap_or_default();
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    match status(stream, server, &target) {
        // 416: an empty file has no first byte.
        Ok(status) if status.code < 400 || status.code == 416 => None,
        Ok(status) => Some(format!("from here the server answers {}", status.line)),
        Err(error) => Some(format!("from here {host} port {port} does not answer as a web server ({error})")),
    }
}

fn host_and_port(server: &str, default: u16) -> (&str, u16) {
    if let Some((host, rest)) = server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':').and_then(|port| port.parse().ok()).unwrap_or(default));
    }
    match server.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().unwrap_or(default)),
        None => (server, default),
    }
}

fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ANSWER_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

struct Status {
    code: u16,
    line: String,
}

/// Asks for the first byte of a file and reads the answer's status.
fn status(mut stream: TcpStream, server: &str, target: &str) -> std::io::Result<Status> {
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {server}\r\nRange: bytes=0-0\r\nConnection: close\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(stream.take(STATUS_LINE_BYTES)).read_line(&mut line)?;
    let said = line.trim().strip_prefix("HTTP/1.").and_then(|rest| rest.split_once(' ')).map(|(_, status)| status);
    let code = said.and_then(|said| said.split(' ').next()).and_then(|code| code.parse().ok());
    match (code, said) {
        (Some(code), Some(said)) => Ok(Status { code, line: said.to_owned() }),
        _ => Err(std::io::Error::other(format!("it says {line:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{Action, Cli};
    use super::*;
    use crate::image_server::ImageServer;
    use clap::Parser as _;

    #[test]
    fn checksums_are_understood_or_explained() {
        let hex = "0123456789ABCDEF".repeat(4);
        let checksum = format!("SHA256:{hex}").parse::<Checksum>().unwrap();
        assert_eq!((checksum.algorithm, checksum.hex), ("sha256", hex.to_lowercase()));
        for (text, word) in [
            (hex.clone(), "not ALGORITHM:HEX"),
            (format!("crc32:{hex}"), "\"crc32\" is no algorithm that is known here: sha256, sha512"),
            (format!("sha512:{hex}"), "sha512 has 128 hex digits, not 64"),
            ("sha256:".to_owned(), "not 0"),
            (format!("sha256:{}x", &hex[1..]), "'x' is no hex digit"),
        ] {
            let error = text.parse::<Checksum>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_is_checked_against_the_checksum_and_both_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        // FIPS 180-2, appendix B.1: the digest of "abc".
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        format!("sha256:{right}").parse::<Checksum>().unwrap().check_file(file.path()).unwrap();
        let wrong = "0".repeat(64);
        let error = format!("sha256:{wrong}").parse::<Checksum>().unwrap().check_file(file.path()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(right) && text.contains(&wrong), "{text}");
        for (algorithm, digits) in ALGORITHMS {
            assert_eq!(Checksum::of_file(algorithm, file.path()).unwrap().hex.len(), digits, "{algorithm}");
        }
    }

    #[test]
    fn an_image_is_refused_before_anything_is_booted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        let path = file.path().to_str().unwrap();
        let zeros = format!("sha256:{}", "0".repeat(64));
        // FIPS 180-2, appendix B.1: the digest of "abc".
        let right = "sha256:BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
        let deploy = |arguments: &[&str]| {
            let cli = Cli::try_parse_from([&["lab", "deploy"], arguments].concat())?;
            let Action::Deploy(options) = cli.command else { bail!("another action") };
            check(&options)
        };
        for arguments in [&[path][..], &[path, "--checksum", right]] {
            let checked = deploy(arguments).unwrap();
            assert_eq!(format!("sha256:{}", checked.checksum.hex), right.to_lowercase(), "{arguments:?}");
        }
        deploy(&["http://h/i.img", "--checksum", right]).unwrap();
        for (arguments, why) in [
            (&[path, "--checksum", &zeros][..], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (&[path, "--checksum", &zeros], &zeros[7..]),
            (&[path, "--checksum", "sha256:12"], "sha256 has 64 hex digits, not 2"),
            (&["http://h/i.img", "--checksum", "sha256:12"], "sha256 has 64 hex digits, not 2"),
            (&["http://h/i.img", "--checksum", "sha9:12"], "no algorithm"),
            (&["http://h/i.img"], "needs --checksum"),
            (&["ftp://h/i.img", "--checksum", right], "http and https only"),
            (&[path, "--format", "vmdk"], "[possible values: raw, qcow2]"),
        ] {
            let text = format!("{:#}", deploy(arguments).unwrap_err());
            assert!(text.contains(why), "{arguments:?}: {text}");
        }
    }

    #[test]
    fn image_formats_are_told_by_the_first_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image");
        let write = |bytes: &[u8]| fs::write(&file, bytes).unwrap();
        for (bytes, format) in
            [(&b"QFI\xfb...."[..], ImageFormat::Qcow2), (&[0; 512], ImageFormat::Raw), (&[], ImageFormat::Raw)]
        {
            write(bytes);
            assert_eq!(format_of_file(&file, None).unwrap(), format);
        }
        for (magic, what) in NO_DISK {
            write(&[magic, &[0; 64]].concat());
            let error = format_of_file(&file, None).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("raw and qcow2"), "{error}");
            assert_eq!(format_of_file(&file, Some(ImageFormat::Raw)).unwrap(), ImageFormat::Raw, "{what}");
        }
        assert!(format_of_file(&dir.path().join("none"), Some(ImageFormat::Raw)).is_err());
    }

    #[test]
    fn a_url_that_does_not_answer_is_told() {
        let images = ImageServer::start().unwrap();
        images.add("/disk.img", Content::bytes("abc"));
        images.add("/empty.img", Content::bytes(""));
        // As the guest names it: the lab asks its own side of that address.
        let url = |path: &str| images.guest_url(path);
        for good in ["/disk.img", "/disk.img#part", "/empty.img"] {
            assert_eq!(url_trouble(&url(good)), None, "{good}");
        }
        let text = url_trouble(&url("/nosuch.img")).unwrap();
        assert!(text.contains("answers 404"), "{text}");
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = url_trouble(&format!("http://{HOST_ADDRESS}:{closed}/disk.img")).unwrap();
        assert!(text.contains("does not answer") && text.contains(&closed.to_string()), "{text}");
        for own in ["http://localhost/x", "http://127.0.0.1:80/x", "https://[::1]:8443/x", "http://u:p@localhost/x"] {
            let text = url_trouble(own).unwrap();
            assert!(text.contains("the machine itself") && !text.contains("u:p"), "{own}: {text}");
        }
    }
}
