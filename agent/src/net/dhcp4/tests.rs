use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};
use dhcproto::{Decodable, Decoder};
use proptest::prelude::*;

use super::message::tests::{MAC, reply};
use super::*;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// A client in a simulated network.
struct Lab {
    client: Client,
    now: Duration,
    /// Everything the client did, with its time in milliseconds.
    log: Vec<(u64, Action)>,
    /// From when on the server answers, in milliseconds; and until when.
    answers: (u64, u64),
    lease_secs: u32,
    refuse_known: bool,
}

impl Lab {
    fn new(remembered: Option<Ipv4Addr>) -> Self {
        let client = Client::new(MAC, 42, remembered);
        Self {
            client,
            now: Duration::ZERO,
            log: Vec::new(),
            answers: (0, u64::MAX),
            lease_secs: 3600,
            refuse_known: false,
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.now.as_millis()).unwrap()
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            let answer = match &action {
                Action::Send { bytes, .. } if (self.answers.0..self.answers.1).contains(&self.millis()) => {
                    self.answer(bytes)
                }
                _ => None,
            };
            self.log.push((self.millis(), action));
            if let Some(answer) = answer {
                let actions = self.client.received(self.now, &answer);
                self.carry_out(actions);
            }
        }
    }

    fn answer(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let message = Message::decode(&mut Decoder::new(bytes)).unwrap();
        let options = vec![
            DhcpOption::ServerIdentifier(SERVER),
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
            DhcpOption::AddressLeaseTime(self.lease_secs),
        ];
        let known = message.opts().get(OptionCode::ServerIdentifier).is_none();
        let kind = match message.opts().msg_type()? {
            MessageType::Discover => MessageType::Offer,
            MessageType::Request if self.refuse_known && known => MessageType::Nak,
            MessageType::Request => MessageType::Ack,
            _ => return None,
        };
        Some(reply(kind, message.xid(), ADDRESS, options))
    }

    fn up(&mut self) {
        let actions = self.client.link_up(self.now);
        self.carry_out(actions);
    }

    fn run_until(&mut self, secs: u64) {
        let end = Duration::from_secs(secs);
        let mut turns = 0;
        while let Some(deadline) = self.client.deadline().filter(|deadline| *deadline <= end) {
            assert!(deadline > self.now || turns == 0, "no progress at {:?}", self.now);
            turns += 1;
            self.now = deadline.max(self.now);
            let actions = self.client.timeout(self.now);
            self.carry_out(actions);
        }
        self.now = end;
    }

    fn sent(&self) -> Vec<u64> {
        self.log.iter().filter(|(_, action)| matches!(action, Action::Send { .. })).map(|(at, _)| *at).collect()
    }

    fn bound(&self) -> Vec<u64> {
        self.log.iter().filter(|(_, action)| matches!(action, Action::Bound(_))).map(|(at, _)| *at).collect()
    }

    fn lost(&self) -> Vec<(u64, String)> {
        let reason = |(at, action): &(u64, Action)| match action {
            Action::Lost { reason, .. } => Some((*at, reason.clone())),
            _ => None,
        };
        self.log.iter().filter_map(reason).collect()
    }
}

#[test]
fn an_address_is_there_at_once_when_the_server_answers() {
    let mut lab = Lab::new(None);
    lab.up();
    assert_eq!((lab.bound(), lab.sent().len()), (vec![0], 2));
    assert_eq!(lab.client.lease().unwrap().address, ADDRESS);
}

#[test]
fn discovers_go_on_for_ever_with_growing_pauses() {
    let mut lab = Lab::new(None);
    lab.answers = (u64::MAX - 1, u64::MAX);
    lab.up();
    lab.run_until(3600);
    let sent = lab.sent();
    let pauses: Vec<u64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (pause, want) in pauses.iter().zip([1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]) {
        assert!((want * 9 / 10..=want * 11 / 10).contains(pause), "{pauses:?}");
    }
    assert!(sent.last().unwrap() > &3_560_000, "{:?}", sent.last());
    // A switch port that was blocked for a minute: the first answer counts.
    lab.answers = (0, u64::MAX);
    lab.run_until(3640);
    assert_eq!(lab.bound().len(), 1);
}

#[test]
fn a_lease_is_renewed_in_time_for_as_long_as_the_server_answers() {
    let mut lab = Lab::new(None);
    lab.lease_secs = 60;
    lab.up();
    lab.run_until(600);
    assert!(lab.lost().is_empty());
    assert_eq!(lab.bound().len(), 21, "one every 30 s: {:?}", lab.bound());
    let unicast =
        lab.log.iter().filter(|(_, action)| matches!(action, Action::Send { to: To::Server(SERVER), .. })).count();
    assert_eq!(unicast, 20);
}

#[test]
fn a_silent_server_costs_the_address_only_when_the_lease_ends() {
    let mut lab = Lab::new(None);
    lab.lease_secs = 600;
    lab.answers = (0, 1);
    lab.up();
    lab.run_until(1000);
    let lost = lab.lost();
    assert!(lost.len() == 1 && lost[0].0 == 600_000 && lost[0].1.contains("ended"), "{lost:?}");
    let sends: Vec<_> = lab
        .log
        .iter()
        .filter_map(|(at, action)| match action {
            Action::Send { to, .. } if *at > 0 && *at < 600_000 => Some((*at / 1000, *to)),
            _ => None,
        })
        .collect();
    assert_eq!(sends.first(), Some(&(300, To::Server(SERVER))));
    assert!(sends.iter().all(|(at, to)| (*to == To::Everybody) == (*at >= 525)), "{sends:?}");
    assert!(sends.len() < 30, "{sends:?}");
    // The server is back: a new address.
    lab.answers = (0, u64::MAX);
    lab.run_until(1100);
    assert_eq!(lab.bound().len(), 2);
}

