//! Writing an image and making it bootable (deploy sections 2, 7 and 9).

use std::path::Path;
use std::time::Duration;

use ferric_disk::boot::efi::{self, Firmware, Installed};
use ferric_disk::boot::{arch, efivars::EfiVars, head};
use ferric_disk::configdrive::Payload;
use ferric_disk::image::source::FetchRequest;
use ferric_disk::image::{Format, ImageOptions, Place, deploy, deploy_to};
use ferric_disk::table::{self, TableKind};
use ferric_disk::{configdrive, wipe};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::{Root, attr};
use ferric_types::error::{CommandError, ErrorClass, chain};
use ferric_types::{ImageInfo, Node};
use serde_json::{Value, json};

use super::grub;
use super::partition::{self, Sizes};
use super::raid;
use crate::context::StepContext;
use crate::probe::disks::Disk;
use crate::probe::{cpu, memory, system};
use crate::root_device;
use crate::settings::Settings;

/// Pause between two tries to get the disk for oneself.
pub(super) const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// What is zeroed when a deployment fails after the image was written: boot code and partition table.
const HEAD_BYTES: u64 = 1 << 20;

/// Writes the image that `image_info` describes, and the config drive, to the root device. Returns the text that the
/// conductor shows.
///
/// Whatever can be refused is refused before the disk is touched: the parameters, the root device, the config drive,
/// the image's header and size.
///
/// # Errors
/// Of any class of the image, disk and device errors; each names the image, the disk or the URL.
pub fn prepare_image(
    context: &StepContext<'_>,
    image_info: &Value,
    configdrive: Option<&Value>,
) -> Result<String, CommandError> {
    let info = ImageInfo::parse(image_info, context.settings.md5_enabled)?;
    let sizes = info.is_partition_image().then(|| Sizes::parse(image_info)).transpose()?;
    let options = image_options(context.settings, &context.machine.root)?;
    let node = hinted_node(context);
    let node = node.as_ref().unwrap_or(context.node);
    let disk = root_device::select(context.registry, context.machine, context.settings, node)?;
    let given = [configdrive, image_info.get("configdrive")].into_iter().flatten().find(|drive| !is_nothing(drive));
    let payload = payload(context, given, node)?;
    if let Some(sizes) = sizes {
        let target = partition::Target { disk: &disk, node, payload: payload.as_ref() };
        return partition::write(context, &info, &sizes, &options, &target);
    }
    let path = context.machine.root.path(&disk.info.name);
    let dev = wipe::open_exclusive(&path, BUSY_PAUSE).map_err(|error| failed(error.class(), &error))?;
    tracing::info!(image = info.id(), disk = disk.info.name, "writing the image");
    let judge = |head: &[u8]| check_boots(&path, head, dev.logical_sector());
    let place = if must_boot_by_uefi(context, node) { Place::Judged(&judge) } else { Place::Disk };
    let report = deploy_to(&info, context.services.fetch(), &dev, place, &options, context.progress)
        .map_err(|error| failed(error.class(), &error))?;
    tracing::info!(image = info.id(), disk = disk.info.name, ?report, "image written");
    let unfinished = Unfinished(&dev);
    let root_uuid = finish(context, &dev, node, payload.as_ref())?;
    context.services.remember_partition_uuids(json!({"root uuid": root_uuid}));
    context.services.image_written(info.id());
    // From here on the disk may boot.
    std::mem::forget(unfinished);
    Ok(format!("image ({}) written to device {} root_uuid={root_uuid}", info.id(), disk.info.name))
}

/// Whether an image that UEFI firmware cannot boot may as well not be written: the conductor is going to ask for boot
/// entries, and to fail when there can be none.
fn must_boot_by_uefi(context: &StepContext<'_>, node: &Node) -> bool {
    let is_uefi = system::is_uefi(&context.machine.root);
    is_uefi && partition::boots_by_uefi(node, is_uefi) && !context.settings.ignore_bootloader_failure
}

