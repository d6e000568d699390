//! Files in a directory that stands for a file system.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::mkfifoat;

use super::*;
use ferric_sys::testing::disk::TestDisk;

/// A file system inside of a directory with things that are none of its business.
struct Lab {
    dir: tempfile::TempDir,
    image: ImageRoot,
}

fn lab() -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("image");
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::create_dir_all(dir.path().join("outside")).unwrap();
    std::fs::write(dir.path().join("outside/secret"), "untouched").unwrap();
    let image = ImageRoot::open(&root).unwrap();
    Lab { dir, image }
}

impl Lab {
    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("image").join(path)
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    fn link(&self, target: impl AsRef<Path>, path: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    fn write(&self, path: &str, attributes: &Attributes) -> Result<Vec<&'static str>, InjectError> {
        write(&self.image, path, attributes, &mut &b"content"[..])
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    fn mode(&self, path: &str) -> u32 {
        std::fs::metadata(self.path(path)).unwrap().mode() & 0o7777
    }

    /// All that is beside the image, with contents.
    fn world(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        for place in [self.dir.path().to_owned(), self.outside()] {
            for entry in std::fs::read_dir(place).unwrap() {
                let path = entry.unwrap().path();
                let bytes = std::fs::read(&path).ok();
                found.push((path, bytes));
            }
        }
        found.sort();
        found
    }
}

#[test]
fn a_file_is_made_with_its_directories_and_only_the_last_has_the_rights() {
    let lab = lab();
    let attributes = Attributes { mode: Some(0o4600), dir_mode: Some(0o700), ..Attributes::default() };
    assert_eq!(lab.write("etc/a/b/file", &attributes).unwrap(), [""; 0]);
    assert_eq!(lab.read("etc/a/b/file"), "content");
    assert_eq!((lab.mode("etc/a/b/file"), lab.mode("etc/a/b"), lab.mode("etc/a") & 0o700), (0o4600, 0o700, 0o700));
    // The directory is there now and stays as it is.
    lab.write("etc/a/b/other", &Attributes { dir_mode: Some(0o711), ..Attributes::default() }).unwrap();
    assert_eq!(lab.mode("etc/a/b"), 0o700);
    assert_eq!(lab.mode("etc/a/b/other") & 0o7133, 0, "no more than 0644");
    lab.write("in-root", &Attributes::default()).unwrap();
    assert_eq!(lab.read("in-root"), "content");
}

#[test]
fn a_file_that_is_there_gets_new_content_and_keeps_its_rights() {
    let lab = lab();
    std::fs::write(lab.path("etc/file"), "something much longer than that").unwrap();
    std::fs::set_permissions(lab.path("etc/file"), Permissions::from_mode(0o640)).unwrap();
    let inode = std::fs::metadata(lab.path("etc/file")).unwrap().ino();
    lab.write("etc/file", &Attributes::default()).unwrap();
    assert_eq!((lab.read("etc/file").as_str(), lab.mode("etc/file")), ("content", 0o640));
    assert_eq!(std::fs::metadata(lab.path("etc/file")).unwrap().ino(), inode);
}

#[test]
fn owners_are_set_and_the_set_user_id_bit_survives_it() {
    let lab = lab();
    let me = std::fs::metadata(lab.path("etc")).unwrap();
    let (owner, group) = if me.uid() == 0 { (1234, 4321) } else { (me.uid(), me.gid()) };
    let attributes = Attributes { mode: Some(0o4755), owner: Some(owner), group: Some(group), ..Attributes::default() };
    lab.write("etc/program", &attributes).unwrap();
    let file = std::fs::metadata(lab.path("etc/program")).unwrap();
    assert_eq!((file.uid(), file.gid(), lab.mode("etc/program")), (owner, group, 0o4755));
}

#[test]
fn what_a_file_system_without_owners_refuses_is_noted() {
    let refusal = || Err(io::Error::from_raw_os_error(Errno::PERM.raw_os_error()));
    let fat = Attributes { may_be_refused: true, ..Attributes::default() };
    let mut refused = Vec::new();
    settle(refusal(), "f", "mode", &fat, &mut refused).unwrap();
    settle(Ok(()), "f", "owner and group", &fat, &mut refused).unwrap();
    assert_eq!(refused, ["mode"]);
    let other = Err(io::Error::from_raw_os_error(Errno::IO.raw_os_error()));
    settle(other, "f", "mode", &fat, &mut refused).unwrap_err();
    let error = settle(refusal(), "f", "mode", &Attributes::default(), &mut refused).unwrap_err();
    assert_eq!(error.to_string(), "setting the mode of /f");
}

#[test]
fn no_link_leads_out() {
    let lab = lab();
    let outside = lab.outside();
    lab.link(&outside, "etc/absolute");
    lab.link("../../outside", "etc/relative");
    lab.link(outside.join("secret"), "etc/file");
    lab.link("../../outside/secret", "etc/file-up");
    lab.link("../../outside/new", "etc/new");
    lab.link(outside.join("new"), "etc/new-absolute");
    lab.link("/proc/self/root", "etc/magic");
    lab.link("/proc/self/cwd", "etc/here");
    lab.link("circle", "etc/circle");
    let before = lab.world();
    for path in [
        "etc/absolute/secret",
        "etc/absolute/made/file",
        "etc/relative/secret",
        "etc/relative/made/file",
        "etc/file",
        "etc/file-up",
        "etc/new",
        "etc/new-absolute",
        "etc/magic/tmp/ferric-test-escape",
        "etc/here/Cargo.toml",
        "etc/circle/file",
        "../outside/secret",
        "../../../../../../../../tmp/ferric-test-escape",
    ] {
        let written = lab.write(path, &Attributes { mode: Some(0o777), ..Attributes::default() });
        let deleted = delete(&lab.image, path);
        assert_eq!(lab.world(), before, "{path}: {written:?} {deleted:?}");
    }
    assert!(!Path::new("/tmp/ferric-test-escape").exists());
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "untouched");
}

