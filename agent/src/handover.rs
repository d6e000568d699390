//! What survives the death of a worker: token, node, certificate, unfinished commands.
//!
//! PID 1 keeps an anonymous file in memory and lets each worker inherit it. The file has two places; a new state is
//! written into the place that does not hold the newest one, and becomes valid by the checksum that ends it. So a
//! worker may be killed at any moment: the next one finds the old state or the new one, never half of each.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use ferric_sys::memfd;
use ferric_types::Secret;
use ferric_types::error::chain;
use serde::{Deserialize, Serialize};
use tracing::error;

use crate::init::inherit;
use crate::logs;

const SLOT_BYTES: u64 = 256 * 1024;
/// Magic number, generation, length, checksum of all three and the data: 8 + 8 + 4 + 4 bytes.
const HEADER_BYTES: usize = 24;
const MAGIC: u64 = u64::from_le_bytes(*b"ferrich1");

/// A command that ran when the state was saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Its id.
    pub id: String,
    /// Its name.
    pub command_name: String,
}

/// Everything a new worker of the same boot must know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Token for this boot; Ironic gives it out once.
    pub agent_token: Option<Secret<String>>,
    /// The node that this machine is.
    pub node_uuid: Option<String>,
    /// Address announced to the conductor; it must not change within a boot.
    pub callback_url: Option<String>,
    /// The API's certificate; it must not change within a boot.
    pub tls_cert_pem: Option<String>,
    /// Key of that certificate.
    pub tls_key_pem: Option<Secret<String>>,
    /// Seconds since the epoch when the agent of this boot started.
    pub started_at: f64,
    /// Commands that ran.
    pub unfinished: Vec<Unfinished>,
    /// How often PID 1 has started a worker again.
    pub restarts: u32,
    /// How the last worker ended.
    pub last_exit: Option<String>,
}

/// Why a state could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// It cannot be written as JSON.
    #[error("encoding the state for the next worker")]
    Encode(#[from] serde_json::Error),
    /// It is larger than its place.
    #[error("the state for the next worker has {bytes} bytes, more than fit")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The file cannot be written.
    #[error("writing the state for the next worker")]
    Write(#[from] std::io::Error),
}

/// The file.
#[derive(Debug)]
pub struct Handover {
    /// `None` when the kernel gave us no file: then nothing survives, which is said once.
    file: Option<Mutex<File>>,
}

impl Handover {
    /// The file that PID 1 let us inherit, or one of our own when there is no PID 1 of ours.
    pub fn from_env() -> Self {
        inherit::take_handover().map_or_else(Self::create, |fd| Self::from_file(File::from(fd)))
    }

    /// A new file without a state.
    pub fn create() -> Self {
        match memfd::create("ferric-handover", 2 * SLOT_BYTES) {
            Ok(file) => Self::from_file(file),
            Err(error) => {
                error!("a crash of the agent will lose its token: {}", chain(&error));
                Self { file: None }
            }
        }
    }

    /// A file made by [`Handover::create`], in this process or another.
    pub fn from_file(file: File) -> Self {
        Self { file: Some(Mutex::new(file)) }
    }

    /// The file itself, to hand it down.
    pub fn try_clone_file(&self) -> Option<File> {
        let file = self.file.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        file.try_clone().ok()
    }

    /// The newest complete state.
    pub fn load(&self) -> Option<State> {
        let file = self.file.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, _, bytes) = newest(&file)?;
        let state: State = serde_json::from_slice(&bytes).ok()?;
        state.agent_token.as_ref().into_iter().for_each(logs::hide);
        Some(state)
    }

    /// Makes this the newest state. A failure is logged: work goes on, only a crash would lose the state.
    pub fn save(&self, state: &State) {
        state.agent_token.as_ref().into_iter().for_each(logs::hide);
        if let Err(error) = self.try_save(state) {
            error!("{}", chain(&error));
        }
    }

    fn try_save(&self, state: &State) -> Result<(), HandoverError> {
        let Some(file) = &self.file else { return Ok(()) };
        let file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let data = serde_json::to_vec(state)?;
        let (slot, generation) = newest(&file).map_or((0, 1), |(slot, generation, _)| (1 - slot, generation + 1));
        let (place, data) = encode(slot, generation, data)?;
        // The data first: until the header follows, the checksum of whatever header is there does not match it.
        file.write_all_at(&data.data, place + u64::try_from(HEADER_BYTES).unwrap_or(0))?;
        file.write_all_at(&data.header, place)?;
        Ok(())
    }
}

