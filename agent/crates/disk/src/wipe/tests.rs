use super::*;
use ferric_sys::testing::disk::TestDisk;
use std::io;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn every_known_signature_is_found_and_wiped() {
    // Large enough for the far btrfs copy; sparse.
    let size = (GIB << 8) + GIB + 4096;
    let disk = TestDisk::zeroed(size).unwrap();
    let dev = disk.open().unwrap();
    for format in FORMATS {
        for (place, magic) in
            format.places.iter().flat_map(|place| format.magics.iter().map(move |magic| (place, magic)))
        {
            let offset = place.of(size).unwrap();
            dev.write_at(offset, magic).unwrap();
            let found = signatures(&dev).unwrap();
            let want = Signature { name: format.name, offset };
            assert!(found.contains(&want), "{} at {offset}: {found:?}", format.name);
            dev.write_at(offset, &[0; LONGEST][..magic.len()]).unwrap();
            assert_eq!(signatures(&dev).unwrap(), [], "{} at {offset}", format.name);
        }
    }
    for format in FORMATS {
        for (place, magic) in format.places.iter().zip(format.magics.iter().cycle()) {
            dev.write_at(place.of(size).unwrap(), magic).unwrap();
        }
    }
    assert!(signatures(&dev).unwrap().len() > 60);
    destroy_metadata(&dev).unwrap();
    assert_eq!(signatures(&dev).unwrap(), []);
}

#[test]
fn both_ends_are_zero_afterwards_whatever_the_sector_and_the_middle_stays() {
    for sector in [512, 4096] {
        let disk = TestDisk::used(12 << 20).unwrap().sector(sector);
        let dev = BlockDev::open_file_as(disk.path(), Access::Exclusive, sector).unwrap();
        destroy_metadata(&dev).unwrap();
        let bytes = std::fs::read(disk.path()).unwrap();
        assert!(bytes[..4 << 20].iter().all(|byte| *byte == 0), "head with {sector}");
        assert!(bytes[8 << 20..].iter().all(|byte| *byte == 0), "tail with {sector}");
        assert!(bytes[4 << 20..8 << 20].iter().all(|byte| *byte == 0xa5), "middle with {sector}");
    }
}

#[test]
fn a_tiny_device_is_wiped_whole() {
    for size in [512, 4096, 33 * 512, 5 << 20] {
        let disk = TestDisk::used(size).unwrap();
        let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
        destroy_metadata(&dev).unwrap();
        assert!(std::fs::read(disk.path()).unwrap().iter().all(|byte| *byte == 0), "{size}");
    }
}

fn failure(errno: Errno) -> BlockDevError {
    let source = io::Error::from_raw_os_error(errno.raw_os_error());
    BlockDevError::Write { path: "/dev/sda".into(), offset: 0, len_bytes: 1, source }
}

#[test]
fn what_may_pass_is_tried_again_and_what_does_not_is_an_error() {
    for (errno, passes_after, tries) in [
        (Errno::IO, 2, 3),
        (Errno::NOSPC, 1, 2),
        (Errno::NODATA, 99, TRIES),
        (Errno::ROFS, 99, 1),
        (Errno::BADE, 99, 1),
    ] {
        let mut count = 0;
        let result = patiently(Duration::ZERO, || {
            count += 1;
            if count > passes_after { Ok(()) } else { Err(failure(errno)) }
        });
        assert_eq!((result.is_ok(), count), (passes_after < 99, tries), "{errno:?}");
    }
}

#[test]
fn what_lies_around_a_bad_sector_is_written_and_the_error_tells_where_it_is() {
    let written = std::cell::RefCell::new(Vec::new());
    let bad = |at: u64, bytes: usize| {
        written.borrow_mut().push((at, bytes));
        let source = io::Error::from_raw_os_error(Errno::IO.raw_os_error());
        if at == MIB + 4096 {
            return Err(BlockDevError::Write { path: "/dev/sda".into(), offset: at, len_bytes: 4096, source });
        }
        Ok(())
    };
    let error = piecewise(failure(Errno::IO), MIB, 4 * 4096 + 512, bad).unwrap_err();
    assert_eq!(error.to_string(), "writing 4096 bytes at 1052672 of /dev/sda");
    let pieces: Vec<(u64, usize)> = (0..5).map(|n| (MIB + n * 4096, if n == 4 { 512 } else { 4096 })).collect();
    assert_eq!(*written.borrow(), pieces);
    // A disk that is gone is not asked again.
    written.borrow_mut().clear();
    assert!(piecewise(failure(Errno::NXIO), 0, 4096, bad).is_err());
    assert!(written.borrow().is_empty());
    // A dead one is not asked for every piece.
    let dead = |at: u64, _: usize| {
        written.borrow_mut().push((at, 0));
        Err(failure(Errno::IO))
    };
    assert!(piecewise(failure(Errno::IO), 0, CHUNK_BYTES, dead).is_err());
    assert_eq!(written.borrow().len(), MAX_BAD_PIECES);
}

