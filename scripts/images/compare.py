#!/usr/bin/env python3
"""Compares what image_write makes of each file of a directory with what qemu-img makes of it, where both take it:
python3 scripts/images/compare.py qcow2|vmdk|vhd DIR [IMAGE_WRITE]. For a fuzzer's corpus, which nobody has looked at.
"""

import collections
import hashlib
import os
import subprocess
import sys
import tempfile

DISK_BYTES = 3 << 20
WAYS = {"by ranges": [], "in order": ["--in-order"]}


def written(program, path, disk, fmt, options):
    """The disk, or None when the image is refused."""
    with open(disk, "wb") as file:
        file.write(b"\xa5" * DISK_BYTES)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    command = [program, path, disk, "--format", fmt, "--checksum", digest, *options]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    with open(disk, "rb") as file:
        return file.read()


def main(fmt, directory, program="target/debug/image_write"):
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        raw, disk = f"{scratch}/raw", f"{scratch}/disk"
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            disks = {}
            for way, options in WAYS.items():
                # What ranges cannot read, one pass cannot either; the fuzz targets see to that.
                if None not in disks.values():
                    disks[way] = written(program, path, disk, fmt, options)
            if disks["by ranges"] is None:
                counts["refused"] += 1
                continue
            driver = {"vhd": "vpc"}.get(fmt, fmt)
            command = ["qemu-img", "convert", "-f", driver, "-O", "raw", path, raw]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                counts["refused by qemu-img"] += 1
                continue
            with open(raw, "rb") as file:
                want = file.read()
            for way, got in disks.items():
                outcome = "refused" if got is None else "the same" if got.startswith(want) else "DIFFERENT"
                counts[f"{outcome} {way}"] += 1
                if outcome == "DIFFERENT":
                    print(f"{path}: different {way}")
    for outcome, count in sorted(counts.items()):
        print(f"{count:6} {outcome}")
    return any(outcome.startswith("DIFFERENT") for outcome in counts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
