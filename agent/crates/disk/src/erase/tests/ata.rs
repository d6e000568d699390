//! ATA security: every state a drive may be found in.

use std::time::Duration;

use ferric_sys::testing::disk::TestDisk;
use ferric_types::error::chain;

use super::drives::{Ata, AtaState, Deaf};
use super::{POLICY, SIZE, erase_one, is_zero};
use crate::erase::{Bus, EraseVerdict, Policy, Sanitization, Security};

fn password(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(32, 0);
    Some(bytes)
}

fn run(policy: &Policy, change: impl FnOnce(&mut AtaState)) -> (TestDisk, Ata, Result<EraseVerdict, String>) {
    let disk = TestDisk::used(SIZE).unwrap();
    let drive = Ata::new(&disk, change);
    let outcome = erase_one(&disk, &drive, Bus::Ata, policy).map_err(|error| chain(&error));
    (disk, drive, outcome)
}

fn sent(drive: &Ata) -> Vec<u8> {
    drive.log.borrow().iter().map(|(code, _)| *code).collect()
}

#[test]
fn a_drive_in_any_state_that_can_be_left_erases_itself_and_has_no_password_then() {
    type Change = fn(&mut AtaState);
    // State; commands; method.
    let cases: [(&str, Change, &[u8], &str); 6] = [
        ("fresh", |_| (), &[0xf1, 0xf3, 0xf4], "ata-security-erase-enhanced"),
        ("plain", |s| s.enhanced = false, &[0xf1, 0xf3, 0xf4], "ata-security-erase"),
        ("enabled", |s| s.password = password(""), &[0xf3, 0xf4], "ata-security-erase-enhanced"),
        (
            "locked by an interrupted erasure",
            |s| (s.password, s.locked) = (password(""), true),
            &[0xf2, 0xf3, 0xf4],
            "ata-security-erase-enhanced",
        ),
        (
            "locked by the word NULL",
            |s| (s.password, s.locked) = (password("NULL"), true),
            &[0xf2, 0xf2, 0xf3, 0xf4],
            "ata-security-erase-enhanced",
        ),
        ("without a word for its time", |s| s.word_90 = 0, &[0xf1, 0xf3, 0xf4], "ata-security-erase-enhanced"),
    ];
    for (case, change, commands, method) in cases {
        let (disk, drive, outcome) = run(&POLICY, change);
        let verdict = outcome.unwrap();
        assert_eq!((sent(&drive).as_slice(), verdict.method), (commands, method), "{case}");
        assert!(drive.state.borrow().password.is_none(), "{case}");
        assert!(verdict.verified && disk.bytes(0, 1).unwrap() != [0xa5], "{case}");
        let purge = if drive.state.borrow().enhanced { Sanitization::Purge } else { Sanitization::Clear };
        assert_eq!(verdict.sanitization, purge, "{case}");
    }
}

#[test]
fn a_drive_is_given_four_times_the_time_it_asks_for() {
    let hour = 3600;
    for (enhanced, word_89, word_90, want) in [
        // Two minutes each.
        (false, 60, 0, 8 * hour),
        (true, 60, 0x8000 | 300, 40 * hour),
        (true, 60, 2, hour / 2),
        (false, 0xff, 0, 7 * 24 * hour),
        (false, 0xffff, 0, 7 * 24 * hour),
        (false, 0, 0, 7 * 24 * hour),
    ] {
        let (_, drive, outcome) = run(&POLICY, |s| (s.enhanced, s.word_89, s.word_90) = (enhanced, word_89, word_90));
        outcome.unwrap();
        let limit = drive.log.borrow().iter().find(|(code, _)| *code == 0xf4).unwrap().1;
        assert_eq!(limit, Duration::from_secs(want), "{word_89:#x} {word_90:#x}");
    }
}

