//! Config drives: the volume with a node's metadata, as Nova and Ironic make it.
//!
//! An ISO 9660 file system labelled `config-2` with `openstack/latest/` in it, made by `xorriso`; to the agent it goes
//! gzip-compressed in base64, inside of the deploy request.

use crate::artifacts;
use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// What the drive tells the instance.
#[derive(Debug, Clone)]
pub struct ConfigDrive {
    /// `openstack/latest/meta_data.json`.
    pub meta_data: Value,
    /// `openstack/latest/user_data`.
    pub user_data: Vec<u8>,
    /// `openstack/latest/network_data.json`.
    pub network_data: Value,
}

impl ConfigDrive {
    /// A drive for a node of this identifier and host name, without network settings.
    #[must_use]
    pub fn new(uuid: &str, hostname: &str) -> Self {
        ConfigDrive {
            meta_data: json!({"uuid": uuid, "hostname": hostname, "name": hostname, "launch_index": 0, "meta": {}}),
            user_data: Vec::new(),
            network_data: json!({"links": [], "networks": [], "services": []}),
        }
    }

    /// The ISO image.
    ///
    /// # Errors
    /// When `xorriso` is not installed or fails.
    pub fn iso(&self) -> Result<Vec<u8>> {
        let work = artifacts::temp_dir("configdrive")?;
        let latest = work.path().join("content/openstack/latest");
        fs::create_dir_all(&latest).with_context(|| format!("making {}", latest.display()))?;
        for (name, content) in [
            ("meta_data.json", self.meta_data.to_string().into_bytes()),
            ("user_data", self.user_data.clone()),
            ("network_data.json", self.network_data.to_string().into_bytes()),
        ] {
            let path = latest.join(name);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
        let iso = work.path().join("config.iso");
        make_iso(&work.path().join("content"), &iso)?;
        fs::read(&iso).with_context(|| format!("reading {}", iso.display()))
    }

    /// The drive as it goes into a deploy request.
    ///
    /// # Errors
    /// As [`Self::iso`].
    pub fn encoded(&self) -> Result<String> {
        encode(&self.iso()?)
    }
}

/// Any volume as it goes into a deploy request: gzip, then base64.
///
/// # Errors
/// When compressing fails, which it does not in memory.
pub fn encode(volume: &[u8]) -> Result<String> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(volume).context("compressing the config drive")?;
    let compressed = gzip.finish().context("compressing the config drive")?;
    Ok(base64::engine::general_purpose::STANDARD.encode(compressed))
}

fn make_iso(content: &Path, iso: &Path) -> Result<()> {
    let program = artifacts::program("xorriso", "xorriso")?;
    let mut command = Command::new(program);
    command.args(["-as", "mkisofs", "-quiet", "-r", "-J", "-V", "config-2", "-o"]).arg(iso).arg(content);
    let output = command.output().context("running xorriso")?;
    ensure!(output.status.success(), "xorriso failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn drive_is_an_iso_with_the_right_label_and_files() {
        let mut drive = ConfigDrive::new("1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "node-1.example.org");
        drive.user_data = b"#cloud-config\n".to_vec();
        let encoded = drive.encoded().unwrap();
        let compressed = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
        let mut iso = Vec::new();
        flate2::read::GzDecoder::new(compressed.as_slice()).read_to_end(&mut iso).unwrap();
        // ECMA-119: the primary volume descriptor is sector 16, its volume identifier at byte 40.
        assert_eq!(&iso[16 * 2048 + 1..16 * 2048 + 6], b"CD001");
        assert_eq!(&iso[16 * 2048 + 40..16 * 2048 + 48], b"config-2");
        let text = String::from_utf8_lossy(&iso);
        assert!(text.contains("node-1.example.org") && text.contains("#cloud-config"));
        assert!(iso.len() < 1024 * 1024, "{} bytes", iso.len());
    }
}
