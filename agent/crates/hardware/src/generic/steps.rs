//! Step table of the generic manager (commands section 6), and the thin functions behind it.

use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value, json};

use super::{deploy, erase, metadata, pstore};
use crate::context::StepContext;
use crate::manager::{Priorities, Priority, Step};

/// Steps in the order in which they are announced.
pub(super) const STEPS: &[Step] = &[
    Step {
        name: "erase_devices",
        interface: "deploy",
        priorities: Priorities { clean: Some(Priority::Fixed(10)), ..Priorities::NONE },
        reboot_requested: false,
        abortable: Some(true),
        args: &[],
        run: |context, _| erase::erase_devices(context),
    },
    Step {
        name: "erase_devices_metadata",
        interface: "deploy",
        priorities: Priorities {
            clean: Some(Priority::Fixed(99)),
            deploy: Some(Priority::Fixed(0)),
            ..Priorities::NONE
        },
        reboot_requested: false,
        abortable: Some(true),
        args: &[],
        run: |context, _| metadata::erase_devices_metadata(context),
    },
    Step {
        name: "erase_pstore",
        interface: "deploy",
        priorities: Priorities { clean: Some(Priority::Fixed(0)), ..Priorities::NONE },
        reboot_requested: false,
        abortable: Some(true),
        args: &[],
        run: |context, _| pstore::erase_pstore(context),
    },
    Step {
        name: "write_image",
        interface: "deploy",
        priorities: Priorities {
            deploy: Some(Priority::Fixed(0)),
            service: Some(Priority::Fixed(0)),
            ..Priorities::NONE
        },
        reboot_requested: false,
        abortable: None,
        // Given by the conductor itself, which needs no announcement.
        args: &[],
        run: write_image,
    },
];

fn write_image(context: &StepContext<'_>, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let image_info = args.get("image_info").ok_or_else(|| {
        CommandError::new(ErrorClass::InvalidCommandParams, "write_image needs the argument image_info")
    })?;
    let written = deploy::prepare_image(context, image_info, args.get("configdrive"))?;
    // The reference agent runs its own command for this, whose answer has this form.
    Ok(json!({"result": format!("prepare_image: {written}")}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use ferric_types::step::StepKind;

    fn announced(kind: StepKind) -> Value {
        let settings = Settings::default();
        serde_json::to_value(STEPS.iter().filter_map(|step| step.info(kind, &settings)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn steps_are_announced_as_the_reference_agent_does() {
        assert_eq!(
            announced(StepKind::Clean),
            json!([
                {"step": "erase_devices", "priority": 10, "interface": "deploy", "reboot_requested": false, "abortable": true},
                {"step": "erase_devices_metadata", "priority": 99, "interface": "deploy", "reboot_requested": false, "abortable": true},
                {"step": "erase_pstore", "priority": 0, "interface": "deploy", "reboot_requested": false, "abortable": true},
            ])
        );
        assert_eq!(
            announced(StepKind::Deploy),
            json!([
                {"step": "erase_devices_metadata", "priority": 0, "interface": "deploy", "reboot_requested": false},
                {"step": "write_image", "priority": 0, "interface": "deploy", "reboot_requested": false},
            ])
        );
        assert_eq!(
            announced(StepKind::Service),
            json!([{"step": "write_image", "priority": 0, "interface": "deploy", "reboot_requested": false}])
        );
    }
}
