use super::*;
use ferric_sys::testing::machine::MachineTree;

/// A machine by lines: `name`, `name < below below` for what is on top of others, `disk/part` for a partition. Attributes
/// follow behind a bar.
fn machine(lines: &str) -> MachineTree {
    let tree = MachineTree::new().unwrap();
    for (minor, line) in (0..).zip(lines.lines().map(str::trim).filter(|line| !line.is_empty())) {
        let (line, attributes) = line.split_once('|').unwrap_or((line, ""));
        let (name, below) = line.split_once('<').unwrap_or((line, ""));
        let (name, number) = (name.trim(), format!("250:{minor}"));
        let kname = match name.split_once('/') {
            Some((disk, partition)) => {
                let dir = format!("sys/devices/virtual/block/{disk}/{partition}");
                tree.file(&format!("{dir}/partition"), "1").unwrap();
                tree.file(&format!("{dir}/dev"), &number).unwrap();
                tree.link(&format!("sys/class/block/{partition}"), &dir).unwrap();
                partition
            }
            None => {
                tree.disk(name, "virtual", &number, &[]).unwrap();
                name
            }
        };
        tree.link(&format!("sys/dev/block/{number}"), &format!("sys/class/block/{kname}")).unwrap();
        tree.file(&format!("dev/{kname}"), "").unwrap();
        for under in below.split_whitespace() {
            tree.link(&format!("sys/class/block/{under}/holders/{kname}"), &format!("sys/class/block/{kname}"))
                .unwrap();
            tree.link(&format!("sys/class/block/{kname}/slaves/{under}"), &format!("sys/class/block/{under}")).unwrap();
        }
        for (file, value) in attributes.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            tree.file(&format!("sys/class/block/{kname}/{file}"), value).unwrap();
        }
    }
    tree
}

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The plan, a line for each action and each thing that stays.
fn planned(tree: &MachineTree, targets: &str, keep: &str) -> Vec<String> {
    let root = tree.root();
    let plan = Stack::read(&root).plan(&names(targets), &names(keep));
    let lines = plan.actions.iter().map(ToString::to_string).chain(plan.stuck.iter().map(|error| format!("! {error}")));
    let prefix = format!("{}/", tree.path("").display()).replace("//", "/");
    lines.map(|line| line.replace(&prefix, "/")).collect()
}

/// md over two partitions, LVM on it, LUKS on a volume, and a file system in that; bcache with a cache of its own.
const STACK: &str = "
    sda
    sda/sda1
    sdb
    sdb/sdb1
    sdc | bcache/x=1
    nvme0n1 | bcache/set/x=1
    md0 < sda1 sdb1 | md/array_state=clean
    dm-0 < md0 | dm/name=vg0-root dm/uuid=LVM-abc
    dm-1 < md0 | dm/name=vg0-swap dm/uuid=LVM-def
    dm-2 < dm-0 | dm/name=secret dm/uuid=CRYPT-LUKS2-abc
    bcache0 < sdc | bcache/x=1
    dm-3 < bcache0 | dm/name=frozen dm/suspended=1
";

fn stack() -> MachineTree {
    let tree = machine(STACK);
    tree.link("sys/class/block/nvme0n1/bcache/set/bdev0/dev", "sys/class/block/bcache0").unwrap();
    tree
}

#[test]
fn a_stack_is_taken_down_from_the_top_each_layer_wiped_before_it_goes() {
    let tree = stack();
    tree.file(
        "proc/self/mountinfo",
        "1 1 0:2 / / rw - rootfs rootfs rw\n30 1 250:9 / /mnt rw - ext4 /dev/dm-2 rw\n31 30 250:9 /a /mnt/a\\040b rw - ext4 /dev/dm-2 rw",
    )
    .unwrap();
    tree.file("proc/swaps", "Filename Type Size Used Priority\n/dev/dm-1 partition 100 0 -2").unwrap();
    let want = [
        "unmounting /dev/dm-2 from /mnt/a b",
        "unmounting /dev/dm-2 from /mnt",
        "wiping /dev/dm-2",
        "removing the mapping secret (/dev/dm-2)",
        "wiping /dev/dm-0",
        "removing the mapping vg0-root (/dev/dm-0)",
        "stopping to swap to /dev/dm-1",
        "wiping /dev/dm-1",
        "removing the mapping vg0-swap (/dev/dm-1)",
        "wiping /dev/md0",
        "stopping the array /dev/md0",
    ];
    assert_eq!(planned(&tree, "sda sdb", ""), want);
    // Where the array is to be erased as well, it goes all the same.
    assert_eq!(planned(&tree, "md0 sda sdb", ""), want);
    // A cache waits for what it is the cache of; what is suspended is not written to.
    let want = [
        "removing the mapping frozen (/dev/dm-3)",
        "wiping /dev/bcache0",
        "taking /dev/nvme0n1 away from bcache",
        "taking /dev/sdc away from bcache",
    ];
    assert_eq!(planned(&tree, "nvme0n1 sdc", ""), want);
    // What is on a disk that must be left alone is not even wiped.
    assert_eq!(planned(&tree, "sda", ""), ["! /dev/md0 is also on /dev/sdb1, which is to be left alone"]);
}

