use super::testing::Fake;
use super::*;
use crate::manager::{BmcAddresses, Priorities, Priority, Probes};
use ferric_sys::testing::machine::MachineTree;
use ferric_sys::{Cmd, Exec, ExecError, Output, Root};
use ferric_types::{Node, Progress};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
struct NoPrograms;

impl Exec for NoPrograms {
    fn run(&self, cmd: &Cmd) -> Result<Output, ExecError> {
        Err(ExecError::NotFound { program: cmd.program.clone() })
    }
}

fn machine() -> Machine {
    Machine::at(Root::at("/ferric-no-such-root"), Arc::new(NoPrograms))
}

const fn step(name: &'static str, clean: u32, run: crate::manager::StepFn) -> Step {
    Step {
        name,
        interface: "deploy",
        priorities: Priorities { clean: Some(Priority::Fixed(clean)), ..Priorities::NONE },
        reboot_requested: false,
        abortable: Some(true),
        args: &[],
        run,
    }
}

fn says_low(_: &StepContext<'_>, _: &Map<String, Value>) -> Result<Value, CommandError> {
    Ok(json!("low"))
}
fn says_high(_: &StepContext<'_>, args: &Map<String, Value>) -> Result<Value, CommandError> {
    Ok(json!({"high": args}))
}
fn refuses(_: &StepContext<'_>, _: &Map<String, Value>) -> Result<Value, CommandError> {
    Err(CommandError::new(ErrorClass::IncompatibleHardwareMethod, "wrong controller"))
}
fn fails(_: &StepContext<'_>, _: &Map<String, Value>) -> Result<Value, CommandError> {
    Err(CommandError::new(ErrorClass::BlockDeviceErase, "broken disk"))
}

static LOW: Fake = Fake {
    name: "low",
    class: "Low",
    support: HardwareSupport::Generic,
    steps: &[
        step("both", 90, says_low),
        step("only_low", 5, says_low),
        step("falls_through", 1, says_low),
        step("stops", 1, says_low),
    ],
    ..Fake::PLAIN
};
static HIGH: Fake = Fake {
    name: "high",
    class: "High",
    support: HardwareSupport::Mainline,
    steps: &[
        step("both", 10, says_high),
        step("falls_through", 1, refuses),
        step("nobody", 1, refuses),
        step("stops", 1, fails),
    ],
    ..Fake::PLAIN
};
static ABSENT: Fake = Fake {
    name: "absent",
    class: "Absent",
    support: HardwareSupport::None,
    steps: &[step("absent", 1, says_low)],
    ..Fake::PLAIN
};

fn registry() -> Registry {
    Registry::new(&[&LOW, &ABSENT, &HIGH], &machine()).unwrap()
}

#[test]
fn managers_are_sorted_by_support_and_unsupported_ones_left_out() {
    assert_eq!(registry().managers(), [("high", "7"), ("low", "7")]);
    assert_eq!(Value::Object(registry().versions()), json!({"high": "7", "low": "7"}));
    assert!(matches!(Registry::new(&[&ABSENT], &machine()), Err(HardwareError::NoManager)));
}

#[test]
fn a_step_of_two_managers_is_announced_by_the_better_one_only() {
    let steps = registry().steps(StepKind::Clean, &Settings::default());
    let names = |class: &str| steps[class].iter().map(|info| info.step.as_str()).collect::<Vec<_>>();
    assert_eq!(names("High"), ["both", "falls_through", "nobody", "stops"]);
    assert_eq!(names("Low"), ["only_low"]);
    assert!(registry().steps(StepKind::Deploy, &Settings::default()).is_empty());
}

#[test]
fn among_equals_priority_decides_then_the_class_name() {
    static A: Fake = Fake {
        name: "a",
        class: "A",
        support: HardwareSupport::Generic,
        steps: &[step("x", 1, says_low), step("y", 3, says_low)],
        ..Fake::PLAIN
    };
    static B: Fake = Fake {
        name: "b",
        class: "B",
        support: HardwareSupport::Generic,
        steps: &[step("x", 2, says_low), step("y", 3, says_low)],
        ..Fake::PLAIN
    };
    let steps = Registry::new(&[&B, &A], &machine()).unwrap().steps(StepKind::Clean, &Settings::default());
    assert_eq!(steps["B"][0].step, "x");
    assert_eq!(steps["A"][0].step, "y");
    assert_eq!((steps["A"].len(), steps["B"].len()), (1, 1));
}

