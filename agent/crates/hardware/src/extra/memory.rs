//! Memory and its modules.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Items;
use crate::probe::memory::{device_kib, is_main};
use crate::probe::smbios::{Smbios, dmi, kind};

pub(super) fn add(items: &mut Items, smbios: &Smbios, physical_mb: Option<u64>) {
    if let Some(mib) = physical_mb {
        items.add("memory", "total", "size", (mib << 20).to_string().into());
    }
    let arrays: Vec<u16> = smbios.of(kind::MEMORY_ARRAY).filter(is_main).map(|array| array.handle()).collect();
    let told = dmi::decode(smbios);
    let blocks = told["memory"]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for (device, block) in smbios.of(kind::MEMORY_DEVICE).zip(blocks) {
        let Some(array) = arrays.iter().position(|handle| *handle == device.word(4)) else { continue };
        let number = counts.entry(array).or_default();
        let bank = if arrays.len() > 1 { format!("bank:{array}:{number}") } else { format!("bank:{number}") };
        *number += 1;
        let text = |label: &str| block[label].as_str().filter(|text| *text != "Not Specified" && *text != "Unknown");
        let kib = device_kib(&device);
        if let Some(kib) = kib {
            items.add("memory", &bank, "size", (kib << 10).to_string().into());
        }
        let mhz = text("Speed").and_then(|speed| speed.split(' ').next()?.parse::<u64>().ok());
        if let Some(mhz) = mhz {
            items.add("memory", &bank, "clock", (mhz * 1_000_000).to_string().into());
        }
        items.add("memory", &bank, "description", description(block, kib.is_some(), mhz).into());
        for (key, label) in
            [("vendor", "Manufacturer"), ("product", "Part Number"), ("serial", "Serial Number"), ("slot", "Locator")]
        {
            items.text("memory", &bank, key, text(label).map(str::to_owned));
        }
    }
    let banks: usize = counts.values().sum();
    if banks > 0 {
        items.add("memory", "banks", "count", banks.to_string().into());
    }
}

/// Form, kind, traits and speed of a module, as far as they are known.
fn description(block: &Value, is_there: bool, mhz: Option<u64>) -> String {
    let known =
        |label: &&str| block[*label].as_str().filter(|text| !["None", "Unknown", "<OUT OF SPEC>"].contains(text));
    let mut words: Vec<String> =
        ["Form Factor", "Type", "Type Detail"].iter().filter_map(known).map(str::to_owned).collect();
    match mhz {
        _ if !is_there => words.push("[empty]".to_owned()),
        // Nanoseconds of a cycle, rounded to tenths.
        Some(mhz) => {
            let tenths = (10_000 + mhz / 2) / mhz.max(1);
            words.push(format!("{mhz} MHz ({}.{} ns)", tenths / 10, tenths % 10));
        }
        None => {}
    }
    words.join(" ")
}
