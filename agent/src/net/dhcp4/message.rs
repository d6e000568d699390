//! DHCPv4 messages: what the client sends, and what it takes from answers (RFC 2131, 2132, 3442, 3397).

use std::net::Ipv4Addr;
use std::time::Duration;

use dhcproto::v4::{DhcpOption, MAGIC, MIN_PACKET_SIZE, Message, MessageType, OptionCode};
use dhcproto::{Decodable, Decoder};
use ferric_types::MacAddress;

/// What the client asks servers to tell.
const WANTED: &[OptionCode] = &[
    OptionCode::SubnetMask,
    OptionCode::Router,
    OptionCode::DomainNameServer,
    OptionCode::Hostname,
    OptionCode::DomainName,
    OptionCode::InterfaceMtu,
    OptionCode::NtpServers,
    OptionCode::AddressLeaseTime,
    OptionCode::Renewal,
    OptionCode::Rebinding,
    OptionCode::DomainSearch,
    OptionCode::ClasslessStaticRoute,
];

const END: u8 = 255;

/// Largest message taken: an Ethernet frame less the IP and UDP headers.
const MAX_MESSAGE_BYTES: u16 = 1472;
/// `0xffffffff` seconds: for ever (RFC 2131 section 3.3).
const INFINITE: u32 = u32::MAX;
/// Shorter leases are taken as this long; a server that gives out less would have us do nothing else.
const SHORTEST_LEASE: Duration = Duration::from_secs(10);
/// Longer ones as this long, ten years.
const LONGEST_LEASE: Duration = Duration::from_secs(315_360_000);

/// A route: network, prefix length, and the router, or none when the network is on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Network.
    pub network: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// Where to send packets for it; `None` for the link itself.
    pub router: Option<Ipv4Addr>,
}

/// What a server lends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Our address.
    pub address: Ipv4Addr,
    /// Prefix length of our network.
    pub prefix: u8,
    /// The server that lent it.
    pub server: Ipv4Addr,
    /// All routes but the one to our own network; the default route has the prefix length 0.
    pub routes: Vec<Route>,
    /// Name servers.
    pub dns: Vec<Ipv4Addr>,
    /// Domains to look names up in.
    pub search: Vec<String>,
    /// Our name.
    pub hostname: Option<String>,
    /// Time servers.
    pub ntp: Vec<Ipv4Addr>,
    /// Largest packet of the link in bytes.
    pub mtu: Option<u32>,
    /// How long the address is ours.
    pub lifetime: Duration,
    /// After this long the lease is to be renewed (T1).
    pub renew_after: Duration,
    /// After this long any server may renew it (T2).
    pub rebind_after: Duration,
}

#[cfg(test)]
impl Lease {
    /// A lease of a minute with nothing but an address, for tests.
    pub(crate) fn plain(address: Ipv4Addr, prefix: u8, server: Ipv4Addr) -> Self {
        Self {
            address,
            prefix,
            server,
            routes: Vec::new(),
            dns: Vec::new(),
            search: Vec::new(),
            hostname: None,
            ntp: Vec::new(),
            mtu: None,
            lifetime: Duration::from_secs(60),
            renew_after: Duration::from_secs(30),
            rebind_after: Duration::from_secs(50),
        }
    }
}

/// What a message of a server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Offer { address: Ipv4Addr, server: Ipv4Addr },
    Ack(Box<Lease>),
    Nak(String),
}

/// What a message to servers is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// Who has an address?
    Discover,
    /// That one please.
    Select { address: Ipv4Addr, server: Ipv4Addr },
    /// May I still use the address I had?
    Reboot { address: Ipv4Addr },
    /// May I use mine longer? `ciaddr` carries it.
    Extend { address: Ipv4Addr },
    /// I do not take this one: somebody else has it.
    Decline { address: Ipv4Addr, server: Ipv4Addr },
}

