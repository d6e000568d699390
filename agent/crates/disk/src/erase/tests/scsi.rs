//! SCSI SANITIZE.

use ferric_sys::testing::disk::TestDisk;
use ferric_types::error::chain;

use super::drives::Scsi;
use super::{POLICY, SIZE, erase_all, erase_one, is_zero, passes};
use crate::erase::{Bus, Policy, Sanitization, Sense};

const SANITIZE: Policy = Policy { sanitize: true, ..POLICY };

#[test]
fn a_disk_is_sanitized_by_the_quickest_way_it_has() {
    for (actions, sent, method) in [
        (&[1, 2, 3][..], 0x83, "scsi-sanitize-crypto"),
        (&[1, 2], 0x82, "scsi-sanitize-block"),
        (&[1], 0x81, "scsi-sanitize-overwrite"),
    ] {
        let disk = TestDisk::used(SIZE).unwrap();
        let drive = Scsi::new(&disk, actions);
        let (mut outcomes, report) = erase_all(&[(&disk, &drive)], Bus::Scsi, &[], &SANITIZE);
        let verdict = outcomes.remove(0).unwrap();
        assert_eq!((verdict.method, verdict.sanitization), (method, Sanitization::Purge));
        assert_eq!(drive.log.borrow().iter().map(|command| command[1]).collect::<Vec<_>>(), [sent]);
        // Three quarters, as it last said of itself.
        assert_eq!(report.done_bytes, POLICY.passes.work_bytes(SIZE) * 3 / 4);
        assert!(is_zero(&disk));
    }
}

#[test]
fn a_disk_that_offers_nothing_or_is_not_to_be_sanitized_is_overwritten() {
    for (actions, policy) in [(&[][..], &SANITIZE), (&[1, 2, 3], &POLICY)] {
        let disk = TestDisk::used(SIZE).unwrap();
        let drive = Scsi::new(&disk, actions);
        let verdict = erase_one(&disk, &drive, Bus::Scsi, policy).unwrap();
        assert_eq!((verdict.asked, verdict.method), ("overwrite", "overwrite"));
        assert!(drive.log.borrow().is_empty());
    }
}

#[test]
fn failures_are_told_and_overwritten_only_where_allowed() {
    for (refuses, fails, words) in [
        (true, false, "the disk answered SANITIZE with sense 5/24/00"),
        (false, true, "the disk says that sanitizing failed"),
    ] {
        let disk = TestDisk::used(SIZE).unwrap();
        let mut drive = Scsi::new(&disk, &[2, 3]);
        (drive.refuses, drive.fails) = (refuses, fails);
        let text = chain(&erase_one(&disk, &drive, Bus::Scsi, &SANITIZE).unwrap_err());
        assert!(text.matches(words).count() == 2, "by the key and by blocks: {text}");
        let verdict = erase_one(&disk, &drive, Bus::Scsi, &Policy { go_on: true, ..SANITIZE }).unwrap();
        assert_eq!((verdict.asked, verdict.method), ("scsi-sanitize-crypto", "overwrite"));
    }
}

#[test]
fn unmapping_stands_for_zeroes_where_the_disk_promises_them() {
    // LBPU and LBPRZ; whether it is used.
    for (provisioning, method) in [(0x84, "discard"), (0x80, "overwrite"), (0x04, "overwrite"), (0x88, "overwrite")] {
        let disk = TestDisk::used(SIZE).unwrap();
        let mut drive = Scsi::new(&disk, &[]);
        drive.provisioning = provisioning;
        let verdict = erase_one(&disk, &drive, Bus::Scsi, &passes(0, true)).unwrap();
        assert_eq!((verdict.method, verdict.zeroed), (method, true), "{provisioning:#x}");
        assert!(is_zero(&disk));
        assert_eq!(erase_one(&disk, &drive, Bus::Scsi, &POLICY).unwrap().method, "overwrite");
    }
}

#[test]
fn sense_data_of_both_formats_is_read() {
    let fixed = [0xf0, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 0x1b, 0, 0x80, 0x12, 0x34];
    let descriptor =
        [0x72, 2, 4, 0x1b, 0, 0, 0, 20, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 6, 0, 0, 0x80, 0x12, 0x34, 0];
    let want = Sense { key: 2, asc: 4, ascq: 0x1b, progress: Some(0x1234) };
    assert_eq!((Sense::of(&fixed), Sense::of(&descriptor)), (want, want));
    for length in 0..fixed.len() {
        assert!(Sense::of(&fixed[..length]).asc <= 4);
    }
    for length in 0..descriptor.len() {
        assert!(Sense::of(&descriptor[..length]).asc <= 4);
    }
    // A descriptor of no length leads on all the same.
    assert_eq!(Sense::of(&[0x72, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]).progress, None);
    assert_eq!(Sense::of(&[]), Sense::default());
}
