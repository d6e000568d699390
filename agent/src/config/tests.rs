use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn cmdline(line: &str) -> (Config, Vec<Warning>) {
    read(&Sources { cmdline: line.to_owned(), ..Sources::default() })
}

#[test]
fn a_kernel_command_line_as_ironic_writes_it() {
    let (config, warnings) = cmdline(
        "nofb nomodeset vga=normal console=ttyS0 systemd.journald.forward_to_console=yes ipa-debug=1 \
         ipa-api-url=http://10.0.2.2:6385/,https://[2001:db8::1]:6385 ipa-global-request-id=req-1 BOOTIF=01-52-54-00-12-34-56 \
         initrd=ramdisk selinux=0 troubleshoot=0 text ipa-agent-token=abc ipa-inspection-callback-url=http://10.0.2.2/v1/continue/",
    );
    assert_eq!(warnings, []);
    assert_eq!(config.api_urls, ["http://10.0.2.2:6385", "https://[2001:db8::1]:6385"]);
    assert_eq!(config.inspection_callback_urls, ["http://10.0.2.2/v1/continue/"]);
    assert_eq!(config.bootif.as_deref(), Some("01-52-54-00-12-34-56"));
    assert_eq!(config.agent_token.as_ref().map(|token| token.expose().as_str()), Some("abc"));
    assert!(config.debug);
    assert_eq!(config.lookup_timeout, Duration::from_secs(600));
}

#[test]
fn a_bad_value_says_what_was_expected_and_what_is_used() {
    let (config, warnings) = cmdline("ipa-listen-port=http ipa-insecure=maybe ipa-api-url=10.0.0.1:6385");
    let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(
        texts[0].contains("ipa-listen-port=http")
            && texts[0].contains("port number")
            && texts[0].contains("using 9999")
    );
    assert!(texts[2].contains("using no value"), "{}", texts[2]);
    assert_eq!((config.listen_port, config.insecure, config.api_urls.len()), (9999, false, 0));
}

#[test]
fn one_bad_url_of_several_costs_only_itself_and_shows_no_password() {
    let (config, warnings) =
        cmdline("ipa-api-url=http://10.0.2.2:6385,ftp://u:hunter2@h/,http://u:hunter2@10.0.2.3:6385/");
    assert_eq!(config.api_urls, ["http://10.0.2.2:6385", "http://u:hunter2@10.0.2.3:6385"]);
    let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert!(texts.len() == 1 && texts[0].contains("using the other URLs"), "{texts:?}");
    let (_, warnings) = cmdline("ipa-inspection-callback-url=ftp://u:hunter2@h/,gopher://x");
    let texts = format!("{texts:?}{warnings:?}");
    assert!(warnings.len() == 1 && !texts.contains("hunter2") && texts.contains("***@h"), "{texts}");
}

#[test]
fn unknown_and_later_options_are_reported() {
    let (_, warnings) = cmdline("ipa-api_url=http://a ipa-nonsense=1 foo=2 ipa-ntp-server=10.0.0.1 ipa-use-mdns=false");
    let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts[0].contains("did you mean ipa-api-url?"), "{}", texts[0]);
    assert!(texts[1].contains("unknown option ipa-nonsense"), "{}", texts[1]);
    assert!(texts[2].contains("ipa-ntp-server is accepted but has no effect"), "{}", texts[2]);
}

#[test]
fn secrets_are_not_shown_when_they_are_overridden_or_wrong() {
    let huge = format!("ipa-agent-token=hunter2{}", "x".repeat(70_000));
    let (_, warnings) = cmdline(&huge);
    assert!(warnings.len() == 1 && !warnings[0].to_string().contains("hunter2"), "{warnings:?}");
}

#[test]
fn later_places_override_earlier_ones() {
    let sources = Sources {
        environment: vec![("http_proxy".into(), "http://env:1".into())],
        cmdline: "ipa-listen-port=1 ipa-advertise-port=1 ipa-lookup-timeout=1 ipa-lookup-interval=1 ipa-listen-port=11"
            .into(),
        media: "ipa-advertise-port=2 ipa-lookup-timeout=2 ipa-lookup-interval=2".into(),
        files: vec![
            ("a.conf".into(), "[DEFAULT]\nlookup_timeout = 3\nlookup_interval = 3\n".into()),
            ("b.conf".into(), "[DEFAULT]\nlookup_timeout = 33\n[mdns]\nnonsense = 1\n[DEFAULT]\nbroken\n".into()),
        ],
        flags: vec!["--lookup-interval".into(), "4".into(), "--insecure".into(), "--cafile=/x".into(), "word".into()],
    };
    let (config, warnings) = read(&sources);
    let seconds = |time: Duration| time.as_secs();
    assert_eq!((config.listen_port, config.advertise_port), (11, 2));
    assert_eq!((seconds(config.lookup_timeout), seconds(config.lookup_interval)), (33, 4));
    assert!(config.insecure);
    assert_eq!(config.cafile.as_deref(), Some("/x"));
    assert_eq!(config.http_proxy.as_ref().map(|proxy| proxy.expose().as_str()), Some("http://env:1"));
    let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts[0].contains("b.conf:6"), "{}", texts[0]);
    assert!(texts[1].contains("[mdns] nonsense") && texts[2].contains("word"), "{texts:?}");
}

#[test]
fn files_of_the_machine_are_read_in_order() {
    let dir = std::env::temp_dir().join(format!("ferric-config-{}", std::process::id()));
    for name in ["proc", "etc/ironic-python-agent", "etc/ironic-python-agent.d"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    std::fs::write(dir.join("proc/cmdline"), "ipa-listen-port=1234\n").unwrap();
    std::fs::write(dir.join("etc/ironic-python-agent.d/ironic-tls.conf"), "[DEFAULT]\ncafile = /etc/x.crt\n").unwrap();
    std::fs::write(dir.join("etc/ironic-python-agent/a.conf"), "[DEFAULT]\ncafile = /etc/y.crt\n").unwrap();
    std::fs::write(dir.join("etc/ironic-python-agent/ironic.crt"), "not a configuration").unwrap();
    std::fs::create_dir_all(dir.join("etc/ironic-python-agent/odd.conf")).unwrap();
    let (config, warnings) = load(&Root::at(&dir));
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!((config.listen_port, config.cafile.as_deref()), (1234, Some("/etc/x.crt")));
    assert!(warnings.len() == 1 && warnings[0].to_string().contains("odd.conf"), "{warnings:?}");
}

proptest! {
    #[test]
    fn no_text_anywhere_stops_the_agent(line in "(ipa-[a-z-]{1,12}=?[\\PC]{0,20} ?){0,8}", file in "[\\PC\n=:\\[\\]]{0,200}") {
        let sources = Sources { cmdline: line, files: vec![("x".into(), file)], ..Sources::default() };
        let _config = read(&sources);
    }
}
