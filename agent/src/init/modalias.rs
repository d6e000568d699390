//! Which modules drive a device: `modules.alias`, `modules.dep` and `modules.builtin` of the image.
//!
//! Pure: texts in, names out. The formats are those of depmod(8).

use std::collections::{BTreeMap, BTreeSet};

/// One line of `modules.alias`.
#[derive(Debug)]
struct Alias {
    pattern: String,
    module: String,
}

/// What the image knows about its modules.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Patterns by the text before their first colon (`pci`, `virtio`), which no pattern has a wildcard in.
    aliases: BTreeMap<String, Vec<Alias>>,
    /// Path of each module and of those that must be loaded before it, first to load first.
    modules: BTreeMap<String, Vec<String>>,
    builtin: BTreeSet<String>,
}

impl Index {
    /// Reads the three files. Lines of another form are passed over.
    pub(crate) fn parse(alias: &str, dep: &str, builtin: &str) -> Self {
        let mut index = Self::default();
        for line in builtin.lines().filter(|line| !line.trim().is_empty()) {
            index.builtin.insert(module_name(line.trim()));
        }
        for line in dep.lines() {
            let Some((path, before)) = line.split_once(':') else { continue };
            // Right to left: depmod writes what to load last next to the colon.
            let mut order: Vec<String> = before.split_whitespace().rev().map(str::to_owned).collect();
            order.push(path.trim().to_owned());
            index.modules.insert(module_name(path.trim()), order);
        }
        for line in alias.lines() {
            let mut words = line.split_whitespace();
            let (Some("alias"), Some(pattern), Some(module)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let module = module.replace('-', "_");
            if index.modules.contains_key(&module) || index.builtin.contains(&module) {
                let bus = bus(pattern).to_owned();
                index.aliases.entry(bus).or_default().push(Alias { pattern: pattern.to_owned(), module });
            }
        }
        index
    }

    /// Modules whose patterns match a device's alias, in the order of the file.
    pub(crate) fn resolve(&self, alias: &str) -> Vec<&str> {
        let candidates = self.aliases.get(bus(alias)).map(Vec::as_slice).unwrap_or_default();
        let mut modules: Vec<&str> = Vec::new();
        for candidate in candidates.iter().filter(|candidate| matches(&candidate.pattern, alias)) {
            if !modules.contains(&candidate.module.as_str()) {
                modules.push(&candidate.module);
            }
        }
        modules
    }

    /// Paths to load for a module, in order; empty when it is built in or not in the image.
    pub(crate) fn load_order(&self, module: &str) -> &[String] {
        let module = module.replace('-', "_");
        if self.builtin.contains(&module) {
            return &[];
        }
        self.modules.get(&module).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the kernel has this module, loadable or built in.
    pub(crate) fn knows(&self, module: &str) -> bool {
        let module = module.replace('-', "_");
        self.builtin.contains(&module) || self.modules.contains_key(&module)
    }
}

fn bus(alias: &str) -> &str {
    alias.split_once(':').map_or(alias, |(bus, _)| bus)
}

/// `kernel/drivers/net/e1000-x.ko.xz` is `e1000_x`.
pub(crate) fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.split_once(".ko").map_or(file, |(stem, _)| stem);
    stem.replace('-', "_")
}

/// Shell pattern as fnmatch(3) without flags: `*`, `?` and `[...]`.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to go back to: after the last star, and one byte further in the text than the last time.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            (Some(b'?'), Some(_)) => Some(p + 1),
            (Some(b'['), Some(byte)) => class(pattern, p, *byte),
            (Some(wanted), Some(byte)) if wanted == byte => Some(p + 1),
            _ => None,
        };
        if let Some(next) = step {
            p = next;
            t += 1;
        } else {
            match star {
                Some((after, from)) if from < text.len() => {
                    star = Some((after, from + 1));
                    p = after;
                    t = from + 1;
                }
                _ => return false,
            }
        }
    }
}

