//! Files injected into the system on the disk. What only a kernel can do, mounting, is left to machines.

use ferric_disk::inject::ImageRoot;
use ferric_disk::table::{self, Partition, PartitionType, TableKind};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::error::{CommandError, ErrorClass};
use ferric_types::step::StepKind;
use serde_json::{Value, json};

use super::{Lab, MIB, lab};
use crate::generic::inject::{files, job, process};

/// A machine whose disk has a partition of MiB for each type, with devices that hold nothing.
fn machine(types: &[u8]) -> Lab {
    let mut lab = lab();
    lab.disk("vda", 5 << 30, false);
    let partition = |(index, kind): (u32, &u8)| Partition {
        number: index + 1,
        start_bytes: u64::from(index + 1) * MIB,
        size_bytes: MIB,
        kind: PartitionType::Mbr(*kind),
        guid: None,
        name: String::new(),
    };
    let partitions: Vec<Partition> = (0..).zip(types).map(partition).collect();
    table::create(&dev(&lab), TableKind::Mbr, &partitions, None).unwrap();
    for partition in &partitions {
        lab.medium(&format!("vda{}", partition.number), MIB);
    }
    lab
}

fn dev(lab: &Lab) -> BlockDev {
    BlockDev::open(lab.tree.path("dev/vda"), Access::Write).unwrap()
}

fn run(lab: &Lab, node: &Value, args: &Value) -> Result<Value, CommandError> {
    let args = args.as_object().unwrap();
    lab.with(node, |context| lab.registry.execute(StepKind::Deploy, "inject_files", context, args))
}

fn refused(lab: &Lab, file: &Value) -> CommandError {
    run(lab, &json!({}), &json!({"files": [file]})).unwrap_err()
}

#[test]
fn nothing_to_do_needs_no_disk() {
    for (node, args) in [
        (json!({}), json!({})),
        (json!({"properties": {"inject_files": []}}), json!({"files": null, "verify_ca": null})),
    ] {
        assert_eq!(run(&lab(), &node, &args).unwrap(), Value::Null);
    }
}

#[test]
fn what_is_wrong_is_refused_before_a_server_or_a_disk_is_asked() {
    let file = |content: &str| json!([{"path": "/etc/x", "content": content}]);
    for (node, args, class, want) in [
        (json!({}), json!({"files": 1}), ErrorClass::InvalidCommandParams, "must be a list"),
        (json!({}), json!({"verify_ca": 1}), ErrorClass::InvalidCommandParams, "`verify_ca`"),
        (
            json!({"properties": {"inject_files": [{}]}}),
            json!({}),
            ErrorClass::InvalidCommandParams,
            "Validation of files",
        ),
        (
            json!({}),
            json!({"files": file("http://user:s3cret@s/{node[uuid]}")}),
            ErrorClass::CommandExecution,
            "Failed to process file /etc/x: {node[uuid]} of the URL is not there",
        ),
        (json!({}), json!({"files": file("")}), ErrorClass::DeviceNotFound, "No suitable device"),
    ] {
        let lab = lab();
        let error = run(&lab, &node, &args).unwrap_err();
        assert_eq!(error.class, class, "{error}");
        assert!(error.details.contains(want) && !error.details.contains("s3cret"), "{error}");
        assert!(lab.services.fetch.asked.lock().unwrap().is_empty());
    }
}

#[test]
fn a_search_tells_where_it_was_and_what_it_could_not_look_into() {
    let lab = machine(&[0x83, 0x8e, 0x82]);
    lab.write("vda3", 4086, b"SWAPSPACE2");
    let error = refused(&lab, &json!({"path": "/etc/conf.d/x", "content": ""}));
    assert_eq!(error.class, ErrorClass::DeviceNotFound);
    let shown = |name: &str| lab.tree.path(format!("dev/{name}")).display().to_string();
    let (one, three) = (shown("vda1"), shown("vda3"));
    assert_eq!(
        error.details,
        format!(
            "No partition found with path etc, scanned: [{one}, {three}]. Not looked into: {one} holds no file system that is \
             known; {three} holds swap, which is no file system"
        )
    );
}

