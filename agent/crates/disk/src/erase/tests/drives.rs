//! Drives made of a few flags.

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use ferric_sys::ioctl::nvme::AdminCommand;
use ferric_sys::ioctl::sg::{Answer, Data};
use ferric_sys::testing::disk::TestDisk;

use super::Firmware;

/// Takes no commands at all, as a virtual disk does.
pub(super) struct Deaf;

impl Firmware for Deaf {
    fn nvme(&self, _: &AdminCommand, _: &mut [u8]) -> io::Result<u16> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    fn namespace(&self) -> io::Result<u32> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    fn scsi(&self, _: &[u8], _: Data<'_>, _: Duration) -> io::Result<Answer> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    fn pause(&self, _: Duration) {}
}

fn wipe(paths: &[PathBuf], with: u8) {
    for path in paths {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
        file.write_all_at(&vec![with; len], 0).unwrap();
    }
}

/// What an NVMe controller does with a command that erases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    It,
    /// Says that it did.
    Nothing,
    Status(u16),
}

/// An NVMe controller, seen through one of its namespaces.
pub(super) struct Nvme {
    pub(super) oacs: u16,
    pub(super) fna: u8,
    pub(super) sanicap: u32,
    pub(super) flbas: u8,
    pub(super) formats: u8,
    pub(super) dps: u8,
    pub(super) crypto: Does,
    pub(super) user_data: Does,
    pub(super) sanitizes: Does,
    /// Polls until a sanitize operation is done; one that is under way at first when not zero.
    pub(super) running: RefCell<u32>,
    pub(super) last_failed: RefCell<bool>,
    pub(super) nsid: u32,
    pub(super) namespaces: Vec<u32>,
    pub(super) old: bool,
    /// Files behind all namespaces, in order.
    pub(super) media: Vec<PathBuf>,
    /// Commands that change something: opcode, namespace, dword 10.
    pub(super) log: RefCell<Vec<(u8, u32, u32)>>,
}

impl Nvme {
    /// A drive with Format only, of one namespace on each disk.
    pub(super) fn new(disks: &[&TestDisk]) -> Self {
        Self {
            oacs: 2,
            fna: 0,
            sanicap: 0,
            flbas: 0,
            formats: 0,
            dps: 0,
            crypto: Does::It,
            user_data: Does::It,
            sanitizes: Does::It,
            running: RefCell::new(0),
            last_failed: RefCell::new(false),
            nsid: 1,
            namespaces: (1..=u32::try_from(disks.len()).unwrap()).collect(),
            old: false,
            media: disks.iter().map(|disk| disk.path().to_owned()).collect(),
            log: RefCell::default(),
        }
    }

    fn page(&self, cns: u32, page: &mut [u8]) -> u16 {
        match cns {
            1 => {
                page[256..258].copy_from_slice(&self.oacs.to_le_bytes());
                page[328..332].copy_from_slice(&self.sanicap.to_le_bytes());
                page[516..520].copy_from_slice(&u32::try_from(self.namespaces.len()).unwrap().to_le_bytes());
                page[524] = self.fna;
            }
            0 => {
                page[25] = self.formats;
                page[26] = self.flbas;
                page[29] = self.dps;
            }
            2 if !self.old => {
                for (index, nsid) in self.namespaces.iter().enumerate() {
                    page[index * 4..index * 4 + 4].copy_from_slice(&nsid.to_le_bytes());
                }
            }
            _ => return 2,
        }
        0
    }

    fn erases(&self, does: Does, hit: &[PathBuf]) -> u16 {
        match does {
            Does::It => {
                wipe(hit, 0);
                0
            }
            Does::Nothing => 0,
            Does::Status(status) => status,
        }
    }
}

impl Firmware for Nvme {
    fn nvme(&self, command: &AdminCommand, data: &mut [u8]) -> io::Result<u16> {
        let place = |nsid: u32| self.namespaces.iter().position(|id| *id == nsid);
        Ok(match command.opcode {
            0x06 => self.page(command.cdw10, data),
            0x02 if command.cdw10 == 0x007f_0081 && self.sanicap != 0 => {
                let mut running = self.running.borrow_mut();
                let state = match *running {
                    0 if *self.last_failed.borrow() => 3,
                    0 => 1,
                    _ => 2,
                };
                *running = running.saturating_sub(1);
                data[0..2].copy_from_slice(&0x4000_u16.to_le_bytes());
                data[2] = state;
                0
            }
            0x80 => {
                self.log.borrow_mut().push((command.opcode, command.nsid, command.cdw10));
                let all = self.fna & 3 != 0 || command.nsid == u32::MAX;
                let hit = if all { self.media.clone() } else { vec![self.media[place(command.nsid).unwrap()].clone()] };
                match command.cdw10 >> 9 & 7 {
                    2 => self.erases(self.crypto, &hit),
                    1 => self.erases(self.user_data, &hit),
                    other => panic!("a format that erases nothing: {other}"),
                }
            }
            0x84 => {
                self.log.borrow_mut().push((command.opcode, command.nsid, command.cdw10));
                *self.running.borrow_mut() = 2;
                self.erases(self.sanitizes, &self.media)
            }
            _ => 1,
        })
    }
    fn namespace(&self) -> io::Result<u32> {
        Ok(self.nsid)
    }
    fn scsi(&self, _: &[u8], _: Data<'_>, _: Duration) -> io::Result<Answer> {
        panic!("a SCSI command to an NVMe disk")
    }
    fn pause(&self, _: Duration) {}
}

