//! `lab`: a machine, an image server and a stand-in conductor for a person at a terminal.
//!
//! | module | gives |
//! |---|---|
//! | [`options`] | the command line |
//! | [`machine`] | the machine behind the power switch |
//! | [`session`] | all of it together, and the operations |
//! | `demo` | the whole life of a machine |
//! | [`image`] | what can be said about an image before a machine is booted |
//! | `drivers` | disks that the image cannot see |
//! | `refusal` | inspection data that the conductor did not take |
//! | [`configdrive`] | config drives |
//! | [`display`], [`inventory`] | what a person sees |

pub mod configdrive;
mod demo;
pub mod display;
mod drivers;
pub mod image;
pub mod inventory;
pub mod machine;
pub mod options;
mod refusal;
pub mod session;

use anyhow::{Context as _, Result};
use display::Display;
use image::CheckedImage;
use options::{Action, Cli, DeployOptions, MachineOptions};
use serde_json::Value;
use session::Session;
use std::collections::BTreeMap;
use std::time::Duration;

/// Does what the command line says.
///
/// # Errors
/// Whatever went wrong, with what to do about it where that is known.
pub fn run(cli: &Cli) -> Result<()> {
    let display = Display::new();
    match &cli.command {
        Action::Boot { machine, once, probe } => with_session(machine, &display, |session| {
            display.stage("boot", || session.boot())?;
            if *probe {
                display.stage("probe", || session.probe())?;
            }
            if !once {
                display.plain(&session.how_to_talk()?);
                session.wait_until_off();
            }
            Ok(())
        }),
        Action::Inspect { machine, json } => {
            with_session(machine, &display, |session| inspect(session, &display, *json))
        }
        Action::Clean { machine, steps, priorities } => with_session(machine, &display, |session| {
            let steps: Vec<Value> = steps.iter().map(|step| step.0.clone()).collect();
            let priorities: BTreeMap<_, _> = priorities.iter().map(|p| (p.step.clone(), p.priority)).collect();
            display.stage("clean", || session.clean(&steps, &priorities)).map(drop)
        }),
        Action::Deploy(options) => {
            let image = image::check(options)?;
            if let Some(trouble) = image::url_trouble(&options.image) {
                display.line(&format!("warning: {trouble}; booting all the same"));
            }
            with_session(&options.machine, &display, |session| deploy(session, &display, options, &image))
        }
        Action::Demo { machine, erase } => {
            let mut machine = machine.clone();
            machine.fast_track = true;
            demo::run(&machine, *erase, &display)
        }
    }
}

/// Starts everything, runs `work`, and saves the logs whatever came out.
fn with_session(
    options: &MachineOptions,
    display: &Display,
    work: impl FnOnce(&mut Session) -> Result<()>,
) -> Result<()> {
    let mut session = Session::start(options, display)?;
    let result = work(&mut session);
    let logs = session.finish();
    if result.is_err() {
        match &logs {
            Ok(dir) => display.plain(&format!("logs: {}", dir.display())),
            Err(error) => display.plain(&format!("the logs could not be saved: {error:#}")),
        }
    }
    result.and(logs.map(drop))
}

fn inspect(session: &mut Session, display: &Display, json: bool) -> Result<()> {
    let data = display.stage("inspect", || session.inspect())?;
    if json {
        let mut all = data.plugin_data.clone();
        all.insert("inventory".to_owned(), data.inventory.clone());
        all.remove("logs"); // base64 of a tar.gz
        display.plain(&serde_json::to_string_pretty(&all).context("printing the inspection data")?);
    } else {
        inventory::lines(&data.inventory).iter().for_each(|line| display.plain(line));
    }
    Ok(())
}

fn deploy(session: &mut Session, display: &Display, options: &DeployOptions, image: &CheckedImage) -> Result<()> {
    let request = session.deploy_request(options, image)?;
    display.stage("deploy", || session.deploy(&request))?;
    if let Some(text) = &options.boot_until {
        display.stage("boot from disk", || session.boot_from_disk(text, Duration::from_secs(60)))?;
    }
    Ok(())
}
