//! `standby.download_image`: fetch and verify an image without writing it, to find out before a deployment whether
//! the image server serves what the checksum says.

use std::io::Read;
use std::time::Instant;

use ferric_disk::image::checksum::{self, Checksum};
use ferric_disk::image::source::{Fetch, FetchRequest, SourceError, redacted};
use ferric_hardware::generic::deploy;
use ferric_types::{CommandError, ErrorClass, ImageInfo, Progress};
use serde::Deserialize;
use serde_json::Value;

use crate::command::{Command, Context, Mode};

/// The command.
#[derive(Debug)]
pub struct DownloadImage;

/// Parameters of `standby.download_image`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// What to fetch; checked before the command is accepted.
    pub image_info: Value,
}

impl Command for DownloadImage {
    const NAME: &'static str = "download_image";
    const MODE: Mode = Mode::Async;
    type Params = Params;
    type Reply = String;

    fn validate(context: &Context, params: &Params) -> Result<(), CommandError> {
        ImageInfo::parse(&params.image_info, context.app.settings().md5_enabled).map(drop)
    }

    fn run(context: &Context, params: Params) -> Result<String, CommandError> {
        let settings = context.app.settings();
        let md5_enabled = settings.md5_enabled;
        let info = ImageInfo::parse(&params.image_info, md5_enabled)?;
        let fetch = context.app.services().fetch();
        context.progress.phase("opening the image", None);
        let mut requests = deploy::requests(&info, &settings)?;
        let began = Instant::now();
        for request in &mut requests {
            request.progress = context.progress.clone();
            request.since = Some(began);
        }
        let template = requests.first().cloned().unwrap_or_default();
        let checksum = checksum::resolve(&info, fetch, &template, md5_enabled)
            .map_err(|error| CommandError::from_chain(error.class(), &error))?;
        let mut failures = Vec::new();
        for request in requests {
            match fetch_one(fetch, &request, &checksum, &context.progress) {
                Ok(bytes) => return Ok(format!("image ({}) of {bytes} bytes matches its checksum", info.id())),
                Err(error) => failures.push(error),
            }
        }
        let class = failures.last().map_or(ErrorClass::ImageDownload, |error| error.class);
        let texts: Vec<String> = failures.into_iter().map(|error| error.details).collect();
        Err(CommandError::new(class, format!("Download of image {} failed: {}", info.id(), texts.join("; "))))
    }
}

/// Reads one source to its end and checks it. Returns the bytes read.
fn fetch_one(
    fetch: &dyn Fetch,
    request: &FetchRequest,
    checksum: &Checksum,
    progress: &Progress,
) -> Result<u64, CommandError> {
    let failed = |error: SourceError| CommandError::from_chain(error.class(), &error);
    let mut source = fetch.open(request).map_err(failed)?;
    progress.phase("download", source.size_bytes());
    let mut stream = source.stream(0).map_err(failed)?;
    let mut hasher = checksum.algorithm.hasher();
    let mut buffer = vec![0_u8; 256 * 1024];
    let mut total = 0;
    loop {
        let read = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) => {
                return Err(match SourceError::from_io(error) {
                    Ok(error) => failed(error),
                    Err(error) => CommandError::from_chain(ErrorClass::ImageDownload, &error),
                });
            }
        };
        hasher.update(buffer.get(..read).unwrap_or_default());
        let bytes = u64::try_from(read).unwrap_or(u64::MAX);
        progress.add(bytes);
        total += bytes;
    }
    let found = hasher.finish();
    if checksum.matches(&found) {
        return Ok(total);
    }
    Err(CommandError::new(
        ErrorClass::ImageChecksum,
        format!(
            "Image failed to verify against checksum. location: {}; image checksum: {}; verification checksum: {found}",
            redacted(&request.url),
            checksum.hex
        ),
    ))
}
