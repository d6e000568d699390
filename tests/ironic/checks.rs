//! Checks of the lab itself: that it is skipped, fails, counts, keeps and ends as it should.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferric_qemu::artifacts;
use time::OffsetDateTime;

use crate::arguments::Arguments;
use crate::outside::HOLD;
use crate::runs::{self, Extent, KEPT};
use crate::venv::Venv;
use crate::{disks, life, programs, trace};

/// One check.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// Whether it calls what may be lacking on a machine.
    pub(crate) needs_programs: bool,
    pub(crate) run: fn() -> Result<()>,
}

const fn check(name: &'static str, needs_programs: bool, run: fn() -> Result<()>) -> Check {
    Check { name, needs_programs, run }
}

const CHECKS: &[Check] = &[
    check("lab::arguments_are_those_of_other_test_programs", false, arguments),
    check("lab::parts_of_the_suite_do_not_push_out_whole_runs", false, kept_runs),
    check("lab::calls_that_are_missing_too_many_or_in_another_order_are_noticed", false, compared_calls),
    check("lab::documentation_has_the_settings_and_calls_of_the_tests", false, documentation),
    check("lab::what_a_failed_program_said_is_told", false, failed_program),
    check("lab::only_an_index_that_cannot_be_reached_is_a_reason_to_skip", true, package_index),
    check("lab::environment_is_made_again_where_it_does_not_fit", true, environment),
    check("lab::what_is_not_installed_is_named_and_skips", true, not_installed),
    check("lab::nothing_outlives_the_killed_parent", true, killed_parent),
];

/// The checks whose names are chosen.
pub(crate) fn chosen(choose: impl Fn(&str) -> bool) -> Vec<&'static Check> {
    CHECKS.iter().filter(|check| choose(check.name)).collect()
}

fn arguments() -> Result<()> {
    let names = ["bios::cleaning", "uefi::cleaning_again", "uefi::rescue"];
    let cases: [(&str, &[&str]); 11] = [
        ("", &names),
        ("cleaning", &["bios::cleaning", "uefi::cleaning_again"]),
        ("cleaning --skip uefi", &["bios::cleaning"]),
        ("--skip=cleaning", &["uefi::rescue"]),
        ("bios::cleaning --exact", &["bios::cleaning"]),
        ("cleaning --exact", &[]),
        ("--test-threads 1", &names),
        ("--test-threads=1 rescue bios --nocapture", &["bios::cleaning", "uefi::rescue"]),
        ("--quiet --color always rescue", &["uefi::rescue"]),
        ("nothing-like-that", &[]),
        ("--ignored", &[]),
    ];
    let read = |line: &str| Arguments::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    for (line, expected) in cases {
        let arguments = read(line).with_context(|| line.to_owned())?;
        let chosen: Vec<&str> = names.into_iter().filter(|name| arguments.choose(name)).collect();
        ensure!(chosen == expected, "{line:?} chooses {chosen:?}");
        ensure!(!arguments.help && !arguments.list, "{line:?} is read as {arguments:?}");
    }
    ensure!(
        read("--help")?.help && read("-h rescue")?.help && read("rescue --list")?.list,
        "--help or --list is not read"
    );
    for (line, word) in [("--tests 3", "--tests"), ("rescue --skip", "--skip"), ("--test-threads", "--test-threads")] {
        let error = read(line).err().with_context(|| format!("{line:?} is taken"))?.to_string();
        ensure!(error.contains(word), "{line:?}: {error}");
    }
    Ok(())
}

