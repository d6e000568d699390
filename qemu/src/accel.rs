//! Which QEMU accelerator works here, found out once.
//!
//! `/dev/kvm` can exist, open, and even create a VM whose guest then never runs an instruction. So the answer comes from
//! booting: a small disk whose boot sector enters 64-bit mode and ends QEMU through the `isa-debug-exit` device. Software
//! emulation does that in a fraction of a second; a KVM that has not done it after five seconds is of no use. The answer is kept in
//! `build/accel-probe.json` until the machine is booted anew, so a test run of many processes probes once.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::artifacts;

/// How much longer software emulation takes than KVM, as used for every default time limit.
const TCG_FACTOR: u32 = 6;
/// How long the probe guest may take; a working KVM needs a tenth of a second.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// QEMU's exit status when the guest writes 0x10 to `isa-debug-exit`: `(value << 1) | 1`.
const PROBE_STATUS: i32 = 0x21;
/// The probe guest, a boot sector loaded at 0x7c00: builds page tables for the first 2 MiB, enters 64-bit mode, counts down
/// from ten million, runs `cpuid` (which leaves the guest) 200 times, and writes 0x10 to port 0xf4. Real mode alone proves
/// nothing: there are hosts whose KVM runs the BIOS and hangs in the first paged code.
///
/// ```text
/// .code16              cli; xor %ax,%ax; mov %ax,%ds; mov %ax,%es; mov %ax,%ss; cld
///                      mov $0x1000,%di; mov $0x1800,%cx; rep stosw
///                      movw $0x2003,0x1000; movw $0x3003,0x2000; movw $0x0083,0x3000
///                      mov %cr4,%eax; or $0x20,%al; mov %eax,%cr4; mov $0x1000,%eax; mov %eax,%cr3
///                      mov $0xc0000080,%ecx; rdmsr; or $0x100,%eax; wrmsr; lgdt gdtr
///                      mov %cr0,%eax; or $0x80000001,%eax; mov %eax,%cr0; ljmp $8,$long
/// .code64        long: mov $10000000,%ecx
///                   1: dec %ecx; jnz 1b; mov $200,%esi
///                   2: xor %eax,%eax; cpuid; dec %esi; jnz 2b
///                      mov $0x10,%al; mov $0xf4,%dx; out %al,%dx
///                   3: hlt; jmp 3b
/// .balign 8       gdt: .quad 0, 0x00af9a000000ffff
///                gdtr: .word 15; .long gdt
/// ```
#[rustfmt::skip]
const PROBE_CODE: [u8; 150] = [
    0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0xfc, 0xbf, 0x00, 0x10, 0xb9, 0x00, 0x18, 0xf3, 0xab,
    0xc7, 0x06, 0x00, 0x10, 0x03, 0x20, 0xc7, 0x06, 0x00, 0x20, 0x03, 0x30, 0xc7, 0x06, 0x00, 0x30, 0x83, 0x00,
    0x0f, 0x20, 0xe0, 0x0c, 0x20, 0x0f, 0x22, 0xe0, 0x66, 0xb8, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x22, 0xd8, 0x66,
    0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x66, 0x0d, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x30, 0x0f, 0x01, 0x16,
    0x90, 0x7c, 0x0f, 0x20, 0xc0, 0x66, 0x0d, 0x01, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, 0xea, 0x5b, 0x7c, 0x08,
    0x00, 0xb9, 0x80, 0x96, 0x98, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0xbe, 0xc8, 0x00, 0x00, 0x00, 0x31, 0xc0, 0x0f,
    0xa2, 0xff, 0xce, 0x75, 0xf8, 0xb0, 0x10, 0x66, 0xba, 0xf4, 0x00, 0xee, 0xf4, 0xeb, 0xfd, 0x0f, 0x1f, 0x44,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xaf, 0x00,
    0x0f, 0x00, 0x80, 0x7c, 0x00, 0x00,
];

/// An accelerator as QEMU's `-accel` names it, e.g. `kvm` or `tcg,thread=multi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accel {
    option: String,
}

impl Accel {
    /// The accelerator called `option`, unchecked.
    pub fn named(option: &str) -> Self {
        Self { option: option.to_owned() }
    }

    /// Hardware virtualisation.
    pub fn kvm() -> Self {
        Self::named("kvm")
    }

    /// Software emulation with one host thread for each virtual CPU.
    pub fn tcg() -> Self {
        Self::named("tcg,thread=multi")
    }

    /// The accelerator to use on this machine: `QEMU_ACCEL` if set, else KVM if a guest was seen to run under it, else TCG.
    pub fn detect() -> Self {
        static FOUND: OnceLock<Accel> = OnceLock::new();
        FOUND.get_or_init(detect_uncached).clone()
    }

