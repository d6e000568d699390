//! Idle connections kept for the next request to the same server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connect::Connection;
use super::url::Origin;

/// Idle connections kept to one server, as many as the reference agent keeps.
const MAX_IDLE_PER_SERVER: usize = 2;

/// Idle connections kept in all.
const MAX_IDLE: usize = 16;

/// Idle time after which a connection is not used again; shorter than the keep-alive time of common servers, so that a
/// request seldom meets a connection the server is just closing.
const MAX_IDLE_TIME: Duration = Duration::from_secs(20);

/// What a connection can be used for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) origin: Origin,
    /// Origin of the proxy in between.
    pub(super) proxy: Option<Origin>,
    /// Whether the server's certificate was verified.
    pub(super) verified: bool,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// Idle connections by server.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<HashMap<Key, Vec<Idle>>>);

impl Pool {
    /// The connection that was used last, when it is still open.
    pub(super) async fn take(&self, key: &Key) -> Option<Connection> {
        loop {
            let idle = self.lock().get_mut(key)?.pop()?;
            if idle.since.elapsed() >= MAX_IDLE_TIME || idle.connection.sender.is_closed() {
                continue;
            }
            let mut connection = idle.connection;
            // The connection's task may need a turn to notice that the last exchange is over.
            let ready = tokio::time::timeout(Duration::from_millis(200), connection.sender.ready()).await;
            if matches!(ready, Ok(Ok(()))) {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer has been read to its end.
    pub(super) fn put(&self, key: Key, connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut servers = self.lock();
        servers.retain(|_, list| {
            list.retain(|idle| idle.since.elapsed() < MAX_IDLE_TIME && !idle.connection.sender.is_closed());
            !list.is_empty()
        });
        let total: usize = servers.values().map(Vec::len).sum();
        let list = servers.entry(key).or_default();
        if list.len() >= MAX_IDLE_PER_SERVER {
            drop(list.remove(0));
        } else if total >= MAX_IDLE {
            return;
        }
        list.push(Idle { connection, since: Instant::now() });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Vec<Idle>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
