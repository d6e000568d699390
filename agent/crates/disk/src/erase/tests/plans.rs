//! What is tried on which disk, as a table.

use super::{POLICY, passes};
use crate::erase::{Controller, Drive, Facts, Offers, Policy, Security, plan};

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
    Facts { drive: Drive::Nvme(controller), discard_reads_zero: false }
}

fn of(drive: Drive, discard_reads_zero: bool) -> Facts {
    Facts { drive, discard_reads_zero }
}

fn ata(change: impl FnOnce(&mut Security)) -> Facts {
    let mut security = Security::default();
    change(&mut security);
    of(Drive::Ata(security), false)
}

#[test]
fn what_a_disk_offers_and_what_the_node_allows_make_the_plan() {
    let go_on = Policy { go_on: true, ..POLICY };
    let sanitize = Policy { sanitize: true, ..POLICY };
    let no_nvme = Policy { nvme: false, ..POLICY };
    let no_ata = Policy { ata: false, ..POLICY };
    let only_sanitize = Policy { nvme: false, ..sanitize };
    let zeroes = passes(0, true);
    let all = |c: &mut Controller| c.format_hits_all = true;
    let none = |c: &mut Controller| (c.has_format, c.has_crypto) = (false, false);
    let sas = Drive::Scsi(Offers { crypto: true, block: true, overwrite: true });
    let silent = || of(Drive::Silent { reason: "EIO".to_owned() }, false);
    let kept: &[&str] = &["/dev/nvme0n2"];
    // Facts, policy, namespaces to spare; what is asked for, what is tried, why not the first.
    let cases: [(&str, Facts, Policy, &[&str], &str, &str, &str); 27] = [
        ("crypto", nvme(|_| ()), POLICY, &[], "nvme-format-crypto", "nvme-format-crypto nvme-format-user-data", ""),
        ("no key", nvme(|c| c.has_crypto = false), POLICY, &[], "nvme-format-user-data", "nvme-format-user-data", ""),
        (
            "go on",
            nvme(|_| ()),
            go_on,
            &[],
            "nvme-format-crypto",
            "nvme-format-crypto nvme-format-user-data overwrite",
            "",
        ),
        ("no format", nvme(none), POLICY, &[], "nvme-format-user-data", "", "no Format"),
        ("no format, go on", nvme(none), go_on, &[], "nvme-format-user-data", "overwrite", "no Format"),
        ("switched off", nvme(|_| ()), no_nvme, &[], "overwrite", "overwrite", ""),
        ("hits all", nvme(all), POLICY, &[], "nvme-format-crypto", "nvme-format-crypto nvme-format-user-data", ""),
        ("hits a kept one", nvme(all), POLICY, kept, "nvme-format-crypto", "", "and /dev/nvme0n2 must stay"),
        (
            "hits a kept one, go on",
            nvme(all),
            go_on,
            kept,
            "nvme-format-crypto",
            "overwrite",
            "and /dev/nvme0n2 must stay",
        ),
        (
            "spares a kept one",
            nvme(|_| ()),
            POLICY,
            kept,
            "nvme-format-crypto",
            "nvme-format-crypto nvme-format-user-data",
            "",
        ),
        ("silent", silent(), POLICY, &[], "nvme-format-user-data", "", "does not answer: EIO"),
        ("silent, go on", silent(), go_on, &[], "nvme-format-user-data", "overwrite", "does not answer: EIO"),
        ("silent, off", silent(), no_nvme, &[], "overwrite", "overwrite", ""),
        (
            "not asked to sanitize",
            nvme(|c| c.sanitize = 7),
            POLICY,
            &[],
            "nvme-format-crypto",
            "nvme-format-crypto nvme-format-user-data",
            "",
        ),
        (
            "sanitize",
            nvme(|c| c.sanitize = 3),
            sanitize,
            &[],
            "nvme-sanitize-crypto",
            "nvme-sanitize-crypto nvme-sanitize-block nvme-format-crypto nvme-format-user-data",
            "",
        ),
        (
            "sanitize only",
            nvme(|c| c.sanitize = 4),
            only_sanitize,
            &[],
            "nvme-sanitize-overwrite",
            "nvme-sanitize-overwrite",
            "",
        ),
        (
            "sanitize beside a kept one",
            nvme(|c| c.sanitize = 2),
            sanitize,
            kept,
            "nvme-sanitize-block",
            "nvme-format-crypto nvme-format-user-data",
            "",
        ),
        (
            "no sanitize",
            nvme(|_| ()),
            sanitize,
            &[],
            "nvme-format-crypto",
            "nvme-format-crypto nvme-format-user-data",
            "",
        ),
        ("ata", ata(|_| ()), POLICY, &[], "ata-security-erase", "ata-security-erase", ""),
        (
            "ata enhanced, go on",
            ata(|s| s.has_enhanced = true),
            go_on,
            &[],
            "ata-security-erase-enhanced",
            "ata-security-erase-enhanced overwrite",
            "",
        ),
        ("ata frozen", ata(|s| s.frozen = true), POLICY, &[], "ata-security-erase", "", "frozen"),
        ("ata frozen, go on", ata(|s| s.frozen = true), go_on, &[], "ata-security-erase", "overwrite", "frozen"),
        ("ata off", ata(|s| s.frozen = true), no_ata, &[], "overwrite", "overwrite", ""),
        ("sas", of(sas.clone(), false), POLICY, &[], "overwrite", "overwrite", ""),
        (
            "sas sanitize",
            of(sas, false),
            sanitize,
            &[],
            "scsi-sanitize-crypto",
            "scsi-sanitize-crypto scsi-sanitize-block scsi-sanitize-overwrite",
            "",
        ),
        ("discard", of(Drive::Plain, true), zeroes, &[], "discard", "discard overwrite", ""),
        ("discard is no pass", of(Drive::Plain, true), POLICY, &[], "overwrite", "overwrite", ""),
    ];
    for (case, facts, policy, spared, asked, tried, refused) in cases {
        let spared: Vec<String> = spared.iter().map(|name| (*name).to_owned()).collect();
        let plan = plan(&facts, &policy, &spared);
        let names: Vec<&str> = plan.methods.iter().map(|method| method.name()).collect();
        assert_eq!((plan.asked.name(), names.join(" ")), (asked, tried.to_owned()), "{case}");
        let why = plan.refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
        assert!(why.contains(refused) && why.is_empty() == refused.is_empty(), "{case}: {why}");
    }
}

#[test]
fn what_hits_all_namespaces_is_never_in_a_plan_that_spares_one() {
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
