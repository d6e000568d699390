//! `execute_bootc_install`: bootable containers (deploy section 11), which this agent does not install.
//!
//! Their installer is a program of the image, run with all rights and with podman around it. This ramdisk has no podman, and
//! nothing of an image is run here. That is said at once, before a disk is touched.

use ferric_disk::image::source::redacted;
use ferric_types::error::{CommandError, ErrorClass};

/// Why the image is not installed.
const REFUSAL: &str = "bootable containers are not installed by this agent: their installer is a program of the image, \
                       which would be run with all rights, and this ramdisk has no podman to run it. Deploy a disk image \
                       (deploy_interface 'direct'), or boot a ramdisk that has podman";

/// Refuses an image.
pub fn refuse(image: Option<&str>) -> CommandError {
    let text = match image {
        Some(image) => format!("Container image {} not written: {REFUSAL}", redacted(image)),
        None => REFUSAL.to_owned(),
    };
    CommandError::new(ErrorClass::CommandExecution, text)
}
