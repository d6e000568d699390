//! Writes an image file to a disk or a file as the agent would, and says how long it took and how much memory it needed.
//!
//! `image_write IMAGE TARGET [--in-order] [--format FORMAT] [--algorithm NAME] [--checksum HEX] [--read-back]`; used to compare with `dd` and
//! `qemu-img convert` on the same machine.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use ferric_disk::image::checksum::{Algorithm, Checksum};
use ferric_disk::image::source::{ImageSource, SourceError};
use ferric_disk::image::{Format, ImageError, ImageSpec, write_image};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::Progress;

/// A local file in place of a server.
struct FileSource {
    file: File,
    size_bytes: u64,
    has_ranges: bool,
}

impl ImageSource for FileSource {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.size_bytes)
    }

    fn has_ranges(&self) -> bool {
        self.has_ranges
    }

    fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        self.file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        Ok(Box::new(&self.file))
    }

    fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.file.read_exact_at(buf, offset).map_err(failed)
    }
}

fn failed(source: std::io::Error) -> SourceError {
    SourceError::Failed { url: "file".to_owned(), tries: 1, source: source.into() }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, target, options @ ..] = args.as_slice() else {
        return Err(
            "usage: image_write IMAGE TARGET [--in-order] [--format FORMAT] [--algorithm NAME] [--checksum HEX] \
             [--read-back]"
                .into(),
        );
    };
    let option = |name: &str| options.iter().skip_while(|arg| *arg != name).nth(1).cloned();
    let algorithm = option("--algorithm").unwrap_or_else(|| "sha256".to_owned());
    let algorithm = Algorithm::from_name(&algorithm).ok_or("unknown hash function")?;
    let file = File::open(image).map_err(|error| format!("opening {image}: {error}"))?;
    let size_bytes = file.metadata()?.len();
    let has_ranges = !options.iter().any(|arg| arg == "--in-order");
    let mut source = FileSource { file, size_bytes, has_ranges };
    let device = BlockDev::open(target, Access::Exclusive)?;
    // Without a digest everything is done but the last step: the first MiB stays zero.
    let hex = option("--checksum");
    let complete = hex.is_some();
    let spec = ImageSpec {
        id: image.clone(),
        disk_format: option("--format"),
        checksum: Checksum { algorithm, hex: hex.unwrap_or_else(|| "unknown".to_owned()) },
        permitted_formats: vec![Format::Raw, Format::Gpt, Format::Qcow2, Format::Vmdk, Format::Vhd],
        deep_inspection: true,
        unpack_bytes: 128 << 20,
        read_back: options.iter().any(|arg| arg == "--read-back"),
    };
    let began = Instant::now();
    match write_image(&mut source, &spec, &device, &Progress::new()) {
        Err(ImageError::Checksum { actual, .. }) if !complete => println!("{actual}"),
        Err(error) => return Err(ferric_types::error::chain(&error).into()),
        Ok(report) => println!("{report:?}"),
    }
    let seconds = began.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("{seconds:.2} s, {peak}");
    Ok(())
}
