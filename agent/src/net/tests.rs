use std::time::Duration;

use super::dhcp4::Lease;
use super::*;

const BOOT: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

fn lease(last: u8) -> Lease {
    Lease {
        ntp: vec![Ipv4Addr::new(10, 0, 0, last)],
        ..Lease::plain(Ipv4Addr::new(10, 0, 0, last), 24, Ipv4Addr::new(10, 0, 0, 1))
    }
}

fn state(mac: MacAddress, carrier: bool, leased: bool, ipv6: bool) -> InterfaceState {
    let last = mac.0[5];
    let metric = if mac == BOOT { 100 } else { 202 };
    InterfaceState { name: format!("eth{last}"), mac, carrier, lease: leased.then(|| lease(last)), ipv6, metric }
}

fn snapshot(states: &[InterfaceState]) -> Snapshot {
    (1..).zip(states.iter().cloned()).collect()
}

#[test]
fn the_boot_interface_has_a_head_start_and_no_veto() {
    let no = state(BOOT, false, false, false);
    let asking = state(BOOT, true, false, false);
    let leased = state(BOOT, true, true, false);
    let v6 = state(BOOT, true, false, true);
    let other = state(OTHER, true, true, false);
    let other_v6 = state(OTHER, true, false, true);
    let cases = [
        (vec![], Ready::No),
        (vec![asking.clone()], Ready::No),
        (vec![leased.clone(), state(OTHER, true, false, false)], Ready::Now),
        (vec![asking.clone(), other.clone()], Ready::After(BOOT_HEAD_START)),
        (vec![no.clone(), other.clone()], Ready::Now),
        (vec![v6, other], Ready::After(BOOT_HEAD_START)),
        (vec![no, other_v6.clone()], Ready::After(IPV4_HEAD_START)),
        (vec![asking.clone(), other_v6], Ready::After(IPV4_HEAD_START)),
        // A VLAN has the address of the interface below it, which may have no network without it.
        (vec![asking.clone(), leased.clone()], Ready::Now),
        (vec![leased, asking], Ready::Now),
    ];
    for (states, want) in cases {
        assert_eq!(readiness(&snapshot(&states), Some(BOOT)), want, "{states:?}");
    }
    assert_eq!(readiness(&snapshot(&[state(OTHER, true, true, false)]), None), Ready::Now);
}

#[test]
fn an_inspection_waits_for_the_boot_interface_or_for_all() {
    let boot = |leased| state(BOOT, true, leased, false);
    let other = |leased| state(OTHER, true, leased, false);
    let vlan = |leased| InterfaceState { name: "eth2.5".into(), ..other(leased) };
    let uncabled = state(MacAddress([2, 0, 0, 0, 0, 3]), false, false, false);
    let cases = [
        (vec![boot(true), other(false)], false, true),
        (vec![boot(false), other(true)], false, false),
        (vec![boot(true), other(false)], true, false),
        (vec![boot(true), other(true), uncabled], true, true),
        (vec![], true, false),
        (vec![boot(false), boot(true), other(false)], false, true),
        // A port with an address in its VLAN needs none itself; a VLAN does.
        (vec![boot(true), other(false), vlan(true)], true, true),
        (vec![boot(true), other(true), vlan(false)], true, false),
        (vec![boot(false), other(true), vlan(true)], true, false),
    ];
    for (states, all, want) in cases {
        assert_eq!(inspectable(&snapshot(&states), all, Some(BOOT)), want, "{states:?} {all}");
    }
    assert!(inspectable(&snapshot(&[other(true)]), false, None));
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_first_address_or_after_the_head_start() {
    let sender = watch::Sender::new(snapshot(&[state(BOOT, true, false, false), state(OTHER, true, false, false)]));
    let net = Net { interfaces: Some(sender.subscribe()), boot_mac: Some(BOOT) };
    let started = Instant::now();
    let change = async {
        sleep(Duration::from_secs(25)).await;
        sender.send_replace(snapshot(&[state(BOOT, true, false, false), state(OTHER, true, true, false)]));
    };
    tokio::join!(net.wait_first(), change);
    assert_eq!(started.elapsed().as_secs(), 28, "25 s without address, 3 s for the boot interface");
    let config = Config { inspection_dhcp_wait_timeout: Duration::from_secs(60), ..Config::default() };
    assert!(!net.wait_for_addresses(&config).await);
    assert_eq!(started.elapsed().as_secs(), 88);
    sender.send_replace(snapshot(&[state(BOOT, true, true, false), state(OTHER, true, true, false)]));
    assert!(net.wait_for_addresses(&config).await);
    assert_eq!(net.time_servers(), [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)]);
}

#[tokio::test]
async fn a_network_of_somebody_else_is_left_alone() {
    let net = bring_up(&Config::default()).await.unwrap();
    assert!(net.interfaces().is_empty() && net.wait_for_addresses(&Config::default()).await);
    assert_eq!(net.source_for("127.0.0.1".parse().unwrap()), Some("127.0.0.1".parse().unwrap()));
}

#[test]
fn people_are_told_what_each_interface_lacks() {
    let text = describe(&snapshot(&[state(BOOT, true, false, false), state(OTHER, false, false, false)]));
    assert_eq!(text, "eth1 (02:00:00:00:00:01) asks for an address, eth2 (02:00:00:00:00:02) no cable or link partner");
    assert_eq!(describe(&Snapshot::new()), "there is no network interface");
}

#[test]
fn the_hosts_of_the_api_are_its_addresses_and_names() {
    let urls = |list: &[&str]| list.iter().map(|url| (*url).to_owned()).collect();
    let config = Config {
        api_urls: urls(&["https://192.0.2.5:6385/", "http://ironic.example.org:6385", "http://[2001:db8::1]/", "mdns"]),
        inspection_callback_urls: urls(&["http://192.0.2.6:5050/v1/continue"]),
        ..Config::default()
    };
    let (addresses, names) = api_hosts(&config);
    assert_eq!(addresses, [Ipv4Addr::new(192, 0, 2, 5), Ipv4Addr::new(192, 0, 2, 6)]);
    assert_eq!(names, ["ironic.example.org"]);
}

#[tokio::test]
async fn names_of_the_api_are_looked_up_when_there_is_a_name_server() {
    let shared = Shared::new(Root::at("/nonexistent"), None, &[]);
    let mut resolved = shared.resolved();
    let task = tokio::spawn(resolve(shared.clone(), vec!["localhost".to_owned()]));
    let mut state = state(OTHER, true, true, false);
    state.lease.as_mut().unwrap().dns = vec![Ipv4Addr::new(10, 0, 0, 53)];
    shared.update(|snapshot| snapshot.insert(1, state).is_none());
    let found = tokio::time::timeout(Duration::from_secs(10), resolved.wait_for(|found| !found.is_empty())).await;
    assert_eq!(*found.unwrap().unwrap(), [Ipv4Addr::LOCALHOST]);
    task.abort();
}

#[test]
fn a_boot_address_that_is_none_is_no_reason_to_stop() {
    let config = Config { bootif: Some("nonsense".into()), ..Config::default() };
    assert_eq!(boot_mac(&config), None);
}
