//! Addresses of the BMC (hardware section 2.5): LAN configuration parameters of its channels 1 to 11, asked through
//! the kernel's IPMI device (IPMI 2.0 section 23.2 and table 23-4).
//!
//! Own code: the library for it reads every parameter there is, for six that are asked for.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ferric_sys::ioctl::ipmi::{IpmiDevice, IpmiError};
use ferric_sys::{Root, attr};
use ferric_types::MacAddress;
use serde::{Deserialize, Serialize};

use crate::manager::BmcAddresses;
use crate::probe::text::{bytes_of, hex};
use crate::replay;

/// Network function "transport" and its command "get LAN configuration parameters".
const GET_LAN_PARAMETERS: (u8, u8) = (0x0c, 0x02);
/// Parameters.
const IPV4: u8 = 3;
const MAC: u8 = 5;
const V6_ENABLES: u8 = 51;
const V6_STATUS: u8 = 55;
const V6_STATIC: u8 = 56;
const V6_DYNAMIC: u8 = 59;
/// Placeholder of a BMC without an IPv4 address.
const NO_V4: &str = "0.0.0.0";
/// Placeholder of a BMC without an IPv6 address.
const NO_V6: &str = "::/0";
/// Status of an IPv6 address in use.
const ACTIVE: u8 = 0;
/// Sources of IPv6 addresses.
const SOURCE_MASK: u8 = 0x0f;
const STATIC: u8 = 0;
const SLAAC: u8 = 1;
const DHCPV6: u8 = 2;
/// With the source of a static address: it is enabled.
const ENABLED: u8 = 0x80;
/// Addresses of one kind that a BMC is believed to have at most, whatever it claims.
const MAX_V6_ADDRESSES: u8 = 16;
/// How long a BMC may take for all of its answers together. A dead one, and one that thinks for long over every
/// question, must not hold up an inspection.
const LIMIT: Duration = Duration::from_secs(3);
/// The same for a capture, which nobody waits for.
const CAPTURE_LIMIT: Duration = Duration::from_secs(30);

/// The first IPMI device node, if the machine has one: `/dev/ipmi0`, `/dev/ipmi/0` or `/dev/ipmidev/0`, or one with a
/// higher number.
pub fn device(root: &Root) -> Option<PathBuf> {
    ["dev/ipmi", "dev/ipmi/", "dev/ipmidev/"].into_iter().find_map(|prefix| {
        let (folder, stem) = prefix.rsplit_once('/')?;
        let number = |name: String| name.strip_prefix(stem)?.parse::<u32>().ok();
        let first = attr::list(&root.path(folder)).into_iter().filter_map(number).min()?;
        Some(root.path(format!("{prefix}{first}")))
    })
}

/// One request and its answer, in hex: network function, command and data; completion code and data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// What was asked.
    pub request: String,
    /// What the BMC said.
    pub answer: String,
}

impl Exchange {
    /// The hardware address, where it was asked for (LAN parameter 5) and answered.
    pub fn mac_address(&self) -> Option<Vec<u8>> {
        let (request, answer) = (bytes_of(&self.request), bytes_of(&self.answer));
        (request.get(3) == Some(&5) && answer.first() == Some(&0)).then(|| answer.get(2..8).map(<[u8]>::to_vec))?
    }

    /// The exchange without IP addresses.
    fn hidden(self) -> Self {
        let answer = without_ip(bytes_of(&self.request).get(2..).unwrap_or_default(), &bytes_of(&self.answer));
        Self { answer: hex(&answer), ..self }
    }
}

/// All that the BMC is asked for its addresses, and its answers, in which IP addresses are replaced; `None` without an
/// IPMI device or when it does not answer. A captured tree has it all already.
pub fn record(root: &Root) -> Option<Vec<Exchange>> {
    if !root.is_host() {
        return recorded(root).map(|exchanges| exchanges.into_iter().map(Exchange::hidden).collect());
    }
    let mut device = IpmiDevice::open(&device(root)?, CAPTURE_LIMIT).ok()?;
    let mut exchanges = Vec::new();
    let read = ask(
        &mut |netfn, cmd, data| {
            let answer = device.request(netfn, cmd, data)?;
            let shown = without_ip(data, &answer);
            exchanges.push(Exchange { request: hex(&[&[netfn, cmd], data].concat()), answer: hex(&shown) });
            Ok(answer)
        },
        &mut BmcAddresses::default(),
    );
    read.is_ok().then_some(exchanges)
}

