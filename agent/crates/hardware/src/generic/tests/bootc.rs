//! Bootable containers, with a podman that exists only on paper.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use ferric_disk::table::{self, Partition, PartitionType, TableKind};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::exec::{Cmd, Exec, ExecError, Output};
use ferric_types::error::{CommandError, ErrorClass};
use ferric_types::step::StepKind;
use serde_json::{Value, json};

use super::{Lab, MIB, lab};

const IMAGE: &str = "registry.example:5000/os/bootc:1";

/// Does what podman would, and remembers what it was asked for and what lay beside it.
#[derive(Debug, Default)]
struct Podman {
    disk: std::path::PathBuf,
    /// Standard error of `pull`, when that fails.
    pull_fails: &'static str,
    /// Standard error of `run`, when that fails.
    run_fails: &'static str,
    asked: Mutex<Vec<String>>,
    /// Name, rights and content of each file beside it.
    beside: Mutex<Vec<(String, u32, String)>>,
}

impl Exec for Podman {
    fn run(&self, cmd: &Cmd) -> Result<Output, ExecError> {
        assert_eq!(cmd.program, "podman");
        self.asked.lock().unwrap().push(cmd.to_string());
        let dir = self.disk.parent().unwrap().with_file_name("run/ferric/bootc");
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let (path, mode) = (entry.path(), entry.metadata().unwrap().permissions().mode() & 0o777);
            let name = format!("{} {}", cmd.args[0], path.file_name().unwrap().to_string_lossy());
            self.beside.lock().unwrap().push((name, mode, std::fs::read_to_string(path).unwrap()));
        }
        let fails = match cmd.args[0].as_str() {
            "pull" => self.pull_fails,
            "run" => {
                install(&self.disk);
                self.run_fails
            }
            _ => "",
        };
        Ok(Output { code: i32::from(!fails.is_empty()), stderr: fails.into(), ..Output::default() })
    }
}

/// What an installer leaves on a disk.
fn install(disk: &std::path::Path) {
    let partition = Partition {
        number: 1,
        start_bytes: MIB,
        size_bytes: MIB,
        kind: PartitionType::Mbr(0x83),
        guid: None,
        name: String::new(),
    };
    table::create(&BlockDev::open(disk, Access::Write).unwrap(), TableKind::Mbr, &[partition], None).unwrap();
}

fn machine(podman: Podman) -> (Lab, Arc<Podman>) {
    let mut lab = lab();
    lab.disk("vda", 4 << 30, false);
    let podman = Arc::new(Podman { disk: lab.tree.path("dev/vda"), ..podman });
    lab.machine.exec = Arc::clone(&podman) as Arc<dyn Exec>;
    (lab, podman)
}

fn run(lab: &Lab, node: &Value, args: &Value) -> Result<Value, CommandError> {
    let args = args.as_object().unwrap();
    lab.with(node, |context| lab.registry.execute(StepKind::Deploy, "execute_bootc_install", context, args))
}

#[test]
fn without_podman_it_is_refused_with_the_reason() {
    let mut lab = lab();
    lab.disk("vda", 4 << 30, false);
    let args = json!({"image_source": "oci://registry/os:1?token=s3cret", "oci_pull_secret": "s3cret"});
    let error = run(&lab, &json!({}), &args).unwrap_err();
    assert_eq!(error.class, ErrorClass::CommandExecution);
    let begin = "Container image oci://registry/os:1 not written: bootable containers are not installed by this agent";
    assert!(error.details.starts_with(begin), "{error}");
    assert!(error.details.contains("podman") && !error.details.contains("s3cret"), "{error}");
    assert_eq!(lab.byte("vda", 0), 0xa5);
}

#[test]
fn it_is_refused_where_it_is_switched_off() {
    let (mut lab, podman) = machine(Podman::default());
    lab.settings.disable_bootc_deploy = true;
    let error = run(&lab, &json!({}), &json!({"image_source": IMAGE})).unwrap_err();
    assert_eq!(error.class, ErrorClass::CommandExecution);
    assert!(error.details.ends_with("bootable containers are switched off by disable_bootc_deploy"), "{error}");
    assert_eq!((podman.asked.lock().unwrap().len(), lab.byte("vda", 0)), (0, 0xa5));
}

