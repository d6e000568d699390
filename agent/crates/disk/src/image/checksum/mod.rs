//! The checksum an image must have, and computing it while the image passes by (deploy section 3).

use std::fmt;

use digest::{Digest, DynDigest};
use ferric_types::{ErrorClass, ImageInfo};
use ring::digest::Context;

use super::source::{Fetch, FetchRequest, SourceError, redacted};

mod list;

/// A checksum file that is longer than this is not one.
const LIST_LIMIT_BYTES: u64 = 4 << 20;

/// A hash function, by the name that Ironic (Python's hashlib) gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is the function of the same name")]
pub enum Algorithm {
    Md5,
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
    Sha3_224,
    Sha3_256,
    Sha3_384,
    Sha3_512,
    Blake2b,
    Blake2s,
}

impl Algorithm {
    /// Name and length of the digest in hex digits.
    const TABLE: [(Self, &'static str, usize); 12] = [
        (Self::Md5, "md5", 32),
        (Self::Sha1, "sha1", 40),
        (Self::Sha224, "sha224", 56),
        (Self::Sha256, "sha256", 64),
        (Self::Sha384, "sha384", 96),
        (Self::Sha512, "sha512", 128),
        (Self::Sha3_224, "sha3_224", 56),
        (Self::Sha3_256, "sha3_256", 64),
        (Self::Sha3_384, "sha3_384", 96),
        (Self::Sha3_512, "sha3_512", 128),
        (Self::Blake2b, "blake2b", 128),
        (Self::Blake2s, "blake2s", 64),
    ];

    /// The function of that name, in any case and with `-` for `_`; `sha2-256`, as OpenSSL writes it, is `sha256`.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase().replace('-', "_").replace("sha2_", "sha");
        Self::TABLE.iter().find(|(_, known, _)| *known == name).map(|(algorithm, ..)| *algorithm)
    }

    /// hashlib's name.
    pub fn name(self) -> &'static str {
        Self::TABLE.iter().find(|(algorithm, ..)| *algorithm == self).map_or("", |(_, name, _)| name)
    }

    /// Length of the digest in hex digits.
    pub fn hex_len(self) -> usize {
        Self::TABLE.iter().find(|(algorithm, ..)| *algorithm == self).map_or(0, |(.., len)| *len)
    }

    /// Begins a computation.
    pub fn hasher(self) -> Hasher {
        // ring's assembler is used for the functions that images have in practice: they are on the way of every byte.
        let ring = |algorithm| Inner::Ring(Box::new(Context::new(algorithm)));
        Hasher(match self {
            Self::Sha1 => ring(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY),
            Self::Sha256 => ring(&ring::digest::SHA256),
            Self::Sha384 => ring(&ring::digest::SHA384),
            Self::Sha512 => ring(&ring::digest::SHA512),
            Self::Md5 => Inner::Other(Box::new(md5::Md5::new())),
            Self::Sha224 => Inner::Other(Box::new(sha2::Sha224::new())),
            Self::Sha3_224 => Inner::Other(Box::new(sha3::Sha3_224::new())),
            Self::Sha3_256 => Inner::Other(Box::new(sha3::Sha3_256::new())),
            Self::Sha3_384 => Inner::Other(Box::new(sha3::Sha3_384::new())),
            Self::Sha3_512 => Inner::Other(Box::new(sha3::Sha3_512::new())),
            Self::Blake2b => Inner::Other(Box::new(blake2::Blake2b512::new())),
            Self::Blake2s => Inner::Other(Box::new(blake2::Blake2s256::new())),
        })
    }
}

enum Inner {
    Ring(Box<Context>),
    Other(Box<dyn DynDigest + Send>),
}

/// A checksum being computed.
pub struct Hasher(Inner);

impl Hasher {
    /// Takes in the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Inner::Ring(context) => context.update(bytes),
            Inner::Other(digest) => digest.update(bytes),
        }
    }

    /// The digest in lower-case hex.
    pub fn finish(self) -> String {
        match self.0 {
            Inner::Ring(context) => hex(context.finish().as_ref()),
            Inner::Other(digest) => hex(&digest.finalize()),
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
        text
    })
}

/// What the image's bytes as downloaded must hash to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    /// Hash function.
    pub algorithm: Algorithm,
    /// Digest in hex, as it was given.
    pub hex: String,
}

impl Checksum {
    /// Whether a digest is this one. Upper-case digits are as good as lower-case ones.
    pub fn matches(&self, hex: &str) -> bool {
        self.hex.eq_ignore_ascii_case(hex)
    }
}

