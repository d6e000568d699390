//! Addresses of the BMC (hardware section 2.5).

use std::path::PathBuf;

use ferric_sys::Root;

/// The IPMI device node, if the machine has one: `/dev/ipmi0`, `/dev/ipmi/0` or `/dev/ipmidev/0`.
pub fn device(root: &Root) -> Option<PathBuf> {
    ["dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"].into_iter().map(|name| root.path(name)).find(|path| path.exists())
}
