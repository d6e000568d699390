//! `inject_files`: files put into the system on the disk, or taken out of it (deploy section 10).
//!
//! Everything is checked first. Each file's partition is then mounted for that file alone, by our own rules for hostile file
//! systems (`ferric_disk::inject`), and taken away again whatever happened. Contents of servers are streamed.

pub(super) mod files;
mod template;

use std::io::Read;
use std::path::{Path, PathBuf};

use ferric_disk::image::source::FetchRequest;
use ferric_disk::inject::{self, Attributes, ImageRoot, InjectError, VolumeError};
use ferric_disk::table::{self, Partition, PartitionType};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::error::{CommandError, ErrorClass, chain};
use serde_json::{Map, Value};

use self::files::{Content, FileSpec, Place};
use super::deploy::{failed, hinted_node};
use crate::context::StepContext;
use crate::manager::ArgInfo;
use crate::root_device;

/// Where a partition is mounted.
const MOUNT_POINT: &str = "run/ferric/image";
/// Type of an MBR partition with volumes of LVM.
const MBR_LVM: u8 = 0x8e;
/// Its GUID in a GPT.
const GPT_LVM: &str = "e6d6d379-f507-44c2-a23c-238f2a3df928";

/// Arguments of the step.
pub(super) const ARGS: &[ArgInfo] = &[
    ArgInfo {
        name: "files",
        description: "Files to inject, added to those of the node's property 'inject_files': a list of objects with 'path' \
                      (absolute), 'partition' (number or device), 'content' (base64, or a URL with {node[...]} and \
                      {ports[...]}), 'deleted', 'mode', 'dirmode' (of the file's directory, if it is made), 'owner' and \
                      'group' (numbers).",
        required: false,
    },
    ArgInfo {
        name: "verify_ca",
        description: "Whether to check certificates of servers, by the agent's settings: true unless given.",
        required: false,
    },
];

/// A file with everything that is needed to write it.
pub(super) struct Job<'a> {
    file: &'a FileSpec<'a>,
    /// Address of its content.
    request: Option<FetchRequest>,
}

/// Puts all files where they belong, in order; the first that fails ends it.
pub(super) fn inject_files(context: &StepContext<'_>, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let verify = files::verify_ca(args.get("verify_ca"))?;
    let files = files::parse(context.node.lookup("properties", "inject_files"), args.get("files"))?;
    if files.is_empty() {
        tracing::info!("no files to inject");
        return Ok(Value::Null);
    }
    let jobs = files.iter().map(|file| job(context, file, verify)).collect::<Result<Vec<_>, _>>()?;
    context.progress.phase("inject files", None);
    let node = hinted_node(context);
    let node = node.as_ref().unwrap_or(context.node);
    let disk = root_device::select(context.registry, context.machine, context.settings, node)?;
    let disk = context.machine.root.path(&disk.info.name);
    for job in &jobs {
        inject(context, &disk, job)?;
    }
    Ok(Value::Null)
}

pub(super) fn job<'a>(
    context: &StepContext<'_>,
    file: &'a FileSpec<'a>,
    verify: bool,
) -> Result<Job<'a>, CommandError> {
    let request = match file.content {
        Content::Url(text) => {
            let url =
                template::expand(text, context.node, context.ports).map_err(|error| not_processed(file, &error))?;
            // Credentials and proxies of the image are not for this server.
            let progress = context.progress.clone();
            Some(FetchRequest { url, insecure: !verify, progress, ..FetchRequest::default() })
        }
        Content::Deleted | Content::Base64(_) => None,
    };
    Ok(Job { file, request })
}

fn not_processed(file: &FileSpec<'_>, error: &dyn std::error::Error) -> CommandError {
    let text = format!("Failed to process file /{}: {}", file.path, chain(error));
    CommandError::new(ErrorClass::CommandExecution, text)
}

fn inject(context: &StepContext<'_>, disk: &Path, job: &Job<'_>) -> Result<(), CommandError> {
    let mount_point = context.machine.root.path(MOUNT_POINT);
    let named = match job.file.partition {
        None => return search(context, disk, job, &mount_point),
        Some(Place::Number(number)) => numbered(disk, number)?,
        Some(Place::Device(device)) => context.machine.root.path(device),
    };
    if !named.exists() {
        let text = format!("/{} belongs on {}, which does not exist", job.file.path, named.display());
        return Err(CommandError::new(ErrorClass::DeviceNotFound, text));
    }
    let kind = inject::identify(&named).map_err(|error| not_processed(job.file, &error))?;
    inject::with_volume(&named, &mount_point, kind, |image| process(context, image, &named, kind, job))
        .map_err(|error| not_processed(job.file, &error))?
}