/// State of an ATA disk's security, and what it does.
#[derive(Debug, Clone)]
pub(super) struct AtaState {
    pub(super) supported: bool,
    pub(super) password: Option<Vec<u8>>,
    pub(super) locked: bool,
    pub(super) frozen: bool,
    pub(super) enhanced: bool,
    pub(super) word_89: u16,
    pub(super) word_90: u16,
    /// SECURITY ERASE UNIT is aborted.
    pub(super) fails: bool,
    /// It says that it has erased itself, and has not.
    pub(super) lies: bool,
    /// It erases itself and keeps the password.
    pub(super) keeps: bool,
    pub(super) tries: u32,
}

pub(super) struct Ata {
    pub(super) state: RefCell<AtaState>,
    pub(super) medium: PathBuf,
    pub(super) prepared: RefCell<bool>,
    /// Commands that change something, and their limits.
    pub(super) log: RefCell<Vec<(u8, Duration)>>,
}

impl Ata {
    pub(super) fn new(disk: &TestDisk, change: impl FnOnce(&mut AtaState)) -> Self {
        let mut state = AtaState {
            supported: true,
            password: None,
            locked: false,
            frozen: false,
            enhanced: true,
            word_89: 60,
            word_90: 0x8000 | 300,
            fails: false,
            lies: false,
            keeps: false,
            tries: 0,
        };
        change(&mut state);
        let medium = disk.path().to_owned();
        Self { state: RefCell::new(state), medium, prepared: RefCell::new(false), log: RefCell::default() }
    }

    fn identify(&self, words: &mut [u8]) {
        let state = self.state.borrow();
        let mut put = |word: usize, value: u16| words[word * 2..word * 2 + 2].copy_from_slice(&value.to_le_bytes());
        put(89, state.word_89);
        put(90, state.word_90);
        let bits =
            [state.supported, state.password.is_some(), state.locked, state.frozen, state.tries >= 5, state.enhanced];
        put(128, bits.iter().rev().fold(0, |word, bit| word << 1 | u16::from(*bit)));
    }

    /// Whether the drive takes the command, whose block was sent along.
    fn take(&self, command: u8, block: &[u8]) -> bool {
        let mut state = self.state.borrow_mut();
        if state.frozen || !state.supported {
            return false;
        }
        let sent = || block[2..34].to_vec();
        let fits = |state: &AtaState| state.password.as_ref().is_none_or(|password| *password == sent());
        match command {
            0xf1 if !state.locked => {
                assert_eq!(block[0] & 1, 0, "the user's password, not the master's");
                state.password = Some(sent());
                true
            }
            0xf2 => {
                let ok = fits(&state) && state.tries < 5;
                state.locked &= !ok;
                state.tries += u32::from(!ok);
                ok
            }
            0xf3 => {
                *self.prepared.borrow_mut() = true;
                true
            }
            0xf4 => {
                let enhanced = block[0] & 2 != 0;
                let prepared = self.prepared.replace(false);
                if state.fails {
                    // As a drive that lost power meanwhile.
                    state.locked = true;
                }
                if !prepared || state.fails || state.password.is_none() || !fits(&state) || enhanced && !state.enhanced
                {
                    return false;
                }
                if !state.lies {
                    wipe(std::slice::from_ref(&self.medium), if enhanced { 0x5c } else { 0 });
                }
                if !state.keeps {
                    (state.password, state.locked) = (None, false);
                }
                true
            }
            0xf6 if fits(&state) && !state.locked => {
                state.password = None;
                true
            }
            _ => false,
        }
    }
}

pub(super) fn check_condition(key: u8, asc: u8, ascq: u8) -> Answer {
    let mut sense = vec![0; 18];
    (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, key, 10, asc, ascq);
    Answer { status: 2, driver_status: 8, sense, ..Answer::default() }
}

