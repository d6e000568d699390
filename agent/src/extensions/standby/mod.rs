//! `standby`: write an image, flush it, and hand the machine over.

pub mod bootc;
pub mod download_image;
pub mod power;
pub mod prepare_image;
pub mod sync;
pub mod uuids;

use crate::command::{CommandEntry, Extension};

/// The extension.
pub const EXTENSION: Extension = Extension {
    name: "standby",
    commands: &[
        CommandEntry::of::<prepare_image::PrepareImage>(),
        CommandEntry::of::<download_image::DownloadImage>(),
        CommandEntry::of::<bootc::ExecuteBootcInstall>(),
        CommandEntry::of::<power::RunImage>(),
        CommandEntry::of::<power::PowerOff>(),
        CommandEntry::of::<sync::Sync>(),
        CommandEntry::of::<uuids::GetPartitionUuids>(),
    ],
};
