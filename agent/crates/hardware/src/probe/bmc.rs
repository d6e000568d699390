//! Addresses of the BMC (hardware section 2.5): LAN configuration parameters of its channels 1 to 11, asked through
//! the kernel's IPMI device. IPMI 2.0 section 23.2 and table 23-4; the codecs are those of `ipmi-rs-core`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ferric_sys::Root;
use ferric_sys::ioctl::ipmi::{IpmiDevice, IpmiError};
use ipmi_rs_core::connection::{Channel, IpmiCommand, Message};
use ipmi_rs_core::transport::{GetLanConfigParameters, Ipv6Ipv4Enables, LanConfigParameter, LanConfigParameterData};
use serde::{Deserialize, Serialize};

use crate::manager::BmcAddresses;
use crate::probe::text::{bytes_of, hex};
use crate::replay;

/// Placeholder of a BMC without an IPv4 address.
const NO_V4: &str = "0.0.0.0";
/// Placeholder of a BMC without an IPv6 address.
const NO_V6: &str = "::/0";
/// Status of an IPv6 address in use.
const ACTIVE: u8 = 0;
/// Source of a static IPv6 address; of dynamic ones, 1 is SLAAC and 2 DHCPv6.
const STATIC: u8 = 0;
/// Addresses of one kind that a BMC is believed to have at most, whatever it claims.
const MAX_V6_ADDRESSES: u8 = 16;
/// How long a BMC may take for one answer. A dead one is asked once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The IPMI device node, if the machine has one: `/dev/ipmi0`, `/dev/ipmi/0` or `/dev/ipmidev/0`.
pub fn device(root: &Root) -> Option<PathBuf> {
    ["dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"].into_iter().map(|name| root.path(name)).find(|path| path.exists())
}

/// One request and its answer, in hex: network function, command and data; completion code and data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// What was asked.
    pub request: String,
    /// What the BMC said.
    pub answer: String,
}

/// All that the BMC is asked for its addresses, and its answers, in which IP addresses are replaced; `None` without an
/// IPMI device or when it does not answer.
pub fn record(root: &Root) -> Option<Vec<Exchange>> {
    let mut device = IpmiDevice::open(&device(root)?, ANSWER_TIMEOUT).ok()?;
    let mut exchanges = Vec::new();
    let read = read(&mut |netfn, cmd, data| {
        let answer = device.request(netfn, cmd, data)?;
        let shown = without_ip(data, &answer);
        exchanges.push(Exchange { request: hex(&[&[netfn, cmd], data].concat()), answer: hex(&shown) });
        Ok(answer)
    });
    read.is_ok().then_some(exchanges)
}

/// An answer to "get LAN configuration parameters" without the addresses of parameters 3, 56 and 59: after completion
/// code and revision come the parameter's data.
fn without_ip(request: &[u8], answer: &[u8]) -> Vec<u8> {
    let mut shown = answer.to_vec();
    let (place, documented): (usize, Vec<u8>) = match request.get(1) {
        Some(3) => (2, vec![192, 0, 2, 100]),
        Some(56 | 59) => (4, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets().to_vec()),
        _ => return shown,
    };
    if let Some(address) = shown.get_mut(place..place + documented.len())
        && address.iter().any(|byte| *byte != 0)
    {
        address.copy_from_slice(&documented);
    }
    shown
}

/// The answers of a captured tree; a question that was not asked then is refused as an invalid field.
fn replayed(root: &Root) -> Option<BmcAddresses> {
    let exchanges: Vec<Exchange> = serde_json::from_slice(&std::fs::read(root.path(replay::IPMI)).ok()?).ok()?;
    read(&mut |netfn, cmd, data| {
        let asked = hex(&[&[netfn, cmd], data].concat());
        let found = exchanges.iter().find(|exchange| exchange.request == asked);
        Ok(found.map_or_else(|| vec![0xcc], |exchange| bytes_of(&exchange.answer)))
    })
    .ok()
}

/// Addresses of the machine's BMC; all unknown, at once, without an IPMI device, and after one time limit when the
/// BMC does not answer.
pub fn addresses(root: &Root) -> BmcAddresses {
    if !root.is_host()
        && let Some(found) = replayed(root)
    {
        return found;
    }
    let Some(path) = device(root) else { return BmcAddresses::default() };
    let found = IpmiDevice::open(&path, ANSWER_TIMEOUT)
        .and_then(|mut device| read(&mut |netfn, cmd, data| device.request(netfn, cmd, data)));
    found.unwrap_or_else(|error| {
        tracing::warn!(reason = ferric_types::error::chain(&error), "no address of the BMC");
        BmcAddresses::default()
    })
}

/// How a request reaches the BMC: network function, command and data in; completion code and data out.
type Transport<'a> = dyn FnMut(u8, u8, &[u8]) -> Result<Vec<u8>, IpmiError> + 'a;

/// What one channel says of itself.
#[derive(Debug, Default, Clone, Copy)]
struct LanChannel {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    mac: Option<[u8; 6]>,
}

/// Asks every channel. A channel that is no LAN channel answers with an error code and counts as having no address.
fn read(transport: &mut Transport<'_>) -> Result<BmcAddresses, IpmiError> {
    let mut channels = Vec::new();
    for number in 1..=11 {
        let Some(channel) = Channel::new(number) else { continue };
        channels.push(lan_channel(transport, channel)?);
    }
    let v4 = channels.iter().find_map(|channel| channel.v4.filter(|address| !address.is_unspecified()));
    let v6 = channels.iter().find_map(|channel| channel.v6);
    Ok(BmcAddresses {
        v4: Some(v4.map_or_else(|| NO_V4.to_owned(), |address| address.to_string())),
        v6: Some(v6.map_or_else(|| NO_V6.to_owned(), |address| address.to_string())),
        mac: channels.iter().find_map(configured_mac),
    })
}

