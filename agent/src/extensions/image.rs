//! `image`: make a written image bootable.

use ferric_hardware::generic::deploy::{self, BootLoaderRequest};
use ferric_types::CommandError;
use serde::Deserialize;

use crate::command::{Command, CommandEntry, Context, Extension, Mode};

/// The extension.
pub const EXTENSION: Extension = Extension { name: "image", commands: &[CommandEntry::of::<InstallBootloader>()] };

struct InstallBootloader;

/// Parameters of `image.install_bootloader` (deploy section 9).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Identifier of the root file system or of the disk.
    root_uuid: Option<String>,
    /// Identifier of the EFI system partition of a partition image.
    #[serde(default)]
    efi_system_part_uuid: Option<String>,
    /// Identifier of the PReP partition.
    #[serde(default)]
    prep_boot_part_uuid: Option<String>,
    /// `uefi` or `bios`.
    #[serde(default)]
    target_boot_mode: Option<String>,
    /// Whether a failure is only a warning; the configuration decides when absent.
    #[serde(default)]
    ignore_bootloader_failure: Option<bool>,
}

impl Command for InstallBootloader {
    const NAME: &'static str = "install_bootloader";
    const MODE: Mode = Mode::Async;
    type Params = Params;
    type Reply = Option<String>;

    fn run(context: &Context, params: Params) -> Result<Option<String>, CommandError> {
        let request = BootLoaderRequest {
            root_uuid: params.root_uuid,
            efi_system_part_uuid: params.efi_system_part_uuid,
            prep_boot_part_uuid: params.prep_boot_part_uuid,
            target_boot_mode: params.target_boot_mode.unwrap_or_else(|| "bios".to_owned()),
            ignore_failure: params.ignore_bootloader_failure,
        };
        context.app.with_step_context(&context.progress, |step| deploy::install_bootloader(step, &request))
    }
}

#[cfg(test)]
mod tests {
    use crate::handover::Handover;
    use crate::testing::app;

    #[test]
    fn what_the_operator_says_about_boot_loaders_reaches_the_step() {
        for (cmdline, file, want) in [
            ("quiet", "", (false, false)),
            ("ipa-ignore-bootloader-failure=1", "", (true, false)),
            ("quiet", "ignore_bootloader_failure = true", (true, false)),
            ("quiet", "enable_bios_bootloader_install = true", (false, true)),
            // There is no kernel parameter for it.
            ("ipa-enable-bios-bootloader-install=1", "", (false, false)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("etc/ironic-python-agent.d");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::create_dir_all(dir.path().join("proc")).unwrap();
            std::fs::write(dir.path().join("proc/cmdline"), cmdline).unwrap();
            std::fs::write(folder.join("x.conf"), format!("[DEFAULT]\n{file}\n")).unwrap();
            let settings = app(dir.path(), Handover::create()).settings();
            let got = (settings.ignore_bootloader_failure, settings.enable_bios_bootloader_install);
            assert_eq!(got, want, "{cmdline} {file}");
        }
    }
}
