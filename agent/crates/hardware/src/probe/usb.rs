//! USB devices as the `usb-devices` collector sends them (inspection section 3).

use ferric_sys::{Root, attr};
use serde::Serialize;

/// One USB device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UsbDevice {
    /// What it calls itself; empty when it does not.
    pub product: String,
    /// What it calls its maker; empty when it does not.
    pub vendor: String,
    /// `USB:bus:device`.
    pub handle: String,
}

/// Class of hubs, which are part of the bus rather than on it.
const HUB: &str = "09";

/// Every USB device but hubs, by bus and number.
pub fn devices(root: &Root) -> Vec<UsbDevice> {
    let bus = root.path("sys/bus/usb/devices");
    let mut found: Vec<((u64, u64), UsbDevice)> = attr::list(&bus)
        .into_iter()
        .filter_map(|name| {
            let text = |attribute: &str| attr::read_optional(&bus.join(&name).join(attribute));
            // Interfaces are listed beside the devices; they have no such numbers.
            let place = (text("busnum")?.parse().ok()?, text("devnum")?.parse().ok()?);
            if text("bDeviceClass").as_deref() == Some(HUB) {
                return None;
            }
            let device = UsbDevice {
                product: text("product").unwrap_or_default(),
                vendor: text("manufacturer").unwrap_or_default(),
                handle: format!("USB:{}:{}", place.0, place.1),
            };
            Some((place, device))
        })
        .collect();
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, device)| device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn devices_are_listed_without_hubs_and_interfaces() {
        let tree = MachineTree::new().unwrap();
        let device = |name: &str, attributes: &[(&str, &str)]| {
            for (attribute, value) in attributes {
                tree.file(&format!("sys/bus/usb/devices/{name}/{attribute}"), value).unwrap();
            }
        };
        device(
            "usb1",
            &[("busnum", "1"), ("devnum", "1"), ("bDeviceClass", "09"), ("product", "EHCI Host Controller")],
        );
        device("1-2", &[("busnum", "1"), ("devnum", "10"), ("bDeviceClass", "00"), ("product", "Virtual Keyboard")]);
        device("1-1", &[("busnum", "1"), ("devnum", "2"), ("bDeviceClass", "00"), ("manufacturer", "QEMU")]);
        device("1-1:1.0", &[("bInterfaceClass", "03")]);
        let want = [("", "QEMU", "USB:1:2"), ("Virtual Keyboard", "", "USB:1:10")];
        let want = want.map(|(product, vendor, handle)| UsbDevice {
            product: product.to_owned(),
            vendor: vendor.to_owned(),
            handle: handle.to_owned(),
        });
        assert_eq!(devices(&tree.root()), want);
        assert_eq!(devices(&MachineTree::new().unwrap().root()), []);
    }
}
