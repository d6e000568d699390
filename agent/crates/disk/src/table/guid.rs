//! GUIDs in the mixed byte order of GPT and EFI.

use std::fmt;

/// A GUID as its 16 bytes on disk; prints in the usual upper-case-free text form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// Type of an EFI system partition: C12A7328-F81F-11D2-BA4B-00A0C93EC93B.
    pub const EFI_SYSTEM: Self =
        Self::from_parts(0xc12a_7328, 0xf81f, 0x11d2, [0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b]);
    /// Type of Linux data: 0FC63DAF-8483-4772-8E79-3D69D8477DE4.
    pub const LINUX_DATA: Self =
        Self::from_parts(0x0fc6_3daf, 0x8483, 0x4772, [0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4]);
    /// Type of Linux swap space: 0657FD6D-A4AB-43C4-84E5-0933C84B4F4F.
    pub const LINUX_SWAP: Self =
        Self::from_parts(0x0657_fd6d, 0xa4ab, 0x43c4, [0x84, 0xe5, 0x09, 0x33, 0xc8, 0x4b, 0x4f, 0x4f]);
    /// Type of a partition for GRUB's core image: 21686148-6449-6E6F-744E-656564454649.
    pub const BIOS_BOOT: Self =
        Self::from_parts(0x2168_6148, 0x6449, 0x6e6f, [0x74, 0x4e, 0x65, 0x65, 0x64, 0x45, 0x46, 0x49]);
    /// Type of a PReP boot partition: 9E1A2D38-C612-4316-AA26-8B49521E5A8B.
    pub const PREP: Self =
        Self::from_parts(0x9e1a_2d38, 0xc612, 0x4316, [0xaa, 0x26, 0x8b, 0x49, 0x52, 0x1e, 0x5a, 0x8b]);
    /// The unused entry.
    pub const NIL: Self = Self([0; 16]);

    /// A GUID from the groups of its text form; the first three are little-endian on disk.
    pub const fn from_parts(a: u32, b: u16, c: u16, d: [u8; 8]) -> Self {
        let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
        Self([a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]])
    }

    /// A random GUID (version 4, RFC 9562).
    ///
    /// # Errors
    /// The kernel has no random bytes to give.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0_u8; 16];
        let mut source = std::fs::File::open("/dev/urandom")?;
        std::io::Read::read_exact(&mut source, &mut bytes)?;
        // Version in the high nibble of the third group, which is little-endian here; variant in the fourth.
        bytes[7] = (bytes[7] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a0, a1, a2, a3, b0, b1, c0, c1, d @ ..] = self.0;
        let a = u32::from_le_bytes([a0, a1, a2, a3]);
        let (b, c) = (u16::from_le_bytes([b0, b1]), u16::from_le_bytes([c0, c1]));
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{:02x}{:02x}-", d[0], d[1])?;
        d[2..].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