/// The device of a partition of the disk.
fn numbered(disk: &Path, number: u32) -> Result<PathBuf, CommandError> {
    let partitions = partitions(disk)?;
    if partitions.iter().any(|partition| partition.number == number) {
        return Ok(table::partition_path(disk, number));
    }
    let known: Vec<String> = partitions.iter().map(|partition| partition.number.to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let text = format!("{} has no partition {number}; those it has: {known}", disk.display());
    Err(CommandError::new(ErrorClass::DeviceNotFound, text))
}

/// Partitions of the disk, whose devices the kernel is made to show if it does not.
fn partitions(disk: &Path) -> Result<Vec<Partition>, CommandError> {
    let dev = BlockDev::open(disk, Access::Read).map_err(|error| failed(ErrorClass::BlockDevice, &error))?;
    let table = table::read(&dev).map_err(|error| failed(error.class(), &error))?;
    let partitions = table.map(|table| table.partitions).unwrap_or_default();
    let is_shown = |partition: &Partition| table::partition_path(disk, partition.number).exists();
    if dev.is_block()
        && !partitions.iter().all(is_shown)
        && let Err(error) = table::reread(&dev)
    {
        tracing::warn!(reason = chain(&error), "the kernel does not show all partitions");
    }
    Ok(partitions)
}

/// Processes a file on the first partition that has the directory with which its path begins.
fn search(context: &StepContext<'_>, disk: &Path, job: &Job<'_>, mount_point: &Path) -> Result<(), CommandError> {
    let first = job.file.path.split('/').next().unwrap_or_default();
    let (mut scanned, mut passed_over) = (Vec::new(), Vec::new());
    for partition in partitions(disk)? {
        if is_lvm(&partition) {
            continue;
        }
        let path = table::partition_path(disk, partition.number);
        let work = |kind| {
            inject::with_volume(&path, mount_point, kind, |image| {
                inject::has_directory(image, first).then(|| process(context, image, &path, kind, job))
            })
        };
        match inject::identify(&path).and_then(work) {
            Ok(Some(done)) => return done,
            // Written, perhaps, but not known to be on the disk.
            Err(error @ VolumeError::Unmount { .. }) => return Err(not_processed(job.file, &error)),
            Ok(None) => {}
            Err(error) => {
                let reason = chain(&error);
                tracing::warn!(reason, "partition passed over in search for /{first}");
                passed_over.push(reason);
            }
        }
        scanned.push(path.display().to_string());
    }
    let mut text = format!("No partition found with path {first}, scanned: [{}]", scanned.join(", "));
    if !passed_over.is_empty() {
        text = format!("{text}. Not looked into: {}", passed_over.join("; "));
    }
    Err(CommandError::new(ErrorClass::DeviceNotFound, text))
}

fn is_lvm(partition: &Partition) -> bool {
    match partition.kind {
        PartitionType::Mbr(kind) => kind == MBR_LVM,
        PartitionType::Gpt(kind) => kind.to_string().eq_ignore_ascii_case(GPT_LVM),
    }
}

/// Does with a file in its file system what it is there for.
pub(super) fn process(
    context: &StepContext<'_>,
    image: &ImageRoot,
    partition: &Path,
    kind: &str,
    job: &Job<'_>,
) -> Result<(), CommandError> {
    let file = job.file;
    let not_written = |error: InjectError| not_processed(file, &error);
    if file.content == Content::Deleted {
        let deleted = inject::delete(image, &file.path).map_err(not_written)?;
        tracing::info!(file = file.path, partition = %partition.display(), deleted, "file to be deleted");
        return Ok(());
    }
    // FAT knows no owners, and hardly any rights.
    let attributes = Attributes { may_be_refused: kind == "vfat", ..file.attributes };
    let write = |content: &mut dyn Read| inject::write(image, &file.path, &attributes, content).map_err(not_written);
    let refused = match (file.content, &job.request) {
        (Content::Base64(text), _) => write(&mut inject::base64(text))?,
        (_, Some(request)) => {
            // Only when the server has it: the file that is there may be better than none.
            let mut source = context.services.fetch().open(request).map_err(|error| not_processed(file, &error))?;
            let mut stream = source.stream(0).map_err(|error| not_processed(file, &error))?;
            write(&mut stream)?
        }
        (Content::Url(_) | Content::Deleted, None) => Vec::new(),
    };
    tracing::info!(file = file.path, partition = %partition.display(), "file injected");
    for what in refused {
        tracing::warn!(file = file.path, kind, what, "the file system cannot keep this of the file");
    }
    Ok(())
}
