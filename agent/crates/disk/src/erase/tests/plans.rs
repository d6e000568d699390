//! What is tried on which disk, as tables.

use super::{POLICY, passes};
use crate::erase::{Controller, Drive, Facts, Offers, Policy, Security, plan};

const FORMAT: &str = "nvme-format-crypto nvme-format-user-data";
const USER_DATA: &str = "nvme-format-user-data";
const GO_ON: Policy = Policy { go_on: true, ..POLICY };
const SANITIZE: Policy = Policy { sanitize: true, ..POLICY };

/// Facts, policy; what is tried, and why what was asked for is not.
type Case<'a> = (&'a str, Facts, Policy, &'a str, &'a str);

fn nvme(change: impl FnOnce(&mut Controller)) -> Facts {
    let mut controller = Controller {
        has_format: true,
        format_hits_all: false,
        has_crypto: true,
        needs_namespace: false,
        sanitize: 0,
        nsid: 1,
        format: 0,
        namespaces: vec![1],
    };
    change(&mut controller);
    of(Drive::Nvme(controller))
}

fn of(drive: Drive) -> Facts {
    Facts { drive, discard_reads_zero: false }
}

fn ata(change: impl FnOnce(&mut Security)) -> Facts {
    let mut security = Security::default();
    change(&mut security);
    of(Drive::Ata(security))
}

/// Checks plans that spare these namespaces; what is asked for is the first that is tried, or `asked`.
fn check(cases: &[Case<'_>], spared: &[&str], asked: Option<&str>) {
    let spared: Vec<String> = spared.iter().map(|name| (*name).to_owned()).collect();
    for (case, facts, policy, tried, refused) in cases {
        let plan = plan(facts, policy, &spared);
        let names: Vec<&str> = plan.methods.iter().map(|method| method.name()).collect();
        assert_eq!(names.join(" "), *tried, "{case}");
        assert_eq!(plan.asked.name(), asked.or(names.first().copied()).unwrap(), "{case}");
        let why = plan.refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
        assert!(why.contains(refused) && why.is_empty() == refused.is_empty(), "{case}: {why}");
    }
}

#[test]
fn nvme_disks_are_formatted_as_far_as_their_controller_can() {
    let off = Policy { nvme: false, ..POLICY };
    let silent = || of(Drive::Silent { reason: "EIO".to_owned() });
    let none = |c: &mut Controller| (c.has_format, c.has_crypto) = (false, false);
    let go_on = format!("{FORMAT} overwrite");
    let possible = [
        ("by key", nvme(|_| ()), POLICY, FORMAT, ""),
        ("without a key", nvme(|c| c.has_crypto = false), POLICY, USER_DATA, ""),
        ("go on", nvme(|_| ()), GO_ON, &go_on, ""),
        ("hits all", nvme(|c| c.format_hits_all = true), POLICY, FORMAT, ""),
        ("switched off", nvme(|_| ()), off, "overwrite", ""),
        ("silent and off", silent(), off, "overwrite", ""),
    ];
    check(&possible, &[], None);
    let impossible = [
        ("no format", nvme(none), POLICY, "", "no Format"),
        ("no format, go on", nvme(none), GO_ON, "overwrite", "no Format"),
        ("silent", silent(), POLICY, "", "does not answer: EIO"),
        ("silent, go on", silent(), GO_ON, "overwrite", "does not answer: EIO"),
    ];
    check(&impossible, &[], Some(USER_DATA));
}

#[test]
fn what_hits_all_namespaces_needs_all_of_them() {
    let all = |c: &mut Controller| c.format_hits_all = true;
    let why = "and /dev/nvme0n2 must stay";
    let cases = [
        ("hits a kept one", nvme(all), POLICY, "", why),
        ("hits a kept one, go on", nvme(all), GO_ON, "overwrite", why),
        ("spares it", nvme(|_| ()), POLICY, FORMAT, ""),
    ];
    check(&cases, &["/dev/nvme0n2"], Some("nvme-format-crypto"));
    let sanitize = [("sanitize", nvme(|c| c.sanitize = 2), SANITIZE, FORMAT, "")];
    check(&sanitize, &["/dev/nvme0n2"], Some("nvme-sanitize-block"));
    for bits in 0..128_u32 {
        let facts = nvme(|c| {
            c.has_format = bits & 1 != 0;
            c.format_hits_all = bits & 2 != 0;
            c.has_crypto = bits & 4 != 0;
            c.sanitize = bits >> 3 & 7;
        });
        for (go_on, sanitize, nvme) in [(true, true, true), (false, true, false), (false, bits & 64 != 0, true)] {
            let policy = Policy { go_on, sanitize, nvme, ..POLICY };
            let plan = plan(&facts, &policy, &["/dev/nvme0n2".to_owned()]);
            assert!(plan.methods.iter().all(|method| !method.hits_all()), "{bits:#b}: {plan:?}");
            assert!(!plan.methods.is_empty() || plan.refusal.is_some(), "{bits:#b}: {plan:?}");
        }
    }
}

#[test]
fn sanitizing_is_for_those_who_ask_for_it() {
    let only = Policy { nvme: false, ..SANITIZE };
    let sas = || of(Drive::Scsi(Offers { crypto: true, block: true, overwrite: true }));
    let both = format!("nvme-sanitize-crypto nvme-sanitize-block {FORMAT}");
    let cases = [
        ("not asked for", nvme(|c| c.sanitize = 7), POLICY, FORMAT, ""),
        ("asked for", nvme(|c| c.sanitize = 3), SANITIZE, &both, ""),
        ("nothing else", nvme(|c| c.sanitize = 4), only, "nvme-sanitize-overwrite", ""),
        ("not offered", nvme(|_| ()), SANITIZE, FORMAT, ""),
        ("sas, not asked for", sas(), POLICY, "overwrite", ""),
        ("sas", sas(), SANITIZE, "scsi-sanitize-crypto scsi-sanitize-block scsi-sanitize-overwrite", ""),
        ("sas without", of(Drive::Scsi(Offers::default())), SANITIZE, "overwrite", ""),
    ];
    check(&cases, &[], None);
}

#[test]
fn ata_disks_use_their_security_where_it_is_not_frozen() {
    let off = Policy { ata: false, ..POLICY };
    let enhanced = |s: &mut Security| s.has_enhanced = true;
    let frozen = |s: &mut Security| s.frozen = true;
    let possible = [
        ("plain", ata(|_| ()), POLICY, "ata-security-erase", ""),
        ("enhanced, go on", ata(enhanced), GO_ON, "ata-security-erase-enhanced overwrite", ""),
        ("off", ata(frozen), off, "overwrite", ""),
    ];
    check(&possible, &[], None);
    let impossible =
        [("frozen", ata(frozen), POLICY, "", "frozen"), ("frozen, go on", ata(frozen), GO_ON, "overwrite", "frozen")];
    check(&impossible, &[], Some("ata-security-erase"));
}

#[test]
fn discarding_stands_for_zeroes_only() {
    let zeroing = Facts { drive: Drive::Plain, discard_reads_zero: true };
    let cases = [
        ("zeroes", zeroing.clone(), passes(0, true), "discard overwrite", ""),
        ("no promise", of(Drive::Plain), passes(0, true), "overwrite", ""),
        ("random bytes", zeroing.clone(), passes(1, true), "overwrite", ""),
        ("no zeroes", zeroing, passes(0, false), "overwrite", ""),
    ];
    check(&cases, &[], None);
}
