//! A config drive made anew as FAT, file by file: from a CD where sectors are larger than a CD's, or from a FAT with smaller
//! sectors than the disk's, as no kernel mounts either of them (pitfall C20), and whenever the operator wants it so.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom, Write};

use ferric_sys::block_dev::BlockDev;

use super::payload::{Payload, Reader};
use crate::filesystem::{self, Slice};
use crate::iso9660;
use crate::table::Partition;

/// Label of a FAT made here: FAT knows capitals only.
const LABEL: [u8; 11] = *b"CONFIG-2   ";
/// Sector of a CD.
const CD_SECTOR: u32 = 2048;
/// What is kept in memory of a compressed FAT: its tables and root directory, up to those of 64 MiB in clusters of 512 bytes.
const HEAD_BYTES: usize = 1 << 20;
/// How often a compressed image is unpacked anew for what lies before the place last read.
const MAX_RESTARTS: u32 = 300;
/// More than is read of any config drive, so that a file system that leads in circles comes to an end.
const MAX_READ_BYTES: u64 = 256 << 20;
const MAX_ENTRIES: usize = 20_000;
const MAX_DEPTH: usize = 16;

/// File systems that files can be taken from.
enum Source<'a> {
    Cd,
    Fat { fs: Box<fatfs::FileSystem<Window<'a>>>, sector_bytes: u32 },
}

impl<'a> Source<'a> {
    /// The file system of an image; `None` when it is no such one.
    fn of(image: &'a Payload<'_>) -> Option<Self> {
        if matches!(iso9660::label(&mut image.reader()), Ok(Some(_))) {
            return Some(Self::Cd);
        }
        let mut window = Window::new(image).ok()?;
        let mut head = [0; 512];
        window.read_exact(&mut head).ok()?;
        if !head.ends_with(&[0x55, 0xaa]) {
            return None;
        }
        window.rewind().ok()?;
        let fs = Box::new(filesystem::fat_in(window).ok()?);
        Some(Self::Fat { fs, sector_bytes: u32::from(u16::from_le_bytes([head[11], head[12]])) })
    }
}

/// Whether an image is made anew on a disk with sectors of this size.
pub(super) fn is_due(image: &Payload<'_>, sector: u32, rebuild: bool) -> bool {
    match Source::of(image) {
        Some(Source::Cd) => rebuild || sector > CD_SECTOR,
        Some(Source::Fat { sector_bytes, .. }) => rebuild || sector > sector_bytes,
        None => false,
    }
}

/// Makes a FAT file system in the partition and copies all files of the image into it.
pub(super) fn write(dev: &BlockDev, image: &Payload<'_>, partition: &Partition) -> io::Result<()> {
    let sector = u16::try_from(dev.logical_sector()).map_err(io::Error::other)?;
    let sectors = u32::try_from(partition.size_bytes / u64::from(sector)).map_err(io::Error::other)?;
    let options = fatfs::FormatVolumeOptions::new().bytes_per_sector(sector).total_sectors(sectors).volume_label(LABEL);
    let source = Source::of(image).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut target = Slice::writable(dev, partition.start_bytes, partition.size_bytes);
    fatfs::format_volume(&mut target, options)?;
    target.rewind()?;
    let fs = fatfs::FileSystem::new(target, fatfs::FsOptions::new())?;
    let root = fs.root_dir();
    match &source {
        Source::Cd => copy_cd(&mut image.reader(), &root)?,
        Source::Fat { fs, .. } => copy_fat(fs, &root)?,
    }
    drop(root);
    fs.unmount()
}

type Target<'a, 'b> = fatfs::Dir<'a, Slice<'b>>;

fn copy_cd(image: &mut Reader<'_>, root: &Target<'_, '_>) -> io::Result<()> {
    let (directories, mut files) = iso9660::tree(image)?;
    // Reading forward is what a compressed image is good at.
    files.sort_unstable_by_key(|file| file.offset);
    for directory in &directories {
        root.create_dir(directory)?;
    }
    for file in &files {
        image.seek(SeekFrom::Start(file.offset))?;
        copy(&mut image.by_ref().take(u64::from(file.size)), root, &file.path, u64::from(file.size))?;
    }
    Ok(())
}