struct Encoded {
    header: [u8; HEADER_BYTES],
    data: Vec<u8>,
}

fn encode(slot: u64, generation: u64, data: Vec<u8>) -> Result<(u64, Encoded), HandoverError> {
    let too_large = HandoverError::TooLarge { bytes: data.len() };
    let length = u32::try_from(data.len()).ok().filter(|length| u64::from(*length) + 24 <= SLOT_BYTES);
    let Some(length) = length else { return Err(too_large) };
    let mut header = [0; HEADER_BYTES];
    let fields = MAGIC.to_le_bytes().into_iter().chain(generation.to_le_bytes()).chain(length.to_le_bytes());
    header.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    let checksum = checksum(&header, &data).to_le_bytes();
    header.iter_mut().skip(20).zip(checksum).for_each(|(byte, field)| *byte = field);
    Ok((slot * SLOT_BYTES, Encoded { header, data }))
}

fn checksum(header: &[u8; HEADER_BYTES], data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header.get(..20).unwrap_or_default());
    hasher.update(data);
    hasher.finalize()
}

/// Slot, generation and data of the newest complete state.
fn newest(file: &File) -> Option<(u64, u64, Vec<u8>)> {
    let states =
        [0, 1].into_iter().filter_map(|slot| read(file, slot).map(|(generation, data)| (slot, generation, data)));
    states.max_by_key(|(_, generation, _)| *generation)
}

fn read(file: &File, slot: u64) -> Option<(u64, Vec<u8>)> {
    let place = slot * SLOT_BYTES;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, place).ok()?;
    let number = |range: std::ops::Range<usize>| {
        let bytes = header.get(range)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let (magic, generation, length, sum) = (number(0..8)?, number(8..16)?, number(16..20)?, number(20..24)?);
    if magic != MAGIC || length + 24 > SLOT_BYTES {
        return None;
    }
    let mut data = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut data, place + 24).ok()?;
    (u64::from(checksum(&header, &data)) == sum).then_some((generation, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(number: u32) -> State {
        State {
            agent_token: Some(Secret::new(format!("token-{number}"))),
            // Of changing length, so that an old rest would show.
            node_uuid: Some("n".repeat(usize::try_from(number * 7919 % 5000).unwrap())),
            unfinished: vec![Unfinished { id: number.to_string(), command_name: "clean.execute_clean_step".into() }],
            restarts: number,
            started_at: 1.5,
            ..State::default()
        }
    }

    #[test]
    fn the_last_saved_state_is_loaded() {
        let handover = Handover::create();
        assert_eq!(handover.load(), None);
        for number in 1..10 {
            handover.save(&state(number));
            assert_eq!(handover.load(), Some(state(number)));
        }
        let other = Handover::from_file(handover.try_clone_file().unwrap());
        assert_eq!(other.load(), Some(state(9)));
    }

    #[test]
    fn a_save_cut_off_after_any_byte_leaves_the_old_state() {
        let handover = Handover::create();
        handover.save(&state(1));
        handover.save(&state(2));
        let file = handover.try_clone_file().unwrap();
        // The writes of a third save, in their order: data, then header, into the place of the first state.
        let (place, encoded) = encode(0, 3, serde_json::to_vec(&state(3)).unwrap()).unwrap();
        let data = encoded.data.iter().zip(place + 24..);
        let header = encoded.header.iter().zip(place..);
        let all: Vec<_> = data.chain(header).collect();
        let last = all.len() - 1;
        for (written, (byte, at)) in all.into_iter().enumerate() {
            file.write_all_at(&[*byte], at).unwrap();
            let loaded = handover.load().unwrap();
            assert!(loaded == state(2) || (written == last && loaded == state(3)), "after byte {written}: {loaded:?}");
        }
        assert_eq!(handover.load(), Some(state(3)));
    }

    #[test]
    fn a_state_too_large_keeps_the_one_before() {
        let handover = Handover::create();
        handover.save(&state(1));
        let huge = State { callback_url: Some("x".repeat(300_000)), ..State::default() };
        assert!(matches!(handover.try_save(&huge), Err(HandoverError::TooLarge { .. })));
        assert_eq!(handover.load(), Some(state(1)));
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        assert!(!format!("{:?}", state(5)).contains("token-5"));
    }
}
