//! Decompression of qcow2 clusters (qcow2 specification, "Compressed clusters") and VMDK grains.

use std::fmt;
use std::io;

use flate2::{Decompress, FlushDecompress, Status};
use zstd::bulk::Decompressor;
use zstd::zstd_safe::find_frame_compressed_size;

/// How the compressed clusters of an image are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Raw deflate.
    Deflate,
    /// Deflate in a zlib stream (RFC 1950), which must end with the cluster.
    Zlib,
    /// zstd frames.
    Zstd,
}

/// Why a cluster could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The deflate stream is broken.
    #[error("the deflate stream is broken")]
    Deflate(#[from] flate2::DecompressError),
    /// The zstd frame is broken.
    #[error("the zstd frame is broken")]
    Zstd(#[from] io::Error),
    /// The zlib stream goes on behind the cluster, or is cut short.
    #[error("the zlib stream does not end with the cluster")]
    NoEnd,
    /// It gives too little.
    #[error("{got} bytes came out where {want} were expected")]
    Short {
        /// Bytes that came out.
        got: usize,
        /// Size of a cluster.
        want: usize,
    },
}

/// Unpacks clusters one after another; its memory does not grow.
pub(super) struct Unpacker(Kind);

enum Kind {
    Deflate(Box<Decompress>),
    Zlib(Box<Decompress>),
    Zstd(Box<Decompressor<'static>>),
}

impl Unpacker {
    pub(super) fn new(compression: Compression) -> Result<Self, UnpackError> {
        Ok(Self(match compression {
            Compression::Deflate => Kind::Deflate(Box::new(Decompress::new(false))),
            Compression::Zlib => Kind::Zlib(Box::new(Decompress::new(true))),
            Compression::Zstd => Kind::Zstd(Box::new(Decompressor::new()?)),
        }))
    }

    /// Fills `out`, a whole cluster. Bytes of `input` after the compressed data do not matter: a cluster's length is
    /// given in sectors, and what follows in the last one belongs to another.
    pub(super) fn unpack(&mut self, input: &[u8], out: &mut [u8]) -> Result<(), UnpackError> {
        let want = out.len();
        let got = match &mut self.0 {
            Kind::Deflate(inflate) => {
                inflate.reset(false);
                inflate.decompress(input, out, FlushDecompress::Finish)?;
                usize::try_from(inflate.total_out()).unwrap_or(usize::MAX)
            }
            Kind::Zlib(inflate) => {
                inflate.reset(true);
                if inflate.decompress(input, out, FlushDecompress::Finish)? != Status::StreamEnd {
                    return Err(UnpackError::NoEnd);
                }
                usize::try_from(inflate.total_out()).unwrap_or(usize::MAX)
            }
            Kind::Zstd(decompressor) => unzstd(decompressor, input, out)?,
        };
        if got < want { Err(UnpackError::Short { got, want }) } else { Ok(()) }
    }
}

/// A cluster may be several frames.
fn unzstd(decompressor: &mut Decompressor<'_>, mut input: &[u8], out: &mut [u8]) -> Result<usize, UnpackError> {
    let mut filled = 0;
    while let Some(room) = out.get_mut(filled..).filter(|room| !room.is_empty()) {
        let len = find_frame_compressed_size(input)
            .map_err(|code| io::Error::other(zstd::zstd_safe::get_error_name(code)))?;
        let Some((frame, rest)) = input.split_at_checked(len) else { break };
        filled += decompressor.decompress_to_buffer(frame, room)?;
        input = rest;
    }
    Ok(filled)
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Deflate(_) => "Unpacker(deflate)",
            Kind::Zlib(_) => "Unpacker(zlib)",
            Kind::Zstd(_) => "Unpacker(zstd)",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::{DeflateEncoder, ZlibEncoder};
    use proptest::prelude::*;

    use super::*;

    fn packed(compression: Compression, bytes: &[u8]) -> Vec<u8> {
        match compression {
            Compression::Deflate => {
                let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Zlib => {
                let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Zstd => zstd::bulk::compress(bytes, 3).unwrap(),
        }
    }

    const ALL: [Compression; 3] = [Compression::Deflate, Compression::Zlib, Compression::Zstd];

    #[test]
    fn clusters_come_out_whatever_follows_them() {
        let cluster: Vec<u8> = (0..65536_u32).map(|index| u8::try_from(index / 97 % 256).unwrap()).collect();
        for compression in ALL {
            let mut unpacker = Unpacker::new(compression).unwrap();
            for _ in 0..3 {
                let mut input = packed(compression, &cluster);
                input.extend([0xa5; 511]);
                let mut out = vec![0; 65536];
                unpacker.unpack(&input, &mut out).unwrap();
                assert!(out == cluster, "{compression:?}");
            }
        }
    }

    #[test]
    fn a_cluster_may_be_several_zstd_frames() {
        let mut input = packed(Compression::Zstd, &[1; 1000]);
        input.extend(packed(Compression::Zstd, &[2; 3096]));
        let mut out = vec![0; 4096];
        Unpacker::new(Compression::Zstd).unwrap().unpack(&input, &mut out).unwrap();
        assert!(out[..1000].iter().all(|byte| *byte == 1) && out[1000..].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn broken_clusters_are_errors_and_the_next_one_works() {
        for compression in ALL {
            let mut unpacker = Unpacker::new(compression).unwrap();
            let good = packed(compression, &[7; 4096]);
            let mut out = vec![0; 4096];
            for bad in [Vec::new(), vec![0xff; 100], good[..good.len() / 2].to_vec(), packed(compression, &[7; 100])] {
                assert!(unpacker.unpack(&bad, &mut out).is_err(), "{compression:?} {bad:?}");
            }
            unpacker.unpack(&good, &mut out).unwrap();
            assert_eq!(out, [7; 4096]);
        }
    }

    proptest! {
        #[test]
        fn any_input_ends(input in proptest::collection::vec(any::<u8>(), 0..2000), zstd in any::<bool>()) {
            let compression = if zstd { Compression::Zstd } else { Compression::Deflate };
            let mut out = vec![0; 4096];
            let _any = Unpacker::new(compression).unwrap().unpack(&input, &mut out);
        }

        #[test]
        fn any_damage_ends(at in 0_usize..2000, bit in 0_u8..8, zstd in any::<bool>()) {
            let compression = if zstd { Compression::Zstd } else { Compression::Deflate };
            let cluster: Vec<u8> = (0..4096_u32).map(|index| u8::try_from(index * index / 31 % 256).unwrap()).collect();
            let mut input = packed(compression, &cluster);
            let at = at % input.len();
            input[at] ^= 1 << bit;
            let mut out = vec![0; 4096];
            let _any = Unpacker::new(compression).unwrap().unpack(&input, &mut out);
        }
    }
}