/// MAC of a channel that is in use: it has an IPv4 address, or a global IPv6 one.
fn configured_mac(channel: &LanChannel) -> Option<String> {
    let global_v6 = channel.v6.is_some_and(|address| {
        let text = address.to_string();
        !text.starts_with("::") && !text.starts_with("fe80")
    });
    let in_use = channel.v4.is_some_and(|address| !address.is_unspecified()) || global_v6;
    let mac = channel.mac.filter(|mac| in_use && *mac != [0; 6] && *mac != [0xff; 6])?;
    Some(ferric_types::MacAddress(mac).to_string())
}

fn lan_channel(transport: &mut Transport<'_>, channel: Channel) -> Result<LanChannel, IpmiError> {
    let mut lan = LanChannel::default();
    // A channel without an IPv4 parameter is no LAN channel: nothing else need be asked of it.
    let Some(ip) = parameter(transport, channel, LanConfigParameter::IpAddress, 0)? else { return Ok(lan) };
    if let LanConfigParameterData::IpAddress(address) = ip {
        lan.v4 = Some(Ipv4Addr::from(address.0));
    }
    if let Some(LanConfigParameterData::MacAddress(mac)) =
        parameter(transport, channel, LanConfigParameter::MacAddress, 0)?
    {
        lan.mac = Some(mac.0);
    }
    lan.v6 = v6_address(transport, channel)?;
    Ok(lan)
}

/// First IPv6 address in use, dynamic ones before static ones.
fn v6_address(transport: &mut Transport<'_>, channel: Channel) -> Result<Option<Ipv6Addr>, IpmiError> {
    let enables = parameter(transport, channel, LanConfigParameter::Ipv6Ipv4AddressingEnables, 0)?;
    let enabled = matches!(
        enables,
        Some(LanConfigParameterData::Ipv6Ipv4AddressingEnables(
            Ipv6Ipv4Enables::Ipv6Only | Ipv6Ipv4Enables::Ipv6Ipv4Simultaneous
        ))
    );
    if !enabled {
        return Ok(None);
    }
    let Some(LanConfigParameterData::Ipv6Status(status)) =
        parameter(transport, channel, LanConfigParameter::Ipv6Status, 0)?
    else {
        return Ok(None);
    };
    for selector in 0..status.dynamic_address_max.min(MAX_V6_ADDRESSES) {
        let dynamic = parameter(transport, channel, LanConfigParameter::Ipv6DynamicAddress, selector)?;
        if let Some(LanConfigParameterData::Ipv6DynamicAddress(entry)) = dynamic {
            let address = Ipv6Addr::from(entry.address.0);
            if matches!(entry.source_type, 1 | 2) && entry.status == ACTIVE && !address.is_unspecified() {
                return Ok(Some(address));
            }
        }
    }
    for selector in 0..status.static_address_max.min(MAX_V6_ADDRESSES) {
        let fixed = parameter(transport, channel, LanConfigParameter::Ipv6StaticAddresses, selector)?;
        if let Some(LanConfigParameterData::Ipv6StaticAddresses(entry)) = fixed {
            let address = Ipv6Addr::from(entry.address.0);
            let in_use = entry.enabled && entry.source_type == STATIC && entry.status == ACTIVE;
            if in_use && !address.is_unspecified() {
                return Ok(Some(address));
            }
        }
    }
    Ok(None)
}

/// One LAN configuration parameter; `None` when the BMC refuses it or answers with too little.
fn parameter(
    transport: &mut Transport<'_>,
    channel: Channel,
    parameter: LanConfigParameter,
    set_selector: u8,
) -> Result<Option<LanConfigParameterData>, IpmiError> {
    let command = GetLanConfigParameters::new(channel, parameter).with_set_selector(set_selector);
    let message = Message::from(command);
    let answer = transport(message.netfn_raw(), message.cmd(), message.data())?;
    let Some((0, data)) = answer.split_first() else { return Ok(None) };
    Ok(GetLanConfigParameters::parse_success_response(data)
        .ok()
        .and_then(|response| parameter.parse(&response.data).ok()))
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
        let table: BTreeMap<_, _> = parameters.iter().cloned().collect();
        read(&mut |netfn, cmd, data| {
            assert_eq!((netfn, cmd), (0x0c, 0x02));
            let answer = table.get(&(data[0], data[1], data[2]));
            Ok(answer.map_or_else(|| vec![0xcc], |data| [vec![0, 0x11], data.clone()].concat()))
        })
        .unwrap()
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
    fn a_bmc_that_does_not_answer_is_asked_once() {
        let mut asked = 0;
        let result = read(&mut |netfn, cmd, _| {
            asked += 1;
            let source = std::io::ErrorKind::TimedOut.into();
            Err(IpmiError::Io { path: "/dev/ipmi0".into(), netfn, cmd, source })
        });
        assert!(result.is_err());
        assert_eq!(asked, 1);
    }

    proptest! {
        #[test]
        fn any_answer_is_survived(answers in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..24), 1..40)) {
            let mut next = answers.iter().cycle();
            let found = read(&mut |_, _, _| Ok(next.next().cloned().unwrap_or_default()));
            prop_assert!(found.is_ok());
        }
    }
}
