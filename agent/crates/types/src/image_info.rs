//! What the conductor sends about an image (deploy section 1), and the check that runs before a command is accepted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{CommandError, ErrorClass};
use crate::secret::Secret;

/// Image to write. Every key may be null; unknown keys are ignored, since Ironic adds some from time to time.
/// `configdrive` is left where it is: it is large, and comes a second time as an argument.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ImageInfo {
    /// Last path component of the image source.
    pub id: Option<String>,
    /// Where to read it, in order of preference.
    pub urls: Option<Vec<String>>,
    /// `raw`, `qcow2`, ...; null or `unknown` when Ironic does not know.
    pub disk_format: Option<String>,
    /// Not used by an agent.
    pub container_format: Option<String>,
    /// Whether a raw image may be streamed; this agent always streams.
    pub stream_raw_images: Option<bool>,
    /// Old checksum: hex digest, or URL of one.
    pub checksum: Option<String>,
    /// Name of the hash in `os_hash_value`.
    pub os_hash_algo: Option<String>,
    /// Hex digest, or URL of one.
    pub os_hash_value: Option<String>,
    /// `noauth` or `http_basic`.
    pub image_server_auth_strategy: Option<String>,
    /// User for `http_basic`.
    pub image_server_user: Option<String>,
    /// Password for `http_basic`.
    pub image_server_password: Option<Secret<String>>,
    /// base64 of a complete `Authorization` header.
    pub image_request_authorization: Option<Secret<String>>,
    /// Proxy URL by scheme (`http`, `https`).
    pub proxies: Option<BTreeMap<String, String>>,
    /// Comma list of hosts to reach without a proxy.
    pub no_proxy: Option<String>,
    /// Node the image is for.
    pub node_uuid: Option<String>,
    /// `partition` for a partition image; absent for whole-disk images.
    pub image_type: Option<String>,
    /// Boot mode of a partition image.
    pub deploy_boot_mode: Option<String>,
}

impl ImageInfo {
    /// Reads and checks `image_info` as it comes in a command.
    ///
    /// # Errors
    /// `InvalidCommandParamsError` with the reference agent's texts (deploy section 1).
    pub fn parse(value: &Value, md5_enabled: bool) -> Result<Self, CommandError> {
        let object = value.as_object().ok_or_else(|| invalid("Image info must be an object."))?;
        for key in ["id", "urls"] {
            if object.get(key).is_none_or(Value::is_null) {
                return Err(invalid(format!("Image is missing '{key}' field.")));
            }
        }
        match object.get("urls") {
            Some(Value::Array(urls)) if !urls.is_empty() && urls.iter().all(Value::is_string) => {}
            _ => return Err(invalid("Image 'urls' must be a list with at least one element.")),
        }
        for key in ["checksum", "os_hash_algo", "os_hash_value"] {
            let ok = match object.get(key) {
                None | Some(Value::Null) => true,
                Some(Value::String(text)) => !text.is_empty(),
                Some(_) => false,
            };
            if !ok {
                return Err(invalid(format!("Image '{key}' must be a non-empty string.")));
            }
        }
        let info: Self =
            Self::deserialize(value).map_err(|error| invalid(format!("Image info is malformed: {error}")))?;
        if info.os_hash_algo.is_some() != info.os_hash_value.is_some() {
            return Err(invalid("Image 'os_hash_algo' and 'os_hash_value' fields must be set together."));
        }
        let checksum_usable = info.checksum.as_deref().is_some_and(|text| {
            text.starts_with("http://") || text.starts_with("https://") || text.len() > 32 || md5_enabled
        });
        if info.os_hash_algo.is_none() && !checksum_usable {
            return Err(invalid(
                "Image checksum is not available, either the 'checksum' field or the 'os_hash_algo' and \
                 'os_hash_value' fields pair must be set for image verification.",
            ));
        }
        Ok(info)
    }

    /// Identifier of the image; [`ImageInfo::parse`] has made sure there is one.
    pub fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// Whether this is an image of one partition rather than of a whole disk.
    pub fn is_partition_image(&self) -> bool {
        self.image_type.as_deref() == Some("partition")
    }
}

fn invalid(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorClass::InvalidCommandParams, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bad_image_info_is_refused_with_the_reason() {
        let cases = [
            (json!([]), "must be an object"),
            (json!({"urls": ["http://x/i"]}), "Image is missing 'id' field."),
            (json!({"id": null, "urls": ["http://x/i"]}), "Image is missing 'id' field."),
            (json!({"id": "i"}), "Image is missing 'urls' field."),
            (json!({"id": "i", "urls": []}), "at least one element"),
            (json!({"id": "i", "urls": "http://x/i"}), "at least one element"),
            (json!({"id": "i", "urls": ["u"], "checksum": ""}), "'checksum' must be a non-empty string"),
            (json!({"id": "i", "urls": ["u"], "checksum": 5}), "'checksum' must be a non-empty string"),
            (json!({"id": "i", "urls": ["u"], "os_hash_algo": "sha256"}), "must be set together"),
            (json!({"id": "i", "urls": ["u"]}), "Image checksum is not available"),
            (
                json!({"id": "i", "urls": ["u"], "checksum": "d41d8cd98f00b204e9800998ecf8427e"}),
                "Image checksum is not available",
            ),
        ];
        for (value, want) in cases {
            let error = ImageInfo::parse(&value, false).unwrap_err();
            assert_eq!(error.class, ErrorClass::InvalidCommandParams, "{value}");
            assert!(error.details.contains(want), "{value}: {}", error.details);
        }
    }

    #[test]
    fn one_usable_checksum_is_enough() {
        let md5 = json!({"id": "i", "urls": ["u"], "checksum": "d41d8cd98f00b204e9800998ecf8427e", "later_key": 1});
        assert!(ImageInfo::parse(&md5, true).is_ok());
        for checksum in ["https://x/SHA256SUMS", &"a".repeat(64)] {
            assert!(
                ImageInfo::parse(&json!({"id": "i", "urls": ["u"], "checksum": checksum}), false).is_ok(),
                "{checksum}"
            );
        }
        let pair = json!({"id": "i", "urls": ["u"], "os_hash_algo": "sha512", "os_hash_value": "00", "checksum": null});
        assert!(ImageInfo::parse(&pair, false).is_ok());
    }
}
