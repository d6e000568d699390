//! Which format an image has, decided from its first bytes before anything is written (deploy section 4).

use ferric_types::ErrorClass;

use super::compressed::FileCompression;
use super::qcow2::Qcow2Error;

/// How much of the beginning of an image is looked at: up to the ISO 9660 descriptor at 32 KiB.
pub const PROBE_BYTES: usize = 64 << 10;

/// Image formats that can be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is the format of the same name")]
pub enum Format {
    Raw,
    /// A raw disk with a partition table; written like any raw image.
    Gpt,
    Qcow2,
    Vmdk,
    Vhd,
    Vhdx,
    Vdi,
    Qed,
    Luks,
    Iso,
}

impl Format {
    const NAMES: [(Self, &'static str); 10] = [
        (Self::Raw, "raw"),
        (Self::Gpt, "gpt"),
        (Self::Qcow2, "qcow2"),
        (Self::Vmdk, "vmdk"),
        (Self::Vhd, "vhd"),
        (Self::Vhdx, "vhdx"),
        (Self::Vdi, "vdi"),
        (Self::Qed, "qed"),
        (Self::Luks, "luks"),
        (Self::Iso, "iso"),
    ];

    /// The format of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.trim();
        Self::NAMES.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(format, _)| *format)
    }

    /// Ironic's name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(format, _)| *format == self).map_or("", |(_, name)| name)
    }

    /// Formats by name, as `permitted_image_formats` gives them; names of no known format are left out.
    pub fn list<S: AsRef<str>>(names: &[S]) -> Vec<Self> {
        names.iter().filter_map(|name| Self::from_name(name.as_ref())).collect()
    }
}

/// How the bytes of an image become the bytes of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// As they are.
    Raw,
    /// Through the tables of a qcow2 file.
    Qcow2,
    /// Through the tables or markers of a VMDK file.
    Vmdk,
    /// Through the table of a dynamic VHD file.
    Vhd,
    /// As they are, but for the footer at the end of a fixed VHD file.
    FixedVhd,
    /// As they come out of a compressed file; [`check_content`] judges them.
    Compressed(FileCompression),
}

/// Why an image is refused by its format. The texts that begin with `Security:` are the reference agent's.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The first bytes fit more than one format.
    #[error("Security: Image matched multiple potential formats")]
    Ambiguous {
        /// The formats.
        formats: Vec<&'static str>,
    },
    /// The format is not among those that Ironic permits.
    #[error("Security: Detected image format was {detected}, but only {permitted} are allowed")]
    NotPermitted {
        /// What the image is.
        detected: &'static str,
        /// What it may be.
        permitted: String,
    },
    /// The image is not what Ironic says it is.
    #[error("Security: Expected format was {declared}, but image was actually {detected}")]
    Mismatch {
        /// What Ironic says.
        declared: String,
        /// What the image is.
        detected: &'static str,
    },
    /// The partition table of a disk image makes no sense.
    #[error("Security: Image failed safety check: {reason}")]
    UnsafeTable {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The qcow2 file refers to other files, needs features that are not known, or makes no sense.
    #[error("Security: Image failed safety check")]
    Qcow2(#[source] Qcow2Error),
    /// The VMDK or VHD file refers to other files, needs features that are not known, or makes no sense.
    #[error("Security: Image failed safety check: the {format} file {reason}")]
    UnsafeFile {
        /// Format.
        format: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The format is permitted, but there is no reader for it here.
    #[error("images in the format {format} cannot be written by this agent; convert it to qcow2 or raw")]
    NoReader {
        /// What the image is.
        format: &'static str,
    },
    /// Only a raw disk may be in a compressed file: any other format would have to be unpacked first.
    #[error(
        "the {compression} file holds an image in the format {detected}; only raw images may be compressed as a whole"
    )]
    CompressedNotRaw {
        /// How the file is compressed.
        compression: FileCompression,
        /// What is in it.
        detected: &'static str,
    },
    /// There is nothing in the image.
    #[error("the image is empty")]
    Empty,
}

impl FormatError {
    /// Class on the wire.
    pub const fn class(&self) -> ErrorClass {
        ErrorClass::InvalidImage
    }
}

