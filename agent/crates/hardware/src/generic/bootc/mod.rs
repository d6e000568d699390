//! `execute_bootc_install`: bootable containers (deploy section 11).
//!
//! Their installer is a program of the image, run by podman with all rights on this machine. So it is refused, at once and
//! before a disk is touched, unless the operator has built a ramdisk that carries podman, which none of Ferric's own profiles
//! does: whoever puts it there wants it. `disable_bootc_deploy` refuses it there as well.

mod files;

use std::time::Duration;

use ferric_disk::image::source::redacted;
use ferric_disk::wipe;
use ferric_sys::block_dev::BlockDev;
use ferric_sys::exec::{Cmd, ExecError, Output};
use ferric_types::error::{CommandError, ErrorClass};
use ferric_types::{Node, Secret};
use serde_json::{Map, Value};

use self::files::Files;
use super::deploy::{BUSY_PAUSE, Unfinished, failed, finish, hinted_node, is_nothing, payload};
use crate::context::StepContext;
use crate::probe::disks::Disk;
use crate::root_device;

/// Why the image is not installed.
const REFUSAL: &str = "bootable containers are not installed by this agent: their installer is a program of the image, \
                       which would be run with all rights, and this ramdisk has no podman to run it. Deploy a disk image \
                       (deploy_interface 'direct'), or boot a ramdisk that has podman";
const DISABLED: &str = "bootable containers are switched off by disable_bootc_deploy";

/// What the disk keeps beside the root file system, in MiB: boot partitions and the config drive.
const BESIDE_ROOT_MIB: u64 = 768;
/// Time for a container image to come, and for its installer.
const LIMIT: Duration = Duration::from_secs(4 * 3600);
/// Longest reference of a container image.
const MAX_REFERENCE: usize = 512;
/// End of a program's output that is shown, in characters.
const SHOWN: usize = 2000;

/// What is to be installed.
#[derive(Debug)]
pub struct Request<'a> {
    /// Reference of the container image, with or without `oci://`.
    pub image_source: &'a str,
    /// base64 of what a registry's entry of an authentication file has.
    pub pull_secret: Option<Secret<String>>,
    /// Public keys that may log in.
    pub authorized_keys: Option<&'a str>,
    /// Whether the root file system is encrypted by a key of the TPM.
    pub tpm2_luks: bool,
    /// Config drive, as for any image.
    pub configdrive: Option<&'a Value>,
}

impl<'a> Request<'a> {
    /// What a step or a command asks for.
    ///
    /// # Errors
    /// `InvalidCommandParamsError`.
    pub fn new(
        image_source: Option<&'a Value>,
        pull_secret: Option<&Value>,
        instance_info: Option<&'a Value>,
        configdrive: Option<&'a Value>,
    ) -> Result<Self, CommandError> {
        let image_source = image_source.and_then(Value::as_str).ok_or_else(|| invalid("image_source must be text"))?;
        let pull_secret = match pull_secret.filter(|value| !is_nothing(value)) {
            None => None,
            Some(Value::String(text)) => Some(Secret::new(text.clone())),
            Some(_) => return Err(invalid("the pull secret must be base64 text")),
        };
        let of_instance = |key: &str| instance_info?.get(key).filter(|value| !is_nothing(value));
        Ok(Self {
            image_source,
            pull_secret,
            authorized_keys: of_instance("bootc_authorized_keys").and_then(Value::as_str),
            tpm2_luks: of_instance("bootc_tpm2_luks").is_some_and(is_yes),
            configdrive: configdrive.filter(|drive| !is_nothing(drive)),
        })
    }
}

/// The step: its arguments are those of Ironic's deploy interface, the rest is in the node.
pub(super) fn step(context: &StepContext<'_>, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let instance_info = context.node.get("instance_info");
    let (image, secret) = (args.get("image_source"), args.get("oci_pull_secret"));
    let request = Request::new(image, secret, instance_info, args.get("configdrive"))?;
    let installed = install(context, &request)?;
    // The form of the reference agent's answer, as for other images.
    Ok(serde_json::json!({"result": format!("execute_bootc_install: {installed}")}))
}