#[test]
fn a_partition_that_is_named_must_be_there_and_hold_a_file_system() {
    let lab = machine(&[0x83, 0x83]);
    lab.write("vda2", 0, b"LUKS\xba\xbe");
    let file = |partition: Value| json!({"path": "/etc/x", "partition": partition, "content": ""});
    for (partition, class, want) in [
        (json!(7), ErrorClass::DeviceNotFound, "vda has no partition 7; those it has: 1, 2"),
        (json!("7"), ErrorClass::DeviceNotFound, "has no partition 7"),
        (json!("/dev/disk/by-label/x"), ErrorClass::DeviceNotFound, "/etc/x belongs on"),
        (json!(1), ErrorClass::CommandExecution, "Failed to process file /etc/x: "),
        (json!(1), ErrorClass::CommandExecution, "vda1 holds no file system that is known"),
        (json!("/dev/vda2"), ErrorClass::CommandExecution, "vda2 holds crypto_LUKS, which is no file system"),
    ] {
        let error = refused(&lab, &file(partition.clone()));
        assert_eq!(error.class, class, "{partition}: {error}");
        assert!(error.details.contains(want), "{partition}: {error}");
    }
}

#[test]
fn a_file_system_that_cannot_be_mounted_ends_it_and_leaves_nothing() {
    let lab = machine(&[0x83]);
    lab.write("vda1", 1080, &[0x53, 0xef]);
    let named = refused(&lab, &json!({"path": "/etc/x", "partition": 1, "content": ""}));
    assert_eq!(named.class, ErrorClass::CommandExecution);
    let sought = refused(&lab, &json!({"path": "/etc/x", "content": ""}));
    assert_eq!(sought.class, ErrorClass::DeviceNotFound);
    for error in [named, sought] {
        assert!(error.details.contains("mounting the ext4 file system on"), "{error}");
    }
    assert_eq!(std::fs::read_dir(lab.tree.path("run/ferric/image")).unwrap().count(), 0);
}

#[test]
fn files_are_written_fetched_and_deleted_in_their_file_system() {
    let mut lab = machine(&[0x83]);
    lab.services.fetch.bytes = vec![0x5a; 300_000];
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("etc")).unwrap();
    std::fs::write(place.path().join("etc/old"), "old").unwrap();
    let wanted = json!([
        {"path": "/etc/a/b", "content": "dGV4dA==", "mode": 0o600},
        {"path": "/etc/big", "content": "http://user:pw@server/{node[uuid]}?x={{1}}"},
        {"path": "/etc/old", "deleted": true},
        {"path": "/etc/never", "deleted": true},
    ]);
    let files = files::parse(None, Some(&wanted)).unwrap();
    lab.with(&json!({"uuid": "node-1"}), |context| {
        let image = ImageRoot::open(place.path()).unwrap();
        for file in &files {
            let job = job(context, file, true).unwrap();
            process(context, &image, &lab.tree.path("dev/vda1"), "ext4", &job).unwrap();
        }
        let outside =
            files::parse(None, Some(&json!([{"path": "/etc", "partition": 1, "content": ""}]))).map(|mut files| {
                let job = job(context, &files[0], true).unwrap();
                let error = process(context, &image, &lab.tree.path("dev/vda1"), "ext4", &job).unwrap_err();
                drop(job);
                files.clear();
                error
            });
        let error = outside.unwrap();
        assert_eq!(error.class, ErrorClass::CommandExecution);
        assert!(error.details.starts_with("Failed to process file /etc: opening /etc for writing: "), "{error}");
    });
    assert_eq!(std::fs::read(place.path().join("etc/a/b")).unwrap(), b"text");
    assert_eq!(std::fs::read(place.path().join("etc/big")).unwrap(), lab.services.fetch.bytes);
    assert!(!place.path().join("etc/old").exists());
    assert_eq!(*lab.services.fetch.asked.lock().unwrap(), ["http://user:pw@server/node-1?x={1}"]);
}
