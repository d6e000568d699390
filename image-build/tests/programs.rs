//! Programs of packages in an image: small packages made on the spot, as unpacked trees.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::image::unpack;
use crate::support::{Fixture, dynamic, read};
use ferric_image_build::build;
use ferric_image_build::cpio::Node;
use ferric_image_build::profile::{Profile, ProgramChoice};
use ferric_image_build::programs::{Programs, Source};

const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
const MULTIARCH: &str = "lib/x86_64-linux-gnu";

struct Packages {
    directory: tempfile::TempDir,
}

impl Packages {
    /// A tool under two names, its library with a version in its name, and a C library with its loader.
    fn new() -> Self {
        let packages = Self { directory: tempfile::tempdir().unwrap() };
        packages
            .record("tool", "Depends: debconf (>= 1) | debconf-2.0, libother2, libc6 (>= 2.36), libtool-x1 (= 2)\n");
        packages.record("libtool-x1", "Source: tool (2-1)\nPre-Depends: libc6 (>= 2.36)\n");
        packages.record("libc6", "Source: glibc\n");
        packages.record("libother2", "");
        let program = dynamic(Some(&format!("/{LOADER}")), &["libtool_x.so.1", "libc.so.6"]);
        packages.file("tool/sbin/mktool", &program);
        packages.link("tool/sbin/mktool.ext", "mktool");
        packages.file("tool/etc/tool.conf", b"[defaults]\n");
        packages.file(&format!("libtool-x1/usr/{MULTIARCH}/libtool_x.so.1.2"), &dynamic(None, &["libc.so.6"]));
        packages.link(&format!("libtool-x1/usr/{MULTIARCH}/libtool_x.so.1"), "libtool_x.so.1.2");
        packages.file(&format!("libc6/{MULTIARCH}/libc.so.6"), &dynamic(None, &["ld-linux-x86-64.so.2"]));
        packages.file(&format!("libc6/{MULTIARCH}/ld-linux-x86-64.so.2"), &dynamic(None, &[]));
        packages.link(&format!("libc6/{LOADER}"), "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        packages
    }

    fn path(&self, below: &str) -> std::path::PathBuf {
        let path = self.directory.path().join(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn record(&self, name: &str, more: &str) {
        let record = format!("Package: {name}\nVersion: 1:2-1+b3\n{more}Description: x\n");
        fs::write(self.path(&format!("{name}.control")), record).unwrap();
        self.file(&format!("{name}/usr/share/doc/{name}/copyright"), b"License: GPL-2+\nText of it.\n");
    }

    fn file(&self, path: &str, bytes: &[u8]) {
        fs::write(self.path(path), bytes).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    fn obtain(&self, choice: &ProgramChoice) -> anyhow::Result<Programs> {
        Programs::obtain(&Source::Trees(self.directory.path().to_owned()), choice)
    }
}

fn choice() -> ProgramChoice {
    let list = |text: &str| vec![text.to_owned()];
    ProgramChoice { packages: list("tool"), include: list("mktool.ext"), files: list("etc/tool.conf") }
}

#[test]
fn a_program_comes_with_its_libraries_and_its_loader() {
    let found = Packages::new().obtain(&choice()).unwrap();
    let paths: Vec<&str> = found.files.keys().map(String::as_str).collect();
    let libraries = ["libc.so.6", "libtool_x.so.1"].map(|name| format!("{MULTIARCH}/{name}"));
    let wanted = ["etc/tool.conf", &libraries[0], &libraries[1], LOADER, "usr/sbin/mktool", "usr/sbin/mktool.ext"];
    assert_eq!(paths, wanted);
    assert_eq!(found.files["usr/sbin/mktool.ext"], Node::Symlink { target: "mktool".into() });
    for (path, mode) in [("usr/sbin/mktool", 0o755), (LOADER, 0o755), ("etc/tool.conf", 0o644)] {
        assert_eq!(found.files[path].mode(), mode, "{path}");
    }
    let packages: Vec<(&str, &str)> =
        found.packages.iter().map(|package| (package.name.as_str(), package.source.as_str())).collect();
    // Nothing was taken from the other library that the tool's package depends on.
    assert_eq!(packages, [("libc6", "glibc 1:2-1+b3"), ("libtool-x1", "tool 2-1"), ("tool", "tool 1:2-1+b3")]);
    assert_eq!(found.packages[1].licenses().into_iter().collect::<Vec<_>>(), ["GPL-2+"]);
    assert_eq!(found.copyright().matches("Text of it.").count(), 3);
}

#[test]
fn what_cannot_be_packed_is_named() {
    let with = |change: &dyn Fn(&Packages, &mut ProgramChoice)| {
        let (packages, mut choice) = (Packages::new(), choice());
        change(&packages, &mut choice);
        format!("{:#}", packages.obtain(&choice).expect_err("it was packed"))
    };
    let cases: [(&str, String); 7] = [
        ("package nosuch is not known to apt", with(&|_, choice| choice.packages.push("nosuch".into()))),
        ("none of tool has the program mkother", with(&|_, choice| choice.include = vec!["mkother".into()])),
        ("none of tool has the file etc/other", with(&|_, choice| choice.files.push("etc/other".into()))),
        (
            "needed by usr/sbin/mktool: the library libgone.so.3 is in no package that tool depends on",
            with(&|packages, _| packages.file("tool/sbin/mktool", &dynamic(None, &["libgone.so.3"]))),
        ),
        (
            "usr/sbin/mktool of package tool: reading the ELF structure",
            with(&|packages, _| packages.file("tool/sbin/mktool", b"\x7fELF")),
        ),
        (
            "leads to usr/sbin/elsewhere, which is no file of it",
            with(&|packages, choice| {
                packages.link("tool/sbin/out", "../../../../usr/sbin/elsewhere");
                choice.include = vec!["out".into()];
            }),
        ),
        (
            "package libc6 has no licence text",
            with(&|packages, _| fs::remove_file(packages.path("libc6/usr/share/doc/libc6/copyright")).unwrap()),
        ),
    ];
    for (wanted, text) in cases {
        assert!(text.contains(wanted), "{wanted:?} not in {text:?}");
    }
}

#[test]
fn an_image_has_the_programs_and_says_where_they_are_from() {
    let packages = Packages::new();
    let fixture = Fixture::new(false);
    let modules = "include = [\"virtio_net\"]\n[programs]\npackages = [\"tool\"]\ninclude = [\"mktool.ext\"]\n";
    let mut images = Vec::new();
    for out in ["out", "again"] {
        let mut options = fixture.options(modules, out);
        options.packages = Source::Trees(packages.directory.path().to_owned());
        options.cache = None;
        assert_eq!(build(&options).unwrap().packages, 3);
        images.push(fs::read(options.out.join("initramfs.img")).unwrap());
    }
    assert_eq!(images[0], images[1], "two builds differ");
    let files = unpack(&images[0]);
    for (path, mode) in [("usr/sbin", 0o040_755), ("usr/sbin/mktool", 0o100_755), (LOADER, 0o100_755)] {
        assert_eq!(files.get(path).map(|file| file.0), Some(mode), "{path}");
    }
    assert_eq!(files["usr/sbin/mktool.ext"].1, b"mktool");
    let manifest: serde_json::Value = serde_json::from_slice(&read(&fixture.path("out/manifest.json"))).unwrap();
    let package = &manifest["packages"][2];
    assert_eq!(package["name"], "tool", "{package}");
    assert_eq!(package["files"], serde_json::json!(["usr/sbin/mktool", "usr/sbin/mktool.ext"]));
    assert_eq!(package["licenses"], serde_json::json!(["GPL-2+"]));
    assert_eq!(package["size_bytes"], files["usr/sbin/mktool"].1.len());
    let licenses = fs::read_to_string(fixture.path("out/licenses.txt")).unwrap();
    assert!(licenses.starts_with("==== libc6 1:2-1+b3 (source: glibc 1:2-1+b3) ===="), "{licenses}");
    let sums = fs::read_to_string(fixture.path("out/SHA256SUMS")).unwrap();
    assert!(sums.contains("  licenses.txt\n"), "{sums}");
}

#[test]
fn every_profile_of_this_tree_can_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("initramfs/profiles");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let profile = Profile::load(&path).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(path.file_stem().unwrap().to_str(), Some(profile.name.as_str()));
        assert!(folder.join(&profile.skeleton).is_dir(), "{}", profile.name);
        assert_eq!(profile.programs.include.is_empty(), profile.name == "virt", "{}", profile.name);
        names.push(profile.name);
    }
    names.sort();
    assert_eq!(names, ["storage", "virt"]);
}