/// Has the container image install itself on the root device. Returns the text that the conductor shows.
///
/// # Errors
/// `CommandExecutionError` where that is refused or the installer fails, `ImageDownloadError` when the image does not come
/// or has no installer, and those of the root device, the table and the config drive.
pub fn install(context: &StepContext<'_>, request: &Request<'_>) -> Result<String, CommandError> {
    let shown = redacted(request.image_source);
    if context.settings.disable_bootc_deploy {
        return Err(refused(&shown, DISABLED));
    }
    match context.machine.exec.run(&Cmd::new("podman").arg("--version")) {
        Ok(version) => tracing::info!(podman = version.text().trim(), image = shown, "installing a bootable container"),
        Err(ExecError::NotFound { .. }) => return Err(refused(&shown, REFUSAL)),
        Err(error) => return Err(failed(ErrorClass::CommandExecution, &error)),
    }
    let image = reference(request.image_source)?;
    let node = hinted_node(context);
    let node = node.as_ref().unwrap_or(context.node);
    let disk = root_device::select(context.registry, context.machine, context.settings, node)?;
    let drive = payload(context, request.configdrive, node)?;
    let files = Files::new(&context.machine.root)?;
    pull(context, request, image, &files)?;
    let command = installer(request, image, &disk, &files)?;
    context.progress.phase("bootc install", None);
    let path = context.machine.root.path(&disk.info.name);
    let open = || wipe::open_exclusive(&path, BUSY_PAUSE).map_err(|error| failed(error.class(), &error));
    // Nobody may have it while the installer writes; whether somebody has is seen before.
    drop(open()?);
    let outcome = run(context, &command);
    drop(files);
    let dev = open()?;
    complete(context, outcome, &dev, node, drive.as_ref())?;
    Ok(format!("Container image ({shown}) written to device {}", disk.info.name))
}

/// Checks what the installer has left, and adds the config drive. When something is wrong the disk does not boot.
fn complete(
    context: &StepContext<'_>,
    outcome: Result<(), CommandError>,
    dev: &BlockDev,
    node: &Node,
    drive: Option<&ferric_disk::configdrive::Payload<'_>>,
) -> Result<(), CommandError> {
    let unfinished = Unfinished(dev);
    outcome?;
    let root_uuid = finish(context, dev, node, drive)?;
    context.services.remember_partition_uuids(serde_json::json!({"root uuid": root_uuid}));
    std::mem::forget(unfinished);
    Ok(())
}

fn pull(context: &StepContext<'_>, request: &Request<'_>, image: &str, files: &Files) -> Result<(), CommandError> {
    context.progress.phase("pull the container image", None);
    let mut command = Cmd::new("podman").arg("pull").timeout(LIMIT);
    // Gone when this function ends, so that what is run from the image never sees it.
    let secret = request.pull_secret.as_ref().map(|secret| files.authentication(secret, image)).transpose()?;
    if let Some(secret) = &secret {
        command = command.arg(format!("--authfile={}", secret.path().display()));
    }
    let output = context.machine.exec.run(&command.args(["--retry-delay=5s", image]));
    let output = output.map_err(|error| failed(ErrorClass::ImageDownload, &error))?;
    if output.code == 0 {
        return Ok(());
    }
    let text = format!("Container image {image} could not be pulled: {}", ending(&output));
    Err(CommandError::new(ErrorClass::ImageDownload, text))
}

