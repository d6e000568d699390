//! The two documents that tell what the API is: `/` and `/v1/`.

use serde_json::{Value, json};

const DOCS: &str = "https://docs.openstack.org/ironic-python-agent/";

fn version(root: &str) -> Value {
    json!({
        "id": "v1",
        "links": [
            { "href": format!("{root}/v1"), "rel": "self" },
            { "href": DOCS, "rel": "describedby", "type": "text/html" },
        ],
    })
}

/// The document at `/`; `root` is `scheme://host` as the client wrote it.
pub fn root(root: &str) -> Value {
    json!({
        "name": "OpenStack Ironic Python Agent API",
        "description": "Provisioning agent for bare metal nodes, compatible with the Ironic Python Agent API. \
                        This is Ferric.",
        "versions": [version(root)],
        "default_version": version(root),
    })
}

/// The document at `/v1/`.
pub fn v1(root: &str) -> Value {
    let links = |name: &str| {
        json!([
            { "href": format!("{root}/v1/{name}/"), "rel": "self" },
            { "href": format!("{root}/{name}/"), "rel": "bookmark" },
        ])
    };
    json!({
        "commands": links("commands"),
        "status": links("status"),
        "media_types": [{
            "base": "application/json",
            "type": "application/vnd.openstack.ironic-python-agent.v1+json",
        }],
        "id": "v1",
        "links": [
            { "href": format!("{root}/v1/"), "rel": "self" },
            { "href": DOCS, "rel": "describedby", "type": "text/html" },
        ],
    })
}
