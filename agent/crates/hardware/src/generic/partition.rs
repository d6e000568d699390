//! Images of one file system: partitions around them, and what they boot by (deploy sections 6 and 9.3).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferric_disk::boot::assets::{self, AssetsError};
use ferric_disk::configdrive::{self, Payload};
use ferric_disk::image::{ImageError, ImageOptions, Place, deploy_to};
use ferric_disk::partition::make::{self, Content};
use ferric_disk::partition::{Layout, Role, Wanted, identity};
use ferric_disk::table::{self, TableKind};
use ferric_disk::{boot::efi, wipe};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::{Cmd, ExecError, exec};
use ferric_types::error::{CommandError, ErrorClass, chain};
use ferric_types::{ImageInfo, Node};
use serde_json::{Value, json};

use super::deploy::{BUSY_PAUSE, failed};
use crate::context::StepContext;
use crate::probe::disks::Disk;
use crate::probe::{cpu, system};

/// What is zeroed at each end of a disk, or at the beginning of a partition, when a deployment fails.
const CLEARED_BYTES: u64 = 1 << 20;
/// How often and how long is waited for the node of a new partition.
const NODE_TRIES: u32 = 20;
const NODE_PAUSE: Duration = Duration::from_millis(250);
/// Making a file system on a large disk takes its time, above all without discard.
const MKFS_LIMIT: Duration = Duration::from_secs(1800);
/// File system of the scratch space when Ironic does not say.
const DEFAULT_FORMAT: &str = "ext4";

/// Sizes of a partition image's partitions, as the conductor sends them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sizes {
    root_mib: u64,
    swap_mib: u64,
    ephemeral_mib: u64,
    ephemeral_format: String,
    preserve_ephemeral: bool,
}

impl Sizes {
    /// # Errors
    /// `InvalidCommandParamsError` for what is no size, or no name of a file system.
    pub(super) fn parse(image_info: &Value) -> Result<Self, CommandError> {
        let invalid = |text: String| CommandError::new(ErrorClass::InvalidCommandParams, text);
        let size = |key: &str| match image_info.get(key) {
            None | Some(Value::Null) => Ok(0),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(0),
            Some(value) => value
                .as_u64()
                .or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()))
                .ok_or_else(|| invalid(format!("'{key}' of a partition image must be a size in MiB, not {value}"))),
        };
        let root_mib = size("root_mb")?;
        if root_mib == 0 {
            return Err(invalid("a partition image needs 'root_mb', the size of its partition in MiB".to_owned()));
        }
        let ephemeral_format = image_info.get("ephemeral_format").and_then(Value::as_str).unwrap_or_default();
        // It becomes part of the name of a program.
        if !ephemeral_format.bytes().all(|byte| byte.is_ascii_alphanumeric()) || ephemeral_format.len() > 16 {
            return Err(invalid(format!("'ephemeral_format' is no name of a file system: {ephemeral_format:?}")));
        }
        let preserve_ephemeral = match image_info.get("preserve_ephemeral") {
            Some(Value::Bool(preserve)) => *preserve,
            Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
            _ => false,
        };
        Ok(Self {
            root_mib,
            swap_mib: size("swap_mb")?,
            ephemeral_mib: size("ephemeral_mb")?,
            ephemeral_format: Some(ephemeral_format)
                .filter(|format| !format.is_empty())
                .unwrap_or(DEFAULT_FORMAT)
                .to_owned(),
            preserve_ephemeral,
        })
    }

    /// The program that makes the scratch space's file system; `None` when none is to be made.
    fn mkfs(&self) -> Option<String> {
        let wanted = self.ephemeral_mib > 0 && !self.preserve_ephemeral;
        wanted.then(|| format!("mkfs.{}", self.ephemeral_format))
    }
}

/// How a node boots: `true` for UEFI (hardware section 10).
pub(super) fn boots_by_uefi(node: &Node, firmware_is_uefi: bool) -> bool {
    if node.capability("secure_boot").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return true;
    }
    let text = |object| node.lookup(object, "deploy_boot_mode").and_then(Value::as_str).map(str::to_owned);
    let mode = text("instance_info")
        .or_else(|| node.capability("boot_mode"))
        .or_else(|| text("driver_internal_info"))
        .unwrap_or_default()
        .to_lowercase();
    match mode.as_str() {
        "uefi" => true,
        "bios" => false,
        _ => firmware_is_uefi,
    }
}

/// Kind of the partition table for a node.
pub(super) fn label(node: &Node, uefi: bool) -> TableKind {
    let asked = node.capability("disk_label").is_some_and(|label| label.eq_ignore_ascii_case("gpt"));
    if uefi || asked { TableKind::Gpt } else { TableKind::Mbr }
}