/// The command that has the image install itself.
fn installer(request: &Request<'_>, image: &str, disk: &Disk, files: &Files) -> Result<Cmd, CommandError> {
    let size_mib = disk.info.size >> 20;
    let root_mib = size_mib.checked_sub(BESIDE_ROOT_MIB).filter(|mib| *mib > 0).ok_or_else(|| {
        let text =
            format!("{} has {size_mib} MiB; a bootable container needs more than {BESIDE_ROOT_MIB}", disk.info.name);
        CommandError::new(ErrorClass::ImageWrite, text)
    })?;
    let mut command = Cmd::new("podman").timeout(LIMIT).args([
        "run",
        "--rm",
        "--privileged",
        "--pid=host",
        "--pull=never",
        "-v",
        "/var/lib/containers:/var/lib/containers",
        "-v",
        "/dev:/dev",
    ]);
    let keys = request.authorized_keys.map(|keys| files.authorized_keys(keys)).transpose()?;
    if let Some(keys) = &keys {
        command = command.arg("-v").arg(format!("{}:{}:ro", keys.display(), files::KEYS_INSIDE));
    }
    command = command.args([image, "bootc", "install", "to-disk", "--wipe", "--skip-fetch-check"]);
    command = command.arg(format!("--root-size={root_mib}M"));
    if request.tpm2_luks {
        command = command.arg("--block-setup=tpm2-luks");
    }
    if keys.is_some() {
        command = command.arg(format!("--root-ssh-authorized-keys={}", files::KEYS_INSIDE));
    }
    // The kernel of this ramdisk has no policy that the installer could label files by.
    Ok(command.args(["--disable-selinux", disk.info.name.as_str()]))
}

fn run(context: &StepContext<'_>, command: &Cmd) -> Result<(), CommandError> {
    let output = context.machine.exec.run(command).map_err(|error| failed(ErrorClass::CommandExecution, &error))?;
    if output.code == 0 {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let has_no_installer = ["executable file `bootc` not found", "\"bootc\": executable file not found"];
    let (class, what) = if has_no_installer.iter().any(|text| stderr.contains(text)) {
        (ErrorClass::ImageDownload, "the container image has no bootc in it and cannot be installed")
    } else {
        (ErrorClass::CommandExecution, "the installer of the container image failed")
    };
    Err(CommandError::new(class, format!("{what}: {}", ending(&output))))
}

/// The end of what a program said.
fn ending(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(SHOWN);
    let end: String = text.chars().skip(skipped).filter(|c| *c == '\n' || !c.is_control()).collect();
    format!("code {}: {end}", output.code)
}

/// A reference as podman takes it: no scheme, and nothing that it could take for an option.
fn reference(image_source: &str) -> Result<&str, CommandError> {
    let schemes = ["oci://", "docker://"];
    let bare = schemes.iter().find_map(|scheme| image_source.strip_prefix(scheme)).unwrap_or(image_source);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '/' | '@' | '[' | ']');
    let begins_well = bare.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
    if begins_well && bare.len() <= MAX_REFERENCE && bare.chars().all(is_allowed) && !bare.contains("://") {
        return Ok(bare);
    }
    Err(invalid(&format!("{:?} is no reference of a container image", redacted(image_source))))
}

/// What counts as yes for Ironic's own parser.
fn is_yes(value: &Value) -> bool {
    match value {
        Value::Bool(yes) => *yes,
        Value::String(text) => matches!(text.to_ascii_lowercase().as_str(), "true" | "1" | "t" | "y" | "yes" | "on"),
        Value::Number(number) => number.as_u64().is_some_and(|number| number != 0),
        _ => false,
    }
}

fn refused(image: &str, why: &str) -> CommandError {
    CommandError::new(ErrorClass::CommandExecution, format!("Container image {image} not written: {why}"))
}

fn invalid(text: &str) -> CommandError {
    CommandError::new(ErrorClass::InvalidCommandParams, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_references_reach_podman() {
        for (given, want) in [
            ("oci://registry.example:5000/os/bootc:1.2", Some("registry.example:5000/os/bootc:1.2")),
            ("docker://r/os@sha256:ab", Some("r/os@sha256:ab")),
            ("[2001:db8::1]:5000/os", Some("[2001:db8::1]:5000/os")),
            ("quay.io/os", Some("quay.io/os")),
            ("oci://--root=/x", None),
            ("-v", None),
            ("r/os;reboot", None),
            ("r/$(reboot)", None),
            ("r/os image", None),
            ("oci://user:s3cret@r/os?x=s3cret", None),
            ("file:///dev/zero", None),
            ("oci://oci://r/os", None),
            ("", None),
            ("oci://", None),
        ] {
            match reference(given) {
                Ok(found) => assert_eq!(Some(found), want, "{given}"),
                Err(error) => assert!(want.is_none() && !error.details.contains("s3cret"), "{given}: {error}"),
            }
        }
        assert!(reference(&"a".repeat(MAX_REFERENCE + 1)).is_err());
    }
}
