//! `target_raid_config` and the rules for it.

use serde_json::{Map, Value};

/// md gives 32 bytes to a name.
const MAX_NAME_BYTES: usize = 32;
/// Larger ones are typing errors.
const MAX_GIB: u64 = 1 << 30;

/// Levels: as Ironic and as `mdadm` write them, and the fewest disks.
const LEVELS: [(Level, &str, &str, usize); 5] = [
    (Level::Raid0, "0", "0", 2),
    (Level::Raid1, "1", "1", 2),
    (Level::Raid10, "1+0", "10", 2),
    (Level::Raid5, "5", "5", 3),
    (Level::Raid6, "6", "6", 4),
];

/// RAID level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Stripes.
    Raid0,
    /// Mirrors.
    Raid1,
    /// Stripes over mirrors.
    Raid10,
    /// One parity.
    Raid5,
    /// Two parities.
    Raid6,
}

impl Level {
    fn from_ironic(text: &str) -> Option<Self> {
        LEVELS.iter().find(|(_, ironic, ..)| *ironic == text).map(|(level, ..)| *level)
    }

    fn row(self) -> (&'static str, &'static str, usize) {
        let row = LEVELS.iter().find(|(level, ..)| *level == self);
        row.map_or(("", "", 0), |(_, ironic, mdadm, disks)| (ironic, mdadm, *disks))
    }

    /// As Ironic writes it: `1+0`.
    pub fn ironic(self) -> &'static str {
        self.row().0
    }

    /// As `mdadm` takes it: `10`.
    pub fn mdadm(self) -> &'static str {
        self.row().1
    }

    /// Fewest disks it makes sense with.
    pub fn fewest_disks(self) -> usize {
        self.row().2
    }
}

/// How much of each disk a volume takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// In GiB.
    Gib(u64),
    /// All that is left.
    Max,
}

/// One logical disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// RAID level.
    pub level: Level,
    /// Size on each disk.
    pub size: Size,
    /// Name; `md0` and so on where it has none.
    pub name: Option<String>,
    /// Whether the operating system goes there; `None` when nothing is said.
    pub is_root: Option<bool>,
    /// Hints for its disks; all disks when absent.
    pub physical_disks: Option<Vec<Map<String, Value>>>,
}

/// A configuration breaks the rules. All of its problems, in the words of the reference agent where that has the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is nothing in it.
    #[error("RAID config contains no logical disks")]
    Empty,
    /// It breaks rules.
    #[error("Could not validate Software RAID config for {node}: {}", problems.join("; "))]
    Rules {
        /// UUID of the node.
        node: String,
        /// What is wrong.
        problems: Vec<String>,
    },
}

/// What the rules depend on besides the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// UUID of the node.
    pub node: &'a str,
    /// How many block devices the machine has.
    pub devices: usize,
    /// Whether a volume is on the node's skip list, so that all must have names.
    pub names_required: bool,
}

