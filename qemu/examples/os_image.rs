//! Makes the demonstration's operating system image and prints its path, hash and sizes as JSON:
//! `cargo run -p ferric-qemu --example os_image -- [gpt|mbr] [raw|plain|zlib|zstd] [MiB] [512|4096] [CACHE_DIR]`

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use ferric_qemu::os_image::{DiskLabel, ImageFormat, Qcow2Kind, Recipe};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &'static str| arguments.get(index).map_or(default, String::as_str);
    let label = match argument(0, "gpt") {
        "gpt" => DiskLabel::Gpt,
        "mbr" => DiskLabel::Mbr,
        other => bail!("label {other}: gpt or mbr"),
    };
    let format = match argument(1, "raw") {
        "raw" => ImageFormat::Raw,
        name => ImageFormat::Qcow2(
            Qcow2Kind::ALL
                .into_iter()
                .find(|kind| kind.name() == name)
                .with_context(|| format!("unknown format {name}"))?,
        ),
    };
    let recipe = Recipe {
        virtual_size_bytes: argument(2, "1024").parse::<u64>().context("size in MiB")? << 20,
        sector_bytes: argument(3, "512").parse().context("sector size")?,
        ..Recipe::new(label, format)
    };
    let image = recipe.make(Path::new(argument(4, "build/cache")))?;
    writeln!(std::io::stdout(), "{} {}", image.path.display(), serde_json::to_string(&image)?)?;
    Ok(())
}
