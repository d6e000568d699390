//! Whatever is ordered and whatever goes wrong with it, what only servers were to know is read nowhere: not in answers and
//! errors, not on the console, not in the logs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ferric_qemu::conductor::{AgentClient, CommandRecord, Wait};
use ferric_tests::{Bench, Bundle};
use serde_json::{Value, json};

use crate::{inject, kit};

/// Part of every secret.
const MARK: &str = "TopSecret7";

/// Has one image, which is good, written and refused in many ways, all of which involve secrets.
pub(crate) fn stay_secret(bench: &Bench, agent: &AgentClient, image: &Value) -> Result<()> {
    let hints = json!({"serial": "ROOT"});
    let header = STANDARD.encode(format!("Bearer {MARK}-token"));
    let secret = |path: &str| {
        let url = bench.images.guest_url(path);
        url.replace("://", &format!("://user:{MARK}-password@")) + &format!("?temp_url_sig={MARK}-signature")
    };
    let with = |changes: Value| {
        let mut info = image.clone();
        let fields = info.as_object_mut().unwrap();
        fields.insert("image_request_authorization".to_owned(), json!(header));
        fields.insert("image_server_password".to_owned(), json!(format!("{MARK}-server")));
        fields.insert("urls".to_owned(), json!([secret("/image.raw")]));
        fields.extend(changes.as_object().unwrap().clone());
        info
    };
    let list = |url: String| json!({"os_hash_algo": null, "os_hash_value": null, "checksum": url});
    let elsewhere = json!({"urls": [format!("file:///dev/zero?{MARK}")]});
    let redirected = json!({"urls": [format!("http://user:{MARK}@10.0.2.2:1/x?{MARK}")]});
    let proxy = json!({"proxies": {"http": format!("http://user:{MARK}-proxy@10.0.2.2:1")}});
    let sum = json!({"os_hash_value": "5".repeat(64)});
    // (what, changes of the image, config drive, class of the error, words of it)
    let cases = [
        ("missing", json!({"urls": [secret("/none.raw")]}), None, "ImageDownloadFatalError", "404"),
        ("no http", elsewhere, None, "ImageDownloadFatalError", "does not begin with http:// or https://"),
        ("refused", redirected, None, "ImageDownloadError", "Connection refused"),
        ("proxy", proxy, None, "ImageDownloadError", "Connection refused"),
        ("checksum", sum, None, "ImageChecksumError", "failed to verify"),
        ("no list", list(secret("/SUMS")), None, "ImageDownloadFatalError", "404"),
        ("no drive", json!({}), Some(secret("/no-drive")), "DeploymentError", "404"),
        ("bad drive", json!({}), Some(format!("{MARK}!")), "DeploymentError", "not base64"),
        ("written", json!({}), None, "", ""),
    ];
    for (case, changes, drive, class, word) in cases {
        let began = Instant::now();
        let record = kit::write(bench, agent, &with(changes), drive.as_deref(), &hints)?;
        match class {
            "" => drop(kit::device(&record)?),
            class => kit::check_failed(case, &record, class, &[word])?,
        }
        ensure!(began.elapsed() < bench.limit(30), "{case}: took {:?}", began.elapsed());
        is_clean(case, &format!("{record:?}"))?;
    }
    let content = STANDARD.encode(MARK);
    for (content, word) in [
        (secret("/none"), "404"),
        (format!("file:///proc/{MARK}"), "http"),
        (content.clone(), "no file system"),
        (format!("{MARK}!"), "must be base64"),
    ] {
        let files = json!([{"path": "/etc/x", "partition": 1, "content": content}]);
        let record = inject::inject(bench, agent, "ROOT", &json!(null), &files)?;
        ensure!(record.command_status == "FAILED", "{record:?}");
        // The partition has no file system, so that not every content is looked at.
        ensure!(["no file system", word].iter().any(|word| record.error_text().contains(word)), "{record:?}");
    }
    let refused = bootc(agent, &content)?;
    ensure!(refused.error_text().contains("no podman"), "{refused:?}");
    let seen = [
        ("commands", format!("{:?}", agent.commands()?)),
        ("console", bench.vm().console().text()),
        ("logs", Bundle::of(agent)?.all_text()),
    ];
    for (place, text) in &seen {
        ensure!(text.len() > 1000 && text.contains("image.raw"), "{place} says too little: {text}");
        for secret in [MARK, &header, &content, &STANDARD.encode(format!("user:{MARK}-password"))] {
            is_clean(place, &text.replace(secret, MARK))?;
        }
    }
    Ok(())
}

fn is_clean(place: &str, text: &str) -> Result<()> {
    let found = text.lines().find(|line| line.contains(MARK));
    ensure!(found.is_none(), "a secret in the {place}: {found:?}");
    Ok(())
}

fn bootc(agent: &AgentClient, secret: &str) -> Result<CommandRecord> {
    let params = json!({"image_source": "oci://registry/os:1", "pull_secret": secret});
    let started = agent.command("standby.execute_bootc_install", &params, Wait::No)?;
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let record = kit::current(agent, &started)?;
        if !record.is_running() || Instant::now() > end {
            return Ok(record);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
