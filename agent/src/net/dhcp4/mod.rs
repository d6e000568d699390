//! A DHCPv4 client as a state machine: messages and the time go in, messages and leases come out. No sockets, no
//! clock; the task of the interface has those.
//!
//! ```text
//!  start --> Discovering --offer--> Requesting --ack--> Bound --T1--> Renewing --T2--> Rebinding --end--+
//!    |          ^   ^                   |nak, silence     ^             |ack              |ack          |
//!    |          |   +-------------------+                 +-------------+-----------------+             |
//!    |          +------------------------------- the address is lost <---------------------------nak----+
//!    +--> Confirming (an address is known from before) --ack--> Bound; nak or silence --> Discovering
//! ```
//!
//! It never gives up: a switch port may be silent for a minute and a server may be down for an hour. Pauses double
//! from one second to half a minute, each changed at random by a tenth so that a rack that powers on at once does not
//! ask in step. While a lease lasts, a silent server costs nothing.

mod message;

use std::net::Ipv4Addr;
use std::time::Duration;

use ferric_types::MacAddress;
use message::{Answer, Asks};
pub use message::{Lease, Route};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Requests for an offered or a remembered address before it is given up.
const REQUESTS: u32 = 4;
/// Shortest pause between two requests for more time.
const SHORTEST_EXTEND_PAUSE: Duration = Duration::from_secs(3);
/// Pause after a refusal, so that two servers that refuse each other's addresses do not make a storm.
const NAK_PAUSE: Duration = Duration::from_secs(1);

/// Pause after the first address that was declined (RFC 2131 section 3.1.5: ten seconds at least); it doubles with
/// each further one, for a server that lends the same address again.
const DECLINE_PAUSE: Duration = Duration::from_secs(10);
/// How often that pause doubles.
const DECLINE_DOUBLINGS: u32 = 5;

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Every station of the link.
    Everybody,
    /// The server that lent the address.
    Server(Ipv4Addr),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send {
        /// Where to.
        to: To,
        /// UDP payload.
        bytes: Vec<u8>,
    },
    /// The address is ours, newly or for longer, possibly with other routes and servers.
    Bound(Box<Lease>),
    /// The address is not ours any more.
    Lost {
        /// What is gone.
        lease: Box<Lease>,
        /// For the log.
        reason: String,
    },
    /// Something that a person watching the console may want to know.
    Note(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// No carrier.
    Stopped,
    /// Waits before it begins again.
    Paused,
    Discovering,
    Requesting {
        address: Ipv4Addr,
        server: Ipv4Addr,
    },
    Confirming {
        address: Ipv4Addr,
    },
    Bound,
    Renewing,
    Rebinding,
}

/// Times are since any fixed moment, the same for all calls.
#[derive(Debug)]
pub struct Client {
    mac: MacAddress,
    state: State,
    xid: u32,
    random: u64,
    tries: u32,
    pause: Duration,
    began: Duration,
    deadline: Option<Duration>,
    /// The lease and when it was given.
    lease: Option<(Box<Lease>, Duration)>,
    /// An address this interface had before; asked for first.
    remembered: Option<Ipv4Addr>,
    /// Addresses declined since the link came up.
    declined: u32,
}

impl Client {
    /// A client without carrier. `seed` makes its random numbers; it should differ between machines and interfaces.
    pub fn new(mac: MacAddress, seed: u64, remembered: Option<Ipv4Addr>) -> Self {
        Self {
            mac,
            state: State::Stopped,
            xid: 0,
            random: seed | 1,
            tries: 0,
            pause: FIRST_PAUSE,
            began: Duration::ZERO,
            deadline: None,
            lease: None,
            remembered,
            declined: 0,
        }
    }

