//! `standby.execute_bootc_install`: bootable containers, which are refused (deploy section 11).

use ferric_hardware::generic::bootc;
use ferric_types::CommandError;

use crate::command::{Command, Context, Mode};

/// The command.
#[derive(Debug)]
pub struct ExecuteBootcInstall;

/// Its parameters: all that Ironic sends, so that the answer is the reason and no complaint about them.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Reference of the container image.
    pub image_source: String,
    // What is refused needs none of these.
    #[serde(default, rename = "instance_info")]
    _instance_info: serde::de::IgnoredAny,
    #[serde(default, rename = "pull_secret")]
    _pull_secret: serde::de::IgnoredAny,
    #[serde(default, rename = "configdrive")]
    _configdrive: serde::de::IgnoredAny,
}

impl Command for ExecuteBootcInstall {
    const NAME: &'static str = "execute_bootc_install";
    const MODE: Mode = Mode::Async;
    type Params = Params;
    type Reply = ();

    fn run(_context: &Context, params: Params) -> Result<(), CommandError> {
        Err(bootc::refuse(Some(&params.image_source)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_of_ironics_call_is_understood() {
        for call in [
            json!({"image_source": "oci://r/os:1"}),
            json!({"image_source": "oci://r/os:1", "instance_info": {"a": [1]}, "pull_secret": "cHc=", "configdrive": null}),
        ] {
            let params: Params = serde_json::from_value(call.clone()).unwrap();
            assert_eq!(params.image_source, "oci://r/os:1", "{call}");
        }
    }
}
