//! Words that name nobody: what stands where nothing was filled in, and names that programs give.

/// What makers write when there is nothing to say; any other text is a name.
const PLACEHOLDERS: &[&str] = &[
    "asset tag",
    "chassis asset tag",
    "chassis serial number",
    "default",
    "default string",
    "empty",
    "filled by o.e.m.",
    "invalid",
    "n/a",
    "no asset",
    "no asset information",
    "no asset tag",
    "no dimm",
    "none",
    "not applicable",
    "not available",
    "not defined",
    "not installed",
    "not present",
    "not provided",
    "not specified",
    "null",
    "o.e.m",
    "o.e.m.",
    "oem",
    "serial number",
    "system serial number",
    "to be filled by o.e.m.",
    "to be filled by oem",
    "undefined",
    "unknown",
    "unspecified",
];
/// Prefixes of names that the kernel and its tools give to interfaces, with a number behind.
const KERNEL: &[&str] = &[
    "bond", "br", "docker", "dummy", "eth", "gre", "ib", "idrac", "ip6tnl", "sit", "tap", "team", "tun", "tunl", "usb",
    "veth", "virbr", "vlan", "vnet", "wlan", "wwan",
];
/// Prefixes of udev's names by kind of the interface, and parts that have a number behind (systemd.net-naming-scheme(7)).
const UDEV: &[&str] = &["en", "ib", "sl", "wl", "ww"];
const PARTS: &[&str] = &["npf", "np", "vf", "P", "a", "b", "c", "d", "f", "i", "n", "o", "p", "r", "s", "u", "v"];

/// Whether nothing was filled in: one of the usual words, or one character again and again.
pub(super) fn is_placeholder(text: &[u8]) -> bool {
    let is_constant = text.iter().all(|byte| text.first() == Some(byte));
    is_constant || PLACEHOLDERS.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether an interface may have its name from the kernel, udev or firmware; others are named by people.
pub(super) fn is_automatic_interface(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let base = name.rsplit_once('.').filter(|(_, vlan)| is_number(vlan)).map_or(name, |(base, _)| base);
    if ["lo", "idrac"].contains(&base) {
        return true;
    }
    if KERNEL.iter().any(|prefix| base.strip_prefix(prefix).is_some_and(is_number)) {
        return true;
    }
    let Some(mut rest) = UDEV.iter().find_map(|prefix| base.strip_prefix(prefix)) else { return false };
    if let Some(address) = rest.strip_prefix('x') {
        return address.len() >= 12 && address.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    while !rest.is_empty() {
        let Some(number) = PARTS.iter().find_map(|part| rest.strip_prefix(part)) else { return false };
        let after = number.trim_start_matches(|c: char| c.is_ascii_digit());
        if after.len() == number.len() {
            return false;
        }
        rest = after;
    }
    base.len() > 2
}

/// Whether the multipath tools have made the name: `mpath`, letters that count, and a partition.
pub(super) fn is_automatic_multipath(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("mpath") else { return false };
    let letters = rest.bytes().take_while(u8::is_ascii_lowercase).count();
    let (count, part) = rest.split_at(letters);
    let count = count.strip_suffix('p').filter(|count| !count.is_empty() && !part.is_empty()).unwrap_or(count);
    let number = part.trim_start_matches("-part").trim_start_matches("_part");
    (1..=3).contains(&count.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_are_told_from_those_of_people() {
        for (name, want) in [
            ("lo", true),
            ("eth0", true),
            ("bond0.100", true),
            ("eno1", true),
            ("enP12p1s0f1np1", true),
            ("enp0s20f0u12", true),
            ("ens1f0v1", true),
            ("enx525400aabbcc", true),
            ("idrac", true),
            ("payroll-br0", false),
            ("payroll.100", false),
            ("enpayroll", false),
            ("brpayroll0", false),
            ("en", false),
            ("eth", false),
        ] {
            assert_eq!(is_automatic_interface(name), want, "{name}");
        }
        for (name, want) in [
            ("mpatha", true),
            ("mpathaab", true),
            ("mpatha1", true),
            ("mpathap1", true),
            ("mpathb-part2", true),
            ("mpathpayroll", false),
            ("mpath-payroll", false),
            ("mpatha-payroll", false),
            ("payroll", false),
        ] {
            assert_eq!(is_automatic_multipath(name), want, "{name}");
        }
    }
}
