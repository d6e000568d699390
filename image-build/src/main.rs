//! `image-build`: makes a bootable image from a profile, the agent and a kernel.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use ferric_image_build::kernel::Source;
use ferric_image_build::{Options, Report, build, programs};

/// Makes vmlinuz, initramfs.img, SHA256SUMS and manifest.json from a profile and the agent binary; for a profile with
/// programs of packages their licenses.txt, too.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Profile: a TOML file that lists kernel package, modules and programs
    #[arg(long)]
    profile: PathBuf,
    /// The static agent binary that becomes /init
    #[arg(long)]
    agent: PathBuf,
    /// Directory for the finished files
    #[arg(long)]
    out: PathBuf,
    /// Where downloaded and unpacked packages are kept
    #[arg(long, default_value = "build/cache")]
    cache: PathBuf,
    /// A kernel package (.deb) to use instead of the profile's
    #[arg(long, conflicts_with = "kernel_tree")]
    kernel_deb: Option<PathBuf>,
    /// An unpacked kernel (with boot/vmlinuz-RELEASE and lib/modules/RELEASE) to use instead of a package
    #[arg(long)]
    kernel_tree: Option<PathBuf>,
    /// Build an image that is over the profile's budget too
    #[arg(long)]
    any_size: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is gone there is nobody to tell.
            drop(writeln!(io::stderr(), "image-build: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let cache = Some(arguments.cache.clone());
    let packages = programs::Source::Apt { cache: arguments.cache.clone() };
    let kernel = match (arguments.kernel_tree, arguments.kernel_deb) {
        (Some(tree), _) => Source::Tree(tree),
        (None, Some(deb)) => Source::Deb { deb, cache: arguments.cache },
        (None, None) => Source::Package { cache: arguments.cache },
    };
    let Arguments { profile, agent, out, any_size, .. } = arguments;
    let options = Options { profile, agent, out, kernel, packages, cache, any_size };
    let report = build(&options)?;
    write_report(&report, &options).context("printing the report")
}

fn write_report(report: &Report, options: &Options) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let total = report.kernel_bytes + report.initramfs_bytes;
    let state = if report.unchanged { " (unchanged)" } else { "" };
    let packages = match report.packages {
        0 => String::new(),
        count => format!(", programs of {count} packages"),
    };
    let Report { release, modules, .. } = report;
    writeln!(out, "{}: kernel {release}, {modules} modules{packages}{state}", options.out.display())?;
    writeln!(out, "  vmlinuz        {:>10}", report.kernel_bytes)?;
    writeln!(out, "  initramfs.img  {:>10}  ({} unpacked)", report.initramfs_bytes, report.unpacked_bytes)?;
    match report.budget_bytes {
        Some(budget) if total > budget => {
            writeln!(out, "  total          {total:>10}  ({} over the budget of {budget})", total - budget)
        }
        Some(budget) => writeln!(out, "  total          {total:>10}  ({} left of {budget})", budget - total),
        None => writeln!(out, "  total          {total:>10}"),
    }
}
