//! `EFI_LOAD_OPTION`: the content of a `Boot####` variable (UEFI specification 2.10, sections 3.1.3 and 10.3).

use crate::table::Guid;

/// Attribute of an entry that the boot manager tries.
const ACTIVE: u32 = 1;

/// A partition and a file on it, as a boot entry names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Partition number.
    pub partition: u32,
    /// First sector of the partition, in logical sectors.
    pub start_lba: u64,
    /// Length of the partition, in logical sectors.
    pub sectors: u64,
    /// What tells the partition's disk from others.
    pub signature: Signature,
    /// Path such as `\EFI\BOOT\BOOTX64.EFI`.
    pub path: String,
}

/// How a boot entry tells disks apart (UEFI specification 2.10, section 10.3.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signature {
    /// GUID of the partition, with a GPT.
    Gpt(Guid),
    /// Identifier of the disk, as it stands in an MBR.
    Mbr([u8; 4]),
}

impl Signature {
    /// 16 bytes of signature, the kind of the table and that of the signature.
    fn bytes(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        match self {
            Self::Gpt(guid) => {
                bytes[..16].copy_from_slice(&guid.0);
                bytes[16..].copy_from_slice(&[2, 2]);
            }
            Self::Mbr(id) => {
                bytes[..4].copy_from_slice(&id);
                bytes[16..].copy_from_slice(&[1, 1]);
            }
        }
        bytes
    }
}

/// Encodes a boot entry; `None` when the path is too long for a device path node.
pub fn encode(label: &str, target: &Target) -> Option<Vec<u8>> {
    let path = device_path(target)?;
    let mut bytes = ACTIVE.to_le_bytes().to_vec();
    bytes.extend_from_slice(&u16::try_from(path.len()).ok()?.to_le_bytes());
    bytes.extend(utf16(label));
    bytes.extend(path);
    Some(bytes)
}

/// Text of UCS-2 with its end.
fn utf16(text: &str) -> impl Iterator<Item = u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes)
}

fn device_path(target: &Target) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    // Media device path, hard drive: 42 bytes.
    path.extend_from_slice(&[4, 1, 42, 0]);
    path.extend_from_slice(&target.partition.to_le_bytes());
    path.extend_from_slice(&target.start_lba.to_le_bytes());
    path.extend_from_slice(&target.sectors.to_le_bytes());
    path.extend_from_slice(&target.signature.bytes());
    // Media device path, file.
    let file: Vec<u8> = utf16(&target.path).collect();
    path.extend_from_slice(&[4, 4]);
    path.extend_from_slice(&u16::try_from(file.len() + 4).ok()?.to_le_bytes());
    path.extend(file);
    // End of the whole path.
    path.extend_from_slice(&[0x7f, 0xff, 4, 0]);
    Some(path)
}

/// Label of an encoded boot entry; bad UTF-16 is replaced, a cut one is taken to its end.
pub fn label(bytes: &[u8]) -> Option<String> {
    let words = bytes.get(6..)?.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let text = words.take_while(|word| *word != 0);
    Some(char::decode_utf16(text).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            prop_assert_eq!(label(&bytes).is_some(), bytes.len() >= 6);
        }

        #[test]
        fn labels_are_read_back_and_lengths_are_those_of_the_path(label_text in "[^\\x00]{0,40}", path in "[^\\x00]{0,300}") {
            let target = Target { partition: 3, start_lba: 1, sectors: 2, signature: Signature::Gpt(Guid::NIL), path };
            let bytes = encode(&label_text, &target).unwrap();
            prop_assert_eq!(label(&bytes).unwrap(), label_text.clone());
            let path_bytes = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
            prop_assert_eq!(bytes.len(), 6 + 2 * (label_text.encode_utf16().count() + 1) + path_bytes);
        }
    }

    #[test]
    fn a_path_that_no_device_path_holds_is_refused() {
        let path = "x".repeat(40_000);
        assert_eq!(
            encode("x", &Target { partition: 1, start_lba: 1, sectors: 1, signature: Signature::Gpt(Guid::NIL), path }),
            None
        );
    }

    #[test]
    fn an_entry_is_encoded_as_efibootmgr_does() {
        let target = Target {
            partition: 1,
            start_lba: 0x800,
            sectors: 0x1_0000,
            signature: Signature::Gpt(Guid::from_parts(0x1122_3344, 0x5566, 0x7788, [1, 2, 3, 4, 5, 6, 7, 8])),
            path: "\\E".to_owned(),
        };
        let bytes = encode("hi", &target).unwrap();
        let want: Vec<u8> = [
            &[1, 0, 0, 0][..],          // active
            &[56, 0],                   // length of the path: 42 + 10 + 4
            b"h\0i\0\0\0",              // label
            &[4, 1, 42, 0, 1, 0, 0, 0], // hard drive, partition 1
            &[0, 8, 0, 0, 0, 0, 0, 0],  // start
            &[0, 0, 1, 0, 0, 0, 0, 0],  // sectors
            &[0x44, 0x33, 0x22, 0x11, 0x66, 0x55, 0x88, 0x77, 1, 2, 3, 4, 5, 6, 7, 8],
            &[2, 2],
            &[4, 4, 10, 0],
            b"\\\0E\0\0\0",
            &[0x7f, 0xff, 4, 0],
        ]
        .concat();
        assert_eq!(bytes, want);
        assert_eq!(label(&bytes).as_deref(), Some("hi"));
        let bytes = encode("hi", &Target { signature: Signature::Mbr([1, 2, 3, 4]), ..target }).unwrap();
        assert_eq!(bytes[36..54], [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn cut_entries_have_what_label_there_is() {
        assert_eq!(label(&[]), None);
        assert_eq!(label(&[0; 6]).as_deref(), Some(""));
        assert_eq!(label(&[1, 0, 0, 0, 0, 0, b'a', 0, b'b']).as_deref(), Some("a"));
    }
}