/// Where an image goes and what goes with it.
pub(super) struct Target<'a> {
    pub(super) disk: &'a Disk,
    pub(super) node: &'a Node,
    pub(super) payload: Option<&'a Payload<'a>>,
}

/// Makes the partitions, writes the image into the root partition, and remembers the UUIDs. Returns the text that the
/// conductor shows. What can be refused is refused before the disk is touched.
pub(super) fn write(
    context: &StepContext<'_>,
    info: &ImageInfo,
    sizes: &Sizes,
    options: &ImageOptions,
    target: &Target<'_>,
) -> Result<String, CommandError> {
    let name = &target.disk.info.name;
    let path = context.machine.root.path(name);
    check_mkfs(context, sizes)?;
    let dev = wipe::open_exclusive(&path, BUSY_PAUSE).map_err(|error| failed(error.class(), &error))?;
    let layout = plan(context, sizes, target, &dev)?;
    let root = layout.get(Role::Root).ok_or_else(|| no_partition(&path))?;
    let window = dev
        .part(table::partition_path(&path, root.number), root.start_bytes, root.size_bytes)
        .map_err(|error| failed(ErrorClass::BlockDevice, &error))?;
    let unfinished =
        Unfinished { path: &path, layout: &layout, keep: sizes.preserve_ephemeral, begun: AtomicBool::new(false) };
    let content = Content {
        config_drive: target.payload,
        node: target.node.uuid().unwrap_or_default(),
        rebuild: context.settings.config_drive_rebuild,
        keep: sizes.preserve_ephemeral,
    };
    let make = || {
        // A further try of the download finds the partitions made.
        if unfinished.begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        context.progress.phase("partition", None);
        tracing::info!(disk = name, ?layout, "making partitions");
        make::make(&dev, &layout, &content).map_err(|error| failed(error.class(), &error))
    };
    let report = deploy_to(info, context.services.fetch(), &window, Place::Partition(&make), options, context.progress)
        .map_err(|error| image_failed(&error, sizes))?;
    tracing::info!(image = info.id(), disk = name, ?report, "image written");
    drop(window);
    show_partitions(&dev, &layout)?;
    let uuids = uuids(&dev, &layout)?;
    // Its program wants the partition for itself.
    drop(dev);
    make_ephemeral(context, sizes, &layout, &path)?;
    let text = result_text(info, name, &uuids);
    context.services.remember_partition_uuids(uuids);
    context.services.image_written(info.id());
    std::mem::forget(unfinished);
    Ok(text)
}

fn result_text(info: &ImageInfo, disk: &str, uuids: &Value) -> String {
    let root = uuids["root uuid"].as_str().unwrap_or_default();
    let text = format!("image ({}) written to device {disk} root_uuid={root}", info.id());
    match uuids["efi system partition uuid"].as_str().filter(|uuid| !uuid.is_empty()) {
        Some(esp) if info.deploy_boot_mode.as_deref() == Some("uefi") => {
            format!("{text} efi_system_partition_uuid={esp}")
        }
        _ => text,
    }
}

fn plan(context: &StepContext<'_>, sizes: &Sizes, target: &Target<'_>, dev: &BlockDev) -> Result<Layout, CommandError> {
    let root = &context.machine.root;
    let uefi = boots_by_uefi(target.node, system::is_uefi(root));
    let (sector, rebuild) = (dev.logical_sector(), context.settings.config_drive_rebuild);
    let wanted = Wanted {
        kind: label(target.node, uefi),
        uefi,
        power: cpu::architecture(root).starts_with("ppc64"),
        esp_mib: u64::from(context.settings.efi_system_partition_mib),
        bios_boot_mib: u64::from(context.settings.bios_boot_partition_mib),
        ephemeral_mib: sizes.ephemeral_mib,
        swap_mib: sizes.swap_mib,
        config_drive_bytes: target.payload.map_or(0, |payload| configdrive::room_bytes(payload, sector, rebuild)),
        root_mib: sizes.root_mib,
    };
    let layout_failed = |error: &dyn std::error::Error, class| failed(class, error);
    let layout = Layout::plan(&wanted, dev.path(), dev.size_bytes(), sector)
        .map_err(|error| layout_failed(&error, error.class()))?;
    if sizes.preserve_ephemeral {
        let table = table::read(dev).map_err(|error| failed(error.class(), &error))?;
        layout.check_same(dev.path(), table.as_ref()).map_err(|error| layout_failed(&error, error.class()))?;
    }
    Ok(layout)
}

