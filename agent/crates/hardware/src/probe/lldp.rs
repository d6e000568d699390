//! Link Layer Discovery Protocol (IEEE 802.1AB): what the switches on the other ends of the cables say of themselves
//! (inspection section 3.5).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferric_sys::mount::mount_debugfs;
use ferric_sys::packet::FrameSocket;
use ferric_sys::{Root, attr};
use ferric_types::error::chain;
use ferric_types::inventory::NetworkInterface;

use super::nics::is_vlan;
use super::text::hex;
use crate::replay;

/// A type, and its value in hex.
pub type Tlv = (u8, String);

const ETHER_TYPE: u16 = 0x88cc;
/// Both addresses and the EtherType.
const HEADER_BYTES: usize = 14;
/// The longest frame that is read whole.
const FRAME_BYTES: usize = 1600;
/// Type of a TLV that an organisation has defined.
pub(super) const ORGANISATION: u8 = 127;
/// Driver of cards whose firmware keeps the frames for itself.
const EATER: &str = "i40e";

/// One frame of every interface that gets one: all interfaces are listened to at the same time, until each has had a
/// frame or none has come for `timeout`, and for twice that at most. An interface without a frame, without a link or
/// that cannot be listened to has no TLVs. A tree that stands for a machine has no sockets, but it may have frames of then.
pub fn collect(root: &Root, interfaces: &[String], timeout: Duration) -> BTreeMap<String, Vec<Tlv>> {
    let mut found: BTreeMap<String, Vec<Tlv>> = interfaces.iter().map(|name| (name.clone(), Vec::new())).collect();
    if !root.is_host() {
        found.extend(replayed(root).into_iter().filter(|(name, _)| interfaces.contains(name)));
        return found;
    }
    let mut waiting: Vec<(&String, FrameSocket)> =
        interfaces.iter().filter_map(|name| Some((name, listen(root, name)?))).collect();
    let mut frame = [0; FRAME_BYTES];
    let end = Instant::now() + timeout * 2;
    let mut round_end = Instant::now() + timeout;
    loop {
        waiting.retain(|(name, socket)| {
            let Ok(length) = socket.receive(&mut frame) else { return true };
            let read = tlvs(frame.get(..length).unwrap_or_default());
            tracing::debug!(interface = name, tlvs = read.len(), "LLDP frame received");
            found.insert((*name).clone(), read);
            round_end = end.min(Instant::now() + timeout);
            false
        });
        let left = round_end.saturating_duration_since(Instant::now());
        if waiting.is_empty() || left.is_zero() {
            break;
        }
        if let Err(error) = FrameSocket::wait_for_any(waiting.iter().map(|(_, socket)| socket), left) {
            tracing::warn!(%error, "waiting for LLDP frames");
            break;
        }
    }
    for (name, _) in waiting {
        tracing::info!(interface = name, "no LLDP frame came");
    }
    found
}

