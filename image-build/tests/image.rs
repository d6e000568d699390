//! Images from a small fixture kernel.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read};
use std::path::Path;
use std::process::Command;

use crate::support::{Fixture, RELEASE, read};
use ferric_image_build::build;
use ferric_image_build::kmods::{ModuleTree, Selection};
use ferric_image_build::modinfo::ModInfo;
use ferric_image_build::pack::unpack as unpack_archives;
use ferric_image_build::profile::ModuleChoice;
use ferric_image_build::strip::strip_module;
use object::{Object, ObjectSection, ObjectSymbol};

const MODULES: &str = "include = [\"virtio_net\", \"ext4\", \"vfat\", \"atkbd\"]\nrequires.vfat = [\"nls-cp437\"]\n";

fn choice(include: &[&str]) -> ModuleChoice {
    ModuleChoice { include: include.iter().map(|name| (*name).to_owned()).collect(), ..Default::default() }
}

fn select(fixture: &Fixture, choice: &ModuleChoice) -> anyhow::Result<Selection> {
    ModuleTree::open(&fixture.modules(), RELEASE)?.select(choice)
}

/// Path to mode and content of everything in an initramfs.
pub(crate) fn unpack(initramfs: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
    let archives = unpack_archives(initramfs).unwrap();
    let mut rest = Cursor::new(archives.as_slice());
    let mut files = BTreeMap::new();
    loop {
        let mut reader = cpio::newc::Reader::new(rest).unwrap();
        if reader.entry().is_trailer() {
            rest = reader.finish().unwrap();
            // The next archive follows the padding of this one.
            let behind = &archives[usize::try_from(rest.position()).unwrap()..];
            let Some(padding) = behind.iter().position(|byte| *byte != 0) else { return files };
            rest.set_position(rest.position() + u64::try_from(padding).unwrap());
            continue;
        }
        let mut content = Vec::new();
        reader.read_to_end(&mut content).unwrap();
        let entry = reader.entry();
        files.insert(entry.name().to_owned(), (entry.mode(), content));
        rest = reader.finish().unwrap();
    }
}

#[test]
fn two_builds_give_the_same_bytes() {
    let (one, two) = (Fixture::new(false), Fixture::new(true));
    build(&one.options(MODULES, "out")).unwrap();
    build(&two.options(MODULES, "elsewhere/out")).unwrap();
    for name in ["vmlinuz", "initramfs.img", "manifest.json", "SHA256SUMS"] {
        let (a, b) = (read(&one.path("out").join(name)), read(&two.path("elsewhere/out").join(name)));
        assert_eq!(a, b, "{name} differs");
    }
}

#[test]
fn an_unchanged_image_is_left_alone_and_a_damaged_one_is_made_again() {
    let fixture = Fixture::new(false);
    let options = fixture.options(MODULES, "out");
    assert!(!build(&options).unwrap().unchanged);
    assert!(build(&options).unwrap().unchanged);
    let path = fixture.path("out/initramfs.img");
    let good = read(&path);
    fs::write(&path, "cut").unwrap();
    assert!(!build(&options).unwrap().unchanged);
    assert_eq!(read(&path), good);
    fs::write(fixture.path("agent"), crate::support::program(62, 2, &[(1, &[0x91; 16])])).unwrap();
    assert!(!build(&options).unwrap().unchanged);
    assert_ne!(read(&path), good);
}

#[test]
fn the_ramdisk_has_init_console_skeleton_modules_and_their_index() {
    let fixture = Fixture::new(false);
    build(&fixture.options(MODULES, "out")).unwrap();
    let files = unpack(&read(&fixture.path("out/initramfs.img")));
    let base = format!("lib/modules/{RELEASE}");
    let cases = [
        ("init", 0o100_755),
        ("dev/console", 0o020_600),
        ("etc/passwd", 0o100_644),
        ("proc", 0o040_755),
        ("tmp", 0o041_777),
    ];
    for (path, mode) in cases {
        assert_eq!(files.get(path).map(|file| file.0), Some(mode), "{path}");
    }
    assert_eq!(files["init"].1, crate::support::static_program());
    let module = &files[&format!("{base}/kernel/drivers/net/virtio_net.ko")].1;
    assert_eq!(*module, read(&fixture.modules().join("kernel/drivers/net/virtio_net.ko")));
    for absent in ["kernel/drivers/net/ethernet/amd/pcnet32.ko", "kernel/arch/x86/crypto/crc32c-intel.ko"] {
        assert!(!files.contains_key(&format!("{base}/{absent}")), "{absent} was not asked for");
    }
    let text = |name: &str| String::from_utf8(files[&format!("{base}/{name}")].1.clone()).unwrap();
    assert_eq!(text("modules.builtin"), "kernel/drivers/input/keyboard/atkbd.ko\n");
    assert!(text("modules.alias").contains("alias virtio:d00000001v* virtio_net\n"));
    let dep = text("modules.dep");
    let wanted = "kernel/drivers/net/virtio_net.ko: kernel/drivers/virtio/virtio.ko \
        kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko";
    assert!(dep.lines().any(|line| line == wanted), "{dep}");
    assert!(dep.lines().any(|line| line == "kernel/fs/nls/nls_cp437.ko:"), "{dep}");
}

