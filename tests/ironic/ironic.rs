//! Ironic itself: its settings, its database, starting and stopping it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::api::Api;
use crate::network::{API, FILES, HOST, UPSTREAM};
use crate::programs::{self, Program};

const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Ironic as one process.
#[derive(Debug)]
pub(crate) struct Ironic {
    venv: PathBuf,
    config: PathBuf,
    logs: PathBuf,
    running: Mutex<Option<Program>>,
    pub(crate) api: Api,
}

impl Ironic {
    /// Sets it up in the empty folder `state`, with the folder `www` for what machines boot, and starts it.
    pub(crate) fn start(venv: &Path, state: &Path, www: &Path, logs: &Path) -> Result<Self> {
        for name in ["certificates", "tftp/master_images", "tftp-master", "images", "images-master", "locks"] {
            fs::create_dir_all(state.join(name)).with_context(|| format!("making {name}"))?;
        }
        let template = fs::read_to_string(programs::own_file("ironic.conf")?)?;
        let config = [
            ("@HOST@", HOST.to_string()),
            ("@API@", format!("http://{API}")),
            ("@API_PORT@", UPSTREAM.port().to_string()),
            ("@HTTP@", format!("http://{FILES}")),
            ("@STATE@", state.display().to_string()),
            ("@WWW@", www.display().to_string()),
            ("@LOGS@", logs.display().to_string()),
        ]
        .iter()
        .fold(template, |text, (word, value)| text.replace(word, value));
        let path = logs.join("ironic.conf");
        fs::write(&path, config).with_context(|| format!("writing {}", path.display()))?;
        let option = path.display().to_string();
        programs::run(&venv.join("bin/ironic-dbsync"), &["--config-file", &option, "create_schema"])?;
        let ironic = Self {
            venv: venv.to_owned(),
            config: path,
            logs: logs.to_owned(),
            running: Mutex::new(None),
            api: Api::at(UPSTREAM),
        };
        ironic.run()?;
        Ok(ironic)
    }

    /// Stops it in order and starts it again, as an upgrade or a change of settings does.
    pub(crate) fn restart(&self) -> Result<()> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        running.context("Ironic is not running")?.terminate(STOP_LIMIT)?;
        self.run()
    }

    fn run(&self) -> Result<()> {
        let bin = self.venv.join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let program = Program::start(bin.join("ironic"), &self.logs.join("ironic.out"), |command| {
            command.arg("--config-file").arg(&self.config);
            command.env("TZ", "UTC");
            command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", bin.display()));
        })?;
        let end = Instant::now() + START_LIMIT;
        while !self.api.has_driver("ipmi") {
            ensure!(program.is_running(), "Ironic has ended, see {}", self.logs.join("ironic.out").display());
            if Instant::now() >= end {
                bail!("Ironic's API does not answer, see {}", self.logs.join("ironic.log").display());
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
        Ok(())
    }

    /// Its log, and the archives of agents' logs beside it.
    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }
}
