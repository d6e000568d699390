use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::image::source::SourceError;

pub(in crate::image) const ALL: [FileCompression; 3] =
    [FileCompression::Gzip, FileCompression::Zstd, FileCompression::Xz];
const MEMORY: u64 = 16 << 20;

pub(in crate::image) fn packed(compression: FileCompression, bytes: &[u8]) -> Vec<u8> {
    match compression {
        FileCompression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        FileCompression::Zstd => {
            let mut compressor = zstd::bulk::Compressor::new(3).unwrap();
            compressor.include_checksum(true).unwrap();
            compressor.compress(bytes).unwrap()
        }
        FileCompression::Xz => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
    }
}

fn unpack(compression: FileCompression, file: &[u8], memory_bytes: u64) -> io::Result<Vec<u8>> {
    // Short reads, as a network gives them.
    let mut file = BufReader::with_capacity(1000, file);
    let mut content = Vec::new();
    Unpacked::new(compression, &mut file, memory_bytes)?.read_to_end(&mut content)?;
    Ok(content)
}

fn content() -> Vec<u8> {
    (0..400_000_u32).map(|index| u8::try_from(index % 6700 * (index % 6700) / 131 % 251).unwrap()).collect()
}

#[test]
fn compressed_files_are_known_by_their_first_bytes() {
    for compression in ALL {
        let mut file = packed(compression, &content());
        assert_eq!(FileCompression::detect(&file), Some(compression));
        assert_eq!(FileCompression::detect(&file[..6]), Some(compression));
        file[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(FileCompression::detect(&file), None, "{compression}: a partition table");
    }
    for other in [&b""[..], b"\x1f", b"\x1f\x8b", b"\x1f\x8b\x07", b"QFI\xfb", &[0; 512]] {
        assert_eq!(FileCompression::detect(other), None, "{other:?}");
    }
}

#[test]
fn content_comes_out_of_one_member_and_of_several() {
    let content = content();
    for compression in ALL {
        let one = packed(compression, &content);
        assert!(unpack(compression, &one, MEMORY).unwrap() == content, "{compression}");
        let several = [packed(compression, &content[..70_000]), packed(compression, &content[70_000..])].concat();
        assert!(unpack(compression, &several, MEMORY).unwrap() == content, "{compression}, two members");
        assert!(unpack(compression, &packed(compression, &[]), MEMORY).unwrap().is_empty(), "{compression}, nothing");
    }
}

#[test]
fn the_first_bytes_can_be_seen_before_they_are_read() {
    let content = content();
    for compression in ALL {
        let file = packed(compression, &content);
        let mut file = file.as_slice();
        let mut unpacked = Unpacked::new(compression, &mut file, MEMORY).unwrap();
        assert!(unpacked.first() == &content[..PROBE_BYTES], "{compression}");
        let mut all = Vec::new();
        unpacked.read_to_end(&mut all).unwrap();
        assert!(all == content, "{compression}");
    }
}

#[test]
fn what_is_cut_damaged_or_followed_by_something_is_an_error() {
    let content = content();
    for compression in ALL {
        let good = packed(compression, &content);
        let cut = good[..good.len() - 1].to_vec();
        let half = good[..good.len() / 2].to_vec();
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 0x10;
        let followed = [good.as_slice(), b"rest"].concat();
        for (name, file) in [("cut", cut), ("half", half), ("flipped", flipped), ("followed", followed)] {
            let error = unpack(compression, &file, MEMORY).map(|content| content.len()).expect_err(name);
            let error = error.downcast::<UnpackFileError>().unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_eq!(error.compression, compression, "{name}");
        }
    }
}

#[test]
fn a_window_beyond_the_memory_is_refused() {
    let content = vec![9; 6 << 20];
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(24).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&content).unwrap();
    let zstd = encoder.finish().unwrap();
    let mut options = liblzma::stream::LzmaOptions::new_preset(1).unwrap();
    options.dict_size(16 << 20);
    let mut filters = liblzma::stream::Filters::new();
    filters.lzma2(&options);
    let stream = Stream::new_stream_encoder(&filters, liblzma::stream::Check::Crc64).unwrap();
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(&content).unwrap();
    let xz = encoder.finish().unwrap();
    for (compression, file) in [(FileCompression::Zstd, zstd), (FileCompression::Xz, xz)] {
        assert!(unpack(compression, &file, 16 << 20).unwrap() == content, "{compression}");
        let error = unpack(compression, &file, 8 << 20).map(|content| content.len()).unwrap_err();
        let text = ferric_types::error::chain(&error);
        assert!(text.contains("more than 8 MiB of memory"), "{compression}: {text}");
    }
}

/// A file whose download fails after some bytes.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(SourceError::Changed { url: "http://images/disk".to_owned() }.into_io());
        }
        self.0.read(buf)
    }
}

#[test]
fn an_error_of_the_download_stays_what_it_is() {
    let content = content();
    for compression in ALL {
        let file = packed(compression, &content);
        for len in [3, file.len() / 2, file.len() - 2] {
            let mut file = BufReader::new(Failing(&file[..len]));
            let read = || -> io::Result<()> {
                let mut all = Vec::new();
                Unpacked::new(compression, &mut file, MEMORY)?.read_to_end(&mut all)?;
                Ok(())
            };
            let error = { read }().unwrap_err();
            assert!(matches!(SourceError::from_io(error), Ok(SourceError::Changed { .. })), "{compression} {len}");
        }
    }
}

proptest! {
    #[test]
    fn any_content_comes_back(content in proptest::collection::vec(any::<u8>(), 0..3000), cut in 0_usize..3000) {
        for compression in ALL {
            let at = cut.min(content.len());
            let file = [packed(compression, &content[..at]), packed(compression, &content[at..])].concat();
            prop_assert!(unpack(compression, &file, MEMORY).unwrap() == content);
        }
    }

    #[test]
    fn any_file_ends(file in proptest::collection::vec(any::<u8>(), 0..2000), at in 0_usize..2000, bit in 0_u8..8) {
        for compression in ALL {
            let _any = unpack(compression, &file, MEMORY);
            let mut damaged = packed(compression, &file);
            let at = at % damaged.len();
            damaged[at] ^= 1 << bit;
            let _any = unpack(compression, &damaged, MEMORY);
        }
    }
}