/// An answer to "get LAN configuration parameters" without the addresses of parameters 3, 56 and 59: after completion
/// code and revision come the parameter's data.
fn without_ip(request: &[u8], answer: &[u8]) -> Vec<u8> {
    let mut shown = answer.to_vec();
    let (place, documented): (usize, Vec<u8>) = match request.get(1) {
        Some(3) => (2, vec![192, 0, 2, 100]),
        Some(56 | 59) => {
            // Whether it is a link-local one decides on other things.
            let is_link_local = shown.get(4..6).is_some_and(|start| start == [0xfe, 0x80]);
            let (first, second) = if is_link_local { (0xfe80, 0) } else { (0x2001, 0xdb8) };
            (4, Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 1).octets().to_vec())
        }
        _ => return shown,
    };
    if let Some(address) = shown.get_mut(place..place + documented.len())
        && address.iter().any(|byte| *byte != 0)
    {
        address.copy_from_slice(&documented);
    }
    shown
}

fn recorded(root: &Root) -> Option<Vec<Exchange>> {
    serde_json::from_slice(&std::fs::read(root.path(replay::IPMI)).ok()?).ok()
}

/// The answers of a captured tree; a question that was not asked then is refused as an invalid field.
fn replayed(root: &Root) -> Option<BmcAddresses> {
    let exchanges = recorded(root)?;
    let mut found = BmcAddresses::default();
    let answer = |netfn, cmd, data: &[u8]| {
        let asked = hex(&[&[netfn, cmd], data].concat());
        let found = exchanges.iter().find(|exchange| exchange.request == asked);
        Ok(found.map_or_else(|| vec![0xcc], |exchange| bytes_of(&exchange.answer)))
    };
    ask(&mut { answer }, &mut found).ok()?;
    Some(found)
}

/// Addresses of the machine's BMC: all unknown, at once, without an IPMI device. A BMC that does not answer, or answers
/// too slowly, costs three seconds, and what it has said until then counts.
pub fn addresses(root: &Root) -> BmcAddresses {
    if !root.is_host()
        && let Some(found) = replayed(root)
    {
        return found;
    }
    let Some(path) = device(root) else { return BmcAddresses::default() };
    let mut found = BmcAddresses::default();
    let asked = IpmiDevice::open(&path, LIMIT)
        .and_then(|mut device| ask(&mut |netfn, cmd, data| device.request(netfn, cmd, data), &mut found));
    if let Err(error) = asked {
        let reason = ferric_types::error::chain(&error);
        tracing::warn!(reason, "the BMC has not told all of its addresses");
    }
    found
}

/// How a request reaches the BMC: network function, command and data in; completion code and data out.
type Transport<'a> = dyn FnMut(u8, u8, &[u8]) -> Result<Vec<u8>, IpmiError> + 'a;

/// Asks every channel; one that is no LAN channel answers with an error code and counts as having no address. `found`
/// is filled while the answers come, so that something is known when they stop coming: IPv4 first, which is what most
/// conductors know a BMC by. A placeholder is given when all channels have been asked in vain.
fn ask(transport: &mut Transport<'_>, found: &mut BmcAddresses) -> Result<(), IpmiError> {
    let mut channels = Vec::new();
    for channel in 1..=11 {
        // A channel without an IPv4 parameter is no LAN channel: nothing else need be asked of it.
        let Some(octets) = parameter::<4>(transport, channel, IPV4, 0)? else { continue };
        let v4 = Ipv4Addr::from(octets);
        if !v4.is_unspecified() {
            found.v4.get_or_insert_with(|| v4.to_string());
        }
        channels.push((channel, !v4.is_unspecified()));
    }
    found.v4.get_or_insert_with(|| NO_V4.to_owned());
    for (channel, has_v4) in channels {
        if has_v4 && found.mac.is_none() {
            found.mac = mac(transport, channel)?;
        }
        if found.v6.is_some() && (has_v4 || found.mac.is_some()) {
            continue;
        }
        let Some(v6) = v6_address(transport, channel)? else { continue };
        let text = v6.to_string();
        let global = !text.starts_with("::") && !text.starts_with("fe80");
        found.v6.get_or_insert(text);
        if !has_v4 && global && found.mac.is_none() {
            found.mac = mac(transport, channel)?;
        }
    }
    found.v6.get_or_insert_with(|| NO_V6.to_owned());
    Ok(())
}

/// MAC of a channel; `None` for one that is no address.
fn mac(transport: &mut Transport<'_>, channel: u8) -> Result<Option<String>, IpmiError> {
    let mac = parameter::<6>(transport, channel, MAC, 0)?.filter(|mac| *mac != [0; 6] && *mac != [0xff; 6]);
    Ok(mac.map(|mac| MacAddress(mac).to_string()))
}