/// Matches one byte against the class that begins at `start`; gives the place behind the class.
fn class(pattern: &[u8], start: usize, byte: u8) -> Option<usize> {
    let mut at = start + 1;
    let negated = matches!(pattern.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let (first, mut found) = (at, false);
    loop {
        let low = *pattern.get(at)?;
        if low == b']' && at > first {
            return (found != negated).then_some(at + 1);
        }
        let range = (pattern.get(at + 1) == Some(&b'-')).then(|| pattern.get(at + 2).copied()).flatten();
        match range.filter(|high| *high != b']') {
            Some(high) => {
                found |= (low..=high).contains(&byte);
                at += 3;
            }
            None => {
                found |= low == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALIAS: &str = "# Aliases extracted from modules themselves.\n\
        alias pci:v00008086d0000100Esv*sd*bc*sc*i* e1000\n\
        alias pci:v00008086d*sv*sd*bc02sc*i* missing_module\n\
        alias virtio:d00000001v* virtio_net\n\
        alias pci:v00001AF4d*sv*sd*bc*sc*i* virtio-pci\n\
        alias cpu:type:x86,ven*fam*mod*:feature:*0094* crc32c_intel\n\
        alias fs-ext4 ext4\n";
    const DEP: &str = "kernel/drivers/net/e1000.ko:\n\
        kernel/drivers/net/virtio_net.ko: kernel/net/net_failover.ko kernel/net/failover.ko\n\
        kernel/fs/ext4/ext4.ko.xz: kernel/fs/mbcache.ko.xz kernel/fs/jbd2/jbd2.ko.xz\n\
        kernel/crypto/crc32c-intel.ko:\n";
    const BUILTIN: &str = "kernel/drivers/virtio/virtio_pci.ko\n";

    #[test]
    fn a_device_finds_its_modules() {
        let index = Index::parse(ALIAS, DEP, BUILTIN);
        let cases: &[(&str, &[&str])] = &[
            ("pci:v00008086d0000100Esv00001AF4sd00001100bc02sc00i00", &["e1000"]),
            ("pci:v00001AF4d00001000sv00001AF4sd00000001bc02sc00i00", &["virtio_pci"]),
            ("virtio:d00000001v00001AF4", &["virtio_net"]),
            ("cpu:type:x86,ven0000fam0006mod0055:feature:,0000,0094,0095", &["crc32c_intel"]),
            ("fs-ext4", &["ext4"]),
            ("acpi:PNP0C0C:", &[]),
        ];
        for (alias, want) in cases {
            assert_eq!(index.resolve(alias), *want, "{alias}");
        }
    }

    #[test]
    fn dependencies_are_loaded_from_right_to_left() {
        let index = Index::parse(ALIAS, DEP, BUILTIN);
        let order = ["kernel/net/failover.ko", "kernel/net/net_failover.ko", "kernel/drivers/net/virtio_net.ko"];
        assert_eq!(index.load_order("virtio-net"), order);
        assert!(index.load_order("virtio_pci").is_empty(), "built in");
        assert!(index.load_order("nonsense").is_empty());
        assert!(index.knows("virtio-pci") && index.knows("ext4") && !index.knows("missing_module"));
    }

    #[test]
    fn patterns_match_as_in_fnmatch() {
        let cases = [
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "a--b--b--c", true),
            ("a*b*c", "a--b--", false),
            ("?", "", false),
            ("[0-9]x", "7x", true),
            ("[!0-9]x", "7x", false),
            ("[]a]", "]", true),
            ("[a-]", "-", true),
            ("[", "[", false),
            ("usb:v05ACp*d*dc*dsc*dp*ic03isc*ip*in*", "usb:v05ACp0220d0067dc00dsc00dp00ic03isc01ip01in00", true),
            ("a", "b", false),
        ];
        for (pattern, text, want) in cases {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn odd_files_and_patterns_end_somehow(files in "[\\PC\n:*\\[]{0,200}", pattern in "[ab*?\\[\\]!-]{0,20}", text in "[ab-]{0,30}") {
            let index = Index::parse(&files, &files, &files);
            let _modules = index.resolve(&text);
            let _matched = matches(&pattern, &text);
        }

        #[test]
        fn a_text_matches_itself_and_stars_around_it(text in "[a-z0-9:]{0,30}") {
            let (starred, wrapped) = (format!("*{text}*"), format!("x{text}y"));
            prop_assert!(matches(&text, &text));
            prop_assert!(matches(&starred, &wrapped));
        }
    }
}
