//! How many connections are served at once, in all and from one address, so that one client that opens connections and
//! says nothing leaves room for the conductor.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections served at once.
const MAX_CONNECTIONS: usize = 256;
/// Connections served at once for one address.
const MAX_FROM_ONE: usize = 96;

/// The places there are.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    peer: IpAddr,
}

impl Places {
    /// A place for a connection from an address; none when there are too many.
    pub(super) fn take(&self, peer: IpAddr) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from_peer = taken.get(&peer).copied().unwrap_or(0);
        if from_peer >= MAX_FROM_ONE || taken.values().sum::<usize>() >= MAX_CONNECTIONS {
            return None;
        }
        taken.insert(peer, from_peer + 1);
        Some(Place { places: self.clone(), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn one_address_cannot_take_all_places_and_places_come_back() {
        let places = Places::default();
        let address = |last| IpAddr::from(Ipv4Addr::new(192, 0, 2, last));
        let mut held: Vec<Place> = (0..MAX_FROM_ONE).map(|_| places.take(address(1)).unwrap()).collect();
        assert!(places.take(address(1)).is_none());
        assert!(places.take(address(2)).is_some());
        held.pop();
        let again = places.take(address(1));
        assert!(again.is_some());
        assert!(places.take(address(1)).is_none());
    }

    #[test]
    fn all_addresses_together_have_a_limit() {
        let places = Places::default();
        let held: Vec<Place> = (0..MAX_CONNECTIONS)
            .filter_map(|index| places.take(IpAddr::from(Ipv4Addr::new(192, 0, 2, u8::try_from(index % 4).unwrap()))))
            .collect();
        assert_eq!(held.len(), MAX_CONNECTIONS);
        assert!(places.take(IpAddr::from(Ipv4Addr::LOCALHOST)).is_none());
        drop(held);
        assert!(places.take(IpAddr::from(Ipv4Addr::LOCALHOST)).is_some());
        assert!(places.0.lock().unwrap().is_empty(), "addresses that have left are forgotten");
    }
}