/// The codec's own messages begin with a random number from the kernel, which a machine that has just started may not
/// have for seconds; so what little the client says is written here.
pub(super) fn encode(asks: Asks, mac: MacAddress, xid: u32, seconds: u16) -> Vec<u8> {
    let (kind, ciaddr, requested, server) = match asks {
        Asks::Discover => (MessageType::Discover, None, None, None),
        Asks::Select { address, server } => (MessageType::Request, None, Some(address), Some(server)),
        Asks::Reboot { address } => (MessageType::Request, None, Some(address), None),
        Asks::Extend { address } => (MessageType::Request, Some(address), None, None),
        Asks::Decline { address, server } => (MessageType::Decline, None, Some(address), Some(server)),
    };
    // A request, Ethernet, six bytes of address, no relay so far.
    let mut bytes = vec![1, 1, 6, 0];
    bytes.extend(xid.to_be_bytes());
    bytes.extend(seconds.to_be_bytes());
    // No flags: the answer may come to the address that is not ours yet.
    bytes.extend([0, 0]);
    bytes.extend(ciaddr.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
    bytes.extend([0; 12]);
    bytes.extend(mac.0);
    // The rest of the address field, then the names of server and file.
    bytes.extend([0; 10 + 64 + 128]);
    bytes.extend(MAGIC);
    let mut option = |code: OptionCode, value: &[u8]| {
        bytes.push(code.into());
        bytes.push(u8::try_from(value.len()).unwrap_or(0));
        bytes.extend(value);
    };
    option(OptionCode::MessageType, &[kind.into()]);
    // What declines an address asks for nothing (RFC 2131 section 4.4.1).
    if kind != MessageType::Decline {
        option(OptionCode::MaxMessageSize, &MAX_MESSAGE_BYTES.to_be_bytes());
        option(OptionCode::ClassIdentifier, b"ferric");
        option(OptionCode::ParameterRequestList, &WANTED.iter().map(|code| u8::from(*code)).collect::<Vec<u8>>());
    }
    if let Some(address) = requested {
        option(OptionCode::RequestedIpAddress, &address.octets());
    }
    if let Some(server) = server {
        option(OptionCode::ServerIdentifier, &server.octets());
    }
    bytes.push(END);
    // Some relays drop messages shorter than BOOTP's 300 bytes.
    bytes.resize(bytes.len().max(MIN_PACKET_SIZE), 0);
    bytes
}

/// Reads a message; `None` when it is not an answer to the client with this transaction and address.
pub(super) fn decode(bytes: &[u8], mac: MacAddress, xid: u32) -> Option<Answer> {
    // The fixed fields before anything else is read (RFC 2131 section 2): a reply, Ethernet, six bytes of address. The
    // codec takes a wrong length of the address on trust and then reads beyond it.
    let ours =
        bytes.get(..4)?.starts_with(&[2, 1, 6]) && bytes.get(4..8)? == xid.to_be_bytes() && bytes.get(28..34)? == mac.0;
    if !ours {
        return None;
    }
    let message = Message::decode(&mut Decoder::new(&only_known(bytes)?)).ok()?;
    let options = message.opts();
    let server = match options.get(OptionCode::ServerIdentifier) {
        Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
        _ => None,
    };
    match options.msg_type()? {
        MessageType::Offer => Some(Answer::Offer { address: usable(message.yiaddr())?, server: server? }),
        MessageType::Ack => Some(Answer::Ack(Box::new(lease(&message, server.unwrap_or(Ipv4Addr::BROADCAST))?))),
        MessageType::Nak => Some(Answer::Nak(match options.get(OptionCode::Message) {
            Some(DhcpOption::Message(text)) => text.chars().filter(|c| !c.is_control()).take(200).collect(),
            _ => "no reason given".to_owned(),
        })),
        _ => None,
    }
}

/// The message with only those options that are used here. The codec asserts things about some of the others, and
/// anybody on the link may send them.
fn only_known(bytes: &[u8]) -> Option<Vec<u8>> {
    const PAD: u8 = 0;
    const ALSO: [OptionCode; 3] = [OptionCode::MessageType, OptionCode::ServerIdentifier, OptionCode::Message];
    // Fixed fields and the magic number.
    let mut known = bytes.get(..240)?.to_vec();
    let mut rest = bytes.get(240..)?;
    while let Some((code, tail)) = rest.split_first() {
        match *code {
            PAD => rest = tail,
            END => break,
            number => {
                let (length, value) = tail.split_first()?;
                let value = value.get(..usize::from(*length))?;
                let code = OptionCode::from(number);
                if WANTED.contains(&code) || ALSO.contains(&code) {
                    known.extend_from_slice(&[number, *length]);
                    known.extend_from_slice(value);
                }
                rest = tail.get(1 + usize::from(*length)..)?;
            }
        }
    }
    known.push(END);
    Some(known)
}

/// Only addresses that a host can have.
fn usable(address: Ipv4Addr) -> Option<Ipv4Addr> {
    let refused = address.is_unspecified() || address.is_broadcast() || address.is_loopback() || address.is_multicast();
    (!refused).then_some(address)
}

fn lease(message: &Message, server: Ipv4Addr) -> Option<Lease> {
    let options = message.opts();
    let address = usable(message.yiaddr())?;
    let mask = match options.get(OptionCode::SubnetMask) {
        Some(DhcpOption::SubnetMask(mask)) => Some(*mask),
        _ => None,
    };
    let seconds = |code| match options.get(code) {
        Some(DhcpOption::AddressLeaseTime(time) | DhcpOption::Renewal(time) | DhcpOption::Rebinding(time)) => {
            Some(if *time == INFINITE { LONGEST_LEASE } else { Duration::from_secs(u64::from(*time)) })
        }
        _ => None,
    };
    // A lease without a time is against the RFC; an hour is what most servers mean.
    let lifetime = seconds(OptionCode::AddressLeaseTime).unwrap_or(Duration::from_secs(3600));
    let lifetime = lifetime.clamp(SHORTEST_LEASE, LONGEST_LEASE);
    let rebind = seconds(OptionCode::Rebinding).filter(|time| *time < lifetime && !time.is_zero());
    let rebind_after = rebind.unwrap_or(lifetime * 7 / 8);
    let renew = seconds(OptionCode::Renewal).filter(|time| *time < rebind_after && !time.is_zero());
    Some(Lease {
        address,
        prefix: prefix(address, mask),
        server,
        routes: routes(message),
        dns: addresses(message, OptionCode::DomainNameServer),
        search: search(message),
        hostname: match options.get(OptionCode::Hostname) {
            Some(DhcpOption::Hostname(name)) => host_name(name),
            _ => None,
        },
        ntp: addresses(message, OptionCode::NtpServers),
        mtu: match options.get(OptionCode::InterfaceMtu) {
            // 68 is what RFC 2132 allows; less than 576 breaks more than it helps.
            Some(DhcpOption::InterfaceMtu(mtu)) if *mtu >= 576 => Some(u32::from(*mtu)),
            _ => None,
        },
        lifetime,
        renew_after: renew.unwrap_or((lifetime / 2).min(rebind_after)),
        rebind_after,
    })
}

/// Prefix length of a mask; of the address's old class when there is none or it has holes.
fn prefix(address: Ipv4Addr, mask: Option<Ipv4Addr>) -> u8 {
    let ones = mask.map(u32::from).filter(|mask| mask.leading_ones() + mask.trailing_zeros() == 32 && *mask != 0);
    match (ones, address.octets()) {
        (Some(mask), _) => u8::try_from(mask.leading_ones()).unwrap_or(32),
        (None, [0..=127, ..]) => 8,
        (None, [128..=191, ..]) => 16,
        (None, _) => 24,
    }
}

fn addresses(message: &Message, code: OptionCode) -> Vec<Ipv4Addr> {
    let list = match message.opts().get(code) {
        Some(DhcpOption::DomainNameServer(list) | DhcpOption::NtpServers(list) | DhcpOption::Router(list)) => {
            list.as_slice()
        }
        _ => &[],
    };
    list.iter().copied().filter_map(usable).collect()
}

/// Classless routes replace the router option (RFC 3442); of several routers the first is the default one.
fn routes(message: &Message) -> Vec<Route> {
    if let Some(DhcpOption::ClasslessStaticRoute(list)) = message.opts().get(OptionCode::ClasslessStaticRoute)
        && !list.is_empty()
    {
        let routes = list.iter().map(|(network, router)| Route {
            network: network.network(),
            prefix: network.prefix_len(),
            router: usable(*router),
        });
        return routes.collect();
    }
    let router = addresses(message, OptionCode::Router).first().copied();
    router.map(|router| Route { network: Ipv4Addr::UNSPECIFIED, prefix: 0, router: Some(router) }).into_iter().collect()
}

fn search(message: &Message) -> Vec<String> {
    let mut domains = Vec::new();
    if let Some(DhcpOption::DomainSearch(names)) = message.opts().get(OptionCode::DomainSearch) {
        domains.extend(names.iter().filter_map(|name| host_name(name.to_ascii().trim_end_matches('.'))));
    }
    if domains.is_empty()
        && let Some(DhcpOption::DomainName(names)) = message.opts().get(OptionCode::DomainName)
    {
        domains.extend(names.split_whitespace().filter_map(host_name));
    }
    domains.truncate(6);
    domains
}

/// A name that may be written into `resolv.conf` and the kernel: servers are not to be trusted with line breaks.
fn host_name(name: &str) -> Option<String> {
    let name = name.trim().trim_matches('\0').trim_end_matches('.');
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    (plain && !name.is_empty() && name.len() <= 253).then(|| name.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use dhcproto::v4::Opcode;
    use dhcproto::{Encodable, Encoder};
    use proptest::prelude::*;

    use super::*;

    pub(crate) const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 1, 2, 3]);

    /// A server's message with these options.
    pub(crate) fn reply(kind: MessageType, xid: u32, address: Ipv4Addr, options: Vec<DhcpOption>) -> Vec<u8> {
        let mut message = Message::default();
        message.set_opcode(Opcode::BootReply).set_xid(xid).set_chaddr(&MAC.0).set_yiaddr(address);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        for option in options {
            message.opts_mut().insert(option);
        }
        let mut bytes = Vec::new();
        message.encode(&mut Encoder::new(&mut bytes)).unwrap();
        bytes
    }

    fn ack(options: Vec<DhcpOption>) -> Lease {
        match decode(&reply(MessageType::Ack, 7, Ipv4Addr::new(10, 0, 2, 15), options), MAC, 7) {
            Some(Answer::Ack(lease)) => *lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lease_has_everything_the_server_said() {
        let ip = Ipv4Addr::new;
        let lease = ack(vec![
            DhcpOption::SubnetMask(ip(255, 255, 254, 0)),
            DhcpOption::Router(vec![ip(10, 0, 2, 2), ip(10, 0, 2, 3)]),
            DhcpOption::DomainNameServer(vec![ip(10, 0, 2, 3), ip(0, 0, 0, 0)]),
            DhcpOption::DomainName("example.org".into()),
            DhcpOption::Hostname("node-1".into()),
            DhcpOption::NtpServers(vec![ip(10, 0, 2, 4)]),
            DhcpOption::InterfaceMtu(1450),
            DhcpOption::AddressLeaseTime(86_400),
            DhcpOption::ServerIdentifier(ip(10, 0, 2, 2)),
        ]);
        assert_eq!((lease.address, lease.prefix, lease.server), (ip(10, 0, 2, 15), 23, ip(10, 0, 2, 2)));
        let default = Route { network: Ipv4Addr::UNSPECIFIED, prefix: 0, router: Some(ip(10, 0, 2, 2)) };
        assert_eq!(lease.routes, [default]);
        assert_eq!((lease.dns, lease.search), (vec![ip(10, 0, 2, 3)], vec!["example.org".to_owned()]));
        assert_eq!(
            (lease.hostname.as_deref(), lease.ntp, lease.mtu),
            (Some("node-1"), vec![ip(10, 0, 2, 4)], Some(1450))
        );
        let seconds = [lease.lifetime, lease.renew_after, lease.rebind_after].map(|time| time.as_secs());
        assert_eq!(seconds, [86_400, 43_200, 75_600]);
    }

    #[test]
    fn classless_routes_replace_the_router() {
        let ip = Ipv4Addr::new;
        let lease = ack(vec![
            DhcpOption::Router(vec![ip(10, 0, 2, 99)]),
            DhcpOption::ClasslessStaticRoute(vec![
                ("0.0.0.0/0".parse().unwrap(), ip(10, 0, 2, 2)),
                ("192.168.7.0/24".parse().unwrap(), ip(10, 0, 2, 9)),
                ("169.254.169.254/32".parse().unwrap(), ip(0, 0, 0, 0)),
            ]),
        ]);
        let want = [
            Route { network: ip(0, 0, 0, 0), prefix: 0, router: Some(ip(10, 0, 2, 2)) },
            Route { network: ip(192, 168, 7, 0), prefix: 24, router: Some(ip(10, 0, 2, 9)) },
            Route { network: ip(169, 254, 169, 254), prefix: 32, router: None },
        ];
        assert_eq!(lease.routes, want);
    }

    #[test]
    fn odd_values_are_put_right() {
        let ip = Ipv4Addr::new;
        let lease = ack(vec![
            DhcpOption::SubnetMask(ip(255, 0, 255, 0)),
            DhcpOption::AddressLeaseTime(1),
            DhcpOption::Renewal(50),
            DhcpOption::Rebinding(5),
            DhcpOption::InterfaceMtu(68),
            DhcpOption::Hostname("x\nnameserver 6.6.6.6".into()),
            DhcpOption::DomainName("a.b c.d\n evil/e".into()),
        ]);
        assert_eq!((lease.prefix, lease.mtu, lease.hostname), (8, None, None));
        assert_eq!(lease.search, ["a.b", "c.d"]);
        assert_eq!((lease.lifetime, lease.rebind_after), (Duration::from_secs(10), Duration::from_secs(5)));
        assert!(lease.renew_after <= lease.rebind_after && lease.routes.is_empty());
        let forever = ack(vec![DhcpOption::AddressLeaseTime(u32::MAX), DhcpOption::Renewal(u32::MAX)]);
        assert!(forever.renew_after < forever.rebind_after && forever.lifetime == LONGEST_LEASE);
    }

    #[test]
    fn only_answers_to_us_are_taken() {
        let address = Ipv4Addr::new(10, 0, 0, 9);
        let server = DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 0, 0, 1));
        let offer = reply(MessageType::Offer, 7, address, vec![server.clone()]);
        assert!(matches!(decode(&offer, MAC, 7), Some(Answer::Offer { .. })));
        assert_eq!(decode(&offer, MAC, 8), None, "another transaction");
        assert_eq!(decode(&offer, MacAddress([1; 6]), 7), None, "another client");
        assert_eq!(decode(&reply(MessageType::Offer, 7, address, vec![]), MAC, 7), None, "no server");
        assert_eq!(decode(&reply(MessageType::Offer, 7, Ipv4Addr::UNSPECIFIED, vec![server]), MAC, 7), None);
        assert_eq!(decode(&encode(Asks::Discover, MAC, 7, 0), MAC, 7), None, "a client's message");
    }

    #[test]
    fn requests_say_what_they_ask_for() {
        let (address, server) = (Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 1));
        let parse = |asks| Message::decode(&mut Decoder::new(&encode(asks, MAC, 7, 3))).unwrap();
        let select = parse(Asks::Select { address, server });
        assert_eq!(select.opts().get(OptionCode::RequestedIpAddress), Some(&DhcpOption::RequestedIpAddress(address)));
        assert_eq!(select.opts().get(OptionCode::ServerIdentifier), Some(&DhcpOption::ServerIdentifier(server)));
        let extend = parse(Asks::Extend { address });
        assert_eq!((extend.ciaddr(), extend.secs(), extend.xid()), (address, 3, 7));
        assert!(extend.opts().get(OptionCode::RequestedIpAddress).is_none());
        assert!(encode(Asks::Discover, MAC, 7, 0).len() >= 300);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _answer = decode(&bytes, MAC, 7);
        }

        #[test]
        fn any_options_are_read_or_refused(options in proptest::collection::vec(any::<u8>(), 0..400), code: u8, length: u8) {
            let mut bytes = reply(MessageType::Ack, 7, Ipv4Addr::new(10, 0, 2, 15), vec![]);
            let end = bytes.iter().rposition(|byte| *byte == 255).unwrap();
            bytes.truncate(end);
            bytes.extend_from_slice(&[code, length]);
            bytes.extend_from_slice(&options);
            let _answer = decode(&bytes, MAC, 7);
        }

        #[test]
        fn a_damaged_answer_is_an_answer_or_not(at in 0_usize..300, byte: u8, cut in 0_usize..400) {
            let mut bytes = reply(MessageType::Ack, 7, Ipv4Addr::new(10, 0, 2, 15), vec![
                DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
                DhcpOption::ClasslessStaticRoute(vec![("10.1.0.0/16".parse().unwrap(), Ipv4Addr::new(10, 0, 2, 2))]),
                DhcpOption::DomainName("example.org".into()),
            ]);
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(length.saturating_sub(cut % 60));
            let _answer = decode(&bytes, MAC, 7);
        }
    }
}