fn kept_runs() -> Result<()> {
    let parent = tempfile::tempdir()?;
    let first = OffsetDateTime::UNIX_EPOCH;
    let mut wholes = Vec::new();
    for number in 0..7 {
        let folder = runs::new_folder(parent.path(), Extent::Whole, first + Duration::from_secs(number))?;
        fs::create_dir(folder.join("tmp"))?;
        wholes.push(folder);
    }
    for number in 10..30 {
        runs::new_folder(parent.path(), Extent::Part, first + Duration::from_secs(number))?;
    }
    wholes.reverse();
    wholes.truncate(KEPT);
    ensure!(runs::newest_first(parent.path(), Extent::Whole)? == wholes, "of the whole runs not the last are kept");
    ensure!(runs::newest_first(parent.path(), Extent::Part)?.len() == KEPT, "not as many parts as there should be");
    let left = wholes.iter().filter(|run| run.join("tmp").exists()).count();
    ensure!(
        left == 0 && wholes.iter().all(|run| run.join("logs/ramdisk").is_dir()),
        "{left} runs have kept their disks"
    );
    Ok(())
}

fn compared_calls() -> Result<()> {
    let boot = "a.root a.lookup a.root a.heartbeat";
    let end = "c.log.collect_system_logs";
    let cases = [
        ("a.inspection".to_owned(), "a.inspection".to_owned()),
        (
            life::cleaning_calls(&["one", "two"]),
            format!(
                "{boot} c.clean.get_clean_steps c.clean.execute_clean_step a.heartbeat c.commands \
                 c.clean.execute_clean_step a.heartbeat c.commands {end}"
            ),
        ),
        (
            life::deployment_calls(true, false),
            format!(
                "{boot} c.deploy.get_deploy_steps c.commands c.deploy.execute_deploy_step a.lookup-again a.heartbeat \
                 c.commands c.standby.get_partition_uuids c.image.install_bootloader c.commands {end} c.standby.power_off"
            ),
        ),
    ];
    for (expected, good) in cases {
        let good: Vec<String> = good.split_whitespace().map(str::to_owned).collect();
        trace::check(&good, &expected)?;
        let fails = |words: &[String]| {
            ensure!(trace::check(words, &expected).is_err(), "taken for good: {}", words.join(" "));
            Ok(())
        };
        for (place, word) in good.iter().enumerate() {
            let mut words = good.clone();
            words.remove(place);
            fails(&words)?;
            let mut words = good.clone();
            words[place] = format!("{word}=500");
            fails(&words)?;
            let mut words = good.clone();
            words.insert(place, "a.POST-/v1/nodes".to_owned());
            fails(&words)?;
            // A heartbeat may come at any time, and Ironic asks for commands until they are done.
            if !matches!(word.as_str(), "a.heartbeat" | "c.commands") {
                let mut words = good.clone();
                words.insert(place, word.clone());
                fails(&words)?;
            }
            if place > 0 && !word.ends_with("heartbeat") && !good[place - 1].ends_with("heartbeat") {
                let mut words = good.clone();
                words.swap(place, place - 1);
                fails(&words)?;
            }
        }
    }
    Ok(())
}

/// What operators are told is what was tried.
fn documentation() -> Result<()> {
    let root = artifacts::workspace_root()?;
    let text = fs::read_to_string(root.join("docs/ironic.md")).context("reading docs/ironic.md")?;
    let settings = fs::read_to_string(programs::own_file("ironic.conf")?)?;
    let parameters = settings.lines().find_map(|line| line.strip_prefix("extra_kernel_params = "));
    // The tests' switch announces itself more often than others.
    let parameters = parameters.context("no kernel parameters for inspections")?.split(' ');
    let parameters = parameters.filter(|word| !word.starts_with("ipa-lldp-timeout="));
    let requirements = fs::read_to_string(programs::own_file("requirements.txt")?)?;
    let version = requirements.lines().find_map(|line| line.strip_prefix("ironic==")).context("no Ironic")?;
    let calls = [
        life::BOOT.to_owned(),
        life::cleaning_calls(&["any"]),
        life::deployment_calls(true, false),
        disks::rescue_calls(),
        disks::service_calls(),
        disks::fast_track_calls(),
    ]
    .join(" ");
    let commands = calls.split(|c: char| c.is_whitespace() || "()|*+?".contains(c));
    let commands = commands.filter_map(|word| word.strip_prefix("c.")).filter(|word| *word != "commands");
    for word in parameters.chain([version]).chain(commands) {
        ensure!(text.contains(word), "docs/ironic.md has no {word:?}");
    }
    Ok(())
}