/// Chooses how an image is read, or refuses it.
///
/// `declared` is Ironic's `disk_format`: `raw` and `gpt` are believed and written as they are, none and `unknown` leave
/// the choice to the content, anything else must be what the content says. A raw image may be compressed as a whole.
/// `prefix` holds the first [`PROBE_BYTES`] of the image, or all of it. Without `deep` a partition table is not judged.
///
/// # Errors
/// Any [`FormatError`] but [`FormatError::Qcow2`] and [`FormatError::UnsafeFile`].
pub fn choose(
    declared: Option<&str>,
    prefix: &[u8],
    permitted: &[Format],
    deep: bool,
) -> Result<(Format, Reader), FormatError> {
    let declared = declared.map(str::trim).filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("unknown"));
    if prefix.is_empty() {
        return Err(FormatError::Empty);
    }
    let compression = FileCompression::detect(prefix);
    if let Some(format @ (Format::Raw | Format::Gpt)) = declared.and_then(Format::from_name) {
        return Ok((format, compression.map_or(Reader::Raw, Reader::Compressed)));
    }
    if let Some(compression) = compression {
        if let Some(declared) = declared {
            return Err(FormatError::Mismatch { declared: declared.to_owned(), detected: compression.name() });
        }
        check_permitted(Format::Raw, permitted)?;
        return Ok((Format::Raw, Reader::Compressed(compression)));
    }
    let format = detect(prefix, deep)?;
    check_table(format, prefix, deep)?;
    // Only its last sector, which is not at hand yet, tells a fixed VHD file from a raw disk.
    if matches!(format, Format::Raw | Format::Gpt)
        && declared.and_then(Format::from_name) == Some(Format::Vhd)
        && permitted.contains(&Format::Vhd)
    {
        return Ok((Format::Vhd, Reader::FixedVhd));
    }
    check_permitted(format, permitted)?;
    if let Some(declared) = declared.filter(|name| Format::from_name(name) != Some(format)) {
        return Err(FormatError::Mismatch { declared: declared.to_owned(), detected: format.name() });
    }
    match format {
        Format::Raw | Format::Gpt | Format::Iso => Ok((format, Reader::Raw)),
        Format::Qcow2 => Ok((format, Reader::Qcow2)),
        Format::Vmdk => Ok((format, Reader::Vmdk)),
        Format::Vhd => Ok((format, Reader::Vhd)),
        other => Err(FormatError::NoReader { format: other.name() }),
    }
}

/// Judges the content of a compressed file by its first bytes, as [`choose`] does with a raw image that is declared as
/// such (`believed`) or not. Gives its format.
///
/// # Errors
/// [`FormatError::Empty`], [`FormatError::CompressedNotRaw`], and for content that is not believed [`FormatError::Ambiguous`],
/// [`FormatError::NotPermitted`] and [`FormatError::UnsafeTable`].
pub fn check_content(
    compression: FileCompression,
    prefix: &[u8],
    believed: bool,
    permitted: &[Format],
    deep: bool,
) -> Result<Format, FormatError> {
    if prefix.is_empty() {
        return Err(FormatError::Empty);
    }
    let not_raw = |detected| FormatError::CompressedNotRaw { compression, detected };
    if let Some(inner) = FileCompression::detect(prefix) {
        return Err(not_raw(inner.name()));
    }
    let format = detect(prefix, deep && !believed)?;
    if !matches!(format, Format::Raw | Format::Gpt | Format::Iso) {
        return Err(not_raw(format.name()));
    }
    if !believed {
        check_table(format, prefix, deep)?;
        check_permitted(format, permitted)?;
    }
    Ok(format)
}

fn check_permitted(format: Format, permitted: &[Format]) -> Result<(), FormatError> {
    if permitted.contains(&format) {
        return Ok(());
    }
    let permitted = permitted.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ");
    Err(FormatError::NotPermitted { detected: format.name(), permitted })
}

