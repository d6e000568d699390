//! The `dmi-decode` collector (inspection section 3.4).

use ferric_hardware::probe::smbios::{Smbios, dmi};
use serde_json::{Map, Value};

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const DMI_DECODE: Collector = Collector { name: "dmi-decode", collect };

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    let smbios = Smbios::read(&app.machine.root).ok_or(CollectError::NoSmbios)?;
    body.insert("dmi".to_owned(), dmi::decode(&smbios));
    Ok(())
}