fn failed_program() -> Result<()> {
    let said = |script| match programs::run(Path::new("/bin/sh"), &["-c", script]) {
        Ok(said) => bail!("{script:?} did not fail: {said:?}"),
        Err(error) => Ok(error.to_string()),
    };
    let both = said("echo to its output; echo to its errors >&2; exit 3")?;
    ensure!(both.contains("exit status: 3"), "{both}");
    ensure!(both.contains("\nto its errors") && both.contains("to its output"), "{both}");
    let silent = said("exit 4")?;
    ensure!(silent.ends_with("it said nothing"), "{silent}");
    Ok(())
}

/// The real pip, with package indexes of our own.
fn package_index() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let index = dir.path().join("simple");
    // What is in the broken wheel is no archive.
    for (package, file) in [("pip", "pip-1.0-py3-none-any.whl"), ("idna", "idna-3.20-py3-none-any.whl")] {
        let folder = index.join(package);
        fs::create_dir_all(&folder)?;
        fs::write(
            folder.join("index.html"),
            format!("<!DOCTYPE html><html><body><a href=\"{file}\">{file}</a></body></html>"),
        )?;
        fs::write(folder.join(file), "no archive")?;
    }
    let here = format!("file://{}", index.display());
    // The port "discard" of this host; nothing listens there.
    let nowhere = "http://127.0.0.1:9/simple";
    let requirements = dir.path().join("requirements.txt");
    let install = |text: &str, index: &str| {
        fs::write(&requirements, text)?;
        let options = ["--isolated", "--retries", "0", "--no-cache-dir", "--index-url", index];
        Venv { folder: dir.path(), requirements: &requirements, options: &options }.install()
    };
    Venv { folder: dir.path(), requirements: &requirements, options: &[] }.make()?;
    match install("idna==3.20\n", nowhere)? {
        Some(reason) if reason.contains("127.0.0.1:9") && reason.contains("refused") => {}
        other => bail!("without an index: {other:?}"),
    }
    for (case, text, index, words) in [
        ("bad pin", "idna==99\n", here.as_str(), ["idna==99", "3.20"]),
        ("unknown package", "no-such-package==1\n", &here, ["no-such-package==1", "from versions: none"]),
        ("broken wheel", "idna==3.20\n", &here, ["idna-3.20-py3-none-any.whl", "invalid"]),
        ("no requirement", "idna = = 3\n", nowhere, ["Invalid requirement", "idna = = 3"]),
    ] {
        let error = match install(text, index) {
            Ok(outcome) => bail!("{case} is taken: {outcome:?}"),
            Err(error) => format!("{error:#}"),
        };
        for word in words.into_iter().chain(["pip.log"]) {
            ensure!(error.contains(word), "{case}: no {word:?} in {error}");
        }
    }
    Ok(())
}

fn environment() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    fs::create_dir_all(first.join("venv/bin"))?;
    let python = artifacts::program("python3", "python3-venv")?;
    std::os::unix::fs::symlink(&python, first.join("venv/bin/python"))?;
    let requirements = dir.path().join("requirements.txt");
    fs::write(&requirements, "idna==3.20\n")?;
    let at = |folder| Venv { folder, requirements: &requirements, options: &[] };
    ensure!(!at(&first).fits()?, "an unfinished environment is taken for good");
    at(&first).sign()?;
    ensure!(at(&first).fits()?, "the environment is made again without need");
    fs::rename(&first, &second)?;
    ensure!(!at(&second).fits()?, "an environment that was moved is taken for good");
    at(&second).sign()?;
    fs::write(&requirements, "idna==3.19\n")?;
    ensure!(!at(&second).fits()?, "an environment with other packages is taken for good");
    at(&second).sign()?;
    let mark = second.join("venv/installed.txt");
    let other_python = fs::read_to_string(&mark)?.replace("Python 3.", "Python 2.");
    fs::write(&mark, other_python)?;
    ensure!(!at(&second).fits()?, "an environment of another Python is taken for good");
    at(&second).sign()?;
    fs::remove_file(second.join("venv/bin/python"))?;
    ensure!(!at(&second).fits()?, "an environment without its Python is taken for good");
    Ok(())
}

