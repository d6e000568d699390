//! Sizes in the words of `dmidecode`: the largest unit of 1024 in which nothing is lost, or nearly nothing.

/// Units, each 1024 of the one before.
const UNITS: [&str; 8] = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB"];

/// A number of bytes (`unit` 0), KiB (1) or MiB (2).
pub(super) fn text(number: u64, unit: usize) -> String {
    // Groups of ten bits. The highest that is not zero counts, together with the one below it if that is not either.
    let group = |place: u32| number.checked_shr(place * 10).unwrap_or(0) & 0x3ff;
    let highest = (0..7_u32).rev().find(|place| group(*place) != 0).unwrap_or(0);
    let (place, amount) = match highest.checked_sub(1) {
        Some(below) if group(below) != 0 => (below, (group(highest) << 10) + group(below)),
        _ => (highest, group(highest)),
    };
    let place = usize::try_from(place).unwrap_or(0) + unit;
    format!("{amount} {}", UNITS.get(place).copied().unwrap_or_default())
}

/// Extended size of a memory device, MiB: as exact as it can be.
pub(super) fn extended(mib: u32) -> String {
    let mib = mib & 0x7fff_ffff;
    if mib & 0x3ff != 0 {
        format!("{mib} MB")
    } else if mib & 0xf_fc00 != 0 {
        format!("{} GB", mib >> 10)
    } else {
        format!("{} TB", mib >> 20)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_in_the_unit_a_person_would_take() {
        for (number, unit, want) in [
            (0, 1, "0 kB"),
            (1536, 1, "1536 kB"),
            (1024, 1, "1 MB"),
            (16384, 2, "16 GB"),
            (3 << 30, 1, "3 TB"),
            (0x7fff_ffff, 1, "2047 GB"),
            ((1 << 34) + 1, 0, "16 GB"),
            (1023, 0, "1023 bytes"),
            (u64::MAX >> 1, 0, "8191 PB"),
            (u64::MAX, 0, "16383 PB"),
        ] {
            assert_eq!(super::text(number, unit), want, "{number} of unit {unit}");
        }
        for (mib, want) in
            [(0, "0 TB"), (66048, "66048 MB"), (65536, "64 GB"), (1 << 20, "1 TB"), (0x8000_0400, "1 GB")]
        {
            assert_eq!(super::extended(mib), want, "{mib}");
        }
    }
}