#[test]
fn a_server_that_is_back_before_the_end_renews_the_lease() {
    let mut lab = Lab::new(None);
    lab.lease_secs = 600;
    lab.answers = (0, 1);
    lab.up();
    lab.run_until(560);
    lab.answers = (0, u64::MAX);
    lab.run_until(620);
    assert!(lab.lost().is_empty() && lab.bound().len() == 2, "{:?} {:?}", lab.lost(), lab.bound());
}

#[test]
fn an_address_from_before_is_asked_for_first() {
    let mut lab = Lab::new(Some(ADDRESS));
    lab.up();
    assert_eq!((lab.bound(), lab.sent().len()), (vec![0], 1));

    let mut refusing = Lab::new(Some(ADDRESS));
    refusing.refuse_known = true;
    refusing.up();
    refusing.run_until(5);
    assert_eq!(refusing.bound().len(), 1);
    assert!(refusing.log.iter().any(|(_, action)| matches!(action, Action::Note(text) if text.contains("refuses"))));

    let mut silent = Lab::new(Some(ADDRESS));
    silent.answers = (20_000, u64::MAX);
    silent.up();
    silent.run_until(60);
    assert_eq!(silent.bound().len(), 1);
}

#[test]
fn a_cable_pulled_and_put_back_keeps_the_address() {
    let mut lab = Lab::new(None);
    lab.up();
    lab.run_until(100);
    lab.client.link_down();
    lab.run_until(130);
    lab.up();
    assert!(lab.lost().is_empty() && lab.bound() == [0, 130_000], "{:?}", lab.bound());
    // Pulled for longer than the lease lasts.
    lab.client.link_down();
    lab.run_until(5000);
    assert_eq!(lab.lost().len(), 1);
    assert!(lab.client.deadline().is_none(), "nothing is sent without carrier");
    lab.up();
    assert_eq!(lab.bound().len(), 3);
}

#[test]
fn a_refusal_while_bound_takes_the_address_away() {
    let mut lab = Lab::new(None);
    lab.lease_secs = 60;
    lab.up();
    lab.refuse_known = true;
    lab.run_until(40);
    let lost = lab.lost();
    assert!(lost.len() == 1 && lost[0].1.contains("refuses"), "{lost:?}");
    assert_eq!(lab.bound().len(), 2, "a new one was asked for");
}

#[test]
fn a_declined_address_is_told_to_all_servers_and_asked_for_again_ever_less_often() {
    let mut lab = Lab::new(None);
    lab.up();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        assert_eq!(lab.client.lease().unwrap().address, ADDRESS);
        let bytes = lab.client.decline(lab.now).unwrap();
        let message = Message::decode(&mut Decoder::new(&bytes)).unwrap();
        let options = message.opts();
        assert_eq!(options.msg_type(), Some(MessageType::Decline));
        assert_eq!(options.get(OptionCode::RequestedIpAddress), Some(&DhcpOption::RequestedIpAddress(ADDRESS)));
        assert_eq!(options.get(OptionCode::ServerIdentifier), Some(&DhcpOption::ServerIdentifier(SERVER)));
        assert!(message.ciaddr().is_unspecified() && options.get(OptionCode::ParameterRequestList).is_none());
        assert_eq!(lab.client.lease(), None);
        let (before, since) = (lab.bound().len(), lab.now);
        while lab.bound().len() == before {
            lab.run_until(lab.now.as_secs() + 1);
        }
        pauses.push((lab.now - since).as_secs());
    }
    for (pause, least) in pauses.iter().zip([10, 20, 40, 80, 160, 320, 320]) {
        assert!((least..=least * 11 / 10 + 2).contains(pause), "{pauses:?}");
    }
    assert!(lab.lost().is_empty(), "whoever declines it takes it away");
    // Without a link there is nobody to tell.
    lab.client.link_down();
    assert_eq!((lab.client.decline(lab.now), lab.client.deadline()), (None, None));
    assert_eq!(lab.client.decline(lab.now), None);
}

#[test]
fn a_confirmation_nobody_gives_keeps_a_valid_lease() {
    let mut lab = Lab::new(None);
    lab.up();
    lab.answers = (u64::MAX - 1, u64::MAX);
    lab.run_until(10);
    lab.client.link_down();
    lab.up();
    lab.run_until(60);
    assert!(lab.lost().is_empty());
    assert_eq!(lab.client.lease().unwrap().address, ADDRESS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_client_lives_through_any_order_of_events(events in proptest::collection::vec((0_u8..6, 0_u64..2000), 0..60)) {
        let mut lab = Lab::new(None);
        lab.lease_secs = 120;
        for (event, secs) in events {
            match event {
                0 => lab.up(),
                1 => lab.client.link_down(),
                2 => lab.answers = (u64::MAX - 1, u64::MAX),
                3 => lab.answers = (0, u64::MAX),
                4 => drop(lab.client.decline(lab.now)),
                _ => {}
            }
            let until = lab.now.as_secs() + secs;
            lab.run_until(until);
        }
        // Whatever happened: with a link and a server there is an address again.
        lab.answers = (0, u64::MAX);
        lab.up();
        let until = lab.now.as_secs() + 200;
        lab.run_until(until);
        prop_assert!(lab.client.lease().is_some());
    }
}
