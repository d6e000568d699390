//! Mellanox InfiniBand ports as Ironic knows them (hardware section 2.1): an Ethernet address and a DHCP client id, both
//! made from the port's GUID.

/// Octets of an IPoIB address (RFC 4391 section 9.1.1): queue pair, subnet prefix, GUID.
const ADDRESS_OCTETS: usize = 20;
/// The GUID in it.
const GUID: std::ops::Range<usize> = 12..20;
/// Hardware type, type and enterprise of the client id, before the GUID.
const CLIENT_ID_PREFIX: &str = "ff:00:00:00:00:00:02:00:00:02:c9:00:";

/// Address and client id of a port; `None` for an address of another length, such as one of Ethernet.
pub fn identity(address: &str) -> Option<(String, String)> {
    let octets: Vec<&str> = address.split(':').collect();
    let guid = octets.get(GUID).filter(|_| octets.len() == ADDRESS_OCTETS)?;
    let [first, second, third, _, _, fourth, fifth, sixth] = *guid else { return None };
    let mac = [first, second, third, fourth, fifth, sixth].join(":").to_lowercase();
    Some((mac, format!("{CLIENT_ID_PREFIX}{}", guid.join(":").to_lowercase())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_and_client_id_come_from_the_guid() {
        let address = "a0:00:00:27:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:29:26:52";
        // addr[36:45] + addr[51:], and the prefix + addr[36:], of the text.
        let want = ("7c:fe:90:29:26:52", "ff:00:00:00:00:00:02:00:00:02:c9:00:7c:fe:90:03:00:29:26:52");
        let found = identity(address).unwrap();
        assert_eq!((found.0.as_str(), found.1.as_str()), want);
        assert_eq!(found.0, format!("{}{}", &address[36..45], &address[51..]));
        assert_eq!(identity(&address.to_uppercase()), Some(found));
    }

    #[test]
    fn other_addresses_are_none_of_infiniband() {
        for address in ["", "52:54:00:12:34:56", "a0:00:00:27:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:29:26", "::"] {
            assert_eq!(identity(address), None, "{address}");
        }
    }
}