fn check_table(format: Format, prefix: &[u8], deep: bool) -> Result<(), FormatError> {
    if format == Format::Gpt && deep {
        check_mbr(prefix).map_err(|reason| FormatError::UnsafeTable { reason })?;
    }
    Ok(())
}

/// The format that the first bytes show. Without `deep` the first match is taken.
fn detect(prefix: &[u8], deep: bool) -> Result<Format, FormatError> {
    // Format, offset, bytes there.
    const MAGIC: [(Format, usize, &[u8]); 10] = [
        (Format::Qcow2, 0, b"QFI\xfb"),
        (Format::Vmdk, 0, b"KDMV"),
        (Format::Vmdk, 0, b"COWD"),
        (Format::Vmdk, 0, b"# Disk DescriptorFile"),
        (Format::Vhd, 0, b"conectix"),
        (Format::Vhdx, 0, b"vhdxfile"),
        (Format::Vdi, 0x40, b"\x7f\x10\xda\xbe"),
        (Format::Qed, 0, b"QED\0"),
        (Format::Luks, 0, b"LUKS\xba\xbe"),
        (Format::Iso, 0x8001, b"CD001"),
    ];
    let starts = |offset: usize, magic: &[u8]| prefix.get(offset..).is_some_and(|bytes| bytes.starts_with(magic));
    let mut found: Vec<Format> =
        MAGIC.iter().filter(|(_, offset, magic)| starts(*offset, magic)).map(|(format, ..)| *format).collect();
    if starts(510, &[0x55, 0xaa]) && !is_fat(prefix) {
        found.push(Format::Gpt);
    }
    match found.as_slice() {
        [] => Ok(Format::Raw),
        [format] => Ok(*format),
        [format, ..] if !deep => Ok(*format),
        several => Err(FormatError::Ambiguous { formats: several.iter().map(|format| format.name()).collect() }),
    }
}

/// A FAT boot sector carries the signature of an MBR too; it begins with a jump and has 1 or 2 FATs and a media byte.
pub(super) fn is_fat(prefix: &[u8]) -> bool {
    let byte = |offset: usize| prefix.get(offset).copied().unwrap_or_default();
    matches!(byte(0), 0xeb | 0xe9) && matches!(byte(0x10), 1 | 2) && byte(0x15) >= 0xf0
}