fn copy_fat(fs: &fatfs::FileSystem<Window<'_>>, root: &Target<'_, '_>) -> io::Result<()> {
    let malformed = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let (mut pending, mut files) = (VecDeque::from([(String::new(), fs.root_dir())]), Vec::new());
    let mut count = 0;
    while let Some((path, directory)) = pending.pop_front() {
        if path.matches('/').count() >= MAX_DEPTH {
            return Err(malformed("directories too deep"));
        }
        for entry in directory.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.as_str(), "." | "..") {
                continue;
            }
            count += 1;
            if count > MAX_ENTRIES {
                return Err(malformed("too many files"));
            }
            let full = if path.is_empty() { name } else { format!("{path}/{name}") };
            if entry.is_dir() {
                root.create_dir(&full)?;
                pending.push_back((full, entry.to_dir()));
            } else {
                files.push((full, entry));
            }
        }
    }
    for (path, entry) in files {
        copy(&mut entry.to_file(), root, &path, entry.len())?;
    }
    Ok(())
}

fn copy(content: &mut dyn Read, root: &Target<'_, '_>, path: &str, size_bytes: u64) -> io::Result<()> {
    let mut out = root.create_file(path)?;
    if io::copy(content, &mut out)? != size_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{path} is cut")));
    }
    out.flush()
}

/// An image for a library that goes back and forth. Writes are taken and dropped: the library wants to note that the file
/// system was in use.
struct Window<'a> {
    head: Vec<u8>,
    rest: Reader<'a>,
    position: u64,
    /// Where the rest is read next.
    at: u64,
    size_bytes: u64,
    /// How often it may be gone back.
    restarts: u32,
    left_bytes: u64,
}

impl<'a> Window<'a> {
    fn new(image: &'a Payload<'_>) -> io::Result<Self> {
        let mut rest = image.reader();
        let mut head = Vec::new();
        let at = rest.by_ref().take(u64::try_from(HEAD_BYTES).unwrap_or(0)).read_to_end(&mut head)?;
        let (at, size_bytes) = (u64::try_from(at).unwrap_or(0), image.size_bytes());
        let restarts = if rest.is_packed() { MAX_RESTARTS } else { u32::MAX };
        Ok(Self { head, rest, position: 0, at, size_bytes, restarts, left_bytes: MAX_READ_BYTES })
    }
}

impl Read for Window<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let circles = || io::Error::other("the file system leads in circles");
        let in_head =
            usize::try_from(self.position).ok().and_then(|at| self.head.get(at..)).filter(|head| !head.is_empty());
        let count = match in_head {
            Some(mut head) => head.read(buf)?,
            None => {
                if self.at > self.position {
                    self.restarts = self.restarts.checked_sub(1).ok_or_else(circles)?;
                }
                if self.at != self.position {
                    self.at = self.rest.seek(SeekFrom::Start(self.position))?;
                }
                let count = self.rest.read(buf)?;
                self.at += u64::try_from(count).unwrap_or(0);
                count
            }
        };
        let bytes = u64::try_from(count).unwrap_or(u64::MAX);
        self.left_bytes = self.left_bytes.checked_sub(bytes).ok_or_else(circles)?;
        self.position += bytes;
        Ok(count)
    }
}

