//! NVMe: what is sent, and what becomes of the namespaces.

use ferric_sys::testing::disk::TestDisk;

use super::drives::{Deaf, Does, Nvme};
use super::{POLICY, SIZE, erase_all, erase_one, is_zero, passes};
use crate::erase::{Bus, Controller, EraseError, Firmware, Policy, Sanitization};
use ferric_types::error::chain;

/// SANICAP, polls of a sanitize operation that runs at first, what it does, whether it ends badly; actions sent, words of the error.
type SanitizeCase<'a> = (u32, u32, Does, bool, &'a [u32], &'a str);

const USER_DATA: u32 = 1 << 9;
const CRYPTO: u32 = 2 << 9;

#[test]
fn a_namespace_is_formatted_by_its_key_or_all_of_its_data_but_never_without_erasing() {
    // FNA, what crypto erase does; command dwords that were sent; method.
    let cases: [(u8, Does, &[u32], &str); 4] = [
        (4, Does::It, &[CRYPTO], "nvme-format-crypto"),
        (0, Does::It, &[USER_DATA], "nvme-format-user-data"),
        (4, Does::Status(2), &[CRYPTO, USER_DATA], "nvme-format-user-data"),
        (4, Does::Nothing, &[CRYPTO, USER_DATA], "nvme-format-user-data"),
    ];
    for (fna, crypto, sent, method) in cases {
        let disk = TestDisk::used(SIZE).unwrap();
        let mut drive = Nvme::new(&[&disk]);
        (drive.fna, drive.crypto) = (fna, crypto);
        let verdict = erase_one(&disk, &drive, Bus::Nvme, &POLICY).unwrap();
        let log: Vec<u32> = drive.log.borrow().iter().map(|(_, _, dword)| *dword).collect();
        assert_eq!((log.as_slice(), verdict.method), (sent, method), "{fna} {crypto:?}");
        assert_eq!((verdict.sanitization, verdict.verified), (Sanitization::Purge, true));
        assert_eq!(verdict.failed_before.len(), sent.len() - 1, "{verdict:?}");
        assert!(is_zero(&disk));
    }
}

#[test]
fn a_drive_that_refuses_or_does_nothing_fails_unless_it_may_be_overwritten() {
    let go_on = Policy { go_on: true, ..POLICY };
    // OACS, what user-data erase does; words of the error.
    let cases: [(u16, Does, &str); 4] = [
        (0, Does::It, "cannot be erased by nvme-format-user-data"),
        (2, Does::Status(0x10a), "status 0x10a (no such format)"),
        (2, Does::Status(1), "status 0x1 (it does not know the command)"),
        (2, Does::Nothing, "still holds old data at byte 0 after it was erased by nvme-format-user-data"),
    ];
    for (oacs, user_data, words) in cases {
        let disk = TestDisk::used(SIZE).unwrap();
        let mut drive = Nvme::new(&[&disk]);
        (drive.oacs, drive.user_data) = (oacs, user_data);
        let text = chain(&erase_one(&disk, &drive, Bus::Nvme, &POLICY).unwrap_err());
        assert!(text.contains(words), "{text}");
        assert_eq!(disk.bytes(0, 4).unwrap(), [0xa5; 4], "{words}");
        let verdict = erase_one(&disk, &drive, Bus::Nvme, &go_on).unwrap();
        assert_eq!((verdict.asked, verdict.method), ("nvme-format-user-data", "overwrite"), "{words}");
        assert_eq!(verdict.failed_before.len(), 1, "{verdict:?}");
        assert!(is_zero(&disk));
    }
}

#[test]
fn a_silent_controller_is_told_by_what_it_was_asked() {
    let disk = TestDisk::used(SIZE).unwrap();
    let error = erase_one(&disk, &Deaf, Bus::Nvme, &POLICY).unwrap_err();
    assert!(matches!(error, EraseError::Refused { .. }), "{error}");
    let text = chain(&error);
    assert!(text.contains("it does not answer: sending the question for its namespace"), "{text}");
}

