//! The log in memory.

use std::os::fd::OwnedFd;

use ferric_sys::memfd::SharedRing;

use super::RING_BYTES;

/// The newest log lines, at most [`RING_BYTES`].
#[derive(Debug)]
pub struct Ring(Option<SharedRing>);

impl Ring {
    /// The ring in a file, or in memory of this process when there is none or it does not fit.
    pub(super) fn open(file: Option<&OwnedFd>) -> Self {
        let shared = file.and_then(|file| SharedRing::map(Some(file), RING_BYTES).ok());
        Self(shared.or_else(|| SharedRing::map(None, RING_BYTES).ok()))
    }

    /// Adds a line.
    pub fn push(&self, line: &str) {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        if let Some(ring) = &self.0 {
            ring.append(&bytes);
        }
    }

    /// All whole lines, oldest first, with hidden secrets replaced by stars.
    pub fn text(&self) -> Vec<u8> {
        let mut text = self.0.as_ref().map(SharedRing::snapshot).unwrap_or_default();
        if text.len() + 64 >= RING_BYTES {
            // The ring is full, so its first line has probably lost its head.
            let end = text.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            text.drain(..end);
        }
        super::redact::redact(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_begins_with_a_whole_line() {
        let ring = Ring::open(None);
        for number in 0..30_000 {
            ring.push(&format!("line {number:06} {}", "x".repeat(40)));
        }
        let text = String::from_utf8(ring.text()).unwrap();
        assert!(text.starts_with("line ") && text.ends_with('\n'), "{}", &text[..80]);
        assert!(text.contains("line 029999") && !text.contains("line 000000"));
        assert!(text.len() <= RING_BYTES);
    }
}