/// Runs this program where things are hidden from it.
fn not_installed() -> Result<()> {
    let hidden = [
        ("qemu-system-x86_64", artifacts::qemu()?),
        ("sgdisk", artifacts::program("sgdisk", "gdisk")?),
        ("no OVMF firmware", artifacts::ovmf()?.code.parent().context("no folder")?.to_owned()),
        ("iPXE ROM", artifacts::ipxe_rom(crate::outside::BOOT_ROM)?.parent().context("no folder")?.to_owned()),
    ];
    let mut script = "set -e; me=$0; ".to_owned();
    for (_, path) in &hidden {
        let shown = path.display();
        script += &if path.is_file() {
            format!("mount --bind /dev/null '{shown}'; ")
        } else {
            format!("mount -t tmpfs none '{shown}'; ")
        };
    }
    // Where Debian has another copy of the ROMs.
    script += "for dir in /usr/share/qemu /usr/share/qemu-kvm; do [ ! -d $dir ] || mount -t tmpfs none $dir; done; ";
    script += "exec \"$me\" bios::inspection";
    let mut unshare = Command::new("unshare");
    // As the lab does: root needs no user namespace, and cannot have one in a chroot.
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    let output = unshare
        .args(["--mount", "--", "sh", "-c", &script])
        .arg(std::env::current_exe()?)
        .stdin(Stdio::null())
        .output()
        .context("hiding programs")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let skipped = said.lines().find(|line| line.contains(" ... SKIPPED ("));
    let skipped = skipped.with_context(|| format!("not skipped: {said}{}", String::from_utf8_lossy(&output.stderr)))?;
    for (words, _) in hidden {
        ensure!(skipped.contains(words), "no {words:?} in {skipped:?}");
    }
    ensure!(output.status.success(), "it failed: {said}");
    ensure!(said.contains("test result: ok. 0 passed; 0 failed; 1 skipped"), "{said}");
    Ok(())
}

/// A second run of this program, of which a shell is the parent, as `cargo` is otherwise.
fn killed_parent() -> Result<()> {
    let limit = Duration::from_secs(20);
    // Told from all other sleepers by its time.
    let seconds = format!("3600.{}", std::process::id());
    let mut shell = Command::new("/bin/sh")
        .args(["-c", "\"$0\" \"$@\" & wait"])
        .arg(std::env::current_exe()?)
        .args([HOLD, &seconds])
        .stdin(Stdio::null())
        .spawn()
        .context("starting a shell")?;
    let is_there = |program: &str| {
        commands().into_iter().any(|(_, words)| {
            words.first().is_some_and(|first| first.ends_with(program)) && words.last() == Some(&seconds)
        })
    };
    let began = wait_for(limit, || is_there("sleep"));
    shell.kill()?;
    shell.wait()?;
    let ended = wait_for(limit, || !is_there(""));
    for (pid, words) in commands().into_iter().filter(|(_, words)| words.last() == Some(&seconds)) {
        let pid = rustix::process::Pid::from_raw(pid).context("no process")?;
        // It may have gone by itself.
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap_or_default();
        ensure!(began, "nothing slept but {words:?}");
    }
    ensure!(began, "nothing has been started");
    ensure!(ended, "what the killed program started is still there after {} s", limit.as_secs());
    Ok(())
}

fn wait_for(limit: Duration, done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// All processes with their command lines.
fn commands() -> Vec<(i32, Vec<String>)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let command = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        Some((pid, line.trim_end_matches('\0').split('\0').map(str::to_owned).collect()))
    };
    entries.filter_map(command).collect()
}
