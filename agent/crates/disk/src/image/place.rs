//! Where an image goes: onto a disk, or into a partition that is made for it.

use std::fmt;

use ferric_types::CommandError;

use super::format::is_fat;

/// Where an image goes.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// A disk, which the image brings the partition table for.
    Disk,
    /// A disk, for an image whose first bytes the function takes or refuses. It is called before anything is written where
    /// they are known by then, and with all of the first MiB before the partition table is written.
    Judged(&'a (dyn Fn(&[u8]) -> Result<(), CommandError> + Sync)),
    /// A partition, for an image of one file system. The function makes it; it is called right before the first byte is
    /// written, when all that can be refused has been, and again with each further try.
    Partition(&'a (dyn Fn() -> Result<(), CommandError> + Sync)),
}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "Disk",
            Self::Judged(_) => "Judged",
            Self::Partition(_) => "Partition",
        })
    }
}

impl Place<'_> {
    /// Whether an image with these first bytes is one of a whole disk, where it is to go into a partition (pitfall C15).
    pub(super) fn is_wrong_for(self, head: &[u8]) -> bool {
        matches!(self, Self::Partition(_)) && has_table(head)
    }
}

/// Whether the first bytes hold a partition table: an MBR with a partition, perhaps that of a GPT. Boot sectors of file
/// systems end in the same two bytes, but have code or nothing where the table would be.
fn has_table(head: &[u8]) -> bool {
    let (Some(table), Some([0x55, 0xaa])) = (head.get(446..510), head.get(510..512)) else { return false };
    let (entries, _) = table.as_chunks::<16>();
    let is_used = |entry: &[u8; 16]| entry[4] != 0 && entry[8..12] != [0; 4] && entry[12..] != [0; 4];
    !is_fat(head) && entries.iter().all(|entry| matches!(entry[0], 0x00 | 0x80)) && entries.iter().any(is_used)
}

/// The sector size of the disks that an image with these first bytes is for, when it is not `sector`: firmware and systems
/// look for the GPT that an MBR announces in the second sector.
pub(super) fn other_sector(head: &[u8], sector: u32) -> Option<u32> {
    let has_gpt = |sector: u32| {
        let header = usize::try_from(sector).ok().and_then(|at| head.get(at..));
        header.is_some_and(|header| header.starts_with(b"EFI PART"))
    };
    let (entries, _) = head.get(446..510)?.as_chunks::<16>();
    let announced = head.get(510..512) == Some(&[0x55, 0xaa]) && entries.iter().any(|entry| entry[4] == 0xee);
    let other = [512, 4096].into_iter().find(|other| *other != sector && has_gpt(*other));
    other.filter(|_| announced && !has_gpt(sector))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpt_for_other_sectors_is_noticed_and_no_more() {
        let image = |places: &[usize], kind: u8| {
            let mut head = vec![0; 8192];
            head[450] = kind;
            head[510..512].copy_from_slice(&[0x55, 0xaa]);
            for place in places {
                head[*place..place + 8].copy_from_slice(b"EFI PART");
            }
            head
        };
        for (name, head, on_512, on_4096) in [
            ("512", image(&[512], 0xee), None, Some(512)),
            ("4096", image(&[4096], 0xee), Some(4096), None),
            ("both", image(&[512, 4096], 0xee), None, None),
            ("neither", image(&[], 0xee), None, None),
            ("an MBR and leftovers", image(&[4096], 0x83), None, None),
            ("short", image(&[4096], 0xee)[..4096].to_vec(), None, None),
            ("shorter", vec![0xee; 300], None, None),
        ] {
            assert_eq!((other_sector(&head, 512), other_sector(&head, 4096)), (on_512, on_4096), "{name}");
        }
    }

    #[test]
    fn tables_are_told_from_boot_sectors() {
        let with = |change: &dyn Fn(&mut [u8])| {
            let mut head = vec![0; 1024];
            head[510..512].copy_from_slice(&[0x55, 0xaa]);
            change(&mut head);
            head
        };
        let linux = |head: &mut [u8]| {
            head[446..462].copy_from_slice(&[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
        };
        for (name, head, want) in [
            ("MBR", with(&linux), true),
            (
                "protective MBR",
                with(&|head| head[446..462].copy_from_slice(&[0, 0, 2, 0, 0xee, 0, 0, 0, 1, 0, 0, 0, 255, 0, 0, 0])),
                true,
            ),
            (
                "no signature",
                with(&|head| {
                    linux(head);
                    head[511] = 0;
                }),
                false,
            ),
            ("no partition", with(&|_| {}), false),
            ("code", with(&|head| head[..510].fill(0x90)), false),
            (
                "FAT",
                with(&|head| {
                    linux(head);
                    (head[0], head[16], head[21]) = (0xeb, 2, 0xf8);
                }),
                false,
            ),
            ("short", vec![0x55; 511], false),
        ] {
            assert_eq!(has_table(&head), want, "{name}");
            assert!(!Place::Disk.is_wrong_for(&head), "{name}");
            assert_eq!(Place::Partition(&|| Ok(())).is_wrong_for(&head), want, "{name}");
        }
    }
}
