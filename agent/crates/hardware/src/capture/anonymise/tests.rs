use std::path::PathBuf;

use super::super::Entry;
use super::*;

fn hidden(files: &[(&str, &[u8])]) -> Vec<Vec<u8>> {
    let mut identities = Identities::new().unwrap();
    files.iter().for_each(|(path, content)| identities.learn(Path::new(path), content));
    files
        .iter()
        .map(|(path, content)| match identities.hide(PathBuf::from(path), Entry::File(content.to_vec())) {
            (_, Entry::File(content)) => content,
            (_, Entry::Link(_)) => unreachable!(),
        })
        .collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_name_is_the_same_wherever_it_stands_and_has_its_form() {
    let page = b"\0\x80\0\x08S1A2-x9Z".as_slice();
    let files = hidden(&[
        ("d/serial", b"S1A2-x9Z\n"),
        ("d/vpd_pg80", page),
        ("d/wwid", b"t10.ATA     MODEL 5      S1A2-x9Z\n"),
        ("n/wwid", b"nvme.8086-533141322d78395a-4d4f44454c-00000001\n"),
        ("d/model", b"MODEL 5\n"),
    ]);
    let serial = text(&files[0]).trim();
    assert_ne!(serial, "S1A2-x9Z");
    let kinds = |text: &str| -> Vec<(bool, bool, bool)> {
        text.chars().map(|c| (c.is_ascii_digit(), c.is_ascii_uppercase(), c == '-')).collect()
    };
    assert_eq!(kinds(serial), kinds("S1A2-x9Z"));
    assert_eq!(&files[1][..4], &page[..4]);
    assert_eq!(text(&files[1][4..]), serial);
    assert_eq!(text(&files[2]), format!("t10.ATA     MODEL 5      {serial}\n"));
    let hex: String = serial.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text(&files[3]), format!("nvme.8086-{hex}-4d4f44454c-00000001\n"));
    assert_eq!(text(&files[4]), "MODEL 5\n");
}

#[test]
fn numbers_keep_their_maker_in_text_and_in_binary() {
    let page = [&[0, 0x83, 0, 12, 1, 3, 0, 8][..], &[0x50, 0, 0xc5, 0, 0xa1, 0xb2, 0xc3, 0xd4]].concat();
    let files = hidden(&[
        ("d/wwid", b"naa.5000c500a1b2c3d4\n"),
        ("d/vpd_pg83", &page),
        ("d/uevent", b"WWN=0x5000C500A1B2C3D4\n"),
        ("n/address", b"52:54:00:aa:bb:cc\n"),
        ("n/uevent", b"525400aabbcc"),
    ]);
    let number = text(&files[0]).trim().trim_start_matches("naa.").to_owned();
    assert!(number.starts_with("5000c50") && number != "5000c500a1b2c3d4", "{number}");
    let binary: String = files[1][8..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(binary, number);
    assert_eq!(text(&files[2]), format!("WWN=0x{}\n", number.to_uppercase()));
    let address = text(&files[3]).trim();
    assert!(address.starts_with("52:54:00:") && address != "52:54:00:aa:bb:cc", "{address}");
    assert_eq!(text(&files[4]), address.replace(':', ""));
}

#[test]
fn what_is_no_name_stays() {
    for (path, content) in [
        ("d/serial", "None\n"),
        ("d/serial", "000000000000\n"),
        ("n/address", "00:00:00:00:00:00\n"),
        ("d/serial", "To be filled by O.E.M.\n"),
        ("d/address", "0000:00:1f.2\n"),
        ("pci0000:00/0000:00:14.0/usb1/serial", "0000:00:14.0\n"),
    ] {
        assert_eq!(text(&hidden(&[(path, content.as_bytes())])[0]), content, "{path}");
    }
}

#[test]
fn fields_of_names_are_replaced_whatever_is_in_them() {
    type Case<'a> = (&'a str, &'a [u8], &'a [&'a [u8]]);
    let cases: &[Case] = &[
        ("d/serial", "Gr\u{f6}\u{df}e-778899X\n".as_bytes(), &["Gr\u{f6}".as_bytes(), b"778899X"]),
        ("d/serial", b"Ser\xefal778899 \n", &[b"Ser", b"al778899"]),
        ("d/serial", b"Q7Z9\n", &[b"Q7Z9"]),
        ("d/serial", b"B7\n", &[b"B7"]),
        ("d/serial", b"NONE77AA1234\n", &[b"NONE77AA1234"]),
        ("d/serial", b"DefaultRackPayroll9\n", &[b"DefaultRackPayroll9"]),
        ("d/serial", b"Not 4711 filled by Bob\n", &[b"4711", b"Bob"]),
        ("d/vpd_pg80", b"\0\x80\0\x10PG80SER\x01SECRET99", &[b"PG80SER", b"SECRET99"]),
        ("d/vpd_pg80", b"\0\x80\0\x08    Q7Z9", &[b"Q7Z9"]),
        ("sys/firmware/dmi/tables/DMI", b"\x01\x08\x01\0\0\0\0\x01Q7Z9\0\0", &[b"Q7Z9"]),
        ("sys/firmware/dmi/tables/DMI", b"\x01\x08\x01\0\0\0\0\x01Gr\xf6SER77\x01AB99\0\0", &[b"SER77", b"AB99"]),
    ];
    for (path, content, secrets) in cases {
        let hidden = hidden(&[(path, content)]).remove(0);
        assert_eq!(hidden.len(), content.len(), "{path}");
        for secret in *secrets {
            let is_told = hidden.windows(secret.len()).any(|found| found == *secret);
            assert!(!is_told, "{path}: {}", String::from_utf8_lossy(&hidden));
        }
    }
}

#[test]
fn a_serial_number_with_odd_bytes_is_the_same_elsewhere() {
    let files = hidden(&[("d/serial", b"Ser\xefal778899\n"), ("d/model", b"(Ser\xefal778899) al778899\n")]);
    let serial = files[0].trim_ascii();
    assert_eq!(files[1], [b"(", serial, b") ", &serial[4..], b"\n"].concat());
}