    /// The value for `-accel`.
    pub fn option(&self) -> &str {
        &self.option
    }

    /// Whether guests run on the host's CPU.
    pub fn is_kvm(&self) -> bool {
        self.option.split(',').next() == Some("kvm")
    }

    /// The CPU model that goes with it; `None` for QEMU's own default.
    pub fn cpu_model(&self) -> Option<&'static str> {
        self.is_kvm().then_some("host")
    }

    /// A time limit that is right under KVM, lengthened for a slower accelerator.
    pub fn scale(&self, limit: Duration) -> Duration {
        if self.is_kvm() { limit } else { limit * TCG_FACTOR }
    }
}

/// The probe's answer as kept on disk. A new boot or another QEMU asks again.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Cached {
    boot_id: String,
    qemu: String,
    accel: String,
}

fn detect_uncached() -> Accel {
    if let Some(chosen) = std::env::var("QEMU_ACCEL").ok().filter(|v| !v.is_empty()) {
        return if chosen == "tcg" { Accel::tcg() } else { Accel::named(&chosen) };
    }
    // The cheap question first: no device, or no right to it.
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Accel::tcg();
    }
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let Ok(qemu) = artifacts::qemu() else { return Accel::tcg() };
    let qemu = qemu.display().to_string();
    let cache = artifacts::build_dir().map(|dir| dir.join("accel-probe.json")).ok();
    if let Some(known) = cache.as_deref().and_then(|path| read_cache(path, &boot_id, &qemu)) {
        return known;
    }
    let accel = if matches!(probe(&Accel::kvm()), Ok(true)) { Accel::kvm() } else { Accel::tcg() };
    if let Some(path) = cache {
        let answer = Cached { boot_id, qemu, accel: accel.option.clone() };
        // A probe that cannot be remembered is repeated, nothing worse.
        drop(write_cache(&path, &answer));
    }
    accel
}

fn read_cache(path: &Path, boot_id: &str, qemu: &str) -> Option<Accel> {
    let cached: Cached = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    (cached.boot_id == boot_id && cached.qemu == qemu).then(|| Accel::named(&cached.accel))
}

fn write_cache(path: &Path, answer: &Cached) -> Result<()> {
    let dir = path.parent().context("the accelerator cache has no folder")?;
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(&serde_json::to_vec_pretty(answer)?)?;
    file.persist(path)?;
    Ok(())
}

/// Whether a guest runs under `accel`, found by booting the probe disk.
///
/// # Errors
/// When QEMU cannot be started at all.
pub fn probe(accel: &Accel) -> Result<bool> {
    let mut disk = tempfile::NamedTempFile::new().context("creating the probe disk")?;
    let mut sector = PROBE_CODE.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    disk.write_all(&sector)?;
    // SeaBIOS does not boot from a disk of one sector.
    disk.as_file().set_len(1 << 20)?;
    let mut child = Command::new(artifacts::qemu()?)
        .args([
            "-machine",
            "q35",
            "-accel",
            accel.option(),
            "-m",
            "32",
            "-display",
            "none",
            "-nodefaults",
            "-no-reboot",
        ])
        .args(accel.cpu_model().into_iter().flat_map(|model| ["-cpu", model]))
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
        .args(["-drive", &format!("if=none,id=d,format=raw,readonly=on,file={}", disk.path().display())])
        .args(["-device", "virtio-blk-pci,drive=d,bootindex=0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting qemu for the accelerator probe")?;
    let deadline = Instant::now() + PROBE_LIMIT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code() == Some(PROBE_STATUS));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_only_without_kvm() {
        let limit = Duration::from_secs(10);
        for (option, expected) in [("kvm", 10), ("kvm,kernel-irqchip=split", 10), ("tcg", 60), ("tcg,thread=multi", 60)]
        {
            assert_eq!(Accel::named(option).scale(limit), Duration::from_secs(expected), "{option}");
        }
    }

    #[test]
    fn cached_answer_holds_for_the_same_boot_and_qemu_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/cache.json");
        write_cache(&path, &Cached { boot_id: "b1".into(), qemu: "q".into(), accel: "kvm".into() }).unwrap();
        assert_eq!(read_cache(&path, "b1", "q"), Some(Accel::kvm()));
        assert_eq!(read_cache(&path, "b2", "q"), None, "other boot");
        assert_eq!(read_cache(&path, "b1", "r"), None, "other qemu");
        std::fs::write(&path, "{").unwrap();
        assert_eq!(read_cache(&path, "b1", "q"), None, "damaged file");
    }

    #[test]
    fn probe_guest_runs_under_software_emulation() {
        assert!(probe(&Accel::tcg()).unwrap());
        assert!(!probe(&Accel::named("no-such-accelerator")).unwrap());
    }
}