/// No usable checksum. The texts are the reference agent's.
#[derive(Debug, thiserror::Error)]
pub enum ChecksumError {
    /// Neither field gives a function that is known here with a value.
    #[error(
        "Unable to verify image {id} with available checksums. Please make sure that the specified 'os_hash_algo' \
         ({algorithm}) is supported by this ramdisk, or provide a sha256 or sha512 checksum via the 'checksum' field."
    )]
    Unusable {
        /// Image.
        id: String,
        /// What `os_hash_algo` says.
        algorithm: String,
    },
    /// The length of `checksum` is that of no known function.
    #[error(
        "Unable to proceed with image {id} as the checksum indicator has been used but the algorithm could not be \
         identified. Error: a checksum of {len} characters is neither md5, sha256 nor sha512"
    )]
    UnknownLength {
        /// Image.
        id: String,
        /// Length of the value.
        len: usize,
    },
    /// The value is no digest of its function, so that nothing could ever match it.
    #[error(
        "Unable to verify image {id}: {text:?} is not a {algorithm} checksum, which has {digits} hexadecimal digits"
    )]
    Malformed {
        /// Image.
        id: String,
        /// The value, cut at 140 characters.
        text: String,
        /// Function.
        algorithm: &'static str,
        /// Length of its digests.
        digits: usize,
    },
    /// `checksum` is an MD5 digest, which is switched off.
    #[error(
        "Unable to proceed with image {id} as the checksum indicator has been used but the algorithm could not be \
         identified. Error: MD5 support is disabled by default; use sha256 or sha512, or set ipa-md5-enabled=true"
    )]
    Md5Disabled {
        /// Image.
        id: String,
    },
    /// The checksum file could not be downloaded.
    #[error("Download of image {url} failed")]
    Download {
        /// URL of the checksum file without secrets.
        url: String,
        /// Reason.
        #[source]
        source: SourceError,
    },
    /// The checksum file is of no use.
    #[error("Download of image {url} failed")]
    List {
        /// URL of the checksum file without secrets.
        url: String,
        /// Reason.
        #[source]
        source: ListError,
    },
}

/// What is wrong with a checksum file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ListError {
    /// It holds bytes that no text has.
    #[error("Invalid checksum file (it is no text)")]
    NotText,
    /// It has no lines.
    #[error("Empty checksum file")]
    Empty,
    /// Its only line is no digest.
    #[error("Invalid checksum file (No valid checksum found) [{text:?}]")]
    Invalid {
        /// The line, cut at 100 characters.
        text: String,
    },
    /// No line names the image file.
    #[error("Checksum file does not contain name {name}")]
    NotListed {
        /// Name of the image file.
        name: String,
    },
}

impl ChecksumError {
    /// Class on the wire.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Unusable { .. } | Self::UnknownLength { .. } | Self::Malformed { .. } | Self::Md5Disabled { .. } => {
                ErrorClass::Rest
            }
            Self::Download { source, .. } => source.class(),
            Self::List { .. } => ErrorClass::ImageDownload,
        }
    }
}

/// The checksum that `image_info` asks for; fetches it when it is given as a URL.
///
/// `template` says how the image server is reached (credentials, proxies); its URL is not used.
///
/// # Errors
/// Any [`ChecksumError`].
pub fn resolve(
    info: &ImageInfo,
    fetch: &dyn Fetch,
    template: &FetchRequest,
    md5_enabled: bool,
) -> Result<Checksum, ChecksumError> {
    let algorithm = info.os_hash_algo.as_deref().and_then(Algorithm::from_name);
    if let (Some(algorithm), Some(value)) = (algorithm, present(info.os_hash_value.as_deref())) {
        let hex = value_of(value, info, fetch, template, Some(algorithm))?;
        return checked(info, algorithm, hex);
    }
    let Some(value) = present(info.checksum.as_deref()) else {
        let algorithm = info.os_hash_algo.clone().unwrap_or_default();
        return Err(ChecksumError::Unusable { id: info.id().to_owned(), algorithm });
    };
    let hex = value_of(value, info, fetch, template, None)?;
    let id = || info.id().to_owned();
    let algorithm = match hex.len() {
        128 => Algorithm::Sha512,
        64 => Algorithm::Sha256,
        32 if md5_enabled => Algorithm::Md5,
        32 => return Err(ChecksumError::Md5Disabled { id: id() }),
        len => return Err(ChecksumError::UnknownLength { id: id(), len }),
    };
    checked(info, algorithm, hex)
}

/// Refuses a value that no digest could ever equal, before a disk is overwritten for nothing.
fn checked(info: &ImageInfo, algorithm: Algorithm, hex: String) -> Result<Checksum, ChecksumError> {
    if hex.len() == algorithm.hex_len() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(Checksum { algorithm, hex });
    }
    Err(ChecksumError::Malformed {
        id: info.id().to_owned(),
        text: hex.chars().take(140).collect(),
        algorithm: algorithm.name(),
        digits: algorithm.hex_len(),
    })
}

fn present(value: Option<&str>) -> Option<&str> {
    value.map(str::trim).filter(|value| !value.is_empty())
}

/// The value itself, or what the checksum file that it names says about the image.
fn value_of(
    value: &str,
    info: &ImageInfo,
    fetch: &dyn Fetch,
    template: &FetchRequest,
    algorithm: Option<Algorithm>,
) -> Result<String, ChecksumError> {
    if !is_url(value) {
        return Ok(value.to_owned());
    }
    let request = FetchRequest { url: value.to_owned(), ..template.clone() };
    let bytes = fetch
        .get(&request, LIST_LIMIT_BYTES)
        .map_err(|source| ChecksumError::Download { url: redacted(value), source })?;
    let image_url = info.urls.iter().flatten().next().map_or("", String::as_str);
    let text = if bytes.contains(&0) { Err(ListError::NotText) } else { Ok(String::from_utf8_lossy(&bytes)) };
    text.and_then(|text| list::find(&text, file_name(image_url), algorithm))
        .map_err(|source| ChecksumError::List { url: redacted(value), source })
}

fn is_url(value: &str) -> bool {
    ["http://", "https://"]
        .iter()
        .any(|scheme| value.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme)))
}

/// Last component of a URL's path.
fn file_name(url: &str) -> &str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let path = path.split_once("://").map_or(path, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    path.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
