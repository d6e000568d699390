//! QEMU's protocol for an external BMC (`ipmi-bmc-extern`), which is that of OpenIPMI's simulator for virtual machines:
//! a stream of messages and commands, each with a byte at its end that occurs nowhere else.

/// Ends a message.
const MESSAGE_END: u8 = 0xa0;
/// Ends a command, such as QEMU's version, which a BMC may ignore.
const COMMAND_END: u8 = 0xa1;
/// Comes before a byte that would be one of the three; the byte itself has the bit [`ESCAPED`] set.
const ESCAPE: u8 = 0xaa;
const ESCAPED: u8 = 0x10;
/// Longest message that is kept; QEMU's own are shorter than 300 bytes.
const MAX_BYTES: usize = 512;

/// A request of the guest to its BMC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// QEMU's number for it.
    pub(super) id: u8,
    pub(super) netfn: u8,
    lun: u8,
    pub(super) cmd: u8,
    pub(super) data: Vec<u8>,
}

impl Request {
    /// `None` when it is too short or its sum is wrong.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        let [id, function, cmd, data @ .., _sum] = bytes else { return None };
        (sum == 0).then(|| Self { id: *id, netfn: function >> 2, lun: function & 3, cmd: *cmd, data: data.to_vec() })
    }

    /// The bytes of its answer: completion code and data.
    pub(super) fn answer(&self, answer: &[u8]) -> Vec<u8> {
        // Answers have the odd network functions.
        let mut message = vec![self.id, (self.netfn | 1) << 2 | self.lun, self.cmd];
        message.extend(answer);
        let sum = message.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
        message.push(sum);
        let mut bytes = Vec::new();
        for byte in message {
            match byte {
                MESSAGE_END | COMMAND_END | ESCAPE => bytes.extend([ESCAPE, byte | ESCAPED]),
                _ => bytes.push(byte),
            }
        }
        bytes.push(MESSAGE_END);
        bytes
    }
}

/// Finds the requests in a stream.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bytes: Vec<u8>,
    escaped: bool,
}

impl Reader {
    /// Takes a byte; gives the request that it ends.
    pub(super) fn take(&mut self, byte: u8) -> Option<Request> {
        match byte {
            MESSAGE_END | COMMAND_END => {
                self.escaped = false;
                let bytes = std::mem::take(&mut self.bytes);
                Request::parse(&bytes).filter(|_| byte == MESSAGE_END)
            }
            ESCAPE => {
                self.escaped = true;
                None
            }
            _ => {
                let byte = if std::mem::take(&mut self.escaped) { byte & !ESCAPED } else { byte };
                if self.bytes.len() < MAX_BYTES {
                    self.bytes.push(byte);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Request> {
        let mut reader = Reader::default();
        bytes.iter().filter_map(|byte| reader.take(*byte)).collect()
    }

    #[test]
    fn requests_are_found_between_commands_and_damage() {
        // Get Device ID, number 7; then one whose data hold all three special bytes.
        let plain = [7, 0x18, 1, 0xe0, 0xa0];
        let special = [8, 0x30, 2, 0xaa, 0xb0, 0xaa, 0xb1, 0xaa, 0xba, 0xdb, 0xa0];
        let version = [0xff, 1, 0xa1];
        let wrong_sum = [7, 0x18, 1, 0xe1, 0xa0];
        let short = [7, 0xf9, 0xa0];
        let found = read(&[&version[..], &plain, &wrong_sum, &short, &[0xa0], &special].concat());
        let request = |id, netfn, cmd, data: &[u8]| Request { id, netfn, lun: 0, cmd, data: data.to_vec() };
        assert_eq!(found, [request(7, 6, 1, &[]), request(8, 12, 2, &[0xa0, 0xa1, 0xaa])]);
    }

    #[test]
    fn answers_add_up_to_nothing_and_are_escaped() {
        let request = Request { id: 0xa0, netfn: 12, lun: 0, cmd: 2, data: vec![] };
        let bytes = request.answer(&[0, 0xaa, 0x11]);
        assert_eq!(bytes[..6], [0xaa, 0xb0, 0x34, 2, 0, 0xaa]);
        assert_eq!(bytes.iter().filter(|byte| **byte == 0xa0).count(), 1);
        // What an answer says is what a reader of the same protocol understands.
        let back = read(&bytes).remove(0);
        assert_eq!((back.id, back.netfn, back.cmd, back.data), (0xa0, 13, 2, vec![0, 0xaa, 0x11]));
    }

    #[test]
    fn a_message_without_end_is_not_kept() {
        let mut reader = Reader::default();
        (0..10_000).for_each(|_| assert_eq!(reader.take(5), None));
        assert!(reader.bytes.len() <= MAX_BYTES);
    }
}