fn logical_disks(config: &Value) -> &[Value] {
    config.get("logical_disks").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether a configuration wants software RAID at all.
pub fn is_software(config: &Value) -> bool {
    logical_disks(config).iter().any(|disk| disk.get("controller").is_some_and(|value| value == "software"))
}

/// The volumes of a configuration, in its order.
///
/// # Errors
/// [`ConfigError`].
pub fn parse(config: &Value, facts: &Facts<'_>) -> Result<Vec<Volume>, ConfigError> {
    let disks = logical_disks(config);
    if disks.is_empty() {
        return Err(ConfigError::Empty);
    }
    let mut problems = Vec::new();
    if disks.len() > 2 {
        problems.push("Software RAID configuration requires one or two logical disks".to_owned());
    }
    let mut names = Vec::new();
    let mut has_root = false;
    for disk in disks {
        check_disk(disk, facts, &mut names, &mut has_root, &mut problems);
    }
    check_levels(disks, facts, &mut problems);
    let volumes: Vec<Volume> = disks.iter().filter_map(|disk| volume(disk, &mut problems)).collect();
    if problems.is_empty() {
        return Ok(volumes);
    }
    Err(ConfigError::Rules { node: facts.node.to_owned(), problems })
}

fn check_disk(
    disk: &Value,
    facts: &Facts<'_>,
    names: &mut Vec<String>,
    has_root: &mut bool,
    problems: &mut Vec<String>,
) {
    let mut problem = |text: &str| problems.push(text.to_owned());
    if disk.get("controller").is_none_or(|value| value != "software") {
        problem("Software RAID configuration requires all logical disks to have 'controller'='software'");
    }
    match disk.get("volume_name").filter(|name| !name.is_null()) {
        None if facts.names_required => problem(
            "All logical disks are required to have a volume name specified as a volume name is mentioned in the property \
             skip block devices.",
        ),
        None => {}
        Some(name) => {
            let name = plain(name);
            if names.contains(&name) {
                problem(&format!("Duplicate software RAID device name {name} detected"));
            } else if name.is_empty()
                || name.len() > MAX_NAME_BYTES
                || name.contains(|c: char| c.is_control() || c == '/')
            {
                problem(&format!("Software RAID device name {name:?} cannot be the name of an array"));
            }
            names.push(name);
        }
    }
    if disk.get("is_root_volume").is_some_and(is_true) {
        if *has_root {
            problem("Software RAID configuration allows only one logical disk to be marked as is_root_volume");
        }
        *has_root = true;
    }
    if let Some(hints) = disk.get("physical_disks").filter(|hints| !hints.is_null()) {
        let list = hints.as_array().map_or(&[][..], Vec::as_slice);
        if list.len() < 2 {
            problem(
                "The physical_disks parameter for software RAID must be a list with at least 2 items, each specifying a \
                 disk in the device hints format",
            );
        }
        if list.iter().any(|item| !item.is_object()) {
            problem("The physical_disks parameter for software RAID must be a list of device hints (dictionaries)");
        }
    }
}

fn check_levels(disks: &[Value], facts: &Facts<'_>, problems: &mut Vec<String>) {
    let text = |disk: &Value, key: &str| disk.get(key).map(plain).unwrap_or_default();
    if disks.first().is_none_or(|first| text(first, "raid_level") != "1") {
        problems.push("Software RAID Configuration requires RAID-1 for the first logical disk".to_owned());
    }
    let [first, second] = disks else { return };
    if text(first, "size_gb") == "MAX" && text(second, "size_gb") == "MAX" {
        problems.push("Software RAID can have only one RAID device with size 'MAX'".to_owned());
    }
    let level = text(second, "raid_level");
    match Level::from_ironic(&level) {
        None => problems.push(format!("Software RAID configuration does not support RAID level {level}")),
        Some(Level::Raid5 | Level::Raid6)
            if Level::from_ironic(&level).is_some_and(|level| facts.devices < level.fewest_disks()) =>
        {
            problems.push(format!(
                "Software RAID configuration is not possible for RAID level {level} with only {} block devices found.",
                facts.devices
            ));
        }
        Some(_) => {}
    }
}

/// A logical disk whose level is known; its size is checked here.
fn volume(disk: &Value, problems: &mut Vec<String>) -> Option<Volume> {
    let level = Level::from_ironic(&disk.get("raid_level").map(plain).unwrap_or_default());
    let size = disk.get("size_gb").cloned().unwrap_or_default();
    let size = match plain(&size).trim() {
        "MAX" => Some(Size::Max),
        text => text.parse().ok().filter(|gib| (1..=MAX_GIB).contains(gib)).map(Size::Gib),
    };
    if size.is_none() {
        let given = disk.get("size_gb").cloned().unwrap_or_default();
        problems.push(format!("The size_gb of a logical disk must be a number of GiB or 'MAX', not {given}"));
    }
    let hints = disk.get("physical_disks").and_then(Value::as_array);
    Some(Volume {
        level: level?,
        size: size?,
        name: disk.get("volume_name").filter(|name| !name.is_null()).map(plain),
        is_root: disk.get("is_root_volume").filter(|value| !value.is_null()).map(is_true),
        physical_disks: hints.map(|list| list.iter().filter_map(|item| item.as_object().cloned()).collect()),
    })
}

/// A text as it is, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => *flag,
        Value::String(text) => text.eq_ignore_ascii_case("true"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NODE: &str = "1be26c0b-03f2-4d2e-ae87-c02d7f33c123";

    fn parse_for(config: &Value, devices: usize, names_required: bool) -> Result<Vec<Volume>, String> {
        parse(config, &Facts { node: NODE, devices, names_required }).map_err(|error| error.to_string())
    }

    fn root() -> Value {
        json!({"controller": "software", "raid_level": "1", "size_gb": 100, "volume_name": "root", "is_root_volume": true})
    }

    #[test]
    fn volumes_are_read_in_order() {
        let hints = json!([{"size": "> 100"}, {"serial": "a"}]);
        let second = json!({
            "controller": "software", "raid_level": "1+0", "size_gb": "MAX", "physical_disks": hints, "is_root_volume": false,
        });
        let volumes = parse_for(&json!({"logical_disks": [root(), second]}), 4, false).unwrap();
        assert_eq!(
            volumes[0],
            Volume {
                level: Level::Raid1,
                size: Size::Gib(100),
                name: Some("root".into()),
                is_root: Some(true),
                physical_disks: None
            }
        );
        assert_eq!((volumes[1].level.mdadm(), volumes[1].level.ironic()), ("10", "1+0"));
        assert_eq!((volumes[1].size, volumes[1].is_root, &volumes[1].name), (Size::Max, Some(false), &None));
        assert_eq!(volumes[1].physical_disks.as_ref().unwrap()[1]["serial"], "a");
        let text = json!({"controller": "software", "raid_level": "1", "size_gb": "7"});
        assert_eq!(parse_for(&json!({"logical_disks": [text]}), 2, false).unwrap()[0].size, Size::Gib(7));
    }

    #[test]
    fn only_software_arrays_are_wanted() {
        for (config, want) in [
            (json!({"logical_disks": [root()]}), true),
            (json!({"logical_disks": [{"controller": "hardware"}, root()]}), true),
            (json!({"logical_disks": [{"raid_level": "1"}]}), false),
            (json!({"logical_disks": []}), false),
            (json!({}), false),
            (json!(null), false),
        ] {
            assert_eq!(is_software(&config), want, "{config}");
        }
    }

    #[test]
    fn every_rule_has_its_message() {
        let with = |key: &str, value: Value| {
            let mut disk = root();
            disk[key] = value;
            disk
        };
        let second = |key: &str, value: Value| {
            let mut disk = json!({"controller": "software", "raid_level": "0", "size_gb": 5, "volume_name": "data"});
            disk[key] = value;
            vec![root(), disk]
        };
        let max = with("size_gb", json!("MAX"));
        let cases = [
            (vec![], "RAID config contains no logical disks"),
            (vec![root(), root(), root()], "requires one or two logical disks"),
            (vec![with("controller", json!("hardware"))], "requires all logical disks to have 'controller'='software'"),
            (
                vec![with("raid_level", json!("0"))],
                "Software RAID Configuration requires RAID-1 for the first logical disk",
            ),
            (vec![max.clone(), max.clone()], "Software RAID can have only one RAID device with size 'MAX'"),
            (second("raid_level", json!("50")), "Software RAID configuration does not support RAID level 50"),
            (
                second("raid_level", json!("5")),
                "Software RAID configuration is not possible for RAID level 5 with only 2 block devices found.",
            ),
            (
                second("raid_level", json!("6")),
                "Software RAID configuration is not possible for RAID level 6 with only 2 block devices found.",
            ),
            (second("volume_name", json!("root")), "Duplicate software RAID device name root detected"),
            (
                second("is_root_volume", json!(true)),
                "Software RAID configuration allows only one logical disk to be marked as is_root_volume",
            ),
            (
                vec![with("physical_disks", json!([{"size": "> 1"}]))],
                "The physical_disks parameter for software RAID must be a list with at least 2 items, each specifying a disk \
                 in the device hints format",
            ),
            (vec![with("physical_disks", json!("sda"))], "must be a list with at least 2 items"),
            (
                vec![with("physical_disks", json!(["sda", "sdb"]))],
                "The physical_disks parameter for software RAID must be a list of device hints (dictionaries)",
            ),
            (vec![with("size_gb", json!(0))], "must be a number of GiB or 'MAX', not 0"),
            (vec![with("size_gb", json!(null))], "not null"),
            (vec![with("volume_name", json!("a/b"))], "device name \"a/b\" cannot be the name of an array"),
        ];
        for (disks, want) in cases {
            let error = parse_for(&json!({"logical_disks": disks}), 2, false).unwrap_err();
            assert!(error.contains(want), "{want:?} not in {error:?}");
            let is_empty = disks.is_empty();
            assert_eq!(error.starts_with(&format!("Could not validate Software RAID config for {NODE}: ")), !is_empty);
        }
        let nameless = json!({"controller": "software", "raid_level": "1", "size_gb": 5});
        let config = json!({"logical_disks": [nameless]});
        assert!(parse_for(&config, 2, false).is_ok());
        let error = parse_for(&config, 2, true).unwrap_err();
        assert!(error.ends_with("as a volume name is mentioned in the property skip block devices."), "{error}");
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let bad = json!({"controller": "x", "raid_level": "0", "size_gb": 1});
        let error = parse_for(&json!({"logical_disks": [bad]}), 2, false).unwrap_err();
        let problems: Vec<&str> = error.split_once(": ").unwrap().1.split("; ").collect();
        assert_eq!(problems.len(), 2, "{error}");
    }
}