/// First IPv6 address in use, dynamic ones before static ones.
fn v6_address(transport: &mut Transport<'_>, channel: u8) -> Result<Option<Ipv6Addr>, IpmiError> {
    // IPv6 alone, or both.
    let enabled = matches!(parameter(transport, channel, V6_ENABLES, 0)?, Some([1 | 2]));
    let counts = if enabled { parameter(transport, channel, V6_STATUS, 0)? } else { None };
    let Some([static_max, dynamic_max, _]) = counts else { return Ok(None) };
    for (list, max) in [(V6_DYNAMIC, dynamic_max), (V6_STATIC, static_max)] {
        for selector in 0..max.min(MAX_V6_ADDRESSES) {
            // Selector, source, address, prefix length, status.
            let Some(entry) = parameter::<20>(transport, channel, list, selector)? else { continue };
            let [_, source, octets @ .., _, status] = entry;
            let in_use = match list {
                V6_DYNAMIC => matches!(source & SOURCE_MASK, SLAAC | DHCPV6),
                _ => source & (ENABLED | SOURCE_MASK) == ENABLED | STATIC,
            };
            let address = <[u8; 16]>::try_from(octets.as_slice()).map(Ipv6Addr::from).ok();
            let address = address.filter(|address| in_use && status == ACTIVE && !address.is_unspecified());
            if address.is_some() {
                return Ok(address);
            }
        }
    }
    Ok(None)
}