/// Frames that a captured tree has.
fn replayed(root: &Root) -> BTreeMap<String, Vec<Tlv>> {
    let text = std::fs::read(root.path(replay::LLDP)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Makes the cards whose firmware speaks LLDP itself pass the frames on, until they are reset (Intel 700 series; hardware
/// section 9). Nothing is done on a machine without such a card.
pub fn stop_firmware_agents(root: &Root, interfaces: &[NetworkInterface]) {
    if !interfaces.iter().any(|interface| interface.driver.as_deref() == Some(EATER)) {
        return;
    }
    let debugfs = root.path("sys/kernel/debug");
    let cards = debugfs.join(EATER);
    if root.is_host()
        && !cards.is_dir()
        && let Err(error) = mount_debugfs(&debugfs)
    {
        tracing::warn!(%error, "mounting debugfs; LLDP frames may stay in the cards' firmware");
    }
    for card in attr::list(&cards) {
        match attr::write(&cards.join(&card).join("command"), "lldp stop") {
            Ok(()) => tracing::info!(card, "the card's firmware leaves LLDP frames to this system"),
            Err(error) => tracing::warn!(card, reason = chain(&error), "the card's firmware keeps LLDP frames"),
        }
    }
}

/// The socket of an interface that has a link. Switches send these frames untagged, so none comes to a VLAN.
fn listen(root: &Root, name: &str) -> Option<FrameSocket> {
    if is_vlan(name) {
        return None;
    }
    let dir = root.path("sys/class/net").join(name);
    if !attr::read_trimmed(&dir.join("carrier")).is_ok_and(|carrier| carrier == "1") {
        return None;
    }
    let index = attr::read_u64(&dir.join("ifindex")).ok().and_then(|index| u32::try_from(index).ok())?;
    FrameSocket::open(index, ETHER_TYPE)
        .inspect_err(|error| tracing::warn!(interface = name, %error, "cannot listen for LLDP frames"))
        .ok()
}

/// The TLVs of a frame; one that is cut off is left out. As with the reference agent the one that ends them is among them
/// (`0`, empty), and so is what follows it, such as the padding of a short frame.
pub fn tlvs(frame: &[u8]) -> Vec<Tlv> {
    let mut tlvs = Vec::new();
    let mut rest = frame.get(HEADER_BYTES..).unwrap_or_default();
    while let Some((head, after)) = rest.split_first_chunk::<2>() {
        let head = u16::from_be_bytes(*head);
        let Some((value, after)) = after.split_at_checked(usize::from(head & 0x1ff)) else { break };
        let kind = u8::try_from(head >> 9).unwrap_or_default();
        tlvs.push((kind, hex(value)));
        rest = after;
    }
    tlvs
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use proptest::prelude::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        [&[0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc][..], payload].concat()
    }

    #[test]
    fn tlvs_are_read_with_the_end_and_the_padding() {
        // Chassis id (MAC address), port id (interface name), TTL, end, and the padding of a short frame.
        let payload = b"\x02\x07\x04\x88\x5a\x92\xec\x54\x59\x04\x05\x05et-1\x06\x02\x00\x78\x00\x00\0\0\0\0\0";
        let want = [(1, "04885a92ec5459"), (2, "0565742d31"), (3, "0078"), (0, ""), (0, ""), (0, "")];
        assert_eq!(tlvs(&frame(payload)), want.map(|(kind, value)| (kind, value.to_owned())));
        // As long as a TLV can be, and of the highest type.
        let long = [&[0xff, 0xff][..], &[7; 511]].concat();
        assert_eq!(tlvs(&frame(&long)), [(127, "07".repeat(511))]);
    }

    #[test]
    fn damaged_frames_give_what_is_whole_in_them() {
        const TTL: &[u8] = b"\x06\x02\x00\x78";
        let after_ttl = |more: &[u8]| [TTL, more].concat();
        let ttl = (3, "0078".to_owned());
        for (what, payload, want) in [
            ("nothing", vec![], vec![]),
            ("half a header", vec![2], vec![]),
            ("a header only", vec![2, 7], vec![]),
            ("cut off in the value", vec![2, 7, 4, 0x88], vec![]),
            ("no end", TTL.to_vec(), vec![ttl.clone()]),
            ("an odd byte at the end", after_ttl(&[2]), vec![ttl.clone()]),
            ("one longer than the rest", after_ttl(&[3, 0xff, 0]), vec![ttl.clone()]),
            ("the longest without a value", after_ttl(&[0xff, 0xff]), vec![ttl.clone()]),
            ("without a value", vec![8, 0, 10, 0], vec![(4, String::new()), (5, String::new())]),
            ("an end with a value", vec![0, 1, 0xaa], vec![(0, "aa".to_owned())]),
            ("more after the end", [&[0, 0][..], TTL].concat(), vec![(0, String::new()), ttl.clone()]),
        ] {
            assert_eq!(tlvs(&frame(&payload)), want, "{what}");
        }
        for length in 0..HEADER_BYTES {
            assert_eq!(tlvs(&vec![2; length]), [], "{length} bytes");
        }
        // Full of the shortest ones, and a jumbo frame, of which no more than this is read.
        assert_eq!(tlvs(&frame(&[0; 1500])).len(), 750);
        assert_eq!(tlvs(&vec![0; FRAME_BYTES]).len(), 793);
        // A tag of a VLAN that the kernel has left in its place is read as what it is not, and no more than that.
        let tagged = [&frame(b"")[..12], &[0x81, 0, 0, 100, 0x88, 0xcc], TTL].concat();
        assert_eq!(tlvs(&tagged), []);
    }

    #[test]
    fn frames_that_firmware_keeps_are_asked_for_where_there_is_such_a_card() {
        let tree = MachineTree::new().unwrap();
        let command = |card: &str| format!("sys/kernel/debug/i40e/{card}/command");
        let said = |card: &str| std::fs::read_to_string(tree.path(command(card))).unwrap();
        let nic = |driver: &str| NetworkInterface { driver: Some(driver.to_owned()), ..NetworkInterface::default() };
        for card in ["0000:18:00.0", "0000:18:00.1"] {
            tree.bytes(&command(card), b"").unwrap();
        }
        tree.file("sys/kernel/debug/ice/0000:3b:00.0/command", "").unwrap();
        // A card that is being taken away has nothing to write to.
        std::fs::create_dir_all(tree.path("sys/kernel/debug/i40e/0000:af:00.0")).unwrap();
        stop_firmware_agents(&tree.root(), &[nic("ice"), NetworkInterface::default()]);
        assert_eq!(said("0000:18:00.0"), "");
        stop_firmware_agents(&tree.root(), &[nic("ice"), nic("i40e")]);
        assert_eq!((said("0000:18:00.0").as_str(), said("0000:18:00.1").as_str()), ("lldp stop", "lldp stop"));
        let other = std::fs::read_to_string(tree.path("sys/kernel/debug/ice/0000:3b:00.0/command")).unwrap();
        assert_eq!(other.trim(), "");
    }

    #[test]
    fn a_tree_gets_no_frames_and_nobody_waits_for_them() {
        let tree = MachineTree::new().unwrap();
        let found = collect(&tree.root(), &["eth0".to_owned()], Duration::from_secs(60));
        assert_eq!(found, BTreeMap::from([("eth0".to_owned(), Vec::new())]));
    }

    #[test]
    fn an_interface_without_a_link_or_that_is_not_there_is_not_waited_for() {
        let begun = Instant::now();
        let found = collect(&Root::host(), &["no-such-nic".to_owned()], Duration::from_secs(60));
        assert_eq!(found["no-such-nic"], []);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    proptest! {
        #[test]
        fn any_frame_is_read(frame in proptest::collection::vec(any::<u8>(), 0..FRAME_BYTES)) {
            let length: usize = tlvs(&frame).iter().map(|(_, value)| 2 + value.len() / 2).sum();
            prop_assert!(length <= frame.len().saturating_sub(HEADER_BYTES));
        }

        #[test]
        fn whole_tlvs_are_read_as_they_were_written(
            written in proptest::collection::vec((0_u8..128, proptest::collection::vec(any::<u8>(), 0..512)), 0..4),
            rest in proptest::collection::vec(any::<u8>(), 0..2),
        ) {
            let bytes = |(kind, value): &(u8, Vec<u8>)| {
                let head = u16::from(*kind) << 9 | u16::try_from(value.len()).unwrap();
                [&head.to_be_bytes()[..], value].concat()
            };
            let payload: Vec<u8> = written.iter().flat_map(bytes).chain(rest).collect();
            let want: Vec<Tlv> = written.iter().map(|(kind, value)| (*kind, hex(value))).collect();
            prop_assert_eq!(tlvs(&frame(&payload)), want);
        }
    }
}