/// The rules that the reference agent has for a partition table in sector 0.
fn check_mbr(prefix: &[u8]) -> Result<(), &'static str> {
    let table = prefix.get(446..510).ok_or("the partition table is cut short")?;
    let (entries, _) = table.as_chunks::<16>();
    if entries.iter().any(|entry| !matches!(entry[0], 0x00 | 0x80)) {
        return Err("a partition has an unknown boot flag");
    }
    let used = entries.iter().filter(|entry| entry[4] != 0).count();
    if used == 0 {
        return Err("the partition table has no partition");
    }
    if let Some(protective) = entries.iter().find(|entry| entry[4] == 0xee) {
        if used > 1 {
            return Err("a GPT's protective partition is not the only one");
        }
        if protective[1..4] != [0x00, 0x02, 0x00] || protective[8..12] != [1, 0, 0, 0] {
            return Err("a GPT's protective partition does not begin at sector 1");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: [Format; 3] = [Format::Raw, Format::Gpt, Format::Qcow2];

    fn with(offset: usize, magic: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; PROBE_BYTES];
        bytes[offset..offset + magic.len()].copy_from_slice(magic);
        bytes
    }

    fn mbr(entries: &[[u8; 16]]) -> Vec<u8> {
        let mut bytes = with(510, &[0x55, 0xaa]);
        for (index, entry) in entries.iter().enumerate() {
            bytes[446 + index * 16..][..16].copy_from_slice(entry);
        }
        bytes
    }

    const LINUX: [u8; 16] = [0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0];
    const PROTECTIVE: [u8; 16] = [0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 255, 255, 0, 0];

    #[test]
    fn every_signature_is_known_and_the_rest_is_raw() {
        let permitted: Vec<Format> = Format::NAMES.iter().map(|(format, _)| *format).collect();
        for (want, bytes) in [
            ("qcow2", with(0, b"QFI\xfb")),
            ("vmdk", with(0, b"KDMV\x01")),
            ("vmdk", with(0, b"# Disk DescriptorFile\n")),
            ("vhd", with(0, b"conectix")),
            ("vhdx", with(0, b"vhdxfile")),
            ("vdi", with(0x40, &0xbeda_107f_u32.to_le_bytes())),
            ("qed", with(0, b"QED\0")),
            ("luks", with(0, b"LUKS\xba\xbe\0\x02")),
            ("iso", with(0x8001, b"CD001")),
            ("gpt", mbr(&[PROTECTIVE])),
            ("gpt", mbr(&[LINUX])),
            ("raw", vec![0; 100]),
            ("raw", with(0, b"\xeb\x3c\x90mkfs")),
        ] {
            let detected = detect(&bytes, true).unwrap();
            assert_eq!(detected.name(), want);
            match choose(Some(want), &bytes, &permitted, true) {
                Ok((format, _)) => assert_eq!(format, detected),
                Err(FormatError::NoReader { format }) => assert_eq!(format, want),
                Err(error) => panic!("{want}: {error}"),
            }
        }
        let mut fat = mbr(&[]);
        (fat[0], fat[0x10], fat[0x15]) = (0xeb, 2, 0xf8);
        assert_eq!(detect(&fat, true).unwrap(), Format::Raw);
    }

    #[test]
    fn raw_is_believed_and_written_as_it_is() {
        let qcow2 = with(0, b"QFI\xfb");
        assert_eq!(choose(Some("raw"), &qcow2, &DEFAULT, true).unwrap(), (Format::Raw, Reader::Raw));
        assert_eq!(choose(Some("gpt"), &qcow2, &[], true).unwrap().1, Reader::Raw);
    }

    #[test]
    fn an_undeclared_image_is_what_it_shows() {
        for declared in [None, Some(""), Some("unknown"), Some("UNKNOWN")] {
            let choice = |bytes: &[u8]| choose(declared, bytes, &DEFAULT, true).unwrap();
            assert_eq!(choice(&with(0, b"QFI\xfb")), (Format::Qcow2, Reader::Qcow2), "{declared:?}");
            assert_eq!(choice(&mbr(&[PROTECTIVE])), (Format::Gpt, Reader::Raw), "{declared:?}");
            assert_eq!(choice(&[1; 512]), (Format::Raw, Reader::Raw), "{declared:?}");
        }
    }

    #[test]
    fn refusals_have_the_reference_texts() {
        let mut hybrid = mbr(&[LINUX]);
        hybrid[0x8001..0x8006].copy_from_slice(b"CD001");
        for (declared, bytes, want) in [
            (Some("qcow2"), mbr(&[LINUX]), "Security: Expected format was qcow2, but image was actually gpt"),
            (Some("vmdk"), with(0, b"QFI\xfb"), "Security: Expected format was vmdk, but image was actually qcow2"),
            (None, with(0, b"QED\0"), "Security: Detected image format was qed, but only raw, gpt, qcow2 are allowed"),
            (None, hybrid, "Security: Image matched multiple potential formats"),
            (None, mbr(&[]), "Security: Image failed safety check"),
            (None, mbr(&[PROTECTIVE, LINUX]), "Security: Image failed safety check"),
            (None, mbr(&[[7; 16]]), "Security: Image failed safety check"),
            (Some("qcow2"), vec![], "the image is empty"),
            (Some("raw"), vec![], "the image is empty"),
        ] {
            let error = choose(declared, &bytes, &DEFAULT, true).unwrap_err();
            assert!(error.to_string().starts_with(want), "{error} / {want}");
            assert_eq!(error.class(), ErrorClass::InvalidImage);
        }
    }

    #[test]
    fn shallow_inspection_does_not_judge_tables() {
        assert_eq!(choose(None, &mbr(&[]), &DEFAULT, false).unwrap().0, Format::Gpt);
    }

    #[test]
    fn permitted_formats_are_read_by_name() {
        assert_eq!(Format::list(&["raw", " QCOW2", "vdmk", "iso"]), [Format::Raw, Format::Qcow2, Format::Iso]);
    }
}