#[test]
fn a_device_in_use_is_told_with_who_uses_it() {
    let error = |holders: &[&str]| WipeError::Busy {
        path: "/dev/sda".into(),
        waited: Duration::from_secs(20),
        holders: holders.iter().map(|holder| (*holder).to_owned()).collect(),
    };
    let start = "Destroying metadata failed on device /dev/sda: it is still in use after 20 s";
    assert_eq!(error(&[]).to_string(), start);
    assert_eq!(error(&["/dev/md0", "process 7 (sh)"]).to_string(), format!("{start}, by /dev/md0, process 7 (sh)"));
}

/// What `wipefs` says of a file: offset and type.
fn wipefs(disk: &TestDisk) -> Option<Vec<(u64, String)>> {
    #[expect(clippy::disallowed_methods, reason = "a tool to compare with")]
    let output = std::process::Command::new("wipefs").args(["-n", "-i", "-O", "OFFSET,TYPE"]).arg(disk.path()).output();
    let text = String::from_utf8(output.ok().filter(|output| output.status.success())?.stdout).unwrap();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let offset = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        Some((offset, words.next()?.to_owned()))
    };
    Some(text.lines().filter_map(line).collect())
}

/// Many formats want more than their magic, so that `wipefs` does not take all of these for real.
#[test]
fn bare_magics_are_where_wipefs_has_them_and_have_its_names() {
    let size = 64 * MIB;
    let mut known = std::collections::BTreeSet::new();
    for format in FORMATS {
        let disk = TestDisk::zeroed(size).unwrap();
        let dev = disk.open().unwrap();
        let Some(offset) = format.places[0].of(size).filter(|offset| *offset < size) else { continue };
        dev.write_at(offset, format.magics[0]).unwrap();
        let Some(found) = wipefs(&disk) else {
            println!("skipped: there is no wipefs here");
            return;
        };
        for (place, name) in found {
            // It tells the versions of ext and squashfs apart.
            let family = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
            assert_eq!((place, family(&name)), (offset, family(format.name)), "{}", format.name);
            known.insert(format.name);
        }
    }
    assert!(known.len() >= 25, "{} formats: {known:?}", known.len());
}

/// What makes a file system on a file, by those programs that are here.
const MAKERS: &[&[&str]] = &[
    &["mke2fs", "-q", "-F", "-t", "ext4"],
    &["mkswap", "-q"],
    &["mkfs.minix"],
    &["mkfs.bfs"],
    &["mkfs.vfat"],
    &["mkfs.xfs", "-q", "-f"],
    &["mkfs.btrfs", "-q", "-f"],
    &["mkfs.f2fs", "-q", "-f"],
    &["mkfs.nilfs2", "-q"],
    &["mkfs.jfs", "-q"],
    &["mkfs.reiserfs", "-q", "-ff"],
    &["mkfs.exfat"],
    &["mkfs.ntfs", "-q", "-F", "-Q"],
    &["mkfs.gfs2", "-q", "-O", "-p", "lock_nolock"],
    &["mkfs.ocfs2", "-q", "-F", "-M", "local"],
    &["mkudffs"],
    &["make-bcache", "-B"],
    &[
        "cryptsetup",
        "luksFormat",
        "-q",
        "--pbkdf",
        "pbkdf2",
        "--pbkdf-force-iterations",
        "1000",
        "--key-file",
        "/proc/version",
    ],
];

#[test]
fn what_programs_of_the_distribution_make_is_found_and_gone_afterwards() {
    let mut made = Vec::new();
    for maker in MAKERS {
        let Some((program, args)) = maker.split_first() else { continue };
        let disk = TestDisk::zeroed(320 * MIB).unwrap();
        #[expect(clippy::disallowed_methods, reason = "tools to compare with")]
        let output = std::process::Command::new(program).args(args).arg(disk.path()).output();
        if !output.is_ok_and(|output| output.status.success()) {
            continue;
        }
        let Some(theirs) = wipefs(&disk) else { break };
        let dev = disk.open().unwrap();
        let ours = signatures(&dev).unwrap();
        for (offset, name) in &theirs {
            // It also counts the jump that FAT begins with.
            let is_found = ours.iter().any(|found| found.offset == *offset || name == "vfat" && found.name == "vfat");
            assert!(is_found, "{program}: {name} at {offset}, not in {ours:?}");
        }
        destroy_metadata(&dev).unwrap();
        assert_eq!(wipefs(&disk).unwrap(), [], "{program}");
        made.push(*program);
    }
    println!("compared with wipefs: {made:?}");
}