#[test]
fn where_podman_is_there_the_image_installs_itself_and_never_sees_the_pull_secret() {
    let (lab, podman) = machine(Podman::default());
    let node = json!({"uuid": "node-1", "instance_info": {"bootc_authorized_keys": "ssh-ed25519 AAAA me", "bootc_tpm2_luks": "true"}});
    let drive = "H4sIAAAAAAACA0tMSgYAwkEkNQMAAAA=";
    let args = json!({"image_source": format!("oci://{IMAGE}"), "oci_pull_secret": "czNjcmV0", "configdrive": drive});
    let result = run(&lab, &node, &args).unwrap();
    let text = format!("execute_bootc_install: Container image (oci://{IMAGE}) written to device /dev/vda");
    assert_eq!(result, json!({"result": text}));
    let dir = lab.tree.path("run/ferric/bootc");
    let shown = dir.display();
    let asked = podman.asked.lock().unwrap().clone();
    assert_eq!(
        asked,
        [
            "podman --version".to_owned(),
            format!("podman pull --authfile={shown}/auth.json --retry-delay=5s {IMAGE}"),
            format!(
                "podman run --rm --privileged --pid=host --pull=never -v /var/lib/containers:/var/lib/containers -v /dev:/dev \
                 -v {shown}/authorized-keys:/run/bootc-authorized-keys:ro {IMAGE} bootc install to-disk --wipe \
                 --skip-fetch-check --root-size=3328M --block-setup=tpm2-luks \
                 --root-ssh-authorized-keys=/run/bootc-authorized-keys --disable-selinux /dev/vda"
            ),
        ]
    );
    let auth = r#"{"auths":{"registry.example:5000":{"auth":"s3cret"}}}"#;
    assert_eq!(
        *podman.beside.lock().unwrap(),
        [
            ("pull auth.json".to_owned(), 0o600, auth.to_owned()),
            ("run authorized-keys".to_owned(), 0o600, "ssh-ed25519 AAAA me".to_owned()),
        ]
    );
    assert!(!dir.exists());
    let settings = std::fs::read_to_string(lab.tree.path("etc/containers/containers.conf.d/01-ferric.conf")).unwrap();
    assert!(settings.contains("no_pivot_root = true"), "{settings}");
    // The config drive is behind what the installer has made, and the disk boots.
    let dev = BlockDev::open(lab.tree.path("dev/vda"), Access::Read).unwrap();
    let partitions = table::read(&dev).unwrap().unwrap().partitions;
    assert_eq!(partitions.iter().map(|partition| partition.number).collect::<Vec<_>>(), [1, 2]);
    let mut head = [0; 3];
    dev.read_at(partitions[1].start_bytes, &mut head).unwrap();
    assert_eq!(&head, b"abc");
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_run() {
    for (args, class) in [
        (json!({}), ErrorClass::InvalidCommandParams),
        (json!({"image_source": "oci://--privileged"}), ErrorClass::InvalidCommandParams),
        (json!({"image_source": "r/os; reboot"}), ErrorClass::InvalidCommandParams),
        (json!({"image_source": IMAGE, "oci_pull_secret": 7}), ErrorClass::InvalidCommandParams),
        (json!({"image_source": IMAGE, "oci_pull_secret": "s3cret!"}), ErrorClass::InvalidCommandParams),
        (json!({"image_source": IMAGE, "configdrive": "s3cret!"}), ErrorClass::Deployment),
    ] {
        let (lab, podman) = machine(Podman::default());
        let error = run(&lab, &json!({}), &args).unwrap_err();
        assert_eq!(error.class, class, "{args}: {error}");
        assert!(!error.details.contains("s3cret"), "{error}");
        assert!(podman.asked.lock().unwrap().iter().all(|asked| asked == "podman --version"), "{args}");
        assert_eq!(lab.byte("vda", 0), 0xa5, "{args}");
    }
}

#[test]
fn a_failed_installation_leaves_a_disk_that_does_not_boot() {
    for (podman, class, want, head) in [
        (
            Podman { pull_fails: "unauthorized", ..Podman::default() },
            ErrorClass::ImageDownload,
            "code 1: unauthorized",
            0xa5,
        ),
        (Podman { run_fails: "no space", ..Podman::default() }, ErrorClass::CommandExecution, "code 1: no space", 0),
        (
            Podman { run_fails: "Error: executable file `bootc` not found in $PATH", ..Podman::default() },
            ErrorClass::ImageDownload,
            "has no bootc in it",
            0,
        ),
    ] {
        let (lab, _podman) = machine(podman);
        let error = run(&lab, &json!({}), &json!({"image_source": IMAGE})).unwrap_err();
        assert_eq!(error.class, class, "{error}");
        assert!(error.details.contains(want), "{error}");
        assert_eq!((lab.byte("vda", 0), lab.byte("vda", 511)), (head, head), "{want}");
        assert!(!lab.tree.path("run/ferric/bootc").exists(), "{want}");
    }
}
