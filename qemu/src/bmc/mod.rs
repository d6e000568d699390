//! A BMC that says what a test wants, for a machine with [`crate::Bmc::External`].
//!
//! It knows the LAN channels it is given, and can be slow or silent when asked for them, as real ones are while they
//! restart. What the guest's driver needs to come up is always answered.

mod wire;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Context as _, Result};

use wire::{Reader, Request};

/// Network functions (IPMI 2.0 section 5.1).
const APPLICATION: u8 = 6;
const TRANSPORT: u8 = 12;
/// Commands (IPMI 2.0 appendix G).
const GET_DEVICE_ID: u8 = 0x01;
const SET_GLOBAL_ENABLES: u8 = 0x2e;
const GET_GLOBAL_ENABLES: u8 = 0x2f;
const CLEAR_MESSAGE_FLAGS: u8 = 0x30;
const GET_MESSAGE_FLAGS: u8 = 0x31;
const GET_LAN_PARAMETERS: u8 = 0x02;
/// Completion codes (IPMI 2.0 section 5.2).
const INVALID_COMMAND: u8 = 0xc1;
const INVALID_FIELD: u8 = 0xcc;
const PARAMETER_NOT_SUPPORTED: u8 = 0x80;
/// Revision of the LAN parameters.
const REVISION: u8 = 0x11;

/// How it answers questions for LAN parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    /// At once.
    #[default]
    Prompt,
    /// After this time. QEMU itself answers after four seconds that the BMC timed out.
    Slow(Duration),
    /// Not at all.
    Silent,
}

/// An IPv6 address of a channel (IPMI 2.0 table 23-4, parameters 56 and 59).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Entry {
    /// The address.
    pub address: Ipv6Addr,
    /// Where it comes from: 0 static, 1 SLAAC, 2 DHCPv6; with 0x80 a static one is enabled.
    pub source: u8,
    /// 0 is active, 1 disabled, 2 pending, 3 failed.
    pub status: u8,
}

/// A LAN channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanChannel {
    /// Its number, 1 to 11.
    pub number: u8,
    /// IPv4 address.
    pub v4: Ipv4Addr,
    /// Address of its NIC.
    pub mac: [u8; 6],
    /// Addressing in use: 0 IPv4 only, 1 IPv6 only, 2 both.
    pub enables: u8,
    /// Static IPv6 addresses.
    pub fixed: Vec<Ipv6Entry>,
    /// Dynamic IPv6 addresses.
    pub dynamic: Vec<Ipv6Entry>,
}

impl LanChannel {
    /// Value of a parameter.
    fn parameter(&self, number: u8, selector: u8) -> Option<Vec<u8>> {
        let entry = |list: &[Ipv6Entry]| {
            let Ipv6Entry { address, source, status } = list.get(usize::from(selector))?;
            Some([&[selector, *source][..], &address.octets(), &[64, *status]].concat())
        };
        let count = |list: &[Ipv6Entry]| u8::try_from(list.len()).unwrap_or(u8::MAX);
        match number {
            3 => Some(self.v4.octets().to_vec()),
            5 => Some(self.mac.to_vec()),
            51 => Some(vec![self.enables]),
            55 => Some(vec![count(&self.fixed), count(&self.dynamic), 3]),
            56 => entry(&self.fixed),
            59 => entry(&self.dynamic),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    channels: Vec<LanChannel>,
    mood: Mutex<Mood>,
    lan_questions: AtomicUsize,
}

/// The BMC. It lives as long as the program: QEMU may connect again at any time.
#[derive(Debug)]
pub struct FakeBmc {
    port: u16,
    state: Arc<State>,
}

impl FakeBmc {
    /// Starts it on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// There is no port.
    pub fn start(channels: Vec<LanChannel>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening for QEMU's IPMI device")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State { channels, ..State::default() });
        let serving = Arc::clone(&state);
        drop(spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&serving);
                drop(spawn(move || serve(connection, &state)));
            }
        }));
        Ok(Self { port, state })
    }

    /// Where it listens, for [`crate::Bmc::External`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes how it answers from now on.
    pub fn set_mood(&self, mood: Mood) {
        *self.state.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    /// How often it has been asked for a LAN parameter.
    pub fn lan_questions(&self) -> usize {
        self.state.lan_questions.load(Ordering::SeqCst)
    }
}