/// Refuses an image that UEFI firmware cannot boot for certain (pitfalls D8 and D9).
fn check_boots(disk: &Path, head: &[u8], sector: u32) -> Result<(), CommandError> {
    let Some((kind, partitions)) = head::without_esp(head, sector) else { return Ok(()) };
    let (kind, made_for) = match kind {
        TableKind::Mbr => ("an MBR", "for BIOS"),
        TableKind::Gpt => ("a GPT", "to be booted by BIOS"),
    };
    let text = format!(
        "this machine boots by UEFI, but the image for {} has no EFI system partition: it has {kind} with {partitions} \
         partition(s), so it is made {made_for}. Are you using a UEFI-compatible image? Deploy an \
         image with a GPT and an EFI system partition, or have the node boot by BIOS (capability boot_mode:bios)",
        disk.display()
    );
    Err(CommandError::new(ErrorClass::InvalidImage, text))
}

/// Requests for an image's URLs, with the credentials that go with them.
///
/// # Errors
/// `ImageDownloadFatalError` when credentials are incomplete.
pub fn requests(info: &ImageInfo, settings: &Settings) -> Result<Vec<FetchRequest>, CommandError> {
    deploy::requests(info, &settings.image_server_auth).map_err(|error| failed(error.class(), &error))
}

/// The table is read again, its backup moved, the config drive put beside the image. Returns the disk's identifier.
pub(super) fn finish(
    context: &StepContext<'_>,
    dev: &BlockDev,
    node: &Node,
    payload: Option<&Payload<'_>>,
) -> Result<String, CommandError> {
    context.progress.phase("partition table", None);
    table::validate(dev).map_err(|error| failed(error.class(), &error))?;
    // As in the reference agent this only warns: an image with such a table still boots.
    if let Err(error) = table::fix_backup_gpt(dev) {
        tracing::warn!(reason = chain(&error), "the backup of the GPT was not moved to the end of the disk");
    }
    if let Some(image) = payload {
        let size = image.size_bytes();
        context.progress.phase("config drive", Some(size));
        let uuid = node.uuid().unwrap_or_default();
        let partition = configdrive::write(dev, image, uuid, context.settings.config_drive_rebuild)
            .map_err(|error| failed(error.class(), &error))?;
        context.progress.add(size);
        tracing::info!(partition = partition.number, bytes = size, "config drive written");
    }
    dev.flush().map_err(|error| failed(ErrorClass::ImageWrite, &error))?;
    // Nothing here needs the kernel's view of the partitions; it is for whoever looks at the machine afterwards.
    if let Err(error) = table::reread(dev) {
        tracing::warn!(reason = chain(&error), "the kernel did not take over the new partition table");
    }
    table::disk_id(dev).map_err(|error| failed(error.class(), &error))
}

/// A disk with an image that is not finished. When dropped, by an error or a panic, the head of the image is taken away
/// again: a deployment that failed must not leave a disk that boots.
pub(super) struct Unfinished<'a>(pub(super) &'a BlockDev);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Self(dev) = self;
        let head = HEAD_BYTES.min(dev.size_bytes());
        if let Err(error) = dev.zero_range(0, head).and_then(|()| dev.flush()) {
            tracing::error!(reason = chain(&error), disk = %dev.path().display(), "the disk may boot a half-made system");
        }
    }
}

pub(super) fn failed(class: ErrorClass, error: &dyn std::error::Error) -> CommandError {
    CommandError::from_chain(class, error)
}

/// The node with hints that were set after this command was sent; `None` when the command's own node will do.
pub(super) fn hinted_node(context: &StepContext<'_>) -> Option<Node> {
    // Where there is an array for the system, hints do not matter; a looked-up node does not have its configuration.
    if context.node.root_device_hints().is_some() || raid::root::is_said(context.node) {
        return None;
    }
    context.services.refresh_node()
}

fn image_options(settings: &Settings, root: &Root) -> Result<ImageOptions, CommandError> {
    let permitted_formats: Vec<Format> =
        settings.permitted_image_formats.iter().filter_map(|name| Format::from_name(name)).collect();
    if permitted_formats.is_empty() {
        return Err(CommandError::new(
            ErrorClass::InvalidImage,
            format!(
                "none of the permitted image formats ({}) can be written by this agent",
                settings.permitted_image_formats.join(", ")
            ),
        ));
    }
    Ok(ImageOptions {
        permitted_formats,
        deep_inspection: !settings.disable_deep_image_inspection,
        md5_enabled: settings.md5_enabled,
        auth: settings.image_server_auth.clone(),
        retry: settings.image_retry,
        unpack_bytes: unpack_bytes(memory::available_bytes(root)),
        read_back: settings.image_read_back,
    })
}