#[test]
fn the_manifest_lists_every_file_and_its_sums_hold() {
    let fixture = Fixture::new(false);
    build(&fixture.options(MODULES, "out")).unwrap();
    let initramfs = read(&fixture.path("out/initramfs.img"));
    let manifest: serde_json::Value = serde_json::from_slice(&read(&fixture.path("out/manifest.json"))).unwrap();
    let listed: Vec<&str> =
        manifest["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(listed, unpack(&initramfs).keys().collect::<Vec<_>>());
    assert_eq!(manifest["kernel"]["release"], RELEASE);
    assert_eq!(manifest["profile"], "tiny");
    assert_eq!(manifest["builtin"], serde_json::json!(["atkbd"]));
    let modules = manifest["modules"].as_array().unwrap();
    let module = modules.iter().find(|module| module["name"] == "virtio_net").unwrap();
    assert_eq!(module["version"], "1.0");
    assert_eq!(module["needs"], serde_json::json!(["net_failover", "virtio"]));
    let image = manifest["images"].as_array().unwrap().iter().find(|image| image["name"] == "initramfs.img").unwrap();
    assert_eq!(image["size_bytes"], initramfs.len());
    let sums = String::from_utf8(read(&fixture.path("out/SHA256SUMS"))).unwrap();
    let line = format!("{}  initramfs.img\n", image["sha256"].as_str().unwrap());
    assert!(sums.contains(&line), "{sums}");
}

#[test]
fn a_choice_is_closed_over_what_the_modules_need() {
    let fixture = Fixture::new(false);
    let cases: [(&str, ModuleChoice, &[&str]); 8] = [
        ("symbols", choice(&["virtio-net"]), &["failover", "net_failover", "virtio", "virtio_net"]),
        ("softdep by alias", choice(&["ext4"]), &["crc32c_generic", "ext4", "jbd2"]),
        ("a name glob", choice(&["e1000*"]), &["e1000", "e1000e"]),
        ("a path glob", choice(&["drivers/net/ethernet/intel/**"]), &["e1000", "e1000e"]),
        (
            "a path glob without subfolders",
            choice(&["drivers/net/*"]),
            &["failover", "net_failover", "virtio", "virtio_net"],
        ),
        ("a builtin", choice(&["crc32"]), &[]),
        ("an exclusion", ModuleChoice { exclude: vec!["e1000e".into()], ..choice(&["e1000*"]) }, &["e1000"]),
        (
            "a requirement",
            ModuleChoice { requires: BTreeMap::from([("vfat".into(), vec!["nls_cp437".into()])]), ..choice(&["vfat"]) },
            &["fat", "nls_cp437", "vfat"],
        ),
    ];
    for (what, choice, wanted) in cases {
        let selection = select(&fixture, &choice).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        assert_eq!(selection.modules.keys().collect::<Vec<_>>(), wanted, "{what}");
    }
}

#[test]
fn what_a_module_needs_is_loaded_before_it() {
    let fixture = Fixture::new(false);
    let selection = select(&fixture, &choice(&["*_net", "ext4"])).unwrap();
    assert_eq!(
        selection.load_order("virtio_net"),
        ["kernel/net/core/failover.ko", "kernel/drivers/net/net_failover.ko", "kernel/drivers/virtio/virtio.ko"]
    );
    assert_eq!(selection.load_order("ext4"), ["kernel/fs/jbd2/jbd2.ko", "kernel/crypto/crc32c_generic.ko"]);
    assert_eq!(selection.load_order("no_such_module"), [""; 0]);
}

#[test]
fn a_choice_that_cannot_be_met_names_the_module() {
    let fixture = Fixture::new(false);
    let cases = [
        ("a wrong name", choice(&["virtio_nett"]), "\"virtio_nett\" is not in kernel 6.1.0-99-test"),
        ("an empty glob", choice(&["drivers/net/wireless/**"]), "drivers/net/wireless/** \"is not"),
        ("a broken package", choice(&["broken"]), "\"not_shipped\", needed by module broken"),
        (
            "an exclusion that is needed",
            ModuleChoice { exclude: vec!["jbd2".into()], ..choice(&["ext4"]) },
            "\"jbd2\" is excluded, but module ext4 needs it",
        ),
        (
            "a requirement of nothing",
            ModuleChoice { requires: BTreeMap::from([("vfatt".into(), Vec::new())]), ..choice(&["vfat"]) },
            "names \"vfatt\"",
        ),
    ];
    for (what, choice, wanted) in cases {
        let text = format!("{:#}", select(&fixture, &choice).expect_err(what));
        assert!(text.replace('"', "").contains(&wanted.replace('"', "")), "{what}: {text}");
    }
}

#[test]
fn modules_to_load_at_every_start_are_listed_in_the_image() {
    let fixture = Fixture::new(false);
    let with = |load: &str| MODULES.replace("requires.", &format!("load = [{load}]\nrequires."));
    build(&fixture.options(&with("\"jbd2\", \"atkbd\""), "out")).unwrap();
    let files = unpack(&read(&fixture.path("out/initramfs.img")));
    assert_eq!(files["etc/modules-load.d/profile.conf"].1, b"jbd2\natkbd\n");
    let text = format!("{:#}", build(&fixture.options(&with("\"e1000\""), "out")).unwrap_err());
    assert!(text.contains("modules.load names \"e1000\""), "{text}");
}

#[test]
fn an_image_over_its_budget_is_not_accepted() {
    let fixture = Fixture::new(false);
    let mut options = fixture.options(MODULES, "out");
    let profile = fs::read_to_string(&options.profile).unwrap();
    fs::write(&options.profile, format!("budget_bytes = 100\n{profile}")).unwrap();
    let text = format!("{:#}", build(&options).unwrap_err());
    assert!(text.contains("over the profile's budget of 100"), "{text}");
    options.any_size = true;
    assert_eq!(build(&options).unwrap().budget_bytes, Some(100));
}

#[test]
fn a_dynamic_agent_makes_no_image() {
    let fixture = Fixture::new(false);
    let mut options = fixture.options(MODULES, "out");
    options.agent = std::env::current_exe().unwrap();
    let text = format!("{:#}", build(&options).unwrap_err());
    assert!(text.contains("checking the agent") && text.contains("dynamically linked"), "{text}");
    assert!(!options.out.exists());
}

#[test]
fn a_compressed_module_is_packed_uncompressed() {
    let fixture = Fixture::new(false);
    let path = fixture.modules().join("kernel/fs/fat/fat.ko");
    let plain = read(&path);
    fs::write(path.with_extension("ko.zst"), zstd::encode_all(plain.as_slice(), 3).unwrap()).unwrap();
    fs::remove_file(&path).unwrap();
    let selection = select(&fixture, &choice(&["fat"])).unwrap();
    assert_eq!(selection.modules["fat"].path, "kernel/fs/fat/fat.ko");
    assert_eq!(selection.modules["fat"].bytes, plain);
}

#[test]
fn stripping_takes_out_what_is_not_needed_and_nothing_else() {
    let module = crate::support::module(&["depends=a,b", "alias=x"]);
    let signed = [module.as_slice(), b"signature~Module signature appended~\n"].concat();
    let stripped = strip_module(&signed).unwrap();
    assert_eq!(ModInfo::from_elf(&stripped).unwrap(), ModInfo::from_elf(&module).unwrap());
    let file = object::File::parse(stripped.as_slice()).unwrap();
    let sections: Vec<&str> = file.sections().map(|section| section.name().unwrap()).collect();
    for (name, kept) in [(".text", true), (".modinfo", true), (".rodata", true), (".rela.rodata", true)]
        .into_iter()
        .chain([".BTF", ".orc_unwind_ip", ".rela.orc_unwind_ip"].map(|name| (name, false)))
    {
        assert_eq!(sections.contains(&name), kept, "{name} in {sections:?}");
    }
    let symbols: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    for (name, kept) in [("used_by_table", true), ("init_module", true), ("used_by_nothing", false)] {
        assert_eq!(symbols.contains(&name), kept, "{name} in {symbols:?}");
    }
    let table = file.section_by_name(".rodata").unwrap();
    let (_, relocation) = table.relocations().next().unwrap();
    let object::RelocationTarget::Symbol(target) = relocation.target() else { panic!("no symbol") };
    assert_eq!(file.symbol_by_index(target).unwrap().name().unwrap(), "used_by_table");
    assert_eq!(file.section_by_name(".text").unwrap().data().unwrap(), [0xc3; 32]);
    assert!(strip_module(&crate::support::static_program()).is_err());
}

#[test]
fn make_refuses_an_unknown_profile_before_it_builds_anything() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // A dry run: if the profile were taken, this would only print what is to be done.
    let mut make = Command::new("make");
    make.current_dir(root).args(["-n", "image", "PROFILE=nosuch"]);
    // Of the make that runs the tests.
    for inherited in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        make.env_remove(inherited);
    }
    let output = make.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("no such profile; there are: storage virt"), "{text}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}