#[test]
fn the_format_of_a_namespace_stays_as_it_is() {
    // FLBAS, formats less one, DPS; dword 10 without the secure erase setting.
    for (flbas, formats, dps, want) in [
        (0x00, 0, 0, 0),
        (0x02, 3, 0, 0x02),
        (0x12, 3, 0x0b, 0x02 | 1 << 4 | 3 << 5 | 1 << 8),
        (0x63, 15, 0, 0x03),
        (0x63, 16, 0, 0x03 | 3 << 12),
    ] {
        let disk = TestDisk::used(SIZE).unwrap();
        let mut drive = Nvme::new(&[&disk]);
        (drive.flbas, drive.formats, drive.dps) = (flbas, formats, dps);
        erase_one(&disk, &drive, Bus::Nvme, &POLICY).unwrap();
        assert_eq!(*drive.log.borrow(), [(0x80, 1, want | USER_DATA)], "{flbas:#x} {formats} {dps:#x}");
    }
}

/// Three namespaces of one controller, seen through each; what the changes say applies to all.
fn three(change: impl Fn(&mut Nvme)) -> ([TestDisk; 3], Vec<Nvme>) {
    let disks = [TestDisk::used(SIZE).unwrap(), TestDisk::used(SIZE).unwrap(), TestDisk::used(SIZE).unwrap()];
    let drives = (1..=3)
        .map(|nsid| {
            let mut drive = Nvme::new(&disks.each_ref());
            drive.nsid = nsid;
            change(&mut drive);
            drive
        })
        .collect();
    (disks, drives)
}

fn pairs<'a>(disks: &'a [TestDisk], drives: &'a [Nvme]) -> Vec<(&'a TestDisk, &'a dyn Firmware)> {
    disks.iter().zip(drives).map(|(disk, drive)| (disk, drive as &dyn Firmware)).collect()
}

#[test]
fn a_controller_that_formats_all_at_once_is_told_once() {
    // FNA: which bit says so, and whether "all" may be said.
    for (fna, nsid) in [(1, u32::MAX), (2, u32::MAX), (2 | 8, 1)] {
        let (disks, drives) = three(|drive| drive.fna = fna);
        let (outcomes, report) = erase_all(&pairs(&disks, &drives), Bus::Nvme, &[], &POLICY);
        for outcome in outcomes {
            let verdict = outcome.unwrap();
            assert!(verdict.verified && verdict.method == "nvme-format-user-data", "{verdict:?}");
        }
        let log: Vec<_> = drives.iter().flat_map(|drive| drive.log.borrow().clone()).collect();
        assert_eq!(log, [(0x80, nsid, USER_DATA)], "{fna}");
        assert!(disks.iter().all(is_zero));
        assert_eq!(report.disks.len(), 3);
    }
}

#[test]
fn a_controller_that_formats_one_is_told_for_each() {
    let (disks, drives) = three(|_| ());
    let (outcomes, _) = erase_all(&pairs(&disks[1..], &drives[1..]), Bus::Nvme, &["/dev/nvme0n1"], &POLICY);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(disks.each_ref().map(is_zero), [false, true, true]);
}

#[test]
fn namespaces_that_are_kept_or_unknown_are_never_hit_by_what_hits_all() {
    let (disks, drives) = three(|drive| drive.fna = 2);
    // One on the skip list, then one that is no disk of this machine.
    for spared in [&["/dev/nvme0n1"][..], &[]] {
        let (outcomes, _) = erase_all(&pairs(&disks[1..], &drives[1..]), Bus::Nvme, spared, &POLICY);
        for outcome in outcomes {
            let text = chain(&outcome.unwrap_err());
            let other = spared.first().unwrap_or(&"namespace 1");
            assert!(text.contains(&format!("{other} must stay as it is")), "{text}");
        }
        assert!(disks.iter().all(|disk| disk.bytes(0, 1).unwrap() == [0xa5]));
        assert!(drives.iter().all(|drive| drive.log.borrow().is_empty()));
    }
    let go_on = Policy { go_on: true, ..POLICY };
    let (outcomes, _) = erase_all(&pairs(&disks[1..], &drives[1..]), Bus::Nvme, &["/dev/nvme0n1"], &go_on);
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap().method == "overwrite"));
    assert_eq!(disks.each_ref().map(is_zero), [false, true, true]);
}