impl Firmware for Ata {
    fn nvme(&self, _: &AdminCommand, _: &mut [u8]) -> io::Result<u16> {
        panic!("an NVMe command to an ATA disk")
    }
    fn namespace(&self) -> io::Result<u32> {
        panic!("an NVMe command to an ATA disk")
    }
    fn scsi(&self, command: &[u8], data: Data<'_>, limit: Duration) -> io::Result<Answer> {
        assert_eq!((command[0], command.len()), (0x85, 16));
        if command[14] != 0xec {
            self.log.borrow_mut().push((command[14], limit));
        }
        let taken = match (command[14], data) {
            (0xec, Data::In(words)) => {
                assert_eq!((command[1], command[2], command[6], words.len()), (8, 0x0e, 1, 512));
                self.identify(words);
                true
            }
            (0xf3, Data::None) => {
                assert_eq!((command[1], command[2]), (6, 0));
                self.take(0xf3, &[])
            }
            (code @ (0xf1 | 0xf2 | 0xf4 | 0xf6), Data::Out(block)) => {
                assert_eq!((command[1], command[2], command[6], block.len()), (10, 0x06, 1, 512));
                self.take(code, block)
            }
            (code, data) => panic!("{code:#x} with {data:?}"),
        };
        Ok(if taken { Answer::default() } else { check_condition(0xb, 0, 0) })
    }
    fn pause(&self, _: Duration) {}
}

/// A SCSI disk that can sanitize itself.
pub(super) struct Scsi {
    /// Service actions of SANITIZE that it has.
    pub(super) actions: Vec<u8>,
    pub(super) refuses: bool,
    pub(super) fails: bool,
    /// Byte 5 of the page about provisioning.
    pub(super) provisioning: u8,
    pub(super) medium: PathBuf,
    pub(super) polls: RefCell<u16>,
    pub(super) log: RefCell<Vec<Vec<u8>>>,
}

impl Scsi {
    pub(super) fn new(disk: &TestDisk, actions: &[u8]) -> Self {
        Self {
            actions: actions.to_vec(),
            refuses: false,
            fails: false,
            provisioning: 0,
            medium: disk.path().to_owned(),
            polls: RefCell::new(0),
            log: RefCell::default(),
        }
    }
}

impl Firmware for Scsi {
    fn nvme(&self, _: &AdminCommand, _: &mut [u8]) -> io::Result<u16> {
        panic!("an NVMe command to a SCSI disk")
    }
    fn namespace(&self) -> io::Result<u32> {
        panic!("an NVMe command to a SCSI disk")
    }
    fn scsi(&self, command: &[u8], data: Data<'_>, _: Duration) -> io::Result<Answer> {
        match (command[0], data) {
            (0xa3, Data::In(answer)) => {
                assert_eq!((command[1], command[2], command[3], command[4]), (0x0c, 2, 0x48, 0));
                if self.actions.is_empty() {
                    return Ok(check_condition(5, 0x20, 0));
                }
                answer[1] = if self.actions.contains(&command[5]) { 3 } else { 1 };
            }
            (0x12, Data::In(page)) => {
                page[1] = 0xb2;
                page[5] = self.provisioning;
            }
            (0x48, data) => {
                self.log.borrow_mut().push(command.to_vec());
                assert_eq!(command[1] & 0x80, 0x80, "answered at once");
                let action = command[1] & 0x1f;
                match data {
                    Data::Out(bytes) => assert_eq!((action, usize::from(command[8])), (1, bytes.len())),
                    Data::None => assert_ne!(action, 1),
                    Data::In(_) => panic!("SANITIZE reads nothing"),
                }
                if self.refuses {
                    return Ok(check_condition(5, 0x24, 0));
                }
                *self.polls.borrow_mut() = 3;
                if !self.fails {
                    wipe(std::slice::from_ref(&self.medium), 0);
                }
            }
            (0x03, Data::In(sense)) => {
                let mut polls = self.polls.borrow_mut();
                (sense[0], sense[7]) = (0x70, 10);
                if *polls > 0 {
                    *polls -= 1;
                    (sense[2], sense[12], sense[13], sense[15]) = (2, 0x04, 0x1b, 0x80);
                    sense[16..18].copy_from_slice(&(0xc000_u16 - *polls * 0x1000).to_be_bytes());
                } else if self.fails {
                    (sense[2], sense[12], sense[13]) = (3, 0x31, 0x03);
                }
            }
            (code, data) => panic!("{code:#x} with {data:?}"),
        }
        Ok(Answer::default())
    }
    fn pause(&self, _: Duration) {}
}