/// Memory for the window of a compressed image: half of what there is; at least what `zstd -19` and `xz -6` want, and at
/// most what any of their ordinary levels does.
fn unpack_bytes(available: Option<u64>) -> u64 {
    (available.unwrap_or_default() / 2).clamp(8 << 20, 128 << 20)
}

/// Whether a config drive is one in name only; the reference agent asks Python whether it is true.
pub(super) fn is_nothing(drive: &Value) -> bool {
    drive.is_null() || drive.as_str().is_some_and(str::is_empty)
}

/// The config drive, fetched and checked; `None` when there is none.
pub(super) fn payload<'a>(
    context: &StepContext<'_>,
    given: Option<&'a Value>,
    node: &Node,
) -> Result<Option<Payload<'a>>, CommandError> {
    let text = match given {
        None => return Ok(None),
        Some(Value::String(text)) => text,
        Some(_) => {
            return Err(CommandError::new(
                ErrorClass::InvalidCommandParams,
                "configdrive must be base64 text or an http(s) URL",
            ));
        }
    };
    context.progress.phase("fetch the config drive", None);
    // The image's credentials and proxies are not for the server of the config drive (deploy section 7).
    let request = |url: &str| {
        let progress = context.progress.clone();
        FetchRequest { url: url.to_owned(), progress, ..FetchRequest::default() }
    };
    let uuid = node.uuid().unwrap_or_default();
    configdrive::decode(text, uuid, spare_memory(&context.machine.root), context.services.fetch(), request)
        .map(Some)
        .map_err(|error| failed(error.class(), &error))
}

/// Bytes of memory that a config drive may take up: what the kernel can give, without what writing an image needs.
fn spare_memory(root: &Root) -> u64 {
    const WRITING_BYTES: u64 = 24 << 20;
    attr::read_trimmed(&root.path("proc/meminfo"))
        .ok()
        .and_then(|text| memory::meminfo_bytes(&text, "MemAvailable"))
        .map_or(u64::MAX, |available| available.saturating_sub(WRITING_BYTES))
}

/// Parameters of `image.install_bootloader`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootLoaderRequest {
    /// Identifier of the root file system, or of the disk for a whole-disk image.
    pub root_uuid: Option<String>,
    /// Identifier of the EFI system partition of a partition image.
    pub efi_system_part_uuid: Option<String>,
    /// Identifier of the PReP partition.
    pub prep_boot_part_uuid: Option<String>,
    /// `uefi` or `bios`.
    pub target_boot_mode: String,
    /// Whether a failure is only a warning; the configuration decides when absent.
    pub ignore_failure: Option<bool>,
}

/// Why no BIOS boot loader is installed unasked (CVE-2026-43003): its installer is the image's own program, run as root.
const NO_GRUB: &str = "Install of legacy BIOS bootloaders disabled by CONF.enable_bios_bootloader_install as part of \
                       CVE-2026-43003 mitigation.";

/// Makes the firmware boot the image. On a UEFI machine boot entries are written; nothing of the image is run, ever. Returns
/// what the operator should know, if there is something.
///
/// # Errors
/// `InvalidImage` when the image needs a boot loader that is not installed here, `DeviceNotFound`, or
/// `CommandExecutionError` when the firmware refuses. Only logged when failures are to be ignored.
pub fn install_bootloader(
    context: &StepContext<'_>,
    request: &BootLoaderRequest,
) -> Result<Option<String>, CommandError> {
    let ignore = request.ignore_failure.unwrap_or(context.settings.ignore_bootloader_failure);
    // The same choice as when the image was written, however late its hints came.
    let node = hinted_node(context);
    let node = node.as_ref().unwrap_or(context.node);
    let disk = root_device::select(context.registry, context.machine, context.settings, node)?;
    match boot_loader(context, request, &disk) {
        Err(error) if ignore => {
            tracing::warn!(reason = %error, "boot loader failure ignored, as asked for");
            Ok(Some(format!("the boot loader was not installed, which was to be ignored: {}", error.details)))
        }
        result => result,
    }
}