#[test]
fn one_namespace_that_was_not_erased_fails_alone() {
    // The second one is another medium than the controller believes.
    let (disks, mut drives) = three(|drive| drive.fna = 2);
    for drive in &mut drives {
        drive.media.remove(1);
    }
    let (outcomes, _) = erase_all(&pairs(&disks, &drives), Bus::Nvme, &[], &POLICY);
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(matches!(outcomes[1], Err(EraseError::NotErased { offset: 0, .. })), "{outcomes:?}");
}

#[test]
fn a_failure_that_is_shared_is_told_for_each_namespace() {
    let (disks, drives) = three(|drive| {
        drive.fna = 2;
        drive.user_data = Does::Status(6);
    });
    let (outcomes, _) = erase_all(&pairs(&disks, &drives), Bus::Nvme, &[], &POLICY);
    for outcome in outcomes {
        assert!(chain(&outcome.unwrap_err()).contains("internal error"));
    }
    assert_eq!(drives.iter().map(|drive| drive.log.borrow().len()).sum::<usize>(), 1);
}

#[test]
fn sanitizing_is_waited_for_and_its_end_believed_only_with_samples() {
    let sanitize = Policy { sanitize: true, nvme: false, ..POLICY };
    let cases: [SanitizeCase<'_>; 6] = [
        (1, 0, Does::It, false, &[4], ""),
        (2, 5, Does::It, false, &[2], ""),
        (4, 0, Does::It, false, &[3 | 1 << 4], ""),
        (3, 0, Does::Status(2), false, &[4, 2], "it does not offer this kind of it"),
        (2, 0, Does::Nothing, true, &[2], "the disk says that sanitizing failed"),
        (2, 0, Does::Nothing, false, &[2], "still holds old data"),
    ];
    for (sanicap, running, does, failed, sent, words) in cases {
        let disk = TestDisk::used(SIZE).unwrap();
        let mut drive = Nvme::new(&[&disk]);
        (drive.sanicap, drive.sanitizes) = (sanicap, does);
        *drive.running.borrow_mut() = running;
        *drive.last_failed.borrow_mut() = failed;
        let outcome = erase_one(&disk, &drive, Bus::Nvme, &sanitize);
        let log: Vec<u32> = drive.log.borrow().iter().map(|(_, _, dword)| *dword).collect();
        assert_eq!(log, sent, "{sanicap} {does:?}");
        match outcome {
            Ok(verdict) => assert!(words.is_empty() && is_zero(&disk) && verdict.verified, "{verdict:?}"),
            Err(error) => assert!(!words.is_empty() && chain(&error).contains(words), "{}", chain(&error)),
        }
    }
}

#[test]
fn namespaces_are_counted_where_there_is_no_list_of_them() {
    let disks = [TestDisk::used(SIZE).unwrap(), TestDisk::used(SIZE).unwrap()];
    let mut drive = Nvme::new(&disks.each_ref());
    (drive.old, drive.fna) = (true, 2);
    let text = chain(&erase_one(&disks[0], &drive, Bus::Nvme, &POLICY).unwrap_err());
    assert!(text.contains("namespace 2 must stay"), "{text}");
}

#[test]
fn pages_of_any_length_and_content_are_read() {
    for (length, fill) in [(0, 0), (3, 0xff), (300, 0xff), (4096, 0xff), (9000, 0x55)] {
        let page = vec![fill; length];
        let (controller, _) = Controller::of(7, &page, &page, Some(&page));
        assert!(controller.namespaces.len() <= 1024, "{length}");
        let (controller, _) = Controller::of(7, &page, &page, None);
        assert!((1..=1024).contains(&controller.namespaces.len()), "{length}");
    }
}

#[test]
fn discarding_counts_only_where_it_reads_as_zeroes() {
    let page = |places: &[(usize, u8)]| {
        let mut page = vec![0; 4096];
        places.iter().for_each(|(at, byte)| page[*at] = *byte);
        page
    };
    for (oncs, dlfeat, want) in [(4, 1, true), (0, 1, false), (4, 0, false), (4, 2, false), (4, 0x19, true)] {
        let (_, zero) = Controller::of(1, &page(&[(520, oncs)]), &page(&[(33, dlfeat)]), None);
        assert_eq!(zero, want, "{oncs} {dlfeat}");
    }
    let disk = TestDisk::used(SIZE).unwrap();
    let verdict = erase_one(&disk, &Deaf, Bus::Other, &passes(0, true)).unwrap();
    assert_eq!(verdict.method, "overwrite");
}
