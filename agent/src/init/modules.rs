//! Loads modules: for devices by their alias, for the kernel by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use ferric_sys::{Root, attr, kmod};
use tracing::{debug, warn};

use super::modalias::{Index, module_name};

/// The modules of the running kernel.
#[derive(Debug)]
pub(crate) struct Modules {
    directory: PathBuf,
    index: Index,
    /// One cell a file: whoever comes second waits for the first, nobody loads a file twice.
    attempts: Mutex<BTreeMap<String, Arc<OnceLock<bool>>>>,
}

impl Modules {
    /// Reads what the image has in `/lib/modules/RELEASE`.
    pub(crate) fn of_running_kernel(root: &Root) -> Self {
        let release = attr::read_trimmed(&root.path("proc/sys/kernel/osrelease")).unwrap_or_default();
        let directory = root.path("lib/modules").join(release);
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
        let index = Index::parse(&read("modules.alias"), &read("modules.dep"), &read("modules.builtin"));
        Self { directory, index, attempts: Mutex::default() }
    }

    /// Loads every module that drives a device with this alias; false when the image has none for it.
    pub(crate) fn load_for(&self, alias: &str) -> bool {
        let modules = self.index.resolve(alias);
        modules.iter().for_each(|module| self.load(module, alias));
        !modules.is_empty()
    }

    /// Loads what the kernel or the agent asks for: a module's name or an alias such as `fs-vfat`.
    pub(crate) fn load_named(&self, name: &str) -> bool {
        if self.index.knows(name) {
            self.load(name, name);
            return true;
        }
        self.load_for(name)
    }

    /// Loads what the image lists in `/etc/modules-load.d` (modules-load.d(5)): what no device asks for, nor the kernel.
    pub(crate) fn load_listed(&self, root: &Root) {
        let directory = root.path("etc/modules-load.d");
        for file in attr::list(&directory) {
            let text = attr::read_optional(&directory.join(&file)).unwrap_or_default();
            for name in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
                if !self.load_named(name) {
                    warn!("module {name}, listed in {file}, is not in this image");
                }
            }
        }
    }

    fn load(&self, module: &str, cause: &str) {
        for path in self.index.load_order(module) {
            let attempt = {
                let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(attempts.entry(path.clone()).or_default())
            };
            // What a module needs was tried before it; it says itself what is missing.
            attempt.get_or_init(|| load_file(&self.directory.join(path), cause));
        }
    }
}

fn load_file(path: &Path, cause: &str) -> bool {
    let name = module_name(&path.display().to_string());
    let start = Instant::now();
    match kmod::load(path, "") {
        Ok(outcome) => {
            debug!("module {name} for {cause}: {outcome:?} in {} ms", start.elapsed().as_millis());
            true
        }
        Err(error) => {
            warn!("loading module {name} for {cause}: {error}");
            false
        }
    }
}

/// What the kernel runs when it needs a module by name (`/proc/sys/kernel/modprobe`): `-q -- NAME`.
pub fn modprobe(name: &str) -> bool {
    Modules::of_running_kernel(&Root::host()).load_named(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_modules_loads_none() {
        let modules = Modules::of_running_kernel(&Root::at("/ferric-no-such-root"));
        assert!(!modules.load_for("pci:v00008086d0000100E") && !modules.load_named("ext4"));
    }

    #[test]
    fn each_file_is_tried_once_even_from_several_threads() {
        let dir = std::env::temp_dir().join(format!("ferric-modules-{}", std::process::id()));
        let release = dir.join("lib/modules/6.1.0");
        std::fs::create_dir_all(&release).unwrap();
        std::fs::create_dir_all(dir.join("proc/sys/kernel")).unwrap();
        std::fs::write(dir.join("proc/sys/kernel/osrelease"), "6.1.0\n").unwrap();
        std::fs::write(release.join("modules.dep"), "a.ko: b.ko\nb.ko:\nc.ko: b.ko\n").unwrap();
        std::fs::write(release.join("modules.alias"), "alias x:* a\nalias x:1 c\n").unwrap();
        std::fs::create_dir_all(dir.join("etc/modules-load.d")).unwrap();
        std::fs::write(dir.join("etc/modules-load.d/image.conf"), "# listed\n\n b \nnosuch\n").unwrap();
        let modules = Modules::of_running_kernel(&Root::at(&dir));
        modules.load_listed(&Root::at(&dir));
        assert_eq!(modules.attempts.lock().unwrap().keys().collect::<Vec<_>>(), ["b.ko"]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(modules.load_for("x:1")));
            }
        });
        std::fs::remove_dir_all(&dir).unwrap();
        let attempts = modules.attempts.lock().unwrap();
        let outcomes: Vec<_> = attempts.iter().map(|(path, cell)| (path.as_str(), cell.get().copied())).collect();
        // The files do not exist, so every attempt fails, once.
        assert_eq!(outcomes, [("a.ko", Some(false)), ("b.ko", Some(false)), ("c.ko", Some(false))]);
    }
}