#[test]
fn links_within_the_file_system_are_followed_as_its_own_system_would() {
    let lab = lab();
    std::fs::create_dir_all(lab.path("usr/lib")).unwrap();
    std::fs::create_dir_all(lab.path("run")).unwrap();
    lab.link("/usr/lib", "lib");
    lab.link("../run/resolv.conf", "etc/resolv.conf");
    lab.write("lib/a/file", &Attributes::default()).unwrap();
    lab.write("etc/resolv.conf", &Attributes::default()).unwrap();
    assert_eq!((lab.read("usr/lib/a/file"), lab.read("run/resolv.conf")), ("content".to_owned(), "content".to_owned()));
    assert!(has_directory(&lab.image, "lib") && !has_directory(&lab.image, "etc/resolv.conf"));
    assert!(!has_directory(&lab.image, "nothing"));
    // The link goes, not what it leads to.
    assert!(delete(&lab.image, "etc/resolv.conf").unwrap());
    assert_eq!(lab.read("run/resolv.conf"), "content");
}

#[test]
fn only_regular_files_are_written() {
    let lab = lab();
    mkfifoat(rustix::fs::CWD, lab.path("etc/fifo"), Mode::from_raw_mode(0o600)).unwrap();
    std::fs::write(lab.path("etc/file"), "file").unwrap();
    lab.link("gone/away", "etc/nowhere");
    for (path, want) in [
        ("etc/fifo", "opening /etc/fifo"),
        ("etc", "opening /etc"),
        ("etc/file/below", "making the directory /etc/file"),
        ("etc/nowhere/below", "making the directory /etc/nowhere"),
        ("etc/nowhere", "opening /etc/nowhere"),
        ("etc/a\0b", "opening /etc/a"),
        (&*format!("etc/{}", "n".repeat(300)), "opening /etc/nnn"),
    ] {
        let error = lab.write(path, &Attributes::default()).unwrap_err();
        assert!(error.to_string().starts_with(want), "{path:?}: {error}");
    }
    assert_eq!(lab.read("etc/file"), "file");
}