fn boot_loader(
    context: &StepContext<'_>,
    request: &BootLoaderRequest,
    disk: &Disk,
) -> Result<Option<String>, CommandError> {
    context.progress.phase("boot entries", None);
    let root = &context.machine.root;
    let is_uefi = system::is_uefi(root);
    if is_uefi {
        match boot_by_uefi(context, disk, request)? {
            Installed::Nothing => {}
            installed => return Ok(told(&disk.info.name, installed)),
        }
    } else if request.target_boot_mode == "uefi" {
        tracing::warn!("the instance is to boot by UEFI, but this machine was started by BIOS: no boot entry is made");
    }
    if !is_given(request.root_uuid.as_deref()) || request.root_uuid.as_deref() == Some("0x00000000") {
        tracing::info!(
            disk = disk.info.name,
            "no root file system named: taken for a whole-disk image that boots itself"
        );
        return Ok(None);
    }
    let root_uuid = request.root_uuid.as_deref().unwrap_or_default();
    if is_uefi || is_given(request.prep_boot_part_uuid.as_deref()) || !context.settings.enable_bios_bootloader_install {
        return Err(CommandError::new(
            ErrorClass::InvalidImage,
            no_boot_loader(context.settings, request, disk, is_uefi),
        ));
    }
    if let Some(array) = raid::boot::array_of(context, disk) {
        let text = format!(
            "This agent installs no BIOS boot loader on software RAID: {} is on {}. Boot by UEFI.",
            disk.info.name,
            array.disks.join(", ")
        );
        return Err(CommandError::new(ErrorClass::InvalidImage, text));
    }
    grub::install(context, &root.path(&disk.info.name), root_uuid).map(Some)
}

fn is_given(uuid: Option<&str>) -> bool {
    uuid.is_some_and(|uuid| !uuid.is_empty())
}

/// What there is to say of a disk that boots.
fn told(disk: &str, installed: Installed) -> Option<String> {
    let Installed::Fallback { found, reason } = installed else { return None };
    let whose = if found.copied { "a copy of the image's own loader" } else { "the image's loader" };
    Some(format!("no boot entry was made, because {reason}; {disk} boots by {whose} in {}", found.path))
}

fn no_boot_loader(settings: &Settings, request: &BootLoaderRequest, disk: &Disk, is_uefi: bool) -> String {
    let disk = &disk.info.name;
    let allowed = settings.enable_bios_bootloader_install;
    if is_uefi {
        let rest = if allowed { "The image's own installer is only run for BIOS." } else { NO_GRUB };
        return format!("The EFI system partition of {disk} holds no boot loader that could be started. {rest}");
    }
    if is_given(request.prep_boot_part_uuid.as_deref()) {
        return format!(
            "This agent installs no boot loader into a PReP partition, so {disk} cannot be made to boot on a POWER machine. \
             Deploy a whole-disk image."
        );
    }
    NO_GRUB.to_owned()
}

/// Has the firmware boot the disk; an image of one file system after its loader was copied to the EFI system partition.
fn boot_by_uefi(
    context: &StepContext<'_>,
    disk: &Disk,
    request: &BootLoaderRequest,
) -> Result<Installed, CommandError> {
    let root = &context.machine.root;
    let path = &root.path(&disk.info.name);
    let vars = EfiVars::of(root);
    let bits = attr::read_u64(&root.path("sys/firmware/efi/fw_platform_size")).ok();
    let firmware = Firmware { vars: vars.as_ref(), suffix: arch::suffix(&cpu::architecture(root), bits) };
    if let Some(array) = raid::boot::array_of(context, disk) {
        // Onto the partition of the image first: all of that goes to the disks below the array.
        if let Some(root_uuid) = request.root_uuid.as_deref().filter(|uuid| !uuid.is_empty()) {
            partition::copy_boot_loader(context, path, root_uuid)?;
        }
        return raid::boot::by_uefi(context, &array, &firmware);
    }
    let install = || {
        let dev = BlockDev::open(path, Access::Read).map_err(|error| failed(ErrorClass::BlockDevice, &error))?;
        let installed = efi::install(&dev, request.efi_system_part_uuid.as_deref(), &firmware)
            .map_err(|error| failed(error.class(), &error))?;
        tracing::info!(disk = %path.display(), ?installed, "boot entries");
        Ok(installed)
    };
    let Some(root_uuid) = request.root_uuid.as_deref().filter(|uuid| !uuid.is_empty()) else { return install() };
    match install()? {
        Installed::Nothing if partition::copy_boot_loader(context, path, root_uuid)? => {
            context.progress.phase("boot entries", None);
            install()
        }
        installed => Ok(installed),
    }
}