#[test]
fn a_drive_that_cannot_erase_itself_says_why_and_is_overwritten_only_where_allowed() {
    type Change = fn(&mut AtaState);
    let go_on = Policy { go_on: true, ..POLICY };
    let cases: [(&str, Change, &str); 6] = [
        ("frozen", |s| s.frozen = true, "its security settings are frozen"),
        ("foreign", |s| (s.password, s.locked) = (password("secret"), true), "it already has a security password set"),
        (
            "tried too often",
            |s| (s.password, s.locked, s.tries) = (password(""), true, 5),
            "and takes no more tries until it loses power",
        ),
        ("fails", |s| s.fails = true, "the disk answered SECURITY ERASE UNIT with sense b/00/00"),
        ("keeps the password", |s| s.keeps = true, "an unknown error occurred: the security password is still set"),
        ("lies", |s| s.lies = true, "still holds old data at byte 0 after it was erased by ata-security-erase"),
    ];
    for (case, change, words) in cases {
        let (_, drive, outcome) = run(&POLICY, change);
        let text = outcome.unwrap_err();
        assert!(text.contains(words), "{case}: {text}");
        // Neither locked nor with a password of ours, whatever went wrong: it could not be overwritten or used.
        let state = drive.state.borrow();
        assert!(case == "foreign" || case == "tried too often" || state.password.is_none(), "{case}");
        drop(state);
        let (disk, _, outcome) = run(&go_on, change);
        let verdict = outcome.unwrap();
        assert_eq!((verdict.asked, verdict.method), ("ata-security-erase-enhanced", "overwrite"), "{case}");
        assert!(is_zero(&disk) && verdict.failed_before[0].contains(words), "{case}: {verdict:?}");
    }
}

#[test]
fn a_drive_without_security_or_behind_something_that_passes_no_ata_commands_is_overwritten() {
    let (disk, drive, outcome) = run(&POLICY, |state| state.supported = false);
    assert_eq!((outcome.unwrap().method, sent(&drive).len()), ("overwrite", 0));
    assert!(is_zero(&disk));
    let disk = TestDisk::used(SIZE).unwrap();
    assert_eq!(erase_one(&disk, &Deaf, Bus::Ata, &POLICY).unwrap().asked, "overwrite");
    // A disk on another bus is not even asked: bridges hang on commands that they do not know.
    let drive = Ata::new(&disk, |_| ());
    assert_eq!(erase_one(&disk, &drive, Bus::Other, &POLICY).unwrap().method, "overwrite");
    assert!(sent(&drive).is_empty());
}

#[test]
fn only_what_an_interrupted_erasure_has_locked_is_unlocked() {
    type Change = fn(&mut AtaState);
    let cases: [(&str, Change, bool, usize); 5] = [
        ("open", |s| s.password = password(""), false, 0),
        ("ours", |s| (s.password, s.locked) = (password(""), true), true, 1),
        ("by its name", |s| (s.password, s.locked) = (password("NULL"), true), true, 2),
        ("foreign", |s| (s.password, s.locked) = (password("secret"), true), false, 2),
        ("frozen", |s| (s.password, s.locked, s.frozen) = (password(""), true, true), false, 0),
    ];
    for (case, change, want, commands) in cases {
        let disk = TestDisk::used(512).unwrap();
        let drive = Ata::new(&disk, change);
        assert_eq!((crate::erase::unlock(&drive), sent(&drive).len()), (want, commands), "{case}");
    }
    assert!(!crate::erase::unlock(&Deaf));
}

#[test]
fn the_state_is_in_word_128() {
    let words = |word_128: u16| {
        let mut words = [0; 512];
        words[256..258].copy_from_slice(&word_128.to_le_bytes());
        words
    };
    assert_eq!(Security::of(&words(0x3e)), None);
    let all = Security::of(&words(0x3f)).unwrap();
    assert!(all.enabled && all.locked && all.frozen && all.expired && all.has_enhanced, "{all:?}");
    assert_eq!(Security::of(&words(1)), Some(Security::default()));
    for (word, field) in [(3, "enabled"), (5, "locked"), (9, "frozen"), (17, "expired"), (33, "has_enhanced")] {
        let shown = format!("{:?}", Security::of(&words(word)).unwrap());
        assert_eq!(shown.matches("true").count(), 1, "{word}");
        assert!(shown.contains(&format!("{field}: true")), "{word}: {shown}");
    }
}
