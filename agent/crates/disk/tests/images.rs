//! The images of `tests/fixtures/images`, each written by ranges and in one pass, and what its table says of it.

#[cfg(test)]
#[path = "../../../fuzz/src/targets/mod.rs"]
pub mod targets;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ferric_disk::image::checksum::{Algorithm, Checksum};
    use ferric_disk::image::source::{ImageSource, SourceError};
    use ferric_disk::image::{Format, ImageError, ImageSpec, WriteReport, write_image};
    use ferric_disk::table;
    use ferric_sys::testing::disk::{OLD_DATA, TestDisk};
    use ferric_types::error::chain;
    use ferric_types::{ErrorClass, Progress};
    use serde::Deserialize;

    const DISK_BYTES: u64 = 3 << 20;
    const HEAD_BYTES: usize = 1 << 20;
    const TAIL_BYTES: usize = 64 << 10;

    /// What the table says of an image; see its INDEX.md.
    #[derive(Debug, Clone, Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Verdict {
        /// Format that Ironic declares.
        declared: Option<String>,
        /// A part of the refusal; without it the image arrives.
        refused: Option<String>,
        /// As `refused`, where reading in one pass ends in another way.
        in_order: Option<String>,
        /// What is wrong shows only while the image is written.
        #[serde(default)]
        late: bool,
        /// Formats that are permitted; without it all that can be read.
        permitted: Option<Vec<String>>,
        /// What the written disk's partition table is, or a part of its refusal.
        table: Option<String>,
    }

    /// A local file in place of a server.
    struct FileSource<'a> {
        file: &'a [u8],
        ranges: bool,
    }

    impl ImageSource for FileSource<'_> {
        fn size_bytes(&self) -> Option<u64> {
            self.ranges.then(|| u64::try_from(self.file.len()).unwrap())
        }

        fn has_ranges(&self) -> bool {
            self.ranges
        }

        fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
            Ok(Box::new(&self.file[usize::try_from(offset).unwrap()..]))
        }

        fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
            let offset = usize::try_from(offset).unwrap();
            buf.copy_from_slice(&self.file[offset..offset + buf.len()]);
            Ok(())
        }
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
    }

    #[expect(clippy::disallowed_methods, reason = "tests make their images with the reference tools")]
    fn tool(program: &str, args: &[&str]) -> Result<String, String> {
        let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("{program} {args:?}: {}{}", text(&output.stdout), text(&output.stderr)))
        }
    }

    fn write(file: &[u8], verdict: &Verdict, ranges: bool) -> (TestDisk, Result<WriteReport, ImageError>) {
        let disk = TestDisk::used(DISK_BYTES).unwrap();
        let mut hasher = Algorithm::Sha256.hasher();
        hasher.update(file);
        let all = ["raw", "gpt", "qcow2", "iso", "vmdk", "vhd"].map(str::to_owned);
        let spec = ImageSpec {
            id: "image".to_owned(),
            disk_format: verdict.declared.clone(),
            checksum: Checksum { algorithm: Algorithm::Sha256, hex: hasher.finish() },
            permitted_formats: Format::list(verdict.permitted.as_deref().unwrap_or(&all)),
            deep_inspection: true,
            unpack_bytes: 16 << 20,
            read_back: false,
        };
        let mut source = FileSource { file, ranges };
        let result = write_image(&mut source, &spec, &disk.open().unwrap(), &Progress::new());
        (disk, result)
    }

    /// What the image holds, as `qemu-img` or the one who made it says.
    fn content(dir: &Path, name: &str, format: Format) -> Result<Vec<u8>, String> {
        let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let driver = match format {
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
            Format::Vhd => "vpc",
            _ => {
                let flat = path(&format!("{name}.flat"));
                return fs::read(if Path::new(&flat).exists() { flat } else { path(name) }).map_err(|e| e.to_string());
            }
        };
        let raw = path(&format!("{name}.raw"));
        tool("qemu-img", &["convert", "-f", driver, "-O", "raw", &path(name), &raw])?;
        fs::read(raw).map_err(|error| error.to_string())
    }

    /// What is wrong with a disk that an image was written to.
    fn compare(disk: &TestDisk, want: &[u8]) -> Result<(), String> {
        let got = disk.bytes(0, usize::try_from(DISK_BYTES).unwrap()).unwrap();
        if got[..want.len()] == *want {
            return Ok(());
        }
        let at = got.iter().zip(want).position(|(got, want)| got != want);
        Err(format!("arrived, but byte {at:?} of {} is another than in the image", want.len()))
    }

    /// The partition table, judged and then fitted to the disk as a deployment does it, or why not.
    fn table_of(disk: &TestDisk) -> String {
        let dev = disk.open().unwrap();
        let found = match table::validate(&dev) {
            Ok(found) => format!("{:?} of {}", found.kind, found.partitions.len()),
            Err(error) => return chain(&error),
        };
        match table::fix_backup_gpt(&dev) {
            Ok(_) => found,
            // A deployment tells of it and goes on.
            Err(error) => format!("{found}, not repaired: {}", chain(&error)),
        }
    }

    fn check(
        (dir, name): (&Path, &str),
        file: &[u8],
        known: &mut Option<Vec<u8>>,
        verdict: &Verdict,
        ranges: bool,
    ) -> Result<(), String> {
        let (disk, result) = write(file, verdict, ranges);
        let own = verdict.in_order.as_ref().filter(|_| !ranges);
        let refused = own.or(verdict.refused.as_ref());
        let (error, want) = match (result, refused) {
            (Ok(report), None) => {
                let want = match known {
                    Some(known) => known,
                    none => none.insert(content(dir, name, report.format)?),
                };
                compare(&disk, want)?;
                let table = verdict.table.as_ref().map(|want| (want, table_of(&disk)));
                return match table {
                    Some((want, found)) if !found.contains(want) => Err(format!("table: {found}")),
                    Some((want, found)) if found == *want && want.starts_with("Gpt") => {
                        let said = tool("sgdisk", &["-v", disk.path().to_str().unwrap()])?;
                        if said.contains("No problems found") { Ok(()) } else { Err(said) }
                    }
                    _ => Ok(()),
                };
            }
            (Ok(report), Some(_)) => return Err(format!("arrived: {report:?}")),
            (Err(error), None) => return Err(format!("refused: {}", chain(&error))),
            (Err(error), Some(want)) => (error, want),
        };
        let text = chain(&error);
        if !text.contains(want) {
            return Err(format!("refused with another reason: {text}"));
        }
        let is_refusal = matches!(error.class(), ErrorClass::InvalidImage | ErrorClass::ImageWrite)
            && !matches!(error, ImageError::Device { .. } | ImageError::Stopped { .. });
        if !is_refusal {
            return Err(format!("refused with class {:?}: {text}", error.class()));
        }
        let bytes = disk.bytes(0, usize::try_from(DISK_BYTES).unwrap()).unwrap();
        let untouched = bytes == vec![OLD_DATA; bytes.len()];
        let no_table = bytes[..HEAD_BYTES] == vec![0; HEAD_BYTES] && bytes.ends_with(&[0; TAIL_BYTES]);
        match (untouched, no_table) {
            (true, _) if verdict.late && ranges => Err("refused before anything was written".to_owned()),
            (true, _) => Ok(()),
            (false, true) if verdict.late || !ranges => Ok(()),
            (false, true) => Err("refused when something was written already".to_owned()),
            (false, false) => Err("left with something at its ends".to_owned()),
        }
    }

    #[test]
    fn every_image_ends_as_the_table_says() {
        let fixtures = root().join("tests/fixtures/images");
        let text = fs::read_to_string(fixtures.join("images.toml")).unwrap();
        let verdicts: BTreeMap<String, Verdict> = toml::from_str(&text).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let make = root().join("scripts/images/make.py");
        tool("python3", &[make.to_str().unwrap(), dir.path().to_str().unwrap()]).unwrap();
        let mut made: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".flat"))
            .collect();
        made.sort();
        let listed: Vec<String> = verdicts.keys().cloned().collect();
        assert_eq!(made, listed, "the table and scripts/images/make.py do not have the same images");
        let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(name) = listed.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let file = fs::read(dir.path().join(name)).unwrap();
                        let mut known = None;
                        for ranges in [true, false] {
                            let place = (dir.path(), name.as_str());
                            if let Err(error) = check(place, &file, &mut known, &verdicts[name], ranges) {
                                let way = if ranges { "by ranges" } else { "in order" };
                                failures.lock().unwrap().push(format!("{name} {way}: {error}"));
                            }
                        }
                    }
                });
            }
        });
        let mut failures = failures.into_inner().unwrap();
        failures.sort();
        assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), listed.len(), failures.join("\n"));
    }

    /// What `scripts/fuzz.sh` builds is outside of this workspace; so it cannot fall behind.
    #[test]
    fn the_fuzz_targets_end_with_all_they_get() {
        use crate::targets::{checksums, configdrive, csv, filesystem, packed, qcow2, table, vhd, vmdk};
        let dir = tempfile::tempdir().unwrap();
        let make = root().join("scripts/images/make.py");
        let names =
            ["qcow2-small-zlib", "qcow2-l2-twice", "vmdk-small", "vmdk-tables-last", "vhd-small", "gzip", "gpt"];
        let mut args = vec![make.to_str().unwrap(), dir.path().to_str().unwrap()];
        args.extend(names);
        tool("python3", &args).unwrap();
        let all = [qcow2, vmdk, vhd, packed, table, csv, checksums, configdrive, filesystem];
        for name in names {
            let mut file = fs::read(dir.path().join(name)).unwrap();
            file.truncate(128 << 10);
            for target in all {
                target(&file);
                // The first byte says to several what to do with the rest.
                target(&[&[0], file.as_slice()].concat());
            }
        }
    }
}
