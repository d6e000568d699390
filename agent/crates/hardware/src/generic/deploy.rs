//! Writing an image and making it bootable (deploy sections 2, 7 and 9).

use std::path::Path;
use std::time::Duration;

use ferric_disk::boot::efi;
use ferric_disk::boot::efivars::EfiVars;
use ferric_disk::configdrive::Payload;
use ferric_disk::image::source::FetchRequest;
use ferric_disk::image::{Format, ImageOptions, deploy, deploy_image};
use ferric_disk::{configdrive, table, wipe};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::{Root, attr};
use ferric_types::error::{CommandError, ErrorClass, chain};
use ferric_types::{ImageInfo, Node};
use serde_json::{Value, json};

use super::partition::{self, Sizes};
use crate::context::StepContext;
use crate::probe::disks::Disk;
use crate::probe::{memory, system};
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
    let report = deploy_image(&info, context.services.fetch(), &dev, &options, context.progress)
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

/// Requests for an image's URLs, with the credentials that go with them.
///
/// # Errors
/// `ImageDownloadFatalError` when credentials are incomplete.
pub fn requests(info: &ImageInfo, settings: &Settings) -> Result<Vec<FetchRequest>, CommandError> {
    deploy::requests(info, &settings.image_server_auth).map_err(|error| failed(error.class(), &error))
}

/// The table is read again, its backup moved, the config drive put beside the image. Returns the disk's identifier.
fn finish(
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
struct Unfinished<'a>(&'a BlockDev);

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
    if context.node.root_device_hints().is_some() {
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
    })
}

/// Memory for the window of a compressed image: half of what there is; at least what `zstd -19` and `xz -6` want, and at
/// most what any of their ordinary levels does.
fn unpack_bytes(available: Option<u64>) -> u64 {
    (available.unwrap_or_default() / 2).clamp(8 << 20, 128 << 20)
}

/// Whether a config drive is one in name only; the reference agent asks Python whether it is true.
fn is_nothing(drive: &Value) -> bool {
    drive.is_null() || drive.as_str().is_some_and(str::is_empty)
}

/// The config drive, fetched and checked; `None` when there is none.
fn payload<'a>(
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

/// Why no BIOS boot loader is installed (CVE-2026-43003): its installer is the image's own program, run as root.
const NO_GRUB: &str = "Install of legacy BIOS bootloaders disabled by CONF.enable_bios_bootloader_install as part of \
                       CVE-2026-43003 mitigation.";

/// Makes the firmware boot the image. On a UEFI machine boot entries are written; nothing of the image is run, ever.
///
/// # Errors
/// `InvalidImage` when the image needs a boot loader that is not installed here, `DeviceNotFound`, or
/// `CommandExecutionError` when the firmware refuses. Only logged when failures are to be ignored.
pub fn install_bootloader(context: &StepContext<'_>, request: &BootLoaderRequest) -> Result<(), CommandError> {
    let ignore = request.ignore_failure.unwrap_or(context.settings.ignore_bootloader_failure);
    let forgive = |error: CommandError| {
        if ignore {
            tracing::warn!(reason = %error, "boot loader failure ignored, as asked for");
            return Ok(());
        }
        Err(error)
    };
    context.progress.phase("boot entries", None);
    // The same choice as when the image was written, however late its hints came.
    let node = hinted_node(context);
    let node = node.as_ref().unwrap_or(context.node);
    let disk = root_device::select(context.registry, context.machine, context.settings, node)?;
    let root = &context.machine.root;
    let is_uefi = system::is_uefi(root);
    if is_uefi {
        match boot_by_uefi(context, &root.path(&disk.info.name), request.root_uuid.as_deref()) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return forgive(error),
        }
    } else if request.target_boot_mode == "uefi" {
        tracing::warn!("the instance is to boot by UEFI, but this machine was started by BIOS: no boot entry is made");
    }
    if request.root_uuid.as_deref().is_none_or(|uuid| uuid.is_empty() || uuid == "0x00000000") {
        tracing::info!(
            disk = disk.info.name,
            "no root file system named: taken for a whole-disk image that boots itself"
        );
        return Ok(());
    }
    forgive(CommandError::new(ErrorClass::InvalidImage, no_boot_loader(&disk, is_uefi, context.settings)))
}

fn no_boot_loader(disk: &Disk, is_uefi: bool, settings: &Settings) -> String {
    let disk = &disk.info.name;
    if is_uefi {
        return format!("The EFI system partition of {disk} holds no boot loader that could be started. {NO_GRUB}");
    }
    if settings.enable_bios_bootloader_install {
        return format!(
            "This agent never runs an image's own GRUB (CVE-2026-43003), so enable_bios_bootloader_install has no effect \
             and {disk} gets no BIOS boot loader. Deploy a whole-disk image, or boot by UEFI."
        );
    }
    NO_GRUB.to_owned()
}

/// Writes boot entries; for an image of one file system after its loader was copied to the EFI system partition. `false`
/// when there is nothing to boot.
fn boot_by_uefi(context: &StepContext<'_>, path: &Path, root_uuid: Option<&str>) -> Result<bool, CommandError> {
    let vars = EfiVars::of(&context.machine.root);
    let Some(root_uuid) = root_uuid.filter(|uuid| !uuid.is_empty()) else { return boot_entries(path, vars.as_ref()) };
    if boot_entries(path, vars.as_ref())? {
        return Ok(true);
    }
    if !partition::copy_boot_loader(context, path, root_uuid)? {
        return Ok(false);
    }
    context.progress.phase("boot entries", None);
    // Without variables the firmware finds what is in the place for removable media.
    Ok(boot_entries(path, vars.as_ref())? || vars.is_none())
}

/// Writes boot entries; `false` when the disk has no known loader, or the firmware's variables are out of reach.
fn boot_entries(path: &Path, vars: Option<&EfiVars>) -> Result<bool, CommandError> {
    let Some(vars) = vars else {
        tracing::warn!("the firmware's variables cannot be reached: no boot entry is made");
        return Ok(false);
    };
    let dev = BlockDev::open(path, Access::Read).map_err(|error| failed(ErrorClass::BlockDevice, &error))?;
    let labels = efi::install(&dev, vars).map_err(|error| failed(error.class(), &error))?;
    tracing::info!(disk = %path.display(), ?labels, "boot entries written");
    Ok(!labels.is_empty())
}
