//! `/etc/resolv.conf` from all leases.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::dhcp4::Lease;

/// More servers than these are not asked by anybody.
const MAX_SERVERS: usize = 6;

/// The text, servers of the best interface first.
pub(super) fn text<'a>(leases: impl Iterator<Item = &'a Lease>) -> String {
    let (mut servers, mut domains) = (Vec::new(), Vec::new());
    for lease in leases {
        lease.dns.iter().for_each(|server| push(&mut servers, server.to_string()));
        lease.search.iter().for_each(|domain| push(&mut domains, domain.clone()));
    }
    let mut text = String::from("# from DHCP\n");
    if !domains.is_empty() {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "search {}", domains.join(" "));
    }
    servers.iter().take(MAX_SERVERS).for_each(|server| {
        let _infallible = writeln!(text, "nameserver {server}");
    });
    text
}

fn push(list: &mut Vec<String>, item: String) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Replaces the file in one step: a resolver never reads half of it.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    fn lease(dns: &[[u8; 4]], search: &[&str]) -> Lease {
        Lease {
            address: Ipv4Addr::new(10, 0, 2, 15),
            prefix: 24,
            server: Ipv4Addr::new(10, 0, 2, 2),
            routes: Vec::new(),
            dns: dns.iter().copied().map(Ipv4Addr::from).collect(),
            search: search.iter().map(|domain| (*domain).to_owned()).collect(),
            hostname: None,
            ntp: Vec::new(),
            mtu: None,
            lifetime: Duration::ZERO,
            renew_after: Duration::ZERO,
            rebind_after: Duration::ZERO,
        }
    }

    #[test]
    fn servers_and_domains_are_listed_once_in_order() {
        let leases = [
            lease(&[[1, 1, 1, 1], [2, 2, 2, 2]], &["a.org"]),
            lease(&[[2, 2, 2, 2], [3, 3, 3, 3]], &["b.org", "a.org"]),
        ];
        let want = "# from DHCP\nsearch a.org b.org\nnameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\n";
        assert_eq!(text(leases.iter()), want);
        assert_eq!(text(std::iter::empty()), "# from DHCP\n");
    }

    #[test]
    fn the_file_is_replaced() {
        let path = std::env::temp_dir().join(format!("ferric-resolv-{}.conf", std::process::id()));
        write(&path, "one").unwrap();
        write(&path, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        std::fs::remove_file(path).unwrap();
    }
}
