//! Settings of the agent: one table of options, read from several places.
//!
//! A later place overrides an earlier one: defaults, the environment (proxies only), the kernel command line, virtual
//! media (not read yet; its place is in [`Sources`]), `/etc/ironic-python-agent/*.conf`, then
//! `/etc/ironic-python-agent.d/*.conf`, command line flags, multicast DNS (not yet), the answer of a lookup.
//!
//! Nothing in a setting can stop the agent: a value of the wrong form is reported with its key, the form expected and
//! what is used instead.

mod cmdline;
mod document;
mod ini;
mod lookup;
mod options;
mod value;

use ferric_sys::{Root, attr};
use ferric_types::error::chain;

use crate::http::redact;
pub use document::document;
pub use options::{Config, OPTIONS, OptionSpec, Support};
pub use value::{Scheme, TlsCurve, TlsVersion};

/// Directories of configuration files; the later one wins.
const DIRECTORIES: &[&str] = &["etc/ironic-python-agent", "etc/ironic-python-agent.d"];

/// Variables that count as options: the kernel hands unknown parameters of its command line to /init as well.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("HTTP_PROXY", "http_proxy"),
    ("HTTPS_PROXY", "https_proxy"),
    ("NO_PROXY", "no_proxy"),
    ("http_proxy", "http_proxy"),
    ("https_proxy", "https_proxy"),
    ("no_proxy", "no_proxy"),
];

/// Something about the settings that a person should know; none of it stops the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A value has the wrong form.
    #[error("{origin}: {key}={value} is not understood, expected {form}; using {used}")]
    BadValue {
        /// Where it was given.
        origin: String,
        /// Option as written there.
        key: String,
        /// Its value, or stars.
        value: String,
        /// What was expected.
        form: &'static str,
        /// What is used instead.
        used: String,
    },
    /// No option has this name.
    #[error("{origin}: unknown option {key}{hint}")]
    Unknown {
        /// Where it was given.
        origin: String,
        /// Name as written there.
        key: String,
        /// Which option may have been meant, or nothing.
        hint: String,
    },
    /// What the option switches does not exist yet.
    #[error("{origin}: {key} is accepted but has no effect in this version")]
    NotYet {
        /// Where it was given.
        origin: String,
        /// Option as written there.
        key: String,
    },
    /// The option steers something this agent does not need.
    #[error("{origin}: {key} is not needed: {why}")]
    NotNeeded {
        /// Where it was given.
        origin: String,
        /// Option as written there.
        key: String,
        /// Its doc.
        why: &'static str,
    },
    /// A line of a configuration file cannot be read.
    #[error("{file}:{line}: {reason}; the line is ignored")]
    BadLine {
        /// File.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A configuration file cannot be read at all.
    #[error("{reason}; the file is ignored")]
    Unreadable {
        /// The error, which names the file.
        reason: String,
    },
}

/// Texts that settings are read from, in order of rising precedence.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Option names and values of environment variables.
    pub environment: Vec<(String, String)>,
    /// Kernel command line.
    pub cmdline: String,
    /// Parameters found on virtual media, one `key=value` a word as on the command line.
    pub media: String,
    /// Configuration files: path and text.
    pub files: Vec<(String, String)>,
    /// Words after `ferric-agent run`.
    pub flags: Vec<String>,
}

/// Reads the settings of the machine.
pub fn load(root: &Root) -> (Config, Vec<Warning>) {
    let mut warnings = Vec::new();
    let mut sources =
        Sources { cmdline: attr::read_trimmed(&root.path("proc/cmdline")).unwrap_or_default(), ..Sources::default() };
    for directory in DIRECTORIES {
        let directory = root.path(directory);
        for name in attr::list(&directory).iter().filter(|name| name.ends_with(".conf")) {
            let path = directory.join(name);
            match attr::read_trimmed(&path) {
                Ok(text) => sources.files.push((path.display().to_string(), text)),
                Err(error) => warnings.push(Warning::Unreadable { reason: chain(&error) }),
            }
        }
    }
    if root.is_host() {
        sources.environment = environment();
        sources.flags = std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .skip_while(|word| word != "run")
            .skip(1)
            .collect();
    }
    let (config, more) = read(&sources);
    warnings.extend(more);
    (config, warnings)
}

fn environment() -> Vec<(String, String)> {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads settings")]
    let variables =
        ENVIRONMENT.iter().filter_map(|(name, option)| Some(((*option).to_owned(), std::env::var(name).ok()?)));
    variables.collect()
}

