//! Root device hints: rules that choose a disk (hardware section 4). Pure.
//!
//! Where the reference agent has oddities, each was decided on its own:
//!
//! * `size: 10` asks for exactly 10 GiB, as there; `=` means `>=`, as there; sizes are compared unrounded.
//! * `size` with `<or>` or `<range-in>` works here; there the first never matches and the second is refused.
//! * `<all-in>` is refused: it asks for a list, and no hint is one. A text operator on `size`, and a numeric
//!   operator with a text to compare to, are refused as well: they could never choose a disk on purpose.
//! * An attribute that a disk does not have compares as the text `none`, as there, so `vendor: none` finds disks
//!   without one. Serial numbers and world-wide names, of which a disk has several, leave out the missing ones; a
//!   disk with none never matches.
//! * A `name` that is a link to a disk is resolved when the hint is compared, so that it names the same slot after a reboot.
//! * A disk that is reached over several paths has the names, links and SCSI addresses of all of them. Any of them fits a
//!   hint; one that excludes (`s!=`) holds only if it does for all.

use std::fmt;

use serde_json::{Map, Value};

use crate::probe::disks::Disk;

/// Hints as the conductor gave them, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct RootDeviceHints {
    rules: Vec<Rule>,
}

/// The hints do not make sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HintError {
    /// A hint of a name that does not exist.
    #[error("The hints \"{names}\" are invalid. Valid hints are: \"{}\"", valid_names())]
    Unknown {
        /// The names, joined by commas.
        names: String,
    },
    /// The value is of the wrong JSON type.
    #[error("Root device hint \"{name}\" is not a {want}. Current value: {value}")]
    WrongType {
        /// Hint.
        name: &'static str,
        /// What it should be.
        want: &'static str,
        /// What was given.
        value: String,
    },
    /// There is nothing to compare to.
    #[error("Root device hint \"{name}\" expression is empty")]
    Empty {
        /// Hint.
        name: &'static str,
    },
    /// An operator that cannot be used with this hint.
    #[error("Root device hint \"{name}\" cannot be used with the operator {operator}")]
    Operator {
        /// Hint.
        name: &'static str,
        /// Operator.
        operator: &'static str,
    },
}

/// What can be hinted at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attribute {
    Size,
    Rotational,
    Model,
    Wwn,
    Serial,
    Vendor,
    WwnWithExtension,
    WwnVendorExtension,
    Name,
    Hctl,
    ByPath,
    Tran,
}

const ATTRIBUTES: &[(&str, Attribute)] = &[
    ("size", Attribute::Size),
    ("rotational", Attribute::Rotational),
    ("model", Attribute::Model),
    ("wwn", Attribute::Wwn),
    ("serial", Attribute::Serial),
    ("vendor", Attribute::Vendor),
    ("wwn_with_extension", Attribute::WwnWithExtension),
    ("wwn_vendor_extension", Attribute::WwnVendorExtension),
    ("name", Attribute::Name),
    ("hctl", Attribute::Hctl),
    ("by_path", Attribute::ByPath),
    ("tran", Attribute::Tran),
];

fn valid_names() -> String {
    ATTRIBUTES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Clone, PartialEq)]