/// Ends with the connection.
fn serve(mut connection: TcpStream, state: &State) {
    let (mut reader, mut buffer) = (Reader::default(), [0; 1024]);
    while let Ok(length @ 1..) = connection.read(&mut buffer) {
        for byte in buffer.iter().take(length) {
            let Some(request) = reader.take(*byte) else { continue };
            let Some(answer) = state.answer(&request) else { continue };
            if connection.write_all(&request.answer(&answer)).is_err() {
                return;
            }
        }
    }
}

impl State {
    /// Completion code and data; `None` for silence.
    fn answer(&self, request: &Request) -> Option<Vec<u8>> {
        Some(match (request.netfn, request.cmd) {
            // Device 0x20 of revision 1 with firmware 1.0, for IPMI 2.0, of nobody.
            (APPLICATION, GET_DEVICE_ID) => vec![0, 0x20, 1, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            (APPLICATION, SET_GLOBAL_ENABLES | CLEAR_MESSAGE_FLAGS) => vec![0],
            (APPLICATION, GET_GLOBAL_ENABLES | GET_MESSAGE_FLAGS) => vec![0, 0],
            (TRANSPORT, GET_LAN_PARAMETERS) => {
                self.lan_questions.fetch_add(1, Ordering::SeqCst);
                let mood = *self.mood.lock().unwrap_or_else(PoisonError::into_inner);
                match mood {
                    Mood::Prompt => {}
                    Mood::Slow(time) => sleep(time),
                    Mood::Silent => return None,
                }
                self.lan_parameter(&request.data)
            }
            _ => vec![INVALID_COMMAND],
        })
    }

    fn lan_parameter(&self, question: &[u8]) -> Vec<u8> {
        let [channel, parameter, selector, _block] = question else { return vec![INVALID_FIELD] };
        match self.channels.iter().find(|known| known.number == *channel & 0x0f) {
            None => vec![INVALID_FIELD],
            Some(known) => match known.parameter(*parameter, *selector) {
                None => vec![PARAMETER_NOT_SUPPORTED],
                Some(value) => [&[0, REVISION][..], &value].concat(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_over_the_socket_in_its_mood() {
        let channel = LanChannel {
            number: 8,
            v4: Ipv4Addr::new(192, 0, 2, 100),
            mac: [2, 0, 0, 0, 0, 8],
            enables: 2,
            fixed: vec![],
            dynamic: vec![Ipv6Entry { address: Ipv6Addr::LOCALHOST, source: 1, status: 0 }],
        };
        let bmc = FakeBmc::start(vec![channel]).unwrap();
        let mut qemu = TcpStream::connect(("127.0.0.1", bmc.port())).unwrap();
        qemu.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut ask = |data: &[u8]| {
            let mut message = [&[1, TRANSPORT << 2, GET_LAN_PARAMETERS], data].concat();
            message.push(message.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte)));
            message.push(0xa0);
            qemu.write_all(&message).unwrap();
            let mut answer = [0; 64];
            let length = qemu.read(&mut answer).unwrap_or(0);
            // Number, function, command; the sum and the end.
            answer[..length].get(3..length.saturating_sub(2)).map(<[u8]>::to_vec)
        };
        assert_eq!(ask(&[8, 3, 0, 0]), Some(vec![0, 0x11, 192, 0, 2, 100]));
        assert_eq!(ask(&[8, 55, 0, 0]), Some(vec![0, 0x11, 0, 1, 3]));
        let address = [&[0, 0x11, 0, 1][..], &Ipv6Addr::LOCALHOST.octets(), &[64, 0]].concat();
        assert_eq!(ask(&[8, 59, 0, 0]), Some(address));
        assert_eq!(ask(&[8, 59, 1, 0]), Some(vec![PARAMETER_NOT_SUPPORTED]));
        assert_eq!(ask(&[1, 3, 0, 0]), Some(vec![INVALID_FIELD]));
        assert_eq!(bmc.lan_questions(), 5);
        bmc.set_mood(Mood::Silent);
        assert_eq!(ask(&[8, 3, 0, 0]), None);
        bmc.set_mood(Mood::Slow(Duration::from_millis(10)));
        assert!(ask(&[8, 3, 0, 0]).is_some());
    }
}
