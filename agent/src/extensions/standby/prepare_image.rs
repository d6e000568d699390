//! `standby.prepare_image`: write an image and its config drive (deploy section 2).

use ferric_hardware::generic::deploy;
use ferric_types::{CommandError, ImageInfo};
use serde::Deserialize;
use serde_json::Value;

use crate::command::{Command, Context, Mode};

/// The command.
#[derive(Debug)]
pub struct PrepareImage;

/// Parameters of `standby.prepare_image`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// What to write; checked before the command is accepted.
    pub image_info: Value,
    /// Config drive: base64 of gzip, or a URL.
    #[serde(default)]
    pub configdrive: Option<Value>,
}

impl Command for PrepareImage {
    const NAME: &'static str = "prepare_image";
    const MODE: Mode = Mode::Async;
    type Params = Params;
    type Reply = String;

    fn validate(context: &Context, params: &Params) -> Result<(), CommandError> {
        ImageInfo::parse(&params.image_info, context.app.settings().md5_enabled).map(drop)
    }

    fn run(context: &Context, params: Params) -> Result<String, CommandError> {
        context.app.with_step_context(&context.progress, |step| {
            deploy::prepare_image(step, &params.image_info, params.configdrive.as_ref())
        })
    }
}