/// The first bytes of a LAN configuration parameter; `None` when the BMC refuses it or answers with too little.
fn parameter<const N: usize>(
    transport: &mut Transport<'_>,
    channel: u8,
    parameter: u8,
    selector: u8,
) -> Result<Option<[u8; N]>, IpmiError> {
    let (netfn, cmd) = GET_LAN_PARAMETERS;
    let answer = transport(netfn, cmd, &[channel, parameter, selector, 0])?;
    // Completion code, revision, data.
    let [0, _, data @ ..] = answer.as_slice() else { return Ok(None) };
    Ok(data.first_chunk::<N>().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Channel, parameter and set selector; and the data answered.
    type Parameter = ((u8, u8, u8), Vec<u8>);

    /// Answers by channel, parameter and set selector; anything else is refused as an invalid field.
    fn bmc(parameters: &[Parameter]) -> BmcAddresses {
        slow_bmc(parameters, u32::MAX).0
    }

    /// The same until so many questions were answered; and how many were asked.
    fn slow_bmc(parameters: &[Parameter], answers: u32) -> (BmcAddresses, u32) {
        let table: BTreeMap<_, _> = parameters.iter().cloned().collect();
        let (mut asked, mut found) = (0, BmcAddresses::default());
        let result = ask(
            &mut |netfn, cmd, data| {
                assert_eq!((netfn, cmd), (0x0c, 0x02));
                asked += 1;
                if asked > answers {
                    let source = std::io::ErrorKind::TimedOut.into();
                    return Err(IpmiError::Io { path: "/dev/ipmi0".into(), netfn, cmd, source });
                }
                let answer = table.get(&(data[0], data[1], data[2]));
                Ok(answer.map_or_else(|| vec![0xcc], |data| [vec![0, 0x11], data.clone()].concat()))
            },
            &mut found,
        );
        assert_eq!(result.is_err(), asked > answers);
        (found, asked)
    }

    fn v6(selector: u8, source: u8, address: &str, status: u8) -> Vec<u8> {
        let address: Ipv6Addr = address.parse().unwrap();
        [vec![selector, source], address.octets().to_vec(), vec![64, status]].concat()
    }

    const MAC: [u8; 6] = [0, 0x11, 0x22, 0x33, 0x44, 0x55];

    #[test]
    fn the_first_channel_with_an_address_counts_whatever_its_number() {
        let found = bmc(&[
            ((1, 3, 0), vec![0, 0, 0, 0]),
            ((1, 5, 0), vec![2, 2, 2, 2, 2, 2]),
            ((8, 3, 0), vec![192, 0, 2, 100]),
            ((8, 5, 0), MAC.to_vec()),
        ]);
        assert_eq!(found.v4.as_deref(), Some("192.0.2.100"));
        assert_eq!(found.v6.as_deref(), Some("::/0"));
        assert_eq!(found.mac.as_deref(), Some("00:11:22:33:44:55"));
    }

    #[test]
    fn a_bmc_without_a_lan_channel_has_placeholders_and_no_mac() {
        let found = bmc(&[]);
        assert_eq!((found.v4.as_deref(), found.v6.as_deref(), found.mac), (Some("0.0.0.0"), Some("::/0"), None));
    }

    #[test]
    fn dynamic_addresses_in_use_come_before_static_ones() {
        let base = vec![
            ((1, 3, 0), vec![0, 0, 0, 0]),
            ((1, 5, 0), MAC.to_vec()),
            ((1, 51, 0), vec![2]),
            ((1, 55, 0), vec![1, 2, 3]),
            ((1, 56, 0), v6(0, 0x80, "2001:db8::5", 0)),
        ];
        let with = |extra: &[Parameter]| bmc(&[base.clone(), extra.to_vec()].concat());
        let cases = [
            (with(&[((1, 59, 1), v6(1, 2, "2001:db8::7", 0))]), "2001:db8::7"),
            // Pending, or of no known source: the static one.
            (with(&[((1, 59, 1), v6(1, 2, "2001:db8::7", 2))]), "2001:db8::5"),
            (with(&[((1, 59, 1), v6(1, 0, "2001:db8::7", 0))]), "2001:db8::5"),
            (with(&[((1, 56, 0), v6(0, 0x00, "2001:db8::5", 0))]), "::/0"),
            (with(&[((1, 51, 0), vec![0])]), "::/0"),
        ];
        for (found, want) in cases {
            assert_eq!(found.v6.as_deref(), Some(want));
            let mac = (want != "::/0").then_some("00:11:22:33:44:55");
            assert_eq!(found.mac.as_deref(), mac, "{want}");
        }
    }

    #[test]
    fn a_link_local_address_does_not_make_a_channel_count_for_its_mac() {
        let found = bmc(&[
            ((1, 3, 0), vec![0, 0, 0, 0]),
            ((1, 5, 0), MAC.to_vec()),
            ((1, 51, 0), vec![1]),
            ((1, 55, 0), vec![0, 1, 3]),
            ((1, 59, 0), v6(0, 1, "fe80::1", 0)),
        ]);
        assert_eq!((found.v6.as_deref(), found.mac), (Some("fe80::1"), None));
    }

    #[test]
    fn no_device_means_nothing_is_known() {
        let tree = MachineTree::new().unwrap();
        assert_eq!(addresses(&tree.root()), BmcAddresses::default());
        // A plain file in its place cannot be asked.
        tree.file("dev/ipmi0", "").unwrap();
        assert_eq!(addresses(&tree.root()), BmcAddresses::default());
    }

    #[test]
    fn the_mac_is_that_of_the_first_channel_in_use() {
        let in_use = [
            ((2, 3, 0), vec![0, 0, 0, 0]),
            ((2, 5, 0), vec![2, 2, 2, 2, 2, 2]),
            ((3, 3, 0), vec![192, 0, 2, 3]),
            ((3, 5, 0), MAC.to_vec()),
        ];
        let v6_on_2 = [((2, 51, 0), vec![1]), ((2, 55, 0), vec![0, 1, 3]), ((2, 59, 0), v6(0, 1, "2001:db8::2", 0))];
        let zero_on_3 = [((3, 5, 0), vec![0; 6]), ((4, 3, 0), vec![192, 0, 2, 4]), ((4, 5, 0), MAC.to_vec())];
        let ones_on_3 = [((3, 5, 0), vec![0xff; 6])];
        let cases: [(&[Parameter], Option<&str>, &str); 4] = [
            (&[], Some("00:11:22:33:44:55"), "::/0"),
            (&v6_on_2, Some("02:02:02:02:02:02"), "2001:db8::2"),
            (&zero_on_3, Some("00:11:22:33:44:55"), "::/0"),
            (&ones_on_3, None, "::/0"),
        ];
        for (extra, mac, v6) in cases {
            let found = bmc(&[&in_use[..], extra].concat());
            assert_eq!(found.v4.as_deref(), Some("192.0.2.3"));
            assert_eq!((found.mac.as_deref(), found.v6.as_deref()), (mac, Some(v6)), "{extra:?}");
        }
    }

    #[test]
    fn what_a_bmc_said_before_it_fell_silent_counts_and_it_is_not_asked_again() {
        let parameters = [
            ((1, 3, 0), vec![192, 0, 2, 100]),
            ((1, 5, 0), MAC.to_vec()),
            ((1, 51, 0), vec![2]),
            ((1, 55, 0), vec![0, 1, 3]),
            ((1, 59, 0), v6(0, 2, "2001:db8::7", 0)),
        ];
        let (mac, v6) = (Some("00:11:22:33:44:55"), Some("2001:db8::7"));
        // (questions answered, what is known then)
        for (answers, want) in [
            (0, (None, None, None)),
            (1, (Some("192.0.2.100"), None, None)),
            (11, (Some("192.0.2.100"), None, None)),
            (12, (Some("192.0.2.100"), mac, None)),
            (14, (Some("192.0.2.100"), mac, None)),
            (15, (Some("192.0.2.100"), mac, v6)),
        ] {
            let (found, asked) = slow_bmc(&parameters, answers);
            assert_eq!((found.v4.as_deref(), found.mac.as_deref(), found.v6.as_deref()), want, "{answers}");
            assert_eq!(asked, 15.min(answers + 1), "{answers}");
        }
    }

    #[test]
    fn a_device_is_found_under_each_of_its_names() {
        for (names, want) in [
            (&["dev/ipmi0"][..], Some("dev/ipmi0")),
            (&["dev/ipmi/0"], Some("dev/ipmi/0")),
            (&["dev/ipmidev/0"], Some("dev/ipmidev/0")),
            (&["dev/ipmi10", "dev/ipmi2"], Some("dev/ipmi2")),
            (&["dev/ipmi-ssif", "dev/ipmitool", "dev/ipmb-0"], None),
            (&[], None),
        ] {
            let tree = MachineTree::new().unwrap();
            names.iter().for_each(|name| tree.file(name, "").unwrap());
            assert_eq!(device(&tree.root()), want.map(|name| tree.path(name)), "{names:?}");
        }
    }

    #[test]
    fn a_bmc_cannot_make_itself_be_asked_without_end() {
        // Every parameter is there, every list is said to be full, no address is in use.
        let mut asked = 0_u32;
        let mut found = BmcAddresses::default();
        let answer = |_, _, data: &[u8]| {
            asked += 1;
            let value = match data[1] {
                51 => vec![2],
                55 => vec![0xff, 0xff, 0xff],
                56 | 59 => v6(data[2], 1, "2001:db8::1", 1),
                _ => vec![0; 6],
            };
            Ok([vec![0, 0x11], value].concat())
        };
        ask(&mut { answer }, &mut found).unwrap();
        assert_eq!((found.v4.as_deref(), found.v6.as_deref(), found.mac), (Some("0.0.0.0"), Some("::/0"), None));
        assert!(asked <= 11 * (1 + 2 + 2 * u32::from(MAX_V6_ADDRESSES)), "{asked}");
    }

    proptest! {
        #[test]
        fn any_answer_is_survived(answers in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..24), 1..40)) {
            let (mut next, mut asked) = (answers.iter().cycle(), 0_u32);
            let mut found = BmcAddresses::default();
            let result = ask(&mut |_, _, _| { asked += 1; Ok(next.next().cloned().unwrap_or_default()) }, &mut found);
            prop_assert!(result.is_ok() && asked <= 11 * 36);
            // Whatever was said, the inventory's texts are addresses.
            prop_assert!(found.v4.unwrap().parse::<Ipv4Addr>().is_ok());
            let v6 = found.v6.unwrap();
            prop_assert!(v6 == NO_V6 || v6.parse::<Ipv6Addr>().is_ok());
            prop_assert!(found.mac.is_none_or(|mac| mac.parse::<ferric_types::MacAddress>().is_ok()));
        }

        #[test]
        fn a_good_answer_that_is_damaged_is_survived(
            damage in proptest::collection::vec((0_usize..24, any::<u8>()), 0..6), cut in 0_usize..24,
        ) {
            let mut found = BmcAddresses::default();
            let answer = |_, _, data: &[u8]| {
                let value = match data[1] {
                    3 => vec![192, 0, 2, 100],
                    51 => vec![2],
                    55 => vec![16, 16, 3],
                    56 => v6(data[2], 0x80, "2001:db8::5", 0),
                    59 => v6(data[2], 2, "2001:db8::7", 0),
                    _ => MAC.to_vec(),
                };
                let mut answer = [vec![0, 0x11], value].concat();
                for (place, byte) in &damage {
                    if let Some(at) = answer.get_mut(*place) {
                        *at = *byte;
                    }
                }
                answer.truncate(cut);
                Ok(answer)
            };
            let result = ask(&mut { answer }, &mut found);
            prop_assert!(result.is_ok());
        }
    }
}