struct Rule {
    attribute: Attribute,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Flag(bool),
    Number(Order, f64),
    OneNumber(Vec<f64>),
    Range { low: f64, high: f64, with_low: bool, with_high: bool },
    Text(Order, String),
    Part(String),
    OneText(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Order {
    fn holds<T: PartialOrd + ?Sized>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    None,
    Number(Order),
    Text(Order),
    In,
    Or,
    AllIn,
    RangeIn,
}

/// Longest first, so that `<=` is not read as `<`.
const OPERATORS: &[(&str, Operator)] = &[
    ("<range-in>", Operator::RangeIn),
    ("<all-in>", Operator::AllIn),
    ("<in>", Operator::In),
    ("<or>", Operator::Or),
    ("s==", Operator::Text(Order::Equal)),
    ("s!=", Operator::Text(Order::NotEqual)),
    ("s<=", Operator::Text(Order::LessOrEqual)),
    ("s>=", Operator::Text(Order::GreaterOrEqual)),
    ("s<", Operator::Text(Order::Less)),
    ("s>", Operator::Text(Order::Greater)),
    ("==", Operator::Number(Order::Equal)),
    ("!=", Operator::Number(Order::NotEqual)),
    ("<=", Operator::Number(Order::LessOrEqual)),
    (">=", Operator::Number(Order::GreaterOrEqual)),
    ("<", Operator::Number(Order::Less)),
    (">", Operator::Number(Order::Greater)),
    ("=", Operator::Number(Order::GreaterOrEqual)),
];

impl RootDeviceHints {
    /// Reads hints from a node.
    ///
    /// # Errors
    /// Any hint is unknown, of the wrong type or malformed: then none may be used, since a rule that is left out
    /// could choose the wrong disk.
    pub fn parse(hints: &Map<String, Value>) -> Result<Self, HintError> {
        let known = |name: &str| ATTRIBUTES.iter().find(|(known, _)| *known == name);
        let unknown: Vec<&str> = hints.keys().map(String::as_str).filter(|name| known(name).is_none()).collect();
        if !unknown.is_empty() {
            return Err(HintError::Unknown { names: unknown.join(", ") });
        }
        let rules = hints
            .iter()
            .filter_map(|(name, value)| Some((known(name)?, value)))
            .map(|((name, attribute), value)| Ok(Rule { attribute: *attribute, test: test(name, *attribute, value)? }));
        Ok(Self { rules: rules.collect::<Result<_, HintError>>()? })
    }

    /// Whether a disk satisfies every hint.
    pub fn matches(&self, disk: &Disk) -> bool {
        self.rules.iter().all(|rule| rule.matches(disk))
    }

    /// What a disk has where it does not satisfy a hint, for the operator: `serial is S1, size is 9.50 GiB`.
    pub fn mismatches(&self, disk: &Disk) -> String {
        let wrong = self.rules.iter().filter(|rule| !rule.matches(disk)).map(|rule| {
            let name =
                ATTRIBUTES.iter().find(|(_, attribute)| *attribute == rule.attribute).map_or("", |(name, _)| name);
            let mut values = rule.attribute.values(disk);
            values.dedup();
            let values = if values.is_empty() { "none".to_owned() } else { values.join(" or ") };
            format!("{name} is {values}")
        });
        wrong.collect::<Vec<_>>().join(", ")
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn test(name: &'static str, attribute: Attribute, value: &Value) -> Result<Test, HintError> {
    let wrong = |want| HintError::WrongType { name, want, value: plain(value) };
    match attribute {
        Attribute::Rotational => match plain(value).trim().to_lowercase().as_str() {
            "1" | "t" | "true" | "on" | "y" | "yes" => Ok(Test::Flag(true)),
            "0" | "f" | "false" | "off" | "n" | "no" => Ok(Test::Flag(false)),
            _ => Err(wrong("Boolean value")),
        },
        Attribute::Size => size_test(name, &plain(value)),
        _ => text_test(name, value.as_str().ok_or_else(|| wrong("string value"))?),
    }
}

/// Operator and what follows it, in lower case and without blanks around it.
fn split(name: &'static str, expression: &str) -> Result<(Operator, &'static str, String), HintError> {
    let expression = expression.trim().to_lowercase();
    let found = OPERATORS.iter().find_map(|(sign, op)| Some((*op, *sign, expression.strip_prefix(sign)?.trim())));
    let (operator, sign, operand) = found.unwrap_or((Operator::None, "", &expression));
    if operand.is_empty() {
        return Err(HintError::Empty { name });
    }
    Ok((operator, sign, operand.to_owned()))
}

fn alternatives(operand: &str) -> impl Iterator<Item = &str> {
    operand.split("<or>").map(str::trim).filter(|part| !part.is_empty())
}

fn size_test(name: &'static str, expression: &str) -> Result<Test, HintError> {
    let (operator, sign, operand) = split(name, expression)?;
    let gib = |text: &str| match text.trim().parse::<u32>() {
        Ok(gib) if gib > 0 => Ok(f64::from(gib)),
        _ => Err(HintError::WrongType { name, want: "positive integer value", value: expression.to_owned() }),
    };
    match operator {
        Operator::None => Ok(Test::Number(Order::Equal, gib(&operand)?)),
        Operator::Number(order) => Ok(Test::Number(order, gib(&operand)?)),
        Operator::Or => Ok(Test::OneNumber(alternatives(&operand).map(gib).collect::<Result<_, _>>()?)),
        Operator::RangeIn => range(&operand, gib).unwrap_or_else(|| {
            Err(HintError::WrongType { name, want: "range such as [ 10 20 ]", value: expression.to_owned() })
        }),
        Operator::Text(_) | Operator::In | Operator::AllIn => Err(HintError::Operator { name, operator: sign }),
    }
}

/// `[ a b ]`, where a round bracket leaves its end out.
fn range(operand: &str, number: impl Fn(&str) -> Result<f64, HintError>) -> Option<Result<Test, HintError>> {
    let with_low = operand.starts_with('[');
    let with_high = operand.ends_with(']');
    let inner = operand.strip_prefix(['[', '('])?.strip_suffix([']', ')'])?;
    let mut parts = inner.split_whitespace();
    let (low, high) = (parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some(number(low).and_then(|low| Ok(Test::Range { low, high: number(high)?, with_low, with_high })))
}

fn text_test(name: &'static str, expression: &str) -> Result<Test, HintError> {
    let (operator, sign, operand) = split(name, expression)?;
    match operator {
        Operator::None => Ok(Test::Text(Order::Equal, operand)),
        Operator::Text(order) => Ok(Test::Text(order, operand)),
        Operator::In => Ok(Test::Part(operand)),
        Operator::Or => Ok(Test::OneText(alternatives(&operand).map(str::to_owned).collect())),
        Operator::Number(order) => match operand.parse() {
            Ok(number) => Ok(Test::Number(order, number)),
            Err(_) => Err(HintError::Operator { name, operator: sign }),
        },
        Operator::AllIn | Operator::RangeIn => Err(HintError::Operator { name, operator: sign }),
    }
}

impl Attribute {
    /// What a disk has: one value or several, of which any may satisfy a hint. Numbers and flags are for showing only.
    fn values(self, disk: &Disk) -> Vec<String> {
        let info = &disk.info;
        let one = |value: &Option<String>| vec![value.clone().unwrap_or_else(|| "none".to_owned())];
        let known = |values: &[Option<String>]| values.iter().flatten().cloned().collect::<Vec<_>>();
        match self {
            Self::Size => vec![format!("{:.2} GiB", gib(info.size))],
            Self::Rotational => vec![info.rotational.to_string()],
            Self::Name => {
                vec![&info.name].into_iter().chain(disk.other_paths.iter().map(|path| &path.name)).cloned().collect()
            }
            Self::Model => one(&info.model),
            Self::Vendor => one(&info.vendor),
            Self::Wwn => known(&disk.wwns),
            Self::Serial => known(&disk.serials),
            Self::WwnWithExtension => one(&info.wwn_with_extension),
            Self::WwnVendorExtension => one(&info.wwn_vendor_extension),
            Self::Hctl if !disk.other_paths.is_empty() => {
                let others = disk.other_paths.iter().map(|path| path.hctl.clone());
                known(&[info.hctl.clone()].into_iter().chain(others).collect::<Vec<_>>())
            }
            Self::Hctl => one(&info.hctl),
            Self::ByPath if disk.by_paths.len() > 1 => disk.by_paths.clone(),
            Self::ByPath => one(&info.by_path),
            Self::Tran => one(&info.tran),
        }
    }
}

/// Bytes as GiB. Both halves are exact in a float, so that a disk of a whole number of GiB compares as equal to it.
fn gib(bytes: u64) -> f64 {
    let [high, low] =
        [bytes >> 32, bytes & 0xffff_ffff].map(|half| u32::try_from(half).map_or(f64::INFINITY, f64::from));
    high * 4.0 + low / f64::from(1_u32 << 30)
}

impl Rule {
    fn matches(&self, disk: &Disk) -> bool {
        match self.attribute {
            Attribute::Size => self.matches_number(gib(disk.info.size)),
            Attribute::Rotational => self.test == Test::Flag(disk.info.rotational),
            Attribute::Name => self.with_link_resolved(disk).fits_paths(&Attribute::Name.values(disk)),
            attribute @ (Attribute::Hctl | Attribute::ByPath) => self.fits_paths(&attribute.values(disk)),
            attribute => attribute.values(disk).iter().any(|value| self.matches_text(value)),
        }
    }

    /// Values that tell the paths to a disk apart: a path that is excluded excludes the disk.
    fn fits_paths(&self, values: &[String]) -> bool {
        let mut fit = values.iter().map(|value| self.matches_text(value));
        if matches!(self.test, Test::Text(Order::NotEqual, _)) { fit.all(|fits| fits) } else { fit.any(|fits| fits) }
    }

    fn matches_number(&self, number: f64) -> bool {
        match &self.test {
            Test::Number(order, operand) => order.holds(&number, operand),
            Test::OneNumber(numbers) => numbers.iter().any(|operand| Order::Equal.holds(&number, operand)),
            Test::Range { low, high, with_low, with_high } => {
                let above = if *with_low { number >= *low } else { number > *low };
                let below = if *with_high { number <= *high } else { number < *high };
                above && below
            }
            Test::Flag(_) | Test::Text(..) | Test::Part(_) | Test::OneText(_) => false,
        }
    }

    fn matches_text(&self, value: &str) -> bool {
        let value = value.trim().to_lowercase();
        match &self.test {
            Test::Text(order, operand) => order.holds(value.as_str(), operand.as_str()),
            Test::Part(part) => value.contains(part.as_str()),
            Test::OneText(texts) => texts.contains(&value),
            Test::Number(..) | Test::OneNumber(_) | Test::Range { .. } => {
                value.parse().is_ok_and(|number| self.matches_number(number))
            }
            Test::Flag(_) => false,
        }
    }

    /// The rule with every link that leads to this disk replaced by its name.
    fn with_link_resolved(&self, disk: &Disk) -> Self {
        let resolve = |text: &String| {
            let leads_here = disk.links().any(|link| link.to_lowercase() == *text);
            if leads_here { disk.info.name.to_lowercase() } else { text.clone() }
        };
        let test = match &self.test {
            Test::Text(order, operand) => Test::Text(*order, resolve(operand)),
            Test::OneText(texts) => Test::OneText(texts.iter().map(resolve).collect()),
            other => other.clone(),
        };
        Self { attribute: self.attribute, test }
    }
}

/// Hints as they are shown in an error.
pub(crate) struct Shown<'a>(pub(crate) &'a Map<String, Value>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self.0).map_err(|_not_json| fmt::Error)?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests;
