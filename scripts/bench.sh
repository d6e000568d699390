#!/usr/bin/env bash
# Measures what has a budget, as a table and as build/bench/*.json: scripts/bench.sh PROFILE. So far: the image's sizes.
. "$(dirname "$0")/lib.sh"

mkdir -p build/bench
manifest=build/${1:-virt}/manifest.json
[ -f "$manifest" ] || die "there is no $manifest: run make image"
python3 - "$manifest" build/bench <<'PYTHON'
import json, pathlib, sys

manifest = json.loads(pathlib.Path(sys.argv[1]).read_text())
sizes = {image["name"]: image["size_bytes"] for image in manifest["images"]}
unpacked = sum(entry.get("size_bytes", 0) for entry in manifest["files"])
modules = sum(module["size_bytes"] for module in manifest["modules"])
rows = {
    "kernel_bytes": sizes["vmlinuz"],
    "initramfs_bytes": sizes["initramfs.img"],
    "total_bytes": sum(sizes.values()),
    "budget_bytes": manifest["budget_bytes"],
    "initramfs_unpacked_bytes": unpacked,
    "agent_unpacked_bytes": manifest["agent"]["size_bytes"],
    "modules_unpacked_bytes": modules,
}
print(f"size of {manifest['profile']} ({manifest['kernel']['release']}, {len(manifest['modules'])} modules)")
for name, value in rows.items():
    print(f"  {name:26} {'-' if value is None else format(value, ','):>12}")
out = pathlib.Path(sys.argv[2]) / f"size-{manifest['profile']}.json"
out.write_text(json.dumps({"measurement": "size", "profile": manifest["profile"], **rows}, indent=2) + "\n")
PYTHON
