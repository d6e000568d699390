//! Memory of a whole write, measured in a process that does nothing else.

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::path::Path;
    use std::process::Command;

    use ferric_sys::testing::disk::TestDisk;

    /// What such a process may need in all; the worker's budget is 32 MiB.
    const LIMIT_KIB: u64 = 23 << 10;

    /// The peak of a process that writes an image.
    #[expect(clippy::disallowed_methods, reason = "the process to be measured")]
    fn peak_kib(image: &Path, has_ranges: bool, disk_bytes: u64) -> u64 {
        let disk = TestDisk::zeroed(disk_bytes).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_image_write"));
        command.arg(image).arg(disk.path());
        if !has_ranges {
            command.arg("--in-order");
        }
        // Large blocks go back to the kernel when they are freed, as with musl; glibc learns not to do that.
        command.env("MALLOC_MMAP_THRESHOLD_", "131072").env("MALLOC_ARENA_MAX", "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let peak = text.split("VmHWM:").nth(1).and_then(|rest| rest.split_whitespace().next());
        peak.and_then(|kib| kib.parse().ok()).unwrap_or_else(|| panic!("no peak in {text}"))
    }

    #[expect(clippy::disallowed_methods, reason = "tests make their images with the reference tools")]
    fn qemu_img(args: &[&str]) {
        let output = Command::new("qemu-img").args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A qcow2 file of 512-byte clusters that lie in the file in the reverse order of the disk, so that no two of them can
    /// be joined: the most extents that a file of its size can have.
    fn scattered(path: &Path, clusters: u64) {
        let tables = clusters.div_ceil(64);
        let l1_clusters = (tables * 8).div_ceil(512);
        let (l1, l2) = (512_u64, 512 + l1_clusters * 512);
        let data = l2 + tables * 512;
        let mut header = vec![0; 512];
        header[..4].copy_from_slice(b"QFI\xfb");
        header[4..8].copy_from_slice(&3_u32.to_be_bytes());
        header[20..24].copy_from_slice(&9_u32.to_be_bytes());
        header[24..32].copy_from_slice(&(clusters * 512).to_be_bytes());
        header[36..40].copy_from_slice(&u32::try_from(tables).unwrap().to_be_bytes());
        header[40..48].copy_from_slice(&l1.to_be_bytes());
        header[100..104].copy_from_slice(&104_u32.to_be_bytes());
        let mut file = std::io::BufWriter::new(File::create(path).unwrap());
        file.write_all(&header).unwrap();
        for table in 0..l1_clusters * 64 {
            let offset = if table < tables { l2 + table * 512 } else { 0 };
            file.write_all(&offset.to_be_bytes()).unwrap();
        }
        for cluster in 0..tables * 64 {
            let offset = if cluster < clusters { data + (clusters - 1 - cluster) * 512 } else { 0 };
            file.write_all(&offset.to_be_bytes()).unwrap();
        }
        for cluster in 0..clusters {
            file.write_all(&[u8::try_from(cluster % 255).unwrap() + 1; 512]).unwrap();
        }
        file.flush().unwrap();
    }

    #[test]
    fn a_write_needs_the_same_little_memory_whatever_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw");
        let mut file = File::create(&raw).unwrap();
        let mut block = vec![0; 1 << 20];
        for index in 0..96_u64 {
            // Every other MiB hardly shrinks, so that compressed clusters of 2 MiB are as long as they get.
            let mut state = index + 1;
            for word in block.chunks_exact_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let kept = if index % 8 == 7 { state >> 60 } else { state & 0x00ff_ffff_ffff_ffff };
                word.copy_from_slice(&kept.to_le_bytes());
            }
            file.write_all(&block).unwrap();
        }
        drop((file, block));
        let name = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let convert = |made: &str, options: &[&str]| {
            let (from, to) = (name("raw"), name(made));
            qemu_img(&[&["convert", "-f", "raw", "-O", "qcow2"], options, &[&from, &to]].concat());
        };
        convert("plain", &[]);
        convert("zlib", &["-c"]);
        convert("zstd-2m", &["-c", "-o", "compression_type=zstd,cluster_size=2M"]);
        convert("zlib-2m", &["-c", "-o", "cluster_size=2M"]);
        scattered(&dir.path().join("scattered"), 160 << 10);
        for image in ["raw", "plain", "zlib", "zlib-2m", "zstd-2m", "scattered"] {
            for has_ranges in [true, false] {
                if image == "scattered" && !has_ranges {
                    continue;
                }
                let peak = peak_kib(&dir.path().join(image), has_ranges, 256 << 20);
                println!("{image}, ranges {has_ranges}: {peak} KiB");
                assert!(peak <= LIMIT_KIB, "{image}, ranges {has_ranges}: {peak} KiB");
            }
        }
    }
}
