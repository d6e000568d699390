//! The address under which the conductor reaches the agent (protocol section 11).
//!
//! A configured address wins, then the address of a configured interface, then the source address of the route to the
//! API that answers a real HTTP request. The choice is made once: callback URL and certificate must stay the same for
//! the whole boot.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use ferric_sys::netlink::Netlink;
use ferric_types::error::chain;
use futures_util::future::join_all;

use crate::config::{Config, Scheme};
use crate::http::{Client, HttpError, Request, Url};

/// What the choice depends on.
#[derive(Debug, Clone)]
pub struct AdvertiseOptions {
    /// Address to use whatever the routes say.
    pub host: Option<IpAddr>,
    /// Interface whose address is used.
    pub interface: Option<String>,
    /// Rounds of the search.
    pub attempts: u32,
    /// Pause between rounds.
    pub pause: Duration,
}

impl AdvertiseOptions {
    /// The agent's settings.
    pub fn from_config(config: &Config) -> Self {
        Self {
            host: config.advertise_host,
            interface: config.network_interface.clone(),
            attempts: config.ip_lookup_attempts,
            pause: config.ip_lookup_sleep,
        }
    }
}

/// There is no address to announce.
#[derive(Debug, thiserror::Error)]
pub enum AdvertiseError {
    /// The configured interface has none.
    #[error("interface {name} (ipa-network-interface) has no usable address, {attempts} tries")]
    Interface {
        /// Name of the interface.
        name: String,
        /// Rounds made.
        attempts: u32,
        /// Why its addresses cannot be read, when that is the reason.
        #[source]
        source: Option<io::Error>,
    },
    /// No API answers.
    #[error("no URL of the conductor answers, {attempts} tries")]
    Unreachable {
        /// Rounds made.
        attempts: u32,
        /// Why the last one does not.
        #[source]
        source: Option<HttpError>,
    },
    /// The API answers, and yet no route to it has a usable source address.
    #[error("no route to the conductor has a source address that can be announced, {attempts} tries")]
    NoSource {
        /// Rounds made.
        attempts: u32,
    },
}

/// The callback URL for an address: IPv6 in brackets, the port always given.
pub fn callback_url(scheme: Scheme, address: IpAddr, port: u16) -> String {
    format!("{}://{}", scheme.as_str(), SocketAddr::new(address, port))
}

/// The address to announce to the conductor whose API has the given URLs.
///
/// # Errors
/// None is found in `attempts` rounds.
pub async fn choose(options: &AdvertiseOptions, client: &Client, urls: &[Url]) -> Result<IpAddr, AdvertiseError> {
    if let Some(address) = options.host {
        return Ok(address);
    }
    let attempts = options.attempts.max(1);
    let mut round = 1;
    loop {
        let found = match &options.interface {
            Some(name) => from_interface(name, round),
            None => from_routes(client, urls, round).await,
        };
        match found {
            Ok(address) => {
                tracing::info!("the conductor is told to call back at {address}");
                return Ok(address);
            }
            Err(error) if round >= attempts => return Err(error),
            Err(error) => tracing::warn!(
                "looking for the address to announce, round {round} of {attempts}: {}; next in {} s",
                chain(&error),
                options.pause.as_secs()
            ),
        }
        tokio::time::sleep(options.pause).await;
        round += 1;
    }
}

fn from_interface(name: &str, attempts: u32) -> Result<IpAddr, AdvertiseError> {
    let missing = |source| AdvertiseError::Interface { name: name.to_owned(), attempts, source };
    let addresses = interface_addresses(name).map_err(|error| missing(Some(error)))?;
    let usable: Vec<IpAddr> = addresses.into_iter().filter_map(usable).collect();
    let v4 = usable.iter().find(|address| address.is_ipv4());
    v4.or(usable.first()).copied().ok_or_else(|| missing(None))
}

/// All addresses of an interface, by netlink.
fn interface_addresses(name: &str) -> io::Result<Vec<IpAddr>> {
    let netlink = Netlink::open()?;
    let Some(link) = netlink.links()?.into_iter().find(|link| link.name == name) else { return Ok(Vec::new()) };
    let own = netlink.addresses()?.into_iter().filter(|address| address.interface == link.index);
    Ok(own.map(|address| address.address).collect())
}

async fn from_routes(client: &Client, urls: &[Url], attempts: u32) -> Result<IpAddr, AdvertiseError> {
    let probes = join_all(urls.iter().map(|url| probe(client, url))).await;
    let mut failure = None;
    let mut answered = false;
    for (url, result) in urls.iter().zip(probes) {
        match result {
            Err(error) => {
                tracing::warn!("{url} is not reachable: {}", error.explain());
                failure = Some(error);
            }
            Ok(destinations) => {
                answered = true;
                if let Some(source) = destinations.into_iter().filter_map(source_for).next() {
                    return Ok(source);
                }
            }
        }
    }
    Err(if answered {
        AdvertiseError::NoSource { attempts }
    } else {
        AdvertiseError::Unreachable { attempts, source: failure }
    })
}

