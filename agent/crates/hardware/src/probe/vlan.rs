//! VLAN interfaces that an operator wants (`ipa-enable-vlan-interfaces`, hardware section 2.1): `IF.VID`, or an `IF` or
//! `all` whose numbers the switch says. `IF` is a name or an address, in any case of letters.

use std::collections::BTreeMap;
use std::io;

use ferric_sys::netlink::{LinkChange, Netlink};
use ferric_sys::{Root, attr};
use ferric_types::inventory::NetworkInterface;

use super::lldp::{ORGANISATION, Tlv};
use super::nics::is_vlan;

/// Organisation (IEEE 802.1) and subtype of the TLV with a VLAN's number and name (IEEE 802.1Q annex D.2.3).
const VLAN_NAME: &str = "0080c203";
/// Stands for every interface.
const ALL: &str = "all";

/// A VLAN on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vlan {
    /// Name of the interface.
    pub parent: String,
    /// Number of the VLAN.
    pub id: u16,
}

impl Vlan {
    /// Name of its own interface.
    pub fn name(&self) -> String {
        format!("{}.{}", self.parent, self.id)
    }

    /// Makes it and takes it up; one that is there already is left as it is.
    ///
    /// # Errors
    /// There is no such interface, its name leaves no room for the number, or the kernel has no VLANs.
    pub fn make(&self) -> io::Result<()> {
        let (netlink, name) = (Netlink::open()?, self.name());
        match netlink.add_vlan(index(&netlink, &self.parent)?, &name, self.id) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => netlink.change_link(index(&netlink, &name)?, LinkChange::Up),
        }
    }
}

