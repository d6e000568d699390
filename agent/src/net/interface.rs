//! One interface: its DHCP client, run against sockets, the clock and the kernel.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use ferric_types::MacAddress;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::apply;
use super::dhcp_socket::DhcpSocket;
use super::dhcp4::{Action, Client, Lease, Route, To};
use super::guard::Refused;
use super::state::Shared;

/// Pause after a socket failed; the interface may just be going down.
const SOCKET_PAUSE: Duration = Duration::from_secs(1);

/// What the task of an interface knows about it.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mac: MacAddress,
    /// Metric of its routes: the lower, the better.
    pub(super) metric: u32,
    /// Address it had when the worker started.
    pub(super) remembered: Option<Ipv4Addr>,
}

/// Runs the interface until the task is dropped. `carrier` says whether there is a link partner.
pub(super) async fn run(interface: Interface, mut carrier: watch::Receiver<bool>, shared: Shared) {
    let (mut others, mut resolved) = (shared.subscribe(), shared.resolved());
    let mut task = Task {
        client: Client::new(interface.mac, seed(interface.mac), interface.remembered),
        interface,
        shared,
        epoch: Instant::now(),
        socket: None,
        refused: Vec::new(),
    };
    let mut up = false;
    loop {
        let now_up = *carrier.borrow_and_update();
        if now_up != up {
            up = now_up;
            task.carrier(up).await;
        }
        let deadline = task.client.deadline().map(|deadline| task.epoch + deadline);
        tokio::select! {
            changed = carrier.changed() => if changed.is_err() { return },
            () = until(deadline) => {
                let actions = task.client.timeout(task.epoch.elapsed());
                task.carry_out(actions).await;
            }
            message = receive(task.socket.as_ref()), if up => task.received(message).await,
            Ok(()) = others.changed() => task.review().await,
            Ok(()) = resolved.changed() => task.review().await,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn receive(socket: Option<&DhcpSocket>) -> io::Result<Vec<u8>> {
    match socket {
        Some(socket) => socket.receive().await,
        None => std::future::pending().await,
    }
}

/// Differs between machines by their addresses and between boots by the clock's fine end.
fn seed(mac: MacAddress) -> u64 {
    let nanos =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
    mac.0.iter().fold(u64::from(nanos), |seed, byte| seed.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte))
}

struct Task {
    interface: Interface,
    client: Client,
    shared: Shared,
    epoch: Instant,
    socket: Option<DhcpSocket>,
    /// Routes of the lease that are not set, for the sake of another interface.
    refused: Vec<Refused>,
}

impl Task {
    async fn carrier(&mut self, up: bool) {
        let name = &self.interface.name;
        if up {
            info!("{name}: link is up");
            let actions = self.client.link_up(self.epoch.elapsed());
            self.carry_out(actions).await;
        } else {
            info!("{name}: link is down");
            self.client.link_down();
            self.socket = None;
        }
    }

    async fn received(&mut self, message: io::Result<Vec<u8>>) {
        match message {
            Ok(message) => {
                let actions = self.client.received(self.epoch.elapsed(), &message);
                self.carry_out(actions).await;
            }
            Err(error) => {
                debug!("{}: receiving: {error}", self.interface.name);
                self.socket = None;
                sleep(SOCKET_PAUSE).await;
                self.open_socket();
            }
        }
    }

    async fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, bytes } => self.send(to, &bytes).await,
                Action::Bound(lease) => self.bound(*lease).await,
                Action::Lost { lease, reason } => {
                    warn!("{}: address {} is gone: {reason}", self.interface.name, lease.address);
                    let index = self.interface.index;
                    blocking(move || apply::remove(index, &lease)).await;
                    self.shared.set_lease(index, None);
                }
                Action::Note(text) => info!("{}: {text}", self.interface.name),
            }
        }
        // The answer to what was just sent must find a socket that hears it.
        self.open_socket();
    }

    /// Failing to send is like a packet lost on the way: the client asks again later.
    async fn send(&mut self, to: To, bytes: &[u8]) {
        self.open_socket();
        let Some(socket) = &self.socket else { return };
        debug!("{}: asking {to:?} ({:?})", self.interface.name, self.client);
        let server = match to {
            To::Server(server) => Some(server),
            To::Everybody => None,
        };
        if let Err(error) = socket.send(bytes, server).await {
            debug!("{}: sending to DHCP servers: {error}", self.interface.name);
        }
    }

    fn open_socket(&mut self) {
        let has_address = self.client.lease().is_some();
        if self.socket.as_ref().is_some_and(|socket| socket.fits(has_address)) {
            return;
        }
        self.socket = None;
        let started = Instant::now();
        let opened =
            if has_address { DhcpSocket::udp(&self.interface.name) } else { DhcpSocket::packet(self.interface.index) };
        match opened {
            Ok(socket) => {
                debug!("{}: socket opened in {} us", self.interface.name, started.elapsed().as_micros());
                self.socket = Some(socket);
            }
            Err(error) => warn!("{}: opening a socket for DHCP: {error}", self.interface.name),
        }
    }

    async fn bound(&mut self, lease: Lease) {
        let index = self.interface.index;
        if let Some(owner) = self.shared.guard(index).owner(&lease) {
            self.decline(&lease, &owner).await;
            return;
        }
        let old = self.shared.lease(index);
        if old.as_ref() == Some(&lease) {
            debug!("{}: lease of {} renewed", self.interface.name, lease.address);
            return;
        }
        if !self.apply(&lease, old.map(|old| apply::all_routes(&old)).unwrap_or_default()).await {
            return;
        }
        info!(
            "{}: address {}/{} from {} for {} s",
            self.interface.name,
            lease.address,
            lease.prefix,
            lease.server,
            lease.lifetime.as_secs()
        );
        self.shared.set_lease(index, Some(lease));
    }

    /// Puts a lease into the kernel, less what another interface must be spared, and removes the old routes.
    async fn apply(&mut self, lease: &Lease, mut old: Vec<Route>) -> bool {
        let Interface { index, name, metric, .. } = &self.interface;
        let (index, metric) = (*index, *metric);
        let (routes, refused) = self.shared.guard(index).routes(lease, metric);
        for Refused { route, reason } in refused.iter().filter(|refused| !self.refused.contains(refused)) {
            let Route { network, prefix, .. } = route;
            warn!("{name}: the route to {network}/{prefix} of DHCP server {} is left out: {reason}", lease.server);
        }
        // A worker before this one may have set them.
        old.extend(refused.iter().map(|refused| refused.route));
        self.refused = refused;
        let new = lease.clone();
        if let Some(Err(error)) = blocking(move || apply::set(index, metric, &new, &routes, &old)).await {
            warn!("{name}: setting address {}/{}: {error}", lease.address, lease.prefix);
            return false;
        }
        true
    }

    /// Looks at the lease in force again: another interface may have got one.
    async fn review(&mut self) {
        let Interface { index, metric, .. } = self.interface;
        let Some(lease) = self.shared.lease(index) else { return };
        let guard = self.shared.guard(index);
        if let Some(owner) = guard.owner(&lease) {
            self.decline(&lease, &owner).await;
        } else if guard.routes(&lease, metric).1 != self.refused {
            self.apply(&lease, Vec::new()).await;
        }
    }

    /// Refuses an address that is somebody else's; another one is asked for later.
    async fn decline(&mut self, lease: &Lease, owner: &str) {
        let Interface { index, name, .. } = &self.interface;
        let index = *index;
        warn!(
            "{name}: address {} of DHCP server {} is declined: it is the address of {owner}",
            lease.address, lease.server
        );
        self.refused.clear();
        if let Some(old) = self.shared.lease(index) {
            blocking(move || apply::remove(index, &old)).await;
            self.shared.set_lease(index, None);
        }
        if let Some(message) = self.client.decline(self.epoch.elapsed()) {
            self.send(To::Everybody, &message).await;
        }
        self.open_socket();
    }
}

/// Netlink waits for drivers, so it has threads of its own. `None` when the work panicked, which has been told.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