/// The addresses of an API that answers a request, whatever its status and certificate; the one that answered first.
async fn probe(client: &Client, url: &Url) -> Result<Vec<IpAddr>, HttpError> {
    let request = Request::get(url.clone()).unverified().within(client.small_exchange());
    let answer = client.send(request).await?;
    let answering = answer.peer.ip();
    drop(answer);
    match client.addresses(url).await {
        Ok(mut addresses) => {
            // Behind a proxy the answering address is the proxy's and not among them.
            addresses.sort_by_key(|address| *address != answering);
            Ok(addresses)
        }
        Err(error) => {
            // Only a proxy can resolve the name; its direction is the best there is.
            tracing::debug!("{}", chain(&error));
            Ok(vec![answering])
        }
    }
}

/// The source address of the route to a destination, none when there is no route or only a link-local address.
///
/// Connecting a UDP socket makes the kernel choose a route; nothing is sent.
pub fn source_for(destination: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let connected = || -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        // Any port will do; the discard service's.
        socket.connect((destination, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    match connected() {
        Ok(source) => usable(source),
        Err(error) => {
            tracing::debug!("no route to {destination}: {error}");
            None
        }
    }
}

/// The address in its plain form, none when a conductor elsewhere could not use it.
fn usable(address: IpAddr) -> Option<IpAddr> {
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    (!link_local && !address.is_unspecified() && !address.is_multicast()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{HttpOptions, Proxies};
    use crate::tls::TlsOptions;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    const OPTIONS: AdvertiseOptions =
        AdvertiseOptions { host: None, interface: None, attempts: 2, pause: Duration::from_millis(1) };

    fn client() -> Client {
        let options =
            HttpOptions { tls: TlsOptions::default(), proxies: Proxies::none(), timeout: Duration::from_secs(5) };
        Client::with_options(&options).unwrap()
    }

    /// A server that answers 404 to everything; its URL.
    async fn server() -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _read = stream.read(&mut request).await.unwrap();
                stream.write_all(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            }
        }));
        format!("http://127.0.0.1:{port}/baremetal").parse().unwrap()
    }

    async fn dead() -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap()).parse().unwrap()
    }

    #[test]
    fn ipv6_is_put_in_brackets() {
        assert_eq!(callback_url(Scheme::Https, "2001:db8::1".parse().unwrap(), 9999), "https://[2001:db8::1]:9999");
        assert_eq!(callback_url(Scheme::Http, "192.0.2.1".parse().unwrap(), 80), "http://192.0.2.1:80");
    }

    #[test]
    fn addresses_that_only_mean_something_on_the_link_are_not_announced() {
        let cases = [
            ("192.0.2.1", Some("192.0.2.1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("fd00::1", Some("fd00::1")),
            ("169.254.3.4", None),
            ("fe80::1", None),
            ("0.0.0.0", None),
            ("::", None),
        ];
        for (address, want) in cases {
            assert_eq!(usable(address.parse().unwrap()), want.map(|want| want.parse().unwrap()), "{address}");
        }
    }

    #[tokio::test]
    async fn the_source_towards_the_url_that_answers_is_chosen() {
        let urls = [dead().await, server().await];
        assert_eq!(choose(&OPTIONS, &client(), &urls).await.unwrap(), IpAddr::from([127, 0, 0, 1]));
    }

    #[tokio::test]
    async fn without_an_answering_url_there_is_no_address() {
        let error = choose(&OPTIONS, &client(), &[dead().await]).await.unwrap_err();
        assert!(matches!(error, AdvertiseError::Unreachable { attempts: 2, source: Some(_) }), "{error:?}");
    }

    #[tokio::test]
    async fn a_configured_address_or_interface_wins() {
        let host = IpAddr::from([203, 0, 113, 5]);
        let options = AdvertiseOptions { host: Some(host), ..OPTIONS };
        assert_eq!(choose(&options, &client(), &[]).await.unwrap(), host);
        let options = AdvertiseOptions { interface: Some("lo".into()), ..OPTIONS };
        assert_eq!(choose(&options, &client(), &[]).await.unwrap(), IpAddr::from([127, 0, 0, 1]));
        let options = AdvertiseOptions { interface: Some("nosuch0".into()), ..OPTIONS };
        let error = choose(&options, &client(), &[]).await.unwrap_err();
        assert!(matches!(error, AdvertiseError::Interface { attempts: 2, .. }), "{error:?}");
    }
}