fn index(netlink: &Netlink, name: &str) -> io::Result<u32> {
    let found = netlink.links()?.into_iter().find(|link| link.name == name);
    found.map(|link| link.index).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Numbers of the VLANs that are wanted on an interface.
pub fn numbered(wanted: &[String], name: &str, mac: &str) -> Vec<u16> {
    let of_entry = |entry: &String| {
        let (interface, id) = entry.trim().rsplit_once('.')?;
        let is_this = interface.eq_ignore_ascii_case(name) || interface.eq_ignore_ascii_case(mac);
        id.parse().ok().filter(|id| is_this && is_valid(*id))
    };
    wanted.iter().filter_map(of_entry).collect()
}

/// Whether the VLANs of an interface are to be learned from its switch.
fn learns(wanted: &[String], name: &str, mac: &str) -> bool {
    wanted
        .iter()
        .map(|entry| entry.trim())
        .any(|entry| [ALL, name, mac].iter().any(|this| entry.eq_ignore_ascii_case(this)))
}

/// Entries of the setting that say nothing: a number that no VLAN can have.
pub fn invalid(wanted: &[String]) -> Vec<&String> {
    let is_bad = |entry: &&String| entry.trim().rsplit_once('.').is_some_and(|(_, id)| !id.parse().is_ok_and(is_valid));
    wanted.iter().filter(is_bad).collect()
}

const fn is_valid(id: u16) -> bool {
    matches!(id, 1..=4094)
}

/// Numbers of the VLANs that a switch names in a frame.
fn announced(frame: &[Tlv]) -> impl Iterator<Item = u16> {
    let of_tlv = |(kind, value): &Tlv| {
        let digits = value.strip_prefix(VLAN_NAME).filter(|_| *kind == ORGANISATION)?.get(..4)?;
        u16::from_str_radix(digits, 16).ok().filter(|id| is_valid(*id))
    };
    frame.iter().filter_map(of_tlv)
}

/// The VLANs that are wanted on these interfaces, given what their switches said; none twice.
pub fn wanted(wanted: &[String], interfaces: &[NetworkInterface], frames: &BTreeMap<String, Vec<Tlv>>) -> Vec<Vlan> {
    let mut vlans: Vec<Vlan> = Vec::new();
    for NetworkInterface { name, mac_address, .. } in interfaces.iter().filter(|interface| !is_vlan(&interface.name)) {
        let mut ids = numbered(wanted, name, mac_address);
        if learns(wanted, name, mac_address) {
            ids.extend(frames.get(name).into_iter().flat_map(|frame| announced(frame)));
        }
        for vlan in ids.into_iter().map(|id| Vlan { parent: name.clone(), id }) {
            if !vlans.contains(&vlan) {
                vlans.push(vlan);
            }
        }
    }
    vlans
}

/// Makes those that are not there, and says whether there were any. One that cannot be made is logged and left out. In a
/// tree that stands for a machine nothing is made.
pub fn make_missing(root: &Root, vlans: &[Vlan]) -> bool {
    let known = attr::list(&root.path("sys/class/net"));
    let missing = vlans.iter().filter(|vlan| root.is_host() && !known.contains(&vlan.name()));
    let made = missing.map(|vlan| match vlan.make() {
        Ok(()) => tracing::info!(vlan = vlan.name(), "VLAN interface made"),
        Err(error) => tracing::warn!(vlan = vlan.name(), %error, "making a VLAN interface"),
    });
    made.count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interface(name: &str, mac: &str) -> NetworkInterface {
        NetworkInterface { name: name.into(), mac_address: mac.into(), ..NetworkInterface::default() }
    }

    fn names(setting: &[&str], frames: &[(&str, &[(u8, &str)])]) -> Vec<String> {
        let setting: Vec<String> = setting.iter().map(|entry| (*entry).to_owned()).collect();
        let interfaces = [
            interface("eth0", "52:54:00:aa:bb:cc"),
            interface("eth1", "52:54:00:aa:bb:cd"),
            interface("eth0.7", "52:54:00:aa:bb:cc"),
        ];
        let frame = |tlvs: &[(u8, &str)]| tlvs.iter().map(|(kind, value)| (*kind, (*value).to_owned())).collect();
        let frames = frames.iter().map(|(name, tlvs)| ((*name).to_owned(), frame(tlvs))).collect();
        wanted(&setting, &interfaces, &frames).iter().map(Vlan::name).collect()
    }

    /// VLANs 100 and 4094 by name; others are a port's own number, another organisation's, cut off, 0 and 4095.
    const FRAME: &[(u8, &str)] = &[
        (1, "04885a92ec5459"),
        (127, "0080c203006403666f6f"),
        (127, "0080c2010065"),
        (127, "00120f03006603"),
        (127, "0080c20300"),
        (127, "0080c203000000"),
        (127, "0080c2030fff00"),
        (127, "0080c2030FFE00"),
        (8, "0080c203006703"),
        (0, ""),
    ];

    #[test]
    fn vlans_are_made_where_an_operator_says() {
        let heard = [("eth0", FRAME), ("eth1", &[(127, "0080c20300c80161")]), ("eth0.7", FRAME)];
        let learned = ["eth0.100", "eth0.4094"];
        for (setting, frames, want) in [
            (&[][..], &heard[..], &[][..]),
            (&["eth0.100"], &[], &["eth0.100"]),
            (&["ETH0.100", "eth1.5", "eth1.5"], &[], &["eth0.100", "eth1.5"]),
            (&["52:54:00:AA:BB:CC.9"], &[], &["eth0.9"]),
            (&["eth2.100", "52:54:00:aa:bb:ce.1"], &heard, &[]),
            (&["eth0.0", "eth0.4095", "eth0.x", "eth0.", "eth0.65636"], &heard, &[]),
            // Learned ones; without a frame there are none.
            (&["eth0"], &heard, &learned),
            (&["52:54:00:AA:bb:cc"], &heard, &learned),
            (&["eth0"], &[], &[]),
            (&["ALL"], &heard, &["eth0.100", "eth0.4094", "eth1.200"]),
            (&["eth0.100", "all", "eth1.6"], &heard, &["eth0.100", "eth0.4094", "eth1.6", "eth1.200"]),
            (&["all.5"], &heard, &[]),
        ] {
            assert_eq!(names(setting, frames), want, "{setting:?}");
        }
    }

    #[test]
    fn numbers_that_no_vlan_has_are_told() {
        let setting = ["eth0.5", "eth0", "all", "eth0.0", "eth1.4095", "a.b", "52:54:00:aa:bb:cc.1"].map(str::to_owned);
        assert_eq!(invalid(&setting), ["eth0.0", "eth1.4095", "a.b"]);
    }

    #[test]
    fn in_a_tree_nothing_is_made() {
        let tree = ferric_sys::testing::machine::MachineTree::new().unwrap();
        assert!(!make_missing(&tree.root(), &[Vlan { parent: "lo".to_owned(), id: 5 }]));
    }

    #[test]
    fn a_vlan_on_nothing_is_an_error() {
        let error = Vlan { parent: "ferric-none".to_owned(), id: 5 }.make().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }

    proptest! {
        #[test]
        fn any_setting_and_any_frame_give_valid_numbers(
            setting in proptest::collection::vec("\\PC{0,12}|eth0\\.[0-9]{0,6}|all", 0..6),
            values in proptest::collection::vec("0080c203[0-9a-zé]{0,6}", 0..6),
        ) {
            let frames = BTreeMap::from([("eth0".to_owned(), values.into_iter().map(|value| (127, value)).collect())]);
            let found = wanted(&setting, &[interface("eth0", "52:54:00:aa:bb:cc")], &frames);
            prop_assert!(found.iter().all(|vlan| (1..=4094).contains(&vlan.id)));
            let _told = invalid(&setting);
        }
    }
}