    /// When [`Client::timeout`] is to be called; `None` for never.
    pub const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The lease in force.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref().map(|(lease, _)| lease.as_ref())
    }

    /// The link came up: confirms the address it has or had, or asks for one.
    pub fn link_up(&mut self, now: Duration) -> Vec<Action> {
        let mut actions = self.expire(now);
        self.declined = 0;
        let known = self.lease().map(|lease| lease.address).or(self.remembered);
        match known {
            Some(address) => {
                self.begin(now, State::Confirming { address });
                actions.push(self.ask(now, Asks::Reboot { address }, To::Everybody));
            }
            None => actions.push(self.discover(now)),
        }
        actions
    }

    /// The link went down. A lease stays in force until it ends: the cable may be back in a second.
    pub fn link_down(&mut self) {
        self.state = State::Stopped;
        self.deadline = self.lease.as_ref().map(|(lease, since)| *since + lease.lifetime);
    }

    /// The time has come that [`Client::deadline`] gave.
    pub fn timeout(&mut self, now: Duration) -> Vec<Action> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        let mut actions = self.expire(now);
        match self.state {
            State::Stopped => self.deadline = None,
            _ if !actions.is_empty() => actions.push(self.discover(now)),
            State::Paused => actions.push(self.discover(now)),
            State::Discovering => actions.push(self.ask(now, Asks::Discover, To::Everybody)),
            State::Requesting { .. } | State::Confirming { .. } if self.tries >= REQUESTS => {
                actions.extend(self.give_up_request(now));
            }
            State::Requesting { address, server } => {
                actions.push(self.ask(now, Asks::Select { address, server }, To::Everybody));
            }
            State::Confirming { address } => actions.push(self.ask(now, Asks::Reboot { address }, To::Everybody)),
            State::Bound | State::Renewing | State::Rebinding => actions.extend(self.extend(now)),
        }
        actions
    }

    /// A server's message arrived, or what looks like one.
    pub fn received(&mut self, now: Duration, bytes: &[u8]) -> Vec<Action> {
        let Some(answer) = message::decode(bytes, self.mac, self.xid) else { return Vec::new() };
        match (answer, &self.state) {
            (Answer::Offer { address, server }, State::Discovering) => {
                self.begin_request(State::Requesting { address, server });
                vec![self.ask(now, Asks::Select { address, server }, To::Everybody)]
            }
            (
                Answer::Ack(lease),
                State::Requesting { .. } | State::Confirming { .. } | State::Renewing | State::Rebinding,
            ) => self.bind(now, lease),
            (
                Answer::Nak(reason),
                State::Requesting { .. } | State::Confirming { .. } | State::Renewing | State::Rebinding,
            ) => self.refused(now, &reason),
            _ => Vec::new(),
        }
    }

    /// Gives up the address in force because it is somebody else's. The result is for every server; `None` when there
    /// is no address, or no link to tell it on.
    pub fn decline(&mut self, now: Duration) -> Option<Vec<u8>> {
        let (lease, _) = self.lease.take()?;
        self.remembered = None;
        if self.state == State::Stopped {
            self.deadline = None;
            return None;
        }
        self.state = State::Paused;
        let pause = DECLINE_PAUSE * (1 << self.declined.min(DECLINE_DOUBLINGS));
        self.declined = self.declined.saturating_add(1);
        // Not less than the pause, though more may be.
        self.deadline = Some(now + pause.max(self.jitter(pause)));
        let asks = Asks::Decline { address: lease.address, server: lease.server };
        Some(message::encode(asks, self.mac, self.xid, self.seconds(now)))
    }

    fn bind(&mut self, now: Duration, lease: Box<Lease>) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some((old, _)) = self.lease.take().filter(|(old, _)| old.address != lease.address) {
            actions.push(Action::Lost { lease: old, reason: "the server gives another address now".to_owned() });
        }
        self.state = State::Bound;
        self.deadline = Some(now + lease.renew_after);
        self.remembered = Some(lease.address);
        self.lease = Some((lease.clone(), now));
        actions.push(Action::Bound(lease));
        actions
    }

    fn refused(&mut self, now: Duration, reason: &str) -> Vec<Action> {
        self.remembered = None;
        self.state = State::Paused;
        self.deadline = Some(now + self.jitter(NAK_PAUSE));
        let reason = format!("the server refuses it: {reason}");
        match self.lease.take() {
            Some((lease, _)) => vec![Action::Lost { lease, reason }],
            None => vec![Action::Note(format!("asking for an address: {reason}"))],
        }
    }

    /// Nobody confirms the request. A lease from before the link went down stays in force: its server may be the
    /// silent one, so it is asked again while a new address is looked for only when there is none.
    fn give_up_request(&mut self, now: Duration) -> Vec<Action> {
        if self.lease.is_some() {
            self.state = State::Bound;
            return self.extend(now);
        }
        self.remembered = None;
        vec![self.discover(now)]
    }

    /// Drops a lease whose time is over.
    fn expire(&mut self, now: Duration) -> Vec<Action> {
        let over = self.lease.take_if(|(lease, since)| now >= *since + lease.lifetime);
        let reason = "the lease ended and no server renewed it".to_owned();
        over.map(|(lease, _)| Action::Lost { lease, reason }).into_iter().collect()
    }

    /// Asks for more time, the server before T2 and everybody after.
    fn extend(&mut self, now: Duration) -> Vec<Action> {
        let Some((lease, since)) = &self.lease else { return vec![self.discover(now)] };
        let (address, server) = (lease.address, lease.server);
        let (renew, rebind, end) = (*since + lease.renew_after, *since + lease.rebind_after, *since + lease.lifetime);
        if now < renew {
            self.state = State::Bound;
            self.deadline = Some(renew);
            return Vec::new();
        }
        let (state, to, until) = if now < rebind {
            (State::Renewing, To::Server(server), rebind)
        } else {
            (State::Rebinding, To::Everybody, end)
        };
        if self.state == State::Bound {
            self.xid = self.next_random();
            self.began = now;
        }
        self.state = state;
        let bytes = message::encode(Asks::Extend { address }, self.mac, self.xid, self.seconds(now));
        // Half of what is left (RFC 2131 section 4.4.5), but not so often as to be a nuisance.
        let pause = (until.saturating_sub(now) / 2).max(SHORTEST_EXTEND_PAUSE);
        self.deadline = Some((now + pause).min(until.max(now + Duration::from_millis(1))));
        vec![Action::Send { to, bytes }]
    }

    fn discover(&mut self, now: Duration) -> Action {
        self.begin(now, State::Discovering);
        self.ask(now, Asks::Discover, To::Everybody)
    }

    fn begin(&mut self, now: Duration, state: State) {
        self.xid = self.next_random();
        self.began = now;
        self.begin_request(state);
    }

    fn begin_request(&mut self, state: State) {
        self.state = state;
        self.tries = 0;
        self.pause = FIRST_PAUSE;
    }

    fn ask(&mut self, now: Duration, asks: Asks, to: To) -> Action {
        self.tries += 1;
        self.deadline = Some(now + self.jitter(self.pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Action::Send { to, bytes: message::encode(asks, self.mac, self.xid, self.seconds(now)) }
    }

    fn seconds(&self, now: Duration) -> u16 {
        u16::try_from(now.saturating_sub(self.began).as_secs()).unwrap_or(u16::MAX)
    }

    /// The time, a tenth more or less.
    fn jitter(&mut self, time: Duration) -> Duration {
        time * (900 + self.next_random() % 201) / 1000
    }

    /// xorshift64*: spread is needed here, secrecy is not.
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        u32::try_from(self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests;
