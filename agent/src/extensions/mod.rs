//! The extensions of the standard image: one file each, all in one `const` table.
//!
//! To add one, write a file with `pub const EXTENSION: Extension` and add it to [`EXTENSIONS`]; an image of your own
//! passes its own slice to [`crate::run`] instead.

pub mod clean;
pub mod deploy;
pub mod flow;
pub mod image;
pub mod log;
pub mod poll;
pub mod rescue;
pub mod service;
pub mod standby;
pub mod system;

use crate::command::Extension;

/// Extensions of the standard image (commands, first paragraph).
pub const EXTENSIONS: &[&Extension] = &[
    &standby::EXTENSION,
    &clean::EXTENSION,
    &deploy::EXTENSION,
    &service::EXTENSION,
    &image::EXTENSION,
    &log::EXTENSION,
    &poll::EXTENSION,
    &rescue::EXTENSION,
    &flow::EXTENSION,
    &system::EXTENSION,
];

/// Parameters of a command that takes none.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Mode, entry::check_table};

    /// Name and mode of every command; a change here is a change of the wire protocol.
    const COMMANDS: &[(&str, Mode)] = &[
        ("clean.execute_clean_step", Mode::Async),
        ("clean.get_clean_steps", Mode::Sync),
        ("deploy.execute_deploy_step", Mode::Async),
        ("deploy.get_deploy_steps", Mode::Sync),
        ("deploy.prepare_image", Mode::Async),
        ("flow.start_flow", Mode::Async),
        ("image.install_bootloader", Mode::Async),
        ("log.collect_system_logs", Mode::Sync),
        ("poll.get_hardware_info", Mode::Sync),
        ("poll.set_node_info", Mode::Sync),
        ("rescue.finalize_rescue", Mode::Sync),
        ("service.execute_service_step", Mode::Async),
        ("service.get_service_steps", Mode::Sync),
        ("standby.download_image", Mode::Async),
        ("standby.execute_bootc_install", Mode::Async),
        ("standby.get_partition_uuids", Mode::Sync),
        ("standby.power_off", Mode::Async),
        ("standby.prepare_image", Mode::Async),
        ("standby.run_image", Mode::Async),
        ("standby.sync", Mode::Sync),
        ("system.lockdown", Mode::Sync),
    ];

    #[test]
    fn the_table_is_exactly_the_protocol() {
        let mut found: Vec<(String, Mode)> = EXTENSIONS
            .iter()
            .flat_map(|extension| {
                extension.commands.iter().map(|command| (format!("{}.{}", extension.name, command.name), command.mode))
            })
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let found: Vec<(&str, Mode)> = found.iter().map(|(name, mode)| (name.as_str(), *mode)).collect();
        assert_eq!(found, COMMANDS);
        assert_eq!(check_table(EXTENSIONS), Ok(()));
    }
}
