use super::*;
use crate::manager::{Priorities, Priority, Probes};
use ferric_sys::{Cmd, Exec, ExecError, Output, Root};
use ferric_types::{Node, Progress};
use serde_json::json;
use std::sync::Arc;

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

#[derive(Debug)]
struct Fake {
    name: &'static str,
    class: &'static str,
    support: HardwareSupport,
    steps: &'static [Step],
}

impl HardwareManager for Fake {
    fn name(&self) -> &'static str {
        self.name
    }
    fn class_name(&self) -> &'static str {
        self.class
    }
    fn version(&self) -> &'static str {
        "7"
    }
    fn support(&self, _: &Machine) -> HardwareSupport {
        self.support
    }
    fn initialize(&self, _: &Machine) -> Result<(), HardwareError> {
        Ok(())
    }
    fn steps(&self) -> &'static [Step] {
        self.steps
    }
    fn probes(&self) -> &'static Probes {
        &Probes::NONE
    }
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
};
static ABSENT: Fake =
    Fake { name: "absent", class: "Absent", support: HardwareSupport::None, steps: &[step("absent", 1, says_low)] };

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
    };
    static B: Fake = Fake {
        name: "b",
        class: "B",
        support: HardwareSupport::Generic,
        steps: &[step("x", 2, says_low), step("y", 3, says_low)],
    };
    let steps = Registry::new(&[&B, &A], &machine()).unwrap().steps(StepKind::Clean, &Settings::default());
    assert_eq!(steps["B"][0].step, "x");
    assert_eq!(steps["A"][0].step, "y");
    assert_eq!((steps["A"].len(), steps["B"].len()), (1, 1));
}

#[test]
fn duplicate_names_are_an_error_that_names_both() {
    static TWIN: Fake = Fake { name: "low", class: "Twin", support: HardwareSupport::None, steps: &[] };
    static TWICE: Fake = Fake {
        name: "twice",
        class: "Twice",
        support: HardwareSupport::Generic,
        steps: &[step("s", 1, says_low), step("s", 1, says_high)],
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