#[test]
fn duplicate_names_are_an_error_that_names_both() {
    static TWIN: Fake = Fake { name: "low", class: "Twin", support: HardwareSupport::None, steps: &[], ..Fake::PLAIN };
    static TWICE: Fake = Fake {
        name: "twice",
        class: "Twice",
        support: HardwareSupport::Generic,
        steps: &[step("s", 1, says_low), step("s", 1, says_high)],
        ..Fake::PLAIN
    };
    let twin = Registry::new(&[&LOW, &TWIN], &machine()).unwrap_err().to_string();
    assert!(twin.contains("Low") && twin.contains("Twin") && twin.contains("\"low\""), "{twin}");
    let twice = Registry::new(&[&TWICE], &machine()).unwrap_err().to_string();
    assert!(twice.contains("Twice") && twice.contains("\"s\""), "{twice}");
}

#[derive(Debug)]
struct NoServices;

impl crate::context::Services for NoServices {
    fn fetch(&self) -> &dyn ferric_disk::image::source::Fetch {
        unreachable!("no step of these tests downloads")
    }
    fn refresh_node(&self) -> Option<Node> {
        None
    }
    fn remember_partition_uuids(&self, _: Value) {}
    fn partition_uuids(&self) -> Value {
        json!({})
    }
    fn image_written(&self, _: &str) {}
}

fn execute(name: &str) -> Result<Value, CommandError> {
    let (machine, registry, settings) = (machine(), registry(), Settings::default());
    let context = StepContext {
        machine: &machine,
        registry: &registry,
        node: &Node::default(),
        ports: &[],
        progress: &Progress::new(),
        settings: &settings,
        services: &NoServices,
    };
    let args = json!({"a": 1}).as_object().unwrap().clone();
    registry.execute(StepKind::Deploy, name, &context, &args)
}

#[test]
fn the_best_manager_that_takes_a_step_runs_it() {
    assert_eq!(execute("both").unwrap(), json!({"high": {"a": 1}}));
    assert_eq!(execute("only_low").unwrap(), json!("low"));
    assert_eq!(execute("falls_through").unwrap(), json!("low"));
}

#[test]
fn other_errors_stop_the_search() {
    assert_eq!(execute("stops").unwrap_err().class, ErrorClass::BlockDeviceErase);
}

#[test]
fn a_step_that_nobody_takes_is_not_found() {
    for (name, want) in [
        ("unknown", "Could not find method: unknown"),
        ("absent", "Could not find method: absent"),
        ("nobody", "Could not find method: nobody (High: wrong controller)"),
    ] {
        let error = execute(name).unwrap_err();
        assert_eq!((error.class, error.details.as_str()), (ErrorClass::HardwareManagerMethodNotFound, want));
    }
}

/// Counts how often it was asked, takes its time, and knows IPv4 from the second time on and everything from the third.
fn slow_bmc() -> (&'static std::sync::atomic::AtomicU32, Registry) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static ASKED: AtomicU32 = AtomicU32::new(0);
    const PROBES: Probes = Probes {
        bmc: Some(|_, _| {
            let times = ASKED.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(300));
            let known = |from: u32, text: &str| (times >= from).then(|| text.to_owned());
            Ok(BmcAddresses { v4: known(1, "192.0.2.100"), v6: known(2, "::/0"), mac: None })
        }),
        ..Probes::NONE
    };
    static SLOW: Fake = Fake { name: "slow", probes: &PROBES, ..Fake::PLAIN };
    (&ASKED, Registry::new(&[&SLOW], &machine()).unwrap())
}

#[test]
fn a_bmc_is_asked_once_for_all_that_wait_until_it_has_answered_and_never_when_it_is_to_be_left_alone() {
    let (asked, registry) = slow_bmc();
    let count = || asked.load(std::sync::atomic::Ordering::SeqCst);
    let settings = Settings::default();
    let left_alone = Settings { skip_bmc_detect: true, ..Settings::default() };
    assert_eq!(registry.bmc(&machine(), &left_alone), BmcAddresses::default());
    assert_eq!(count(), 0);

    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| assert_eq!(registry.bmc(&machine(), &settings), BmcAddresses::default()));
        }
    });
    assert_eq!(count(), 1, "all five wait for one answer");
    assert!(begun.elapsed().as_millis() < 600, "{:?}", begun.elapsed());

    // (seconds later, what is known of IPv4 and IPv6, how often it was asked by then)
    let v4 = Some("192.0.2.100");
    for (later, want) in
        [(1, (None, None, 1)), (5, (v4, None, 2)), (5, (v4, Some("::/0"), 3)), (20, (v4, Some("::/0"), 3))]
    {
        let earlier = |(when, found): (Instant, BmcAddresses)| {
            (when.checked_sub(std::time::Duration::from_secs(later)).unwrap(), found)
        };
        let mut known = registry.bmc.lock().unwrap();
        *known = known.take().map(earlier);
        drop(known);
        let found = registry.bmc(&machine(), &settings);
        assert_eq!((found.v4.as_deref(), found.v6.as_deref(), count()), want, "{later}");
    }
    assert_eq!(registry.bmc(&machine(), &left_alone), BmcAddresses::default());
}

