//! `lab demo`: a machine's whole life on one screen, ending with proof from the deployed system itself.

use super::configdrive::ConfigDrive;
use super::display::{Display, seconds, size};
use super::image::Checksum;
use super::inventory;
use super::options::{FirmwareKind, MachineOptions};
use super::session::{self, Session};
use crate::conductor::flow::DeployRequest;
use crate::os_image::{DiskLabel, ImageFormat, OsImage, Qcow2Kind, demo_image};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What the deployed system says on its console (see [`crate::os_image`]).
const SYSTEM_UP: &str = "FERRIC-DEMO-OS up:";
const CONFIGDRIVE_SEEN: &str = "FERRIC-DEMO-OS configdrive hostname=";
/// What OVMF says when it starts a boot entry.
const BOOT_ENTRY: &str = "BdsDxe: starting Boot";
const USER_DATA_SEEN: &str = "FERRIC-DEMO-OS user_data:";
/// From power on to the system's first words, under KVM.
const OS_BOOT_LIMIT: Duration = Duration::from_secs(40);

/// Runs all of it.
///
/// # Errors
/// The first thing that went wrong.
pub(super) fn run(options: &MachineOptions, erase: bool, display: &Display) -> Result<()> {
    let began = Instant::now();
    let kind = ImageFormat::Qcow2(Qcow2Kind::Zstd);
    let image = display
        .stage("make the operating system image", || demo_image(DiskLabel::Gpt, kind, &session::cache_dir()?))?;
    display.line(&format!(
        "   {}: {} of {}",
        image.path.display(),
        size(image.size_bytes),
        size(image.virtual_size_bytes)
    ));
    super::with_session(options, display, |session| live(session, &image, options, erase, display))?;
    display.summary();
    display.plain(&format!("\nDEMO PASSED in {}", seconds(began.elapsed())));
    Ok(())
}

fn live(
    session: &mut Session,
    image: &OsImage,
    options: &MachineOptions,
    erase: bool,
    display: &Display,
) -> Result<()> {
    let how = if options.direct { "boot directly" } else { "PXE boot" };
    let data = display.stage(&format!("{how} and inspect"), || session.inspect())?;
    inventory::lines(&data.inventory).iter().for_each(|line| display.plain(line));

    display.line("   fast track: cleaning and deploying use the agent that is already there");
    let mut priorities = BTreeMap::new();
    if !erase {
        priorities.insert("erase_devices".to_owned(), 0);
    }
    display.stage("clean", || session.clean(&[], &priorities))?;

    let hostname = format!("demo-{:x}", std::process::id());
    let user_data = format!("#cloud-config {hostname}");
    let mut drive = ConfigDrive::new(session.uuid(), &hostname);
    drive.user_data = format!("{user_data}\n").into_bytes();
    drive.meta_data["poweroff"] = json!(false);
    let checksum = Checksum { algorithm: "sha256", hex: image.sha256.clone() };
    let request = DeployRequest {
        image: session.serve_image(&image.path, kind_name(), &checksum)?,
        partitions: None,
        configdrive: Some(drive.encoded()?),
        uefi: options.firmware == FirmwareKind::Uefi,
        root_device: None,
        collect_logs: true,
        boot_instance: true,
    };
    let report = display.stage("deploy", || session.deploy(&request))?;
    let logs = report.logs.map_or(0, |logs| logs.len());
    display.line(&format!(
        "   agent's logs: {logs} bytes; machine switched off by the agent: {}",
        yes(report.powered_off_by_agent)
    ));

    display.stage("boot from its own disk", || {
        if options.firmware == FirmwareKind::Uefi {
            let entry = session.boot_from_disk(BOOT_ENTRY, OS_BOOT_LIMIT)?;
            let entry = entry.split_once(BOOT_ENTRY).map_or(entry.as_str(), |(_, rest)| rest);
            display.line(&format!("   firmware: {BOOT_ENTRY}{}", entry.trim()));
            // Entries that the firmware makes up for itself name the whole disk, the agent's names a partition and a file.
            ensure!(entry.contains("HD("), "the firmware did not start the entry that the agent made");
        }
        let up = session.boot_from_disk(SYSTEM_UP, OS_BOOT_LIMIT)?;
        display.line(&format!("   console: {}", up.trim()));
        let seen = session.boot_from_disk(CONFIGDRIVE_SEEN, OS_BOOT_LIMIT)?;
        display.line(&format!("   console: {}", seen.trim()));
        ensure!(seen.trim().ends_with(&format!("hostname={hostname}")), "the configdrive is another one: {seen}");
        let data = session.boot_from_disk(USER_DATA_SEEN, OS_BOOT_LIMIT)?;
        display.line(&format!("   console: {}", data.trim()));
        ensure!(data.contains(&user_data), "the user data is other than {user_data:?}: {data}");
        let vm = session.machine().vm().context("the machine is off")?;
        vm.press_power_button()?;
        vm.wait_shutdown(vm.limit(Duration::from_secs(20))).map(drop)
    })
}

fn kind_name() -> &'static str {
    ImageFormat::Qcow2(Qcow2Kind::Zstd).disk_format()
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}
