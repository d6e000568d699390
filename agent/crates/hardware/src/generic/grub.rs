//! GRUB for BIOS: what an operator may allow, and nobody gets unasked (deploy section 9.3, CVE-2026-43003).
//!
//! Only GRUB's own installer knows how its parts are put on a disk, and it comes with the image: somebody else's program, run
//! as root. So it is run only with `enable_bios_bootloader_install`, and locked into the image ([`ferric_sys::cell`]): of the
//! machine it sees the one disk that the image was written to, and no network.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ferric_disk::inject::ImageRoot;
use ferric_disk::partition::identity;
use ferric_disk::table::{self, Table};
use ferric_disk::volume::{self, VolumeError};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::{Cell, Cmd, Exec, exec};
use ferric_types::error::{CommandError, ErrorClass, chain};

use super::deploy::failed;
use crate::context::StepContext;

/// Where the installer is, and what its family of programs is called.
const INSTALLERS: [(&str, &str); 5] = [
    ("usr/sbin/grub2-install", "grub2"),
    ("usr/bin/grub2-install", "grub2"),
    ("usr/sbin/grub-install", "grub"),
    ("usr/bin/grub-install", "grub"),
    ("sbin/grub-install", "grub"),
];
/// It copies some hundred files, and the kernel of a slow disk writes them.
const LIMIT: Duration = Duration::from_secs(600);

/// Has the image in the partition with that UUID install its GRUB on the disk. Returns what there is to say.
///
/// # Errors
/// `DeviceNotFound` when there is no such partition, `InvalidImage` for an image that cannot be used or has no GRUB,
/// `CommandExecutionError` when its programs fail.
pub(super) fn install(context: &StepContext<'_>, disk: &Path, root_uuid: &str) -> Result<String, CommandError> {
    context.progress.phase("GRUB", None);
    let dev = BlockDev::open(disk, Access::Read).map_err(|error| failed(ErrorClass::BlockDevice, &error))?;
    let table = table::validate(&dev).map_err(|error| failed(error.class(), &error))?;
    let root = identity::find(&dev, &table, root_uuid).ok_or_else(|| {
        let text = format!("No partition with UUID {root_uuid} found on device {}", disk.display());
        CommandError::new(ErrorClass::DeviceNotFound, text)
    })?;
    let path = table::partition_path(disk, root.number);
    let volume_failed = |error: VolumeError| failed(error.class(), &error);
    let found = identity::identify(&dev, root.start_bytes, root.size_bytes);
    let kind = volume::driver(&path, found).map_err(volume_failed)?;
    let mount_point = context.machine.root.path("run/ferric/image");
    let cell = cell(&dev, &table, &mount_point);
    drop(dev);
    volume::with_volume(&path, &mount_point, kind, |image| {
        let Some(family) = family(image) else { return Err(no_installer(&path)) };
        tracing::warn!(disk = %disk.display(), family, "running the image's own boot loader installer, as configured");
        run(&*context.machine.exec, &cell, family, disk)
    })
    .map_err(volume_failed)??;
    Ok(format!("the image's own GRUB was installed on {}", disk.display()))
}

fn no_installer(path: &Path) -> CommandError {
    let text =
        format!("the image on {} has no grub-install, so that no BIOS boot loader can be installed", path.display());
    CommandError::new(ErrorClass::InvalidImage, text)
}

fn family(image: &ImageRoot) -> Option<&'static str> {
    INSTALLERS.iter().find(|(path, _)| image.file(path, false).is_ok()).map(|(_, family)| *family)
}

/// The disk, its partitions, and the names by which GRUB's scripts look for file systems.
fn cell(dev: &BlockDev, table: &Table, root: &Path) -> Cell {
    let mut cell = Cell { root: root.to_owned(), devices: vec![dev.path().to_owned()], links: Vec::new() };
    for partition in &table.partitions {
        let node: PathBuf = table::partition_path(dev.path(), partition.number);
        let Some(name) = node.file_name().map(|name| name.to_string_lossy().into_owned()) else { continue };
        let inside = identity::identify(dev, partition.start_bytes, partition.size_bytes).and_then(|found| found.uuid);
        for (place, uuid) in [("uuid", inside), ("partuuid", identity::partition_uuid(dev, partition))] {
            // It is the image's choice; what is no name stays out.
            if let Some(uuid) = uuid.filter(|uuid| uuid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')) {
                let link = (format!("disk/by-{place}/{uuid}"), format!("../../{name}"));
                if cell.links.iter().all(|(known, _)| *known != link.0) {
                    cell.links.push(link);
                }
            }
        }
        cell.devices.push(node);
    }
    cell
}

