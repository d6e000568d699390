//! Disks that are files, with firmware made of a few flags and pages composed from the standards.

mod ata;
mod drives;
mod nvme;
mod plans;
mod scsi;

use ferric_sys::block_dev::BlockDev;
use ferric_sys::testing::disk::TestDisk;
use ferric_types::Progress;

use super::*;
use proptest::prelude::*;

const SIZE: u64 = (2 << 20) + 512;

const POLICY: Policy =
    Policy { passes: Passes { iterations: 1, zeroize: true }, nvme: true, ata: true, sanitize: false, go_on: false };

fn passes(iterations: u32, zeroize: bool) -> Policy {
    Policy { passes: Passes { iterations, zeroize }, ..POLICY }
}

/// Erases disks whose firmware is given; also the progress that was shown at the end.
fn erase_all(
    disks: &[(&TestDisk, &dyn Firmware)],
    bus: Bus,
    spared: &[&str],
    policy: &Policy,
) -> (Vec<Result<EraseVerdict, EraseError>>, ferric_types::ProgressReport) {
    let devs: Vec<BlockDev> = disks.iter().map(|(disk, _)| disk.open().unwrap()).collect();
    let progress = Progress::new();
    progress.phase("erase", None);
    let parts = progress
        .disks(devs.iter().map(|dev| (dev.path().display().to_string(), policy.passes.work_bytes(dev.size_bytes()))));
    let targets: Vec<Target<'_>> = devs
        .iter()
        .zip(disks)
        .zip(&parts)
        .map(|((dev, (_, firmware)), progress)| Target { dev, firmware: *firmware, progress, rotational: true })
        .collect();
    let spared: Vec<String> = spared.iter().map(|name| (*name).to_owned()).collect();
    let outcomes = erase(&targets, bus, &spared, policy);
    (outcomes, progress.report().unwrap())
}

fn erase_one(disk: &TestDisk, firmware: &dyn Firmware, bus: Bus, policy: &Policy) -> Result<EraseVerdict, EraseError> {
    erase_all(&[(disk, firmware)], bus, &[], policy).0.remove(0)
}

fn is_zero(disk: &TestDisk) -> bool {
    std::fs::read(disk.path()).unwrap().iter().all(|byte| *byte == 0)
}

#[test]
fn the_last_pass_leaves_zeroes_everywhere() {
    for iterations in [0, 2] {
        let disk = TestDisk::used(SIZE).unwrap();
        let policy = passes(iterations, true);
        let (mut outcomes, report) = erase_all(&[(&disk, &drives::Deaf)], Bus::Other, &[], &policy);
        let verdict = outcomes.remove(0).unwrap();
        assert!(is_zero(&disk), "{iterations}");
        assert!(verdict.samples_checked > 3 && verdict.zeroed && verdict.verified, "{verdict:?}");
        assert_eq!((verdict.asked, verdict.method), ("overwrite", "overwrite"));
        assert_eq!((verdict.random_passes, verdict.bytes), (iterations, SIZE));
        assert_eq!(verdict.sanitization, Sanitization::Clear);
        assert_eq!(report.done_bytes, policy.passes.work_bytes(SIZE));
    }
}

#[test]
fn random_passes_leave_nothing_of_the_old_data() {
    let disk = TestDisk::used(SIZE).unwrap();
    erase_one(&disk, &drives::Deaf, Bus::Other, &passes(1, false)).unwrap();
    let bytes = std::fs::read(disk.path()).unwrap();
    assert_eq!(u64::try_from(bytes.len()).unwrap(), SIZE);
    for (index, sector) in bytes.chunks(512).enumerate() {
        assert!(sector.iter().any(|byte| *byte != 0xa5), "sector {index}");
    }
    // Random bytes do not repeat from one MiB to the next.
    assert!(bytes[..1 << 20] != bytes[1 << 20..2 << 20]);
}

#[test]
fn nothing_to_do_is_an_error() {
    let disk = TestDisk::used(4096).unwrap();
    let error = erase_one(&disk, &drives::Deaf, Bus::Other, &passes(0, false)).unwrap_err();
    assert!(matches!(error, EraseError::Nothing { .. }), "{error}");
}

#[test]
fn a_disk_that_only_pretends_to_write_is_found_out() {
    let disk = TestDisk::used(SIZE).unwrap();
    let dev = disk.open().unwrap();
    let samples = Samples::take(&dev).unwrap();
    assert_eq!(samples.must_have_changed(&dev).unwrap(), Some(0));
    assert_eq!(samples.must_be_zero(&dev).unwrap(), Some(0));
    assert_eq!(samples.must_be_gone(&dev).unwrap(), Some(0));
    dev.zero_range(0, SIZE - 512).unwrap();
    assert_eq!(samples.must_be_zero(&dev).unwrap(), Some(SIZE - 512));
    assert_eq!(samples.must_be_gone(&dev).unwrap(), Some(SIZE - 512));
    dev.zero_range(SIZE - 512, 512).unwrap();
    assert_eq!(samples.must_be_gone(&dev).unwrap(), None);
    // What was empty may be empty again, but a pass of random bytes leaves nothing as it was.
    let samples = Samples::take(&dev).unwrap();
    assert_eq!(samples.must_be_gone(&dev).unwrap(), None);
    assert_eq!(samples.must_have_changed(&dev).unwrap(), Some(0));
}

proptest! {
    #[test]
    fn no_page_of_a_disk_makes_it_panic(
        page in proptest::collection::vec(any::<u8>(), 0..600),
        words in proptest::array::uniform32(any::<u8>()),
    ) {
        Sense::of(&page);
        let (controller, _) = Controller::of(1, &page, &page, Some(&page));
        prop_assert!(controller.namespaces.len() <= 150);
        let mut identify = [0; 512];
        identify.iter_mut().zip(words.iter().cycle()).for_each(|(to, from)| *to = *from);
        let _state = Security::of(&identify);
    }
}
