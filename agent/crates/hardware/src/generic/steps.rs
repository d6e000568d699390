//! Step table of the generic manager (commands section 6), and the thin functions behind it.

use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value, json};

use super::{bootc, deploy, erase, inject, metadata, nvram, pstore, raid};
use crate::context::StepContext;
use crate::manager::{Priorities, Priority, Step, StepFn};

const ZERO: Option<Priority> = Some(Priority::Fixed(0));
/// Putting something on a disk that the node is to boot.
const DEPLOY: Priorities = Priorities { deploy: ZERO, service: ZERO, ..Priorities::NONE };
/// Making and deleting arrays by the node's own configuration.
const RAID: Priorities = Priorities { clean: ZERO, service: ZERO, ..Priorities::NONE };
/// Files, when the operator has said so.
const INJECT: Option<Priority> = Some(Priority::Setting(|settings| settings.inject_files_priority));

/// In the list of cleaning.
const fn clean(priority: u32) -> Priorities {
    Priorities { clean: Some(Priority::Fixed(priority)), ..Priorities::NONE }
}

/// A step of cleaning, which may be aborted.
const fn cleaning(name: &'static str, priorities: Priorities, run: StepFn) -> Step {
    Step { name, interface: "deploy", priorities, reboot_requested: false, abortable: Some(true), args: &[], run }
}

/// A step of deploying and servicing. What the conductor itself gives to it needs no announcement.
const fn deploying(name: &'static str, run: StepFn) -> Step {
    Step { abortable: None, ..cleaning(name, DEPLOY, run) }
}

/// Steps in the order in which they are announced.
pub(super) const STEPS: &[Step] = &[
    cleaning("erase_devices", clean(10), |context, _| erase::erase_devices(context)),
    cleaning("erase_devices_metadata", Priorities { deploy: ZERO, ..clean(99) }, |context, _| {
        metadata::erase_devices_metadata(context)
    }),
    cleaning("erase_devices_express", clean(0), |context, _| erase::erase_devices_express(context)),
    cleaning("erase_pstore", clean(0), |context, _| pstore::erase_pstore(context)),
    Step {
        args: nvram::ARGS,
        ..cleaning("clean_uefi_nvram", Priorities { deploy: ZERO, ..clean(0) }, nvram::clean_uefi_nvram)
    },
    Step {
        interface: "raid",
        ..cleaning("delete_configuration", RAID, |context, _| raid::delete_configuration(context))
    },
    Step {
        interface: "raid",
        ..cleaning("create_configuration", RAID, |context, _| raid::create_configuration(context))
    },
    Step { interface: "raid", args: raid::ARGS, ..deploying("apply_configuration", raid::apply_configuration) },
    deploying("write_image", write_image),
    Step {
        priorities: Priorities { deploy: INJECT, service: INJECT, ..Priorities::NONE },
        args: inject::ARGS,
        ..deploying("inject_files", inject::inject_files)
    },
    deploying("execute_bootc_install", bootc::step),
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