#[test]
fn what_is_to_be_kept_stays_and_so_does_what_is_on_it() {
    let tree = stack();
    assert!(planned(&tree, "sda sdb", "md0").is_empty());
    // The array itself is to be wiped, but not to be taken apart.
    let lines = planned(&tree, "sda sdb md0", "md0");
    assert_eq!(lines.last().unwrap(), "removing the mapping vg0-swap (/dev/dm-1)");
    assert_eq!(planned(&tree, "sdc", "bcache0"), Vec::<String>::new());
}

#[test]
fn nothing_is_taken_away_from_an_agent_that_runs_from_a_disk() {
    let tree = stack();
    tree.file("proc/self/mountinfo", "1 1 250:7 / / rw - ext4 /dev/dm-0 rw\n30 1 0:40 / /data rw - btrfs /dev/dm-2 rw")
        .unwrap();
    let why = "and the agent takes nothing away there since it does not run from memory";
    let lines = planned(&tree, "sda sdb", "");
    assert_eq!(
        lines,
        [
            "wiping /dev/dm-1".to_owned(),
            "removing the mapping vg0-swap (/dev/dm-1)".to_owned(),
            format!("! /dev/dm-2 is in use (mounted at /data), {why}"),
            format!("! /dev/dm-0 is in use (mounted at /), {why}"),
        ]
    );
}

#[test]
fn circles_and_strangers_are_named() {
    let tree = machine(
        "sda\n drbd0 < sda\n sdb\n dm-0 < sdb | dm/name=a\n dm-1 < dm-0 | dm/name=b\n \
         dm-5 < sdb | dm/name=paths dm/uuid=mpath-x",
    );
    tree.link("sys/class/block/dm-1/holders/dm-0", "sys/class/block/dm-0").unwrap();
    tree.link("sys/class/block/dm-0/slaves/dm-1", "sys/class/block/dm-1").unwrap();
    assert_eq!(planned(&tree, "sda", ""), ["! /dev/drbd0 is on /dev/sda, and there is no way known to take it down"]);
    assert_eq!(
        planned(&tree, "sdb", ""),
        [
            "! dm-0, dm-1 are on top of each other in a circle",
            "! /dev/dm-5 is on /dev/sdb, and there is no way known to take it down"
        ]
    );
}

#[test]
fn what_the_kernel_does_not_let_go_of_is_told_after_some_tries() {
    let tree = stack();
    let (found, errors) = release(&tree.root(), &names("sda sdb"), &[]);
    assert!(found);
    // Mappings are taken away by a call to the kernel, which is not asked about a tree of files.
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert_eq!(errors[0], "removing the mapping secret (/dev/dm-2)");
    assert_eq!(attr::read_trimmed(&tree.path("sys/class/block/md0/md/array_state")).unwrap(), "clear");
    let tree = machine("sda\n md7 < sda | md/array_state=inactive");
    std::fs::write(tree.path("dev/md7"), [0xa5; 8192]).unwrap();
    let (found, errors) = release(&tree.root(), &names("sda"), &[]);
    assert_eq!((found, errors.len()), (true, 1));
    assert_eq!(errors[0].to_string(), "stopping the array /dev/md7 had no effect");
    assert_eq!(std::fs::read(tree.path("dev/md7")).unwrap(), [0; 8192]);
    let (found, errors) = release(&tree.root(), &names("sdx"), &[]);
    assert!(!found && errors.is_empty());
}

#[test]
fn whoever_holds_a_device_is_named() {
    let tree = stack();
    tree.file("proc/self/mountinfo", "30 1 250:1 / /mnt rw - ext4 /dev/sda1 rw").unwrap();
    tree.file("proc/swaps", "/dev/sda partition").unwrap();
    tree.file("proc/77/comm", "dd").unwrap();
    tree.link("proc/77/fd/3", "x").unwrap();
    std::fs::remove_file(tree.path("proc/77/fd/3")).unwrap();
    std::os::unix::fs::symlink(tree.path("dev/sda"), tree.path("proc/77/fd/3")).unwrap();
    let found = of_node(&tree.root(), &tree.path("dev/sda"));
    assert_eq!(found, ["mounted at /mnt", "swap space", "process 77 (dd)"]);
    assert_eq!(of_node(&tree.root(), &tree.path("dev/dm-0")), ["/dev/dm-2 (secret)"]);
}