impl Write for Window<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.position += u64::try_from(buf.len()).unwrap_or(0);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Window<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(delta) => self.size_bytes.checked_add_signed(delta),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use ferric_sys::testing::disk::TestDisk;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;
    use crate::table::PartitionType;

    const MIB: u64 = 1 << 20;

    /// A FAT of 64 MiB, as Nova makes them, with sectors of this size; of its files some are behind what is kept in memory.
    fn fat(sector: u16) -> Vec<u8> {
        fat_with(sector, files())
    }

    fn fat_with(sector: u16, files: Vec<(String, Vec<u8>)>) -> Vec<u8> {
        let mut bytes = Cursor::new(vec![0; 64 << 20]);
        let options = fatfs::FormatVolumeOptions::new().bytes_per_sector(sector).volume_label(LABEL);
        fatfs::format_volume(&mut bytes, options).unwrap();
        let fs = fatfs::FileSystem::new(&mut bytes, fatfs::FsOptions::new()).unwrap();
        let root = fs.root_dir();
        for directory in ["openstack", "openstack/latest", "openstack/content"] {
            root.create_dir(directory).unwrap();
        }
        for (path, content) in files {
            root.create_file(&path).unwrap().write_all(&content).unwrap();
        }
        drop(root);
        fs.unmount().unwrap();
        bytes.into_inner()
    }

    fn files() -> Vec<(String, Vec<u8>)> {
        let meta = ("openstack/latest/meta_data.json".to_owned(), br#"{"uuid": "x"}"#.to_vec());
        let large = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let content =
            (0..40_u8).map(|n| (format!("openstack/content/a long name {n:04}"), vec![n; 3000 + usize::from(n)]));
        [("user data".to_owned(), large), meta, ("empty".to_owned(), Vec::new())].into_iter().chain(content).collect()
    }

    /// The three forms in which an image is read.
    fn forms(image: &[u8]) -> [Payload<'static>; 3] {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(image).unwrap();
        let gzip = gzip.finish().unwrap();
        let text = STANDARD.encode(&gzip).into_bytes();
        [image.to_vec(), gzip, text].map(|content| Payload::downloaded(content, 64 << 20).unwrap())
    }

    fn partition(size_bytes: u64) -> Partition {
        let kind = PartitionType::Mbr(0x0c);
        Partition { number: 1, start_bytes: MIB, size_bytes, kind, guid: None, name: String::new() }
    }

    fn check(dev: &BlockDev, partition: &Partition) {
        assert_eq!(filesystem::label(dev, MIB, partition.size_bytes).as_deref(), Some("CONFIG-2"));
        let fs =
            fatfs::FileSystem::new(Slice::writable(dev, MIB, partition.size_bytes), fatfs::FsOptions::new()).unwrap();
        for (path, want) in files() {
            let mut content = Vec::new();
            fs.root_dir().open_file(&path).unwrap().read_to_end(&mut content).unwrap();
            assert!(content == want, "{path}");
        }
        assert_eq!(fs.root_dir().iter().count(), 3);
    }

    #[test]
    fn a_fat_becomes_one_that_the_disk_can_mount() {
        let image = fat(512);
        for (sector, payload) in
            [(4096, 0), (4096, 1), (512, 2)].map(|(sector, form)| (sector, forms(&image)[form].clone()))
        {
            let disk = TestDisk::zeroed(70 * MIB).unwrap().sector(sector);
            let (dev, partition) = (disk.open().unwrap(), partition(64 * MIB));
            assert_eq!(dev.logical_sector(), sector);
            write(&dev, &payload, &partition).unwrap();
            check(&dev, &partition);
        }
    }

    #[test]
    fn only_what_the_disk_cannot_mount_is_made_anew_unless_it_is_wanted() {
        let (small, large, other) = (fat(512), fat(4096), vec![7; 100_000]);
        for (image, sector, rebuild, want) in [
            (&small, 512, false, false),
            (&small, 512, true, true),
            (&small, 4096, false, true),
            (&large, 4096, false, false),
            (&large, 512, false, false),
            (&large, 4096, true, true),
            (&other, 4096, true, false),
        ] {
            let payload = Payload::plain(&**image);
            assert_eq!(is_due(&payload, sector, rebuild), want, "{sector} {rebuild}");
        }
    }

    #[test]
    fn a_file_system_that_leads_in_circles_comes_to_an_end() {
        // The chain of a directory that fills its clusters, the third, leads to itself.
        let mut image = fat_with(512, files().split_off(1));
        image.truncate(4 << 20);
        let word = |at: usize| usize::from(u16::from_le_bytes([image[at], image[at + 1]]));
        let (reserved, tables, table_sectors) = (word(14), usize::from(image[16]), word(22));
        assert!(table_sectors > 0, "this is about FAT16");
        for table in 0..tables {
            let cluster = 512 * (reserved + table * table_sectors) + 4 * 2;
            image[cluster..cluster + 2].copy_from_slice(&4_u16.to_le_bytes());
        }
        let disk = TestDisk::zeroed(70 * MIB).unwrap();
        let error = write(&disk.open().unwrap(), &forms(&image)[1], &partition(64 * MIB)).unwrap_err();
        assert_eq!(error.to_string(), "too many files");
    }

    #[test]
    fn a_compressed_image_is_not_unpacked_anew_for_ever() {
        let image = vec![1; 4 << 20];
        let [plain, gzip, _] = forms(&image);
        let jumps = |payload: &Payload<'_>| {
            let mut window = Window::new(payload).unwrap();
            (0..2 * MAX_RESTARTS).find(|_| {
                let mut at = |place| window.seek(SeekFrom::Start(place)).and_then(|_| window.read_exact(&mut [0]));
                at(2 * MIB).and_then(|()| at(2 * MIB - 1)).is_err()
            })
        };
        assert_eq!(jumps(&plain), None);
        let ended = jumps(&gzip).unwrap();
        assert!((MAX_RESTARTS / 2..=MAX_RESTARTS).contains(&ended), "{ended}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn damaged_file_systems_never_panic(at in 0_usize..40_000, bytes in proptest::collection::vec(any::<u8>(), 1..40)) {
            static IMAGE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
            let mut image = IMAGE.get_or_init(|| fat_with(512, files().split_off(38))[..1 << 20].to_vec()).clone();
            image[at..at + bytes.len()].copy_from_slice(&bytes);
            let disk = TestDisk::zeroed(18 * MIB).unwrap();
            let payload = Payload::plain(image);
            if is_due(&payload, 512, true) {
                let _written = write(&disk.open().unwrap(), &payload, &partition(16 * MIB)).is_ok();
            }
        }
    }
}