/// Reads settings from texts.
pub fn read(sources: &Sources) -> (Config, Vec<Warning>) {
    let mut reader = Reader::new();
    for (name, value) in &sources.environment {
        reader.give_by(|option| option.name == name, "environment", name, value);
    }
    for (origin, text) in [("kernel command line", &sources.cmdline), ("virtual media", &sources.media)] {
        for (name, value) in cmdline::parse(text) {
            let known =
                reader.give_by(|option| !option.kernel.is_empty() && option.kernel == name, origin, name, value);
            if !known && looks_like_ours(name) {
                reader.unknown(origin, name);
            }
        }
    }
    for (path, text) in &sources.files {
        let (entries, bad) = ini::parse(text);
        reader.warnings.extend(bad.into_iter().map(|bad| Warning::BadLine {
            file: path.clone(),
            line: bad.number,
            reason: bad.reason,
        }));
        for entry in entries {
            let matches = |option: &OptionSpec| option.section == entry.section && option.name == entry.key;
            if !reader.give_by(matches, path, &entry.key, &entry.value) {
                reader.unknown(path, &format!("[{}] {}", entry.section, entry.key));
            }
        }
    }
    reader.flags(&sources.flags);
    (reader.config, reader.warnings)
}

fn looks_like_ours(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("ipa-") || name.starts_with("ipa_")
}

struct Reader {
    config: Config,
    /// What each option of the table was last set to, as text.
    used: Vec<String>,
    warnings: Vec<Warning>,
}

impl Reader {
    fn new() -> Self {
        let used = OPTIONS.iter().map(|option| option.default.to_owned()).collect();
        Self { config: Config::default(), used, warnings: Vec::new() }
    }

    /// Sets the option that `matches` picks; false when there is none.
    fn give_by(&mut self, matches: impl Fn(&OptionSpec) -> bool, origin: &str, key: &str, value: &str) -> bool {
        let mut options = OPTIONS.iter().zip(&mut self.used);
        let Some((option, used)) = options.find(|(option, _)| matches(option)) else { return false };
        let (origin, key) = (origin.to_owned(), key.to_owned());
        let show = |text: &str| match text {
            "" => "no value".to_owned(),
            _ if option.secret => "******".to_owned(),
            // URLs may hold passwords.
            urls if option.form == value::URL_LIST => urls.split(',').map(redact).collect::<Vec<_>>().join(","),
            text => text.escape_debug().take(200).collect(),
        };
        // One bad URL of several costs only itself.
        let urls: Vec<&str> = value.split(',').map(str::trim).filter(|url| !url.is_empty()).collect();
        let (good, bad): (Vec<&str>, Vec<&str>) = urls.into_iter().partition(|url| value::is_url(url));
        let mut kept = value.to_owned();
        if option.form == value::URL_LIST && !good.is_empty() && !bad.is_empty() {
            for url in bad {
                let (origin, key, used) = (origin.clone(), key.clone(), "the other URLs".to_owned());
                self.warnings.push(Warning::BadValue { origin, key, value: show(url), form: option.form, used });
            }
            kept = good.join(",");
        }
        let value = kept.as_str();
        if (option.set)(&mut self.config, value).is_none() {
            let (value, used) = (show(value), show(used));
            self.warnings.push(Warning::BadValue { origin, key, value, form: option.form, used });
            return true;
        }
        value.clone_into(used);
        match option.support {
            Support::Full => {}
            // The NIC-less default `pxe` of some boot loaders means nothing to us and is no reason for a note.
            Support::Later if option.name == "boot_method" && value != "vmedia" => {}
            Support::Later if value == option.default => {}
            Support::Later => self.warnings.push(Warning::NotYet { origin, key }),
            Support::NotNeeded => self.warnings.push(Warning::NotNeeded { origin, key, why: option.doc }),
        }
        if value == "mdns" && option.form == value::URL_LIST {
            let (origin, key) = ("multicast DNS".to_owned(), option.name.to_owned());
            self.warnings.push(Warning::NotYet { origin, key });
        }
        true
    }

    fn unknown(&mut self, origin: &str, key: &str) {
        let plain = |text: &str| text.to_ascii_lowercase().replace('_', "-");
        let meant = OPTIONS.iter().find(|option| !option.kernel.is_empty() && plain(option.kernel) == plain(key));
        let hint = meant.map_or(String::new(), |option| format!("; did you mean {}?", option.kernel));
        self.warnings.push(Warning::Unknown {
            origin: origin.to_owned(),
            key: key.escape_debug().take(200).collect(),
            hint,
        });
    }

    /// `--listen-port 9998` or `--listen-port=9998`; a flag without a value means true.
    fn flags(&mut self, words: &[String]) {
        const ORIGIN: &str = "command line";
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else {
                self.unknown(ORIGIN, word);
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let value = words.next_if(|next| !next.starts_with("--"));
                    (flag, value.map_or_else(|| "true".to_owned(), Clone::clone))
                }
            };
            let key = name.replace('-', "_");
            if !self.give_by(|option| option.section == "DEFAULT" && option.name == key, ORIGIN, word, &value) {
                self.unknown(ORIGIN, word);
            }
        }
    }
}

#[cfg(test)]
mod tests;