/// Counts how often it is asked whether it fits and told to prepare itself.
#[derive(Debug)]
struct Counting {
    support: AtomicU32,
    initialize: AtomicU32,
    bmc: AtomicU32,
}

static COUNTING: Counting =
    Counting { support: AtomicU32::new(0), initialize: AtomicU32::new(0), bmc: AtomicU32::new(0) };

impl HardwareManager for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn class_name(&self) -> &'static str {
        "Counting"
    }
    fn version(&self) -> &'static str {
        "1"
    }
    fn support(&self, _: &Machine) -> HardwareSupport {
        self.support.fetch_add(1, Ordering::SeqCst);
        HardwareSupport::ServiceProvider
    }
    fn initialize(&self, _: &Machine) -> Result<(), HardwareError> {
        self.initialize.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn steps(&self) -> &'static [Step] {
        &[]
    }
    fn probes(&self) -> &'static Probes {
        static PROBES: Probes = Probes {
            bmc: Some(|_, _| {
                COUNTING.bmc.fetch_add(1, Ordering::SeqCst);
                Ok(BmcAddresses::default())
            }),
            ..Probes::NONE
        };
        &PROBES
    }
}

#[test]
fn managers_are_asked_and_prepared_once_whatever_is_done_with_them() {
    let tree = MachineTree::new().unwrap();
    let machine = Machine::at(tree.root(), Arc::new(NoPrograms));
    let registry = Registry::new(&[&COUNTING, &crate::generic::GENERIC], &machine).unwrap();
    registry.initialize(&machine);
    for _ in 0..3 {
        registry.inventory(&machine, &Settings::default());
        registry.steps(StepKind::Clean, &Settings::default());
        registry.disks(&machine, &Settings::default()).unwrap();
        registry.versions();
        registry.managers();
    }
    let counts = [&COUNTING.support, &COUNTING.initialize, &COUNTING.bmc].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(counts, [1, 1, 1]);
}

/// Hides a USB device.
static HIDER: Fake = {
    const PROBES: Probes = Probes { keeps_usb: Some(|device| device.product != "Secret"), ..Probes::NONE };
    Fake { name: "hider", support: HardwareSupport::Mainline, probes: &PROBES, ..Fake::PLAIN }
};

#[test]
fn a_hidden_usb_device_is_not_shown() {
    let tree = MachineTree::new().unwrap();
    for (number, product) in ["Keyboard", "Secret"].iter().enumerate() {
        for (name, value) in [("busnum", "1"), ("devnum", &number.to_string()), ("product", product)] {
            tree.file(&format!("sys/bus/usb/devices/1-{number}/{name}"), value).unwrap();
        }
    }
    let machine = Machine::at(tree.root(), Arc::new(NoPrograms));
    let shown = |managers: &[&'static dyn HardwareManager]| {
        let devices = Registry::new(managers, &machine).unwrap().usb_devices(&machine);
        devices.into_iter().map(|device| device.product).collect::<Vec<_>>()
    };
    assert_eq!(shown(&[&crate::generic::GENERIC]), ["Keyboard", "Secret"]);
    assert_eq!(shown(&[&crate::generic::GENERIC, &HIDER]), ["Keyboard"]);
}

#[test]
fn lists_that_could_not_be_made_are_told_and_the_rest_of_the_inventory_is_there() {
    let tree = MachineTree::new().unwrap();
    std::fs::remove_dir_all(tree.path("sys/block")).unwrap();
    let machine = Machine::at(tree.root(), Arc::new(NoPrograms));
    let registry = Registry::new(&[&crate::generic::GENERIC], &machine).unwrap();
    let settings = Settings { collect_lldp: false, ..Settings::default() };
    let (inventory, unlisted) = registry.look(&machine, &settings);
    let reasons: Vec<String> = unlisted.iter().map(|error| ferric_types::error::chain(error)).collect();
    assert!(matches!(&reasons[..], [reason] if reason.contains("sys/block")), "{reasons:?}");
    assert!(inventory.disks.is_empty());
    assert_eq!(inventory, registry.inventory(&machine, &settings));
    // A machine without disks is not one whose disks cannot be listed.
    std::fs::create_dir_all(tree.path("sys/block")).unwrap();
    assert!(registry.look(&machine, &settings).1.is_empty());
    // Nobody has any probes.
    let (_, unlisted) = Registry::new(&[&LOW], &machine).unwrap().look(&machine, &settings);
    let reasons: Vec<String> = unlisted.iter().map(HardwareError::to_string).collect();
    let want = ["the disks", "the network interfaces"];
    assert_eq!(reasons, want.map(|what| format!("no hardware manager of this image can look for {what}")));
}
