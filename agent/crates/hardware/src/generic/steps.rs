//! Step table of the generic manager (commands section 6), and the thin functions behind it.

use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value, json};

use super::{bootc, deploy, erase, inject, metadata, nvram, pstore, raid};
use crate::context::StepContext;
use crate::manager::{Priorities, Priority, Step};

/// Making and deleting arrays by the node's own configuration.
const RAID: Priorities =
    Priorities { clean: Some(Priority::Fixed(0)), service: Some(Priority::Fixed(0)), ..Priorities::NONE };

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
        name: "erase_devices_express",
        interface: "deploy",
        priorities: Priorities { clean: Some(Priority::Fixed(0)), ..Priorities::NONE },
        reboot_requested: false,
        abortable: Some(true),
        args: &[],
        run: |context, _| erase::erase_devices_express(context),
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
        name: "clean_uefi_nvram",
        interface: "deploy",
        priorities: Priorities {
            clean: Some(Priority::Fixed(0)),
            deploy: Some(Priority::Fixed(0)),
            ..Priorities::NONE
        },
        reboot_requested: false,
        abortable: Some(true),
        args: nvram::ARGS,
        run: nvram::clean_uefi_nvram,
    },
    Step {
        name: "delete_configuration",
        interface: "raid",
        priorities: RAID,
        reboot_requested: false,
        abortable: Some(true),
        args: &[],
        run: |context, _| raid::delete_configuration(context),
    },
    Step {
        name: "create_configuration",
        interface: "raid",
        priorities: RAID,
        reboot_requested: false,
        abortable: Some(true),
        args: &[],
        run: |context, _| raid::create_configuration(context),
    },
    Step {
        name: "apply_configuration",
        interface: "raid",
        priorities: Priorities {
            deploy: Some(Priority::Fixed(0)),
            service: Some(Priority::Fixed(0)),
            ..Priorities::NONE
        },
        reboot_requested: false,
        abortable: None,
        args: raid::ARGS,
        run: raid::apply_configuration,
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
    Step {
        name: "inject_files",
        interface: "deploy",
        priorities: Priorities {
            deploy: Some(Priority::Setting(|settings| settings.inject_files_priority)),
            service: Some(Priority::Setting(|settings| settings.inject_files_priority)),
            ..Priorities::NONE
        },
        reboot_requested: false,
        abortable: None,
        args: inject::ARGS,
        run: inject::inject_files,
    },
    Step {
        name: "execute_bootc_install",
        interface: "deploy",
        priorities: Priorities {
            deploy: Some(Priority::Fixed(0)),
            service: Some(Priority::Fixed(0)),
            ..Priorities::NONE
        },
        reboot_requested: false,
        abortable: None,
        args: &[],
        run: |_, args| Err(bootc::refuse(args.get("image_source").and_then(Value::as_str))),
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
        let clean = |step, priority, interface| json!({"step": step, "priority": priority, "interface": interface, "reboot_requested": false, "abortable": true});
        let nvram = |more: Value| {
            let mut step = json!({"step": "clean_uefi_nvram", "priority": 0, "interface": "deploy", "reboot_requested": false,
                "argsinfo": {"match_patterns": {"description": nvram::ARGS[0].description, "required": false}}});
            step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            step
        };
        let arrays = ["delete_configuration", "create_configuration"].map(|step| clean(step, 0, "raid"));
        let [delete, create] = &arrays;
        assert_eq!(
            announced(StepKind::Clean),
            json!([
                clean("erase_devices", 10, "deploy"),
                clean("erase_devices_metadata", 99, "deploy"),
                clean("erase_devices_express", 0, "deploy"),
                clean("erase_pstore", 0, "deploy"),
                nvram(json!({"abortable": true})),
                delete,
                create,
            ])
        );
        let inject = |priority| {
            let args: Vec<&str> = inject::ARGS.iter().map(|arg| arg.name).collect();
            assert_eq!(args, ["files", "verify_ca"]);
            let info = |arg: &crate::manager::ArgInfo| json!({"description": arg.description, "required": false});
            json!({"step": "inject_files", "priority": priority, "interface": "deploy", "reboot_requested": false,
                "argsinfo": {"files": info(&inject::ARGS[0]), "verify_ca": info(&inject::ARGS[1])}})
        };
        let plain = |step| json!({"step": step, "priority": 0, "interface": "deploy", "reboot_requested": false});
        let described = |args: &[crate::manager::ArgInfo]| {
            let info =
                |arg: &crate::manager::ArgInfo| json!({"description": arg.description, "required": arg.required});
            args.iter().map(|arg| (arg.name.to_owned(), info(arg))).collect::<Map<String, Value>>()
        };
        assert_eq!(
            raid::ARGS.iter().map(|arg| (arg.name, arg.required)).collect::<Vec<_>>(),
            [("raid_config", true), ("delete_existing", false)]
        );
        let apply = json!({"step": "apply_configuration", "priority": 0, "interface": "raid", "reboot_requested": false,
            "argsinfo": described(raid::ARGS)});
        let (write, bootc) = (plain("write_image"), plain("execute_bootc_install"));
        assert_eq!(
            announced(StepKind::Deploy),
            json!([plain("erase_devices_metadata"), nvram(json!({})), apply, write, inject(0), bootc])
        );
        assert_eq!(announced(StepKind::Service), json!([delete, create, apply, write, inject(0), bootc]));
        let settings = Settings { inject_files_priority: 55, ..Settings::default() };
        let step = STEPS.iter().find(|step| step.name == "inject_files").unwrap();
        for kind in [StepKind::Deploy, StepKind::Service] {
            assert_eq!(serde_json::to_value(step.info(kind, &settings)).unwrap(), inject(55));
        }
        assert!(step.info(StepKind::Clean, &settings).is_none());
    }
}