fn run(exec: &dyn Exec, cell: &Cell, family: &str, disk: &Path) -> Result<(), CommandError> {
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let install = Cmd::new(format!("{family}-install")).arg(format!("/dev/{name}"));
    // Other systems on the disk are none of its business, and looking for them hangs at times (pitfall D12).
    let configure = Cmd::new("env").args(["GRUB_DISABLE_OS_PROBER=true", "GRUB_SAVEDEFAULT=true"]);
    let configure = configure.arg(format!("{family}-mkconfig")).arg("-o").arg(format!("/boot/{family}/grub.cfg"));
    for cmd in [install, configure] {
        exec::check(exec, &cmd.within(cell.clone()).timeout(LIMIT)).map_err(|error| {
            let reason = chain(&error);
            let text = format!("Installing GRUB2 boot loader to device {} failed with {reason}", disk.display());
            CommandError::new(ErrorClass::CommandExecution, text)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use ferric_disk::table::{Guid, Partition, PartitionType, TableKind};
    use ferric_sys::testing::disk::TestDisk;
    use ferric_sys::{ExecError, Output};

    /// Notes each program with the place that it runs in; the one at this index fails.
    #[derive(Debug, Default)]
    struct Noting(Mutex<Vec<Cmd>>, Option<usize>);

    impl Exec for Noting {
        fn run(&self, cmd: &Cmd) -> Result<Output, ExecError> {
            let mut ran = self.0.lock().unwrap();
            ran.push(cmd.clone());
            let code = i32::from(self.1 == Some(ran.len() - 1));
            Ok(Output { code, stdout: Vec::new(), stderr: b"no room for the core image".to_vec() })
        }
    }

    #[test]
    fn each_program_of_the_image_is_locked_into_it() {
        let cell = Cell { root: "/run/ferric/image".into(), ..Cell::default() };
        let exec = Noting::default();
        run(&exec, &cell, "grub", Path::new("/dev/nvme0n1")).unwrap();
        let ran = exec.0.into_inner().unwrap();
        let lines: Vec<String> = ran.iter().map(ToString::to_string).collect();
        let configure = "env GRUB_DISABLE_OS_PROBER=true GRUB_SAVEDEFAULT=true grub-mkconfig -o /boot/grub/grub.cfg";
        assert_eq!(lines, ["grub-install /dev/nvme0n1", configure]);
        assert!(ran.iter().all(|cmd| cmd.cell.as_ref() == Some(&cell)));
    }

    #[test]
    fn what_an_installer_says_is_passed_on() {
        for (index, ran) in [(0, 1), (1, 2)] {
            let exec = Noting(Mutex::default(), Some(index));
            let error = run(&exec, &Cell::default(), "grub2", Path::new("/dev/sda")).unwrap_err();
            assert_eq!(error.class, ErrorClass::CommandExecution);
            let want = "Installing GRUB2 boot loader to device /dev/sda failed with";
            assert!(error.details.starts_with(want) && error.details.contains("no room for the core"), "{error}");
            assert_eq!(exec.0.into_inner().unwrap().len(), ran);
        }
    }

    #[test]
    fn the_cell_has_the_disk_and_what_is_on_it() {
        let disk = TestDisk::zeroed(64 << 20).unwrap();
        let dev = disk.open().unwrap();
        let partition = |number: u32| Partition {
            number,
            start_bytes: u64::from(number) << 20,
            size_bytes: 1 << 20,
            kind: PartitionType::Gpt(Guid::LINUX_DATA),
            guid: None,
            name: String::new(),
        };
        table::create(&dev, TableKind::Gpt, &[partition(1), partition(2)], None).unwrap();
        dev.write_at((2 << 20) + 1080, &[0x53, 0xef]).unwrap();
        dev.write_at((2 << 20) + 1128, &[0xab; 16]).unwrap();
        let table = table::validate(&dev).unwrap();
        let cell = cell(&dev, &table, Path::new("/image"));
        let node = |number| table::partition_path(disk.path(), number);
        assert_eq!(cell.devices, [disk.path().to_owned(), node(1), node(2)]);
        let name = format!("../../{}", node(2).file_name().unwrap().to_string_lossy());
        let links: Vec<&str> = cell.links.iter().map(|(link, _)| link.as_str()).collect();
        assert_eq!(links.len(), 3, "{links:?}");
        assert!(
            cell.links.contains(&("disk/by-uuid/abababab-abab-abab-abab-abababababab".to_owned(), name)),
            "{links:?}"
        );
    }

    #[test]
    fn the_family_is_that_of_the_installer_and_a_link_does_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let image = || ImageRoot::open(dir.path()).unwrap();
        assert_eq!(family(&image()), None);
        std::fs::create_dir_all(dir.path().join("usr/sbin")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", dir.path().join("usr/sbin/grub-install")).unwrap();
        assert_eq!(family(&image()), None);
        std::fs::remove_file(dir.path().join("usr/sbin/grub-install")).unwrap();
        std::fs::write(dir.path().join("usr/sbin/grub-install"), "").unwrap();
        assert_eq!(family(&image()), Some("grub"));
        std::fs::write(dir.path().join("usr/sbin/grub2-install"), "").unwrap();
        assert_eq!(family(&image()), Some("grub2"));
    }
}
