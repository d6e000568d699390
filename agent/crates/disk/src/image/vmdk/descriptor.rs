//! The text that describes a VMDK file, judged by the rules of the reference agent (deploy section 4).

/// Refuses a descriptor of anything but a file that needs no other.
///
/// # Errors
/// What is wrong with the file, as what follows "the vmdk file".
pub(super) fn check(bytes: &[u8]) -> Result<(), &'static str> {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).ok().ok_or("has a descriptor that is no text")?;
    let (mut types, mut extents) = (0, 0);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if matches!(words.next(), Some("RW" | "RDONLY" | "NOACCESS")) {
            extents += 1;
            if line.contains('/') || words.nth(1) != Some("SPARSE") {
                return Err("has an extent in another place or of another kind");
            }
            continue;
        }
        let (key, value) = line.split_once('=').ok_or("has a descriptor with an unknown line")?;
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        if !key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')) {
            return Err("has a descriptor with an unknown line");
        }
        if key.eq_ignore_ascii_case("createType") {
            types += 1;
            if !matches!(value, "monolithicSparse" | "streamOptimized") {
                return Err("is neither monolithicSparse nor streamOptimized");
            }
        }
        let has_parent = key.eq_ignore_ascii_case("parentCID") && !value.eq_ignore_ascii_case("ffffffff");
        if has_parent || key.eq_ignore_ascii_case("parentFileNameHint") {
            return Err("has a parent");
        }
    }
    if types == 0 {
        return Err("does not say its type");
    }
    if extents == 1 { Ok(()) } else { Err("is not one of a single extent") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Disk DescriptorFile\nversion=1\nCID=eb6df5e9\nparentCID=ffffffff\n\
        createType=\"streamOptimized\"\n\n# Extent description\nRDONLY 6144 SPARSE \"a disk.vmdk\"\n\
        #DDB\nddb.adapterType = \"ide\"\r\nddb.uuid.image=\"x\"\n";

    #[test]
    fn descriptors_are_judged_line_by_line() {
        assert_eq!(check(GOOD.as_bytes()), Ok(()));
        let mut padded = GOOD.as_bytes().to_vec();
        padded.extend([0, 0, 0xff]);
        assert_eq!(check(&padded), Ok(()));
        for (from, to, want) in [
            ("streamOptimized", "monolithicFlat", "neither"),
            ("streamOptimized", "vmfsSparse", "neither"),
            ("createType=\"streamOptimized\"", "", "does not say its type"),
            ("a disk.vmdk", "/etc/shadow", "another place"),
            ("a disk.vmdk", "dir/disk.vmdk", "another place"),
            ("SPARSE", "FLAT", "another kind"),
            ("RDONLY 6144 SPARSE \"a disk.vmdk\"\n", "", "a single extent"),
            ("#DDB", "RW 1 SPARSE \"b\"", "a single extent"),
            ("parentCID=ffffffff", "parentCID=12345678", "a parent"),
            ("parentCID=ffffffff", "parentCID=ffffffff\nparentFileNameHint=\"base.vmdk\"", "a parent"),
            ("#DDB", "hello", "unknown line"),
            ("#DDB", "../a=b", "unknown line"),
            ("#DDB", "createType=\"custom\"", "neither"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert!(text != GOOD, "{from}");
            let error = check(text.as_bytes()).expect_err(to);
            assert!(error.contains(want), "{from} / {to}: {error}");
        }
        assert!(check(b"\xff\xfe=1").is_err());
        assert!(check(b"").is_err());
    }
}
