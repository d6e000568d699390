//! Link Layer Discovery Protocol (IEEE 802.1AB): what the switches on the other ends of the cables say of themselves
//! (inspection section 3.5).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferric_sys::packet::FrameSocket;
use ferric_sys::{Root, attr};

use super::text::hex;

/// A type, and its value in hex.
pub type Tlv = (u8, String);

const ETHER_TYPE: u16 = 0x88cc;
/// Both addresses and the EtherType.
const HEADER_BYTES: usize = 14;
/// The longest frame that is read whole.
const FRAME_BYTES: usize = 1600;
const END: u8 = 0;

/// One frame of every interface that gets one: all interfaces are listened to at the same time, until each has had a
/// frame or none has come for `timeout`, and for twice that at most. An interface without a frame, without a link or
/// that cannot be listened to has no TLVs. A tree that stands for a machine has no sockets and gets no frames.
pub fn collect(root: &Root, interfaces: &[String], timeout: Duration) -> BTreeMap<String, Vec<Tlv>> {
    let mut found: BTreeMap<String, Vec<Tlv>> = interfaces.iter().map(|name| (name.clone(), Vec::new())).collect();
    if !root.is_host() {
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

/// The socket of an interface that has a link.
fn listen(root: &Root, name: &str) -> Option<FrameSocket> {
    let dir = root.path("sys/class/net").join(name);
    if !attr::read_trimmed(&dir.join("carrier")).is_ok_and(|carrier| carrier == "1") {
        return None;
    }
    let index = attr::read_u64(&dir.join("ifindex")).ok().and_then(|index| u32::try_from(index).ok())?;
    FrameSocket::open(index, ETHER_TYPE)
        .inspect_err(|error| tracing::warn!(interface = name, %error, "cannot listen for LLDP frames"))
        .ok()
}

/// The TLVs of a frame, up to and with the one that ends them; one that is cut off is left out.
pub fn tlvs(frame: &[u8]) -> Vec<Tlv> {
    let mut tlvs = Vec::new();
    let mut rest = frame.get(HEADER_BYTES..).unwrap_or_default();
    while let Some((head, after)) = rest.split_first_chunk::<2>() {
        let head = u16::from_be_bytes(*head);
        let Some((value, after)) = after.split_at_checked(usize::from(head & 0x1ff)) else { break };
        let kind = u8::try_from(head >> 9).unwrap_or_default();
        tlvs.push((kind, hex(value)));
        if kind == END {
            break;
        }
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
    fn tlvs_end_with_the_end() {
        // Chassis id (MAC address), port id (interface name), TTL, end, and the padding of a short frame.
        let payload = b"\x02\x07\x04\x88\x5a\x92\xec\x54\x59\x04\x05\x05et-1\x06\x02\x00\x78\x00\x00\0\0\0\0";
        let want = [(1, "04885a92ec5459"), (2, "0565742d31"), (3, "0078"), (0, "")];
        assert_eq!(tlvs(&frame(payload)), want.map(|(kind, value)| (kind, value.to_owned())));
        // As long as a TLV can be, and of the highest type.
        let long = [&[0xff, 0xff][..], &[7; 511]].concat();
        assert_eq!(tlvs(&frame(&long)), [(127, "07".repeat(511))]);
    }

    #[test]
    fn damaged_frames_give_what_is_whole_in_them() {
        for (payload, want) in [
            (&b""[..], 0),
            (b"\x02", 0),
            (b"\x02\x07\x04\x88", 0),
            (b"\x06\x02\x00\x78", 1),
            (b"\x06\x02\x00\x78\x02", 1),
            (b"\x06\x02\x00\x78\x03\xff\x00", 1),
            (b"\x08\x00\x0a\x00", 2),
        ] {
            assert_eq!(tlvs(&frame(payload)).len(), want, "{payload:?}");
        }
        assert_eq!(tlvs(&[1, 2, 3]), []);
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
        fn any_frame_is_read(frame in proptest::collection::vec(any::<u8>(), 0..1600)) {
            let length: usize = tlvs(&frame).iter().map(|(_, value)| 2 + value.len() / 2).sum();
            prop_assert!(length <= frame.len().saturating_sub(HEADER_BYTES));
        }
    }
}
