//! Disks that are not right for an image, and disks that do not keep what is written to them.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ferric_sys::testing::disk::TestDisk;
use ferric_types::ErrorClass;
use ferric_types::error::chain;

use super::tests::{DISK, MIB, Mode, assert_disk, assert_no_table, assert_untouched, source, write};
use super::*;
use crate::image::compressed::FileCompression;
use crate::image::compressed::tests::packed;
use crate::image::source::SourceError;
use crate::image::testing::{disk_content, progress, qcow2, spec};

/// A disk with a GPT for sectors of `sector` bytes.
fn gpt(sector: usize) -> Vec<u8> {
    let mut content = disk_content(3 * MIB);
    content[446..462].copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 255, 23, 0, 0]);
    content[sector..sector + 8].copy_from_slice(b"EFI PART");
    content
}

#[test]
fn an_image_for_other_sectors_is_refused_before_anything_is_written() {
    for (image_sector, sector) in [(4096_u16, 512_u16), (512, 4096)] {
        let content = gpt(usize::from(image_sector));
        for (name, file, mode, early) in [
            ("raw", content.clone(), Mode::Ranges, true),
            ("raw", content.clone(), Mode::InOrder, true),
            ("gzip", packed(FileCompression::Gzip, &content), Mode::Ranges, true),
            ("qcow2", qcow2(&content, &[]), Mode::Ranges, true),
            ("zlib", qcow2(&content, &["-c"]), Mode::Ranges, true),
            ("qcow2", qcow2(&content, &[]), Mode::InOrder, false),
        ] {
            let disk = TestDisk::used(DISK).unwrap().sector(sector.into());
            let error = write(&mut source(&file, mode), &spec(&file, None), &disk, mode).expect_err(name);
            let text = chain(&error);
            for number in [image_sector, sector] {
                assert!(text.contains(&format!("sectors of {number} bytes")), "{name} {mode:?}: {text}");
            }
            assert_eq!((error.class(), error.is_worth_another_try()), (ErrorClass::ImageWrite, false), "{name}");
            if early {
                assert_untouched(name, &disk);
            } else {
                assert_no_table(name, &disk);
            }
            let right = TestDisk::used(DISK).unwrap().sector(image_sector.into());
            write(&mut source(&file, mode), &spec(&file, None), &right, mode).expect(name);
            assert_disk(name, &right, &content, image_sector.into());
        }
    }
}

/// The image of `source`, by way of one who waits at its end until the disk has a MiB of the content, and then changes a
/// bit in the middle of it.
struct Meddler {
    source: crate::image::testing::TestSource,
    disk: PathBuf,
    at: u64,
    content: Vec<u8>,
}

impl ImageSource for Meddler {
    fn size_bytes(&self) -> Option<u64> {
        self.source.size_bytes()
    }

    fn has_ranges(&self) -> bool {
        self.source.has_ranges()
    }

    fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        let Self { source, disk, at, content } = self;
        Ok(Box::new(MeddlingStream { stream: source.stream(offset)?, disk, at: *at, content }))
    }

    fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.source.read_exact_at(offset, buf)
    }
}

struct MeddlingStream<'a> {
    stream: Box<dyn Read + Send + 'a>,
    disk: &'a PathBuf,
    at: u64,
    content: &'a [u8],
}

impl Read for MeddlingStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.stream.read(buf)?;
        if len == 0 {
            let disk = std::fs::File::options().read(true).write(true).open(self.disk)?;
            let (mut found, end) = (vec![0; MIB], Instant::now() + Duration::from_secs(20));
            while found != self.content {
                assert!(Instant::now() < end, "the MiB at {} was not written", self.at);
                std::thread::sleep(Duration::from_millis(5));
                disk.read_exact_at(&mut found, self.at)?;
            }
            disk.write_all_at(&[found[MIB / 2] ^ 4], self.at + u64::try_from(MIB / 2).unwrap())?;
        }
        Ok(len)
    }
}

#[test]
fn a_disk_that_does_not_keep_what_was_written_is_noticed_when_it_is_read_back() {
    let content = disk_content(6 * MIB);
    for (name, file) in [("raw", content.clone()), ("qcow2", qcow2(&content, &[])), ("zlib", qcow2(&content, &["-c"]))]
    {
        for read_back in [true, false] {
            let disk = TestDisk::used(DISK).unwrap();
            let mut source = Meddler {
                source: source(&file, Mode::Ranges),
                disk: disk.path().to_owned(),
                at: u64::try_from(2 * MIB).unwrap(),
                content: content[2 * MIB..3 * MIB].to_vec(),
            };
            let spec = ImageSpec { read_back, ..spec(&file, None) };
            let result = write_image(&mut source, &spec, &disk.open().unwrap(), &progress());
            if !read_back {
                result.expect(name);
                continue;
            }
            let error = result.expect_err(name);
            let want = format!("{} does not give back what was written to it", disk.path().display());
            let place = format!("between its bytes {} and {}", 2 * MIB, 3 * MIB - 1);
            assert!(chain(&error).contains(&want) && chain(&error).contains(&place), "{name}: {}", chain(&error));
            assert_eq!((error.class(), error.is_worth_another_try()), (ErrorClass::ImageWrite, false), "{name}");
            assert_no_table(name, &disk);
        }
    }
}

#[test]
fn an_image_that_is_there_passes_when_it_is_read_back() {
    // An odd length, whose last sector is filled up.
    let content = disk_content(5 * MIB + 700);
    let whole = disk_content(5 * MIB);
    for (name, file, content) in [
        ("raw", content.clone(), &content),
        ("gzip", packed(FileCompression::Gzip, &content), &content),
        ("qcow2", qcow2(&whole, &[]), &whole),
        ("zlib", qcow2(&whole, &["-c"]), &whole),
    ] {
        for (mode, sector) in [(Mode::Ranges, 512), (Mode::Ranges, 4096), (Mode::InOrder, 4096)] {
            let disk = TestDisk::used(DISK).unwrap().sector(sector);
            let spec = ImageSpec { read_back: true, ..spec(&file, None) };
            let progress = progress();
            write_image(&mut source(&file, mode), &spec, &disk.open().unwrap(), &progress)
                .unwrap_or_else(|error| panic!("{name} {mode:?}: {}", chain(&error)));
            assert_disk(name, &disk, content, sector);
            let report = progress.report().unwrap();
            assert_eq!((report.phase.as_str(), report.total_bytes), ("read back", Some(report.done_bytes)), "{name}");
        }
    }
}
