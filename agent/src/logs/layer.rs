//! One line from one event, sent to all places.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::console::Consoles;
use super::kmsg::Kmsg;
use super::ring::Ring;

#[derive(Debug)]
pub(super) struct Sinks {
    pub(super) ring: &'static Ring,
    pub(super) consoles: Option<&'static Consoles>,
    pub(super) kmsg: Option<Kmsg>,
    pub(super) stderr: bool,
}

#[derive(Debug)]
pub(super) struct Lines(Sinks);

impl Lines {
    pub(super) fn new(sinks: Sinks) -> Self {
        Self(sinks)
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let (level, message) = (*event.metadata().level(), text.finish());
        let sinks = &self.0;
        let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        sinks.ring.push(&format!("{now} {level:5} {}: {message}", area(event.metadata().target())));
        if let Some(consoles) = sinks.consoles {
            consoles.send(&console_line(uptime(), level, &message));
        }
        if sinks.stderr {
            to_stderr(&console_line(uptime(), level, &message));
        }
        if let Some(kmsg) = &sinks.kmsg
            && level <= Level::INFO
        {
            kmsg.write(level, &message);
        }
    }
}

/// `ferric_agent::net::dhcp4` is `net`, `ferric_disk::image` is `disk`.
fn area(target: &str) -> &str {
    let mut parts = target.split("::");
    match (parts.next(), parts.next()) {
        (Some("ferric_agent"), Some(area)) => area,
        (Some(other), _) => other.strip_prefix("ferric_").unwrap_or(other),
        (None, _) => target,
    }
}

/// The time since the machine started, as the kernel's own lines beside it have it.
fn console_line(uptime: f64, level: Level, message: &str) -> String {
    let mark = match level {
        Level::ERROR => "ERROR: ",
        Level::WARN => "warning: ",
        Level::INFO => "",
        Level::DEBUG | Level::TRACE => "debug: ",
    };
    format!("[{uptime:12.6}] ferric: {mark}{message}")
}

/// Seconds since the machine started.
#[expect(clippy::cast_precision_loss, reason = "seconds and nanoseconds for people to read")]
fn uptime() -> f64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

pub(super) fn to_stderr(line: &str) {
    // Nobody may be listening.
    let _lost = writeln!(std::io::stderr(), "{line}");
}

/// The message first, then the other fields as `name=value`.
#[derive(Debug, Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _infallible = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_short() {
        assert_eq!(area("ferric_agent::net::dhcp4"), "net");
        assert_eq!(area("ferric_agent"), "agent");
        assert_eq!(area("ferric_disk::image"), "disk");
        assert_eq!(area("hyper::proto"), "hyper");
    }

    #[test]
    fn console_lines_look_like_the_kernels() {
        assert_eq!(console_line(1.5, Level::INFO, "x"), "[    1.500000] ferric: x");
        assert_eq!(console_line(12.0, Level::ERROR, "x"), "[   12.000000] ferric: ERROR: x");
    }

    #[test]
    fn events_become_lines_with_their_fields() {
        use tracing_subscriber::layer::SubscriberExt;
        let ring: &'static Ring = Box::leak(Box::new(Ring::open(None)));
        let sinks = Sinks { ring, consoles: None, kmsg: None, stderr: false };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Lines::new(sinks)), || {
            tracing::warn!(device = "sda", size = 3, "erasing {}", "it");
        });
        let text = String::from_utf8(ring.text()).unwrap();
        assert!(text.ends_with(" WARN  logs: erasing it device=sda size=3\n"), "{text}");
    }
}