#[test]
fn deleting_what_is_not_there_is_done_and_directories_stay() {
    let lab = lab();
    std::fs::write(lab.path("etc/file"), "x").unwrap();
    for (path, want) in [("etc/file", true), ("etc/file", false), ("no/such/file", false), ("nothing", false)] {
        assert_eq!(delete(&lab.image, path).unwrap(), want, "{path}");
    }
    assert!(delete(&lab.image, "etc").unwrap_err().to_string().contains("deleting /etc"));
    assert!(lab.path("etc").is_dir());
}

#[test]
fn a_content_that_breaks_off_is_an_error_that_names_the_file() {
    struct Broken(u32);
    impl Read for Broken {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 2 { Err(io::Error::other("line cut")) } else { Ok(buf.len()) }
        }
    }
    let lab = lab();
    let error = write(&lab.image, "etc/file", &Attributes::default(), &mut Broken(0)).unwrap_err();
    assert!(matches!(&error, InjectError::Content { path, .. } if path == "etc/file"), "{error}");
}

#[test]
fn base64_may_have_white_space_and_lack_padding() {
    for (text, want) in [
        ("Y29udGVudA==", Some("content")),
        ("Y29u\n dGVudA", Some("content")),
        ("", Some("")),
        ("not base64!", None),
        ("Y29udGVudA=x", None),
    ] {
        assert_eq!(is_base64(text), want.is_some(), "{text}");
        if let Some(want) = want {
            assert_eq!(io::read_to_string(base64(text)).unwrap(), want);
        }
    }
}

#[test]
fn what_is_no_file_system_is_named() {
    let disk = TestDisk::zeroed(1 << 20).unwrap();
    let dev = disk.open().unwrap();
    assert!(identify(disk.path()).unwrap_err().to_string().contains("no file system that is known"));
    dev.write_at(0, b"LUKS\xba\xbe").unwrap();
    assert!(identify(disk.path()).unwrap_err().to_string().contains("holds crypto_LUKS, which is no file system"));
    dev.write_at(0, &[0; 6]).unwrap();
    dev.write_at(1080, &[0x53, 0xef]).unwrap();
    assert_eq!(identify(disk.path()).unwrap(), "ext4");
    assert!(identify(Path::new("/dev/ferric/nothing")).is_err());
}

#[test]
fn a_file_system_that_cannot_be_mounted_leaves_nothing_behind() {
    // No block device: refused also where the tests may mount.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vda1");
    std::fs::write(&file, "x").unwrap();
    let error = with_volume(&file, &dir.path().join("mnt"), "ext4", |_| unreachable!("not mounted")).unwrap_err();
    assert!(matches!(error, VolumeError::Mount { .. } | VolumeError::NoDriver { .. }), "{error}");
    assert_eq!(std::fs::read_dir(dir.path().join("mnt")).unwrap().count(), 0);
}

/// Names that mean something to a file system, and links to them.
fn name() -> impl Strategy<Value = String> {
    let known = ["..", ".", "etc", "up", "far", "abs", "proc", "self", "outside", "secret", ""];
    proptest::sample::select(known.to_vec()).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_path_ever_changes_what_is_outside(
        parts in proptest::collection::vec(name(), 1..8),
        targets in proptest::collection::vec(proptest::collection::vec(name(), 1..6), 3), absolute in any::<bool>(),
    ) {
        let lab = lab();
        for (link, target) in ["up", "far", "abs"].into_iter().zip(&targets) {
            let target = target.join("/");
            let target = if absolute { format!("/{target}") } else { target };
            if !target.is_empty() {
                symlink(&target, lab.path(link)).unwrap();
                symlink(&target, lab.path("etc").join(link)).unwrap();
            }
        }
        let before = lab.world();
        let path = parts.join("/");
        let _written = lab.write(&path, &Attributes { dir_mode: Some(0o700), ..Attributes::default() });
        let _deleted = delete(&lab.image, &path);
        prop_assert_eq!(lab.world(), before);
    }
}
