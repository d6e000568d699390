//! `standby.execute_bootc_install`: bootable containers (deploy section 11).

use ferric_hardware::generic::bootc::{self, Request};
use ferric_types::CommandError;
use serde_json::Value;

use crate::command::{Command, Context, Mode};

/// The command.
#[derive(Debug)]
pub struct ExecuteBootcInstall;

/// Its parameters. Printing them shows no secret.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Reference of the container image.
    pub image_source: Value,
    /// `bootc_authorized_keys`, `bootc_tpm2_luks`.
    #[serde(default)]
    pub instance_info: Option<Value>,
    /// base64 of what the registry is told.
    #[serde(default)]
    pub pull_secret: Option<ferric_types::Secret<Value>>,
    /// Config drive: base64 of gzip, or a URL.
    #[serde(default)]
    pub configdrive: Option<ferric_types::Secret<Value>>,
}

impl Command for ExecuteBootcInstall {
    const NAME: &'static str = "execute_bootc_install";
    const MODE: Mode = Mode::Async;
    type Params = Params;
    type Reply = String;

    fn run(context: &Context, params: Params) -> Result<String, CommandError> {
        let secret = params.pull_secret.as_ref().map(ferric_types::Secret::expose);
        let drive = params.configdrive.as_ref().map(ferric_types::Secret::expose);
        let request = Request::new(Some(&params.image_source), secret, params.instance_info.as_ref(), drive)?;
        context.app.with_step_context(&context.progress, |step| bootc::install(step, &request))
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
