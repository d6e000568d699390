"""Sizes of an image, from its manifest: size.py MANIFEST OUT-DIRECTORY."""

import json
import pathlib
import sys

manifest = json.loads(pathlib.Path(sys.argv[1]).read_text())
sizes = {image["name"]: image["size_bytes"] for image in manifest["images"]}
rows = {
    "kernel_bytes": sizes["vmlinuz"],
    "initramfs_bytes": sizes["initramfs.img"],
    "total_bytes": sum(sizes.values()),
    "budget_bytes": manifest["budget_bytes"],
    "initramfs_unpacked_bytes": sum(entry.get("size_bytes", 0) for entry in manifest["files"]),
    "agent_unpacked_bytes": manifest["agent"]["size_bytes"],
    "modules_unpacked_bytes": sum(module["size_bytes"] for module in manifest["modules"]),
}
print(f"size of {manifest['profile']} ({manifest['kernel']['release']}, {len(manifest['modules'])} modules)")
for name, value in rows.items():
    print(f"  {name:26} {'-' if value is None else format(value, ','):>12}")
out = pathlib.Path(sys.argv[2]) / f"size-{manifest['profile']}.json"
out.write_text(json.dumps({"measurement": "size", "profile": manifest["profile"], **rows}, indent=2) + "\n")