/// The size of an image of a partition has a text that operators know (deploy section 5).
fn image_failed(error: &ImageError, sizes: &Sizes) -> CommandError {
    match error {
        ImageError::TooLarge { image_bytes, .. } => CommandError::new(
            ErrorClass::InvalidCommandParams,
            format!(
                "Root partition is too small for requested image. Image virtual size: {} MB, Root size: {} MB",
                image_bytes.div_ceil(1 << 20),
                sizes.root_mib
            ),
        ),
        error => failed(error.class(), error),
    }
}

/// Has the kernel take over the table, so that partitions have nodes.
fn show_partitions(dev: &BlockDev, layout: &Layout) -> Result<(), CommandError> {
    table::reread(dev).map_err(|error| failed(error.class(), &error))?;
    if !dev.is_block() {
        return Ok(());
    }
    for partition in &layout.partitions {
        let node = table::partition_path(dev.path(), partition.number);
        let mut tries = 0;
        while !node.exists() {
            tries += 1;
            if tries >= NODE_TRIES {
                let what = match partition.role {
                    Role::Root => "Root".to_owned(),
                    role => format!("'{role:?}'"),
                };
                let text = format!("{what} device '{}' not found", node.display());
                return Err(CommandError::new(ErrorClass::Deployment, text));
            }
            std::thread::sleep(NODE_PAUSE);
        }
    }
    Ok(())
}

/// Answer of `standby.get_partition_uuids`.
fn uuids(dev: &BlockDev, layout: &Layout) -> Result<Value, CommandError> {
    let table = table::validate(dev).map_err(|error| failed(error.class(), &error))?;
    let uuid = |role| {
        let number = layout.get(role)?.number;
        let partition = table.partitions.iter().find(|partition| partition.number == number)?;
        Some(identity::uuid_of(dev, partition))
    };
    Ok(json!({
        "root uuid": uuid(Role::Root),
        "efi system partition uuid": uuid(Role::Esp),
        "PReP Boot partition uuid": uuid(Role::Prep),
    }))
}

/// Makes sure that the scratch space's file system can be made, before anything is written.
fn check_mkfs(context: &StepContext<'_>, sizes: &Sizes) -> Result<(), CommandError> {
    let Some(program) = sizes.mkfs() else { return Ok(()) };
    match context.machine.exec.run(&Cmd::new(&program).arg("-V")) {
        Err(ExecError::NotFound { .. }) => Err(CommandError::new(
            ErrorClass::FileSystemNotSupported,
            format!(
                "the ephemeral partition cannot be made: {program} is not in this ramdisk. Use a profile that has it, or a \
                 flavor without ephemeral disk"
            ),
        )),
        // What it says of itself, and how it ends, differs from one to the next.
        _ => Ok(()),
    }
}

fn make_ephemeral(context: &StepContext<'_>, sizes: &Sizes, layout: &Layout, disk: &Path) -> Result<(), CommandError> {
    let (Some(program), Some(partition)) = (sizes.mkfs(), layout.get(Role::Ephemeral)) else { return Ok(()) };
    context.progress.phase("ephemeral file system", None);
    let node = table::partition_path(disk, partition.number);
    let (force, label): (&[&str], _) = match sizes.ephemeral_format.as_str() {
        "ext2" | "ext3" | "ext4" => (&["-F"], "-L"),
        "xfs" | "btrfs" => (&["-f"], "-L"),
        "vfat" | "msdos" | "fat" => (&[], "-n"),
        _ => (&[], "-L"),
    };
    let cmd = Cmd::new(program).args(force.iter().copied()).args([label, "ephemeral0"]).arg(node.to_string_lossy());
    exec::check(&*context.machine.exec, &cmd.timeout(MKFS_LIMIT))
        .map(drop)
        .map_err(|error| failed(ErrorClass::Deployment, &error))
}

/// A disk that is not finished. When dropped after something was written, whatever the disk would boot by is taken away:
/// the table, or where data is to be kept, the beginning of what was written.
struct Unfinished<'a> {
    path: &'a Path,
    layout: &'a Layout,
    keep: bool,
    begun: AtomicBool,
}

impl Unfinished<'_> {
    fn clear(&self) -> Result<(), ferric_sys::block_dev::BlockDevError> {
        let dev = BlockDev::open(self.path, Access::Write)?;
        let size = dev.size_bytes();
        let places: Vec<u64> = if self.keep {
            let role = |role| self.layout.get(role).map(|partition| partition.start_bytes);
            [Role::Root, Role::Esp].into_iter().filter_map(role).collect()
        } else {
            vec![0, size.saturating_sub(CLEARED_BYTES)]
        };
        for place in places {
            dev.zero_range(place, CLEARED_BYTES.min(size - place))?;
        }
        dev.flush()
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.begun.load(Ordering::Relaxed)
            && let Err(error) = self.clear()
        {
            tracing::error!(reason = chain(&error), disk = %self.path.display(), "the disk may boot a half-made system");
        }
    }
}

fn no_partition(path: &Path) -> CommandError {
    CommandError::new(ErrorClass::Deployment, format!("no root partition was planned for {}", path.display()))
}

/// Copies the boot loader that an image brings in its root file system to the EFI system partition; `false` when the
/// UUID names no partition of the disk, as is so with images of whole disks.
pub(super) fn copy_boot_loader(context: &StepContext<'_>, path: &Path, root_uuid: &str) -> Result<bool, CommandError> {
    let dev = BlockDev::open(path, Access::Write).map_err(|error| failed(ErrorClass::BlockDevice, &error))?;
    let table = table::validate(&dev).map_err(|error| failed(error.class(), &error))?;
    let Some(root) = identity::find(&dev, &table, root_uuid) else { return Ok(false) };
    let Some(esp) = efi::find_esp(&table) else { return Ok(false) };
    if root.number == esp.number {
        return Ok(false);
    }
    context.progress.phase("copy the boot loader", None);
    let mount_point: PathBuf = context.machine.root.path("run/ferric/image");
    let failed_assets = |error: AssetsError| failed(error.class(), &error);
    let copied = assets::install(&dev, root, esp, &mount_point).map_err(failed_assets)?;
    tracing::info!(disk = %path.display(), ?copied, "boot loader of the image copied to its EFI system partition");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn boot_mode_and_label_follow_the_node_before_the_firmware() {
        let secure = json!({"properties": {"capabilities": "secure_boot:true,boot_mode:bios"}});
        for (value, firmware, want) in [
            (json!({}), true, (true, TableKind::Gpt)),
            (json!({}), false, (false, TableKind::Mbr)),
            (json!({"properties": {"capabilities": "disk_label:gpt"}}), false, (false, TableKind::Gpt)),
            (json!({"properties": {"capabilities": "boot_mode:uefi"}}), false, (true, TableKind::Gpt)),
            (json!({"properties": {"capabilities": "boot_mode:bios"}}), true, (false, TableKind::Mbr)),
            (json!({"properties": {"capabilities": "boot_mode:any"}}), true, (true, TableKind::Gpt)),
            (json!({"driver_internal_info": {"deploy_boot_mode": "uefi"}}), false, (true, TableKind::Gpt)),
            (secure, false, (true, TableKind::Gpt)),
            (
                json!({"instance_info": {"deploy_boot_mode": "bios"}, "properties": {"capabilities": "boot_mode:uefi"}}),
                true,
                (false, TableKind::Mbr),
            ),
        ] {
            let node = node(value.clone());
            let uefi = boots_by_uefi(&node, firmware);
            assert_eq!((uefi, label(&node, uefi)), want, "{value} {firmware}");
        }
    }

    #[test]
    fn sizes_are_numbers_or_text_and_nothing_else() {
        let sizes = Sizes::parse(&json!({"root_mb": "1024", "swap_mb": 5, "ephemeral_mb": null})).unwrap();
        assert_eq!((sizes.root_mib, sizes.swap_mib, sizes.ephemeral_mib, sizes.mkfs()), (1024, 5, 0, None));
        let sizes = Sizes::parse(&json!({"root_mb": 1, "ephemeral_mb": 2, "ephemeral_format": null})).unwrap();
        assert_eq!(sizes.mkfs().as_deref(), Some("mkfs.ext4"));
        let kept = json!({"root_mb": 1, "ephemeral_mb": 2, "preserve_ephemeral": "True", "ephemeral_format": "xfs"});
        assert_eq!(Sizes::parse(&kept).unwrap().mkfs(), None);
        for (value, want) in [
            (json!({}), "needs 'root_mb'"),
            (json!({"root_mb": 0}), "needs 'root_mb'"),
            (json!({"root_mb": -1}), "'root_mb' of a partition image must be a size in MiB, not -1"),
            (json!({"root_mb": 1, "swap_mb": "x"}), "'swap_mb'"),
            (json!({"root_mb": 1, "ephemeral_mb": [1]}), "'ephemeral_mb'"),
            (json!({"root_mb": 1, "ephemeral_format": "ext4 /dev/sda"}), "no name of a file system"),
            (json!({"root_mb": 1, "ephemeral_format": "../x"}), "no name of a file system"),
        ] {
            let error = Sizes::parse(&value).unwrap_err();
            assert_eq!(error.class, ErrorClass::InvalidCommandParams);
            assert!(error.details.contains(want), "{value}: {error}");
        }
    }
}
