#!/usr/bin/env python3
"""Compares expected.json of each machine with what lsblk and lscpu make of its tree: python3 scripts/machines/check.py

The reference agent asks these programs. They read a tree with --sysroot, but no udev database in it, so models that only
udev knows, serial numbers and world-wide names are not compared, nor is what old versions do not show (the transport of
virtio, MMC and USB disks, before util-linux 2.39). What is left differs on purpose: paths of one disk are one disk here, and
the boot areas of an eMMC are none.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from make import MACHINES

COLUMNS = {"size": "size", "rota": "rotational", "log-sec": "logical_sectors", "phy-sec": "physical_sectors", "tran": "tran",
           "hctl": "hctl"}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def with_device_numbers(tree):
    """lsblk finds devices by links that a capture does not have."""
    for name in os.listdir(f"{tree}/sys/class/block"):
        folder = os.path.realpath(f"{tree}/sys/class/block/{name}")
        if os.path.exists(f"{folder}/dev"):
            with open(f"{folder}/dev", encoding="ascii") as file:
                link = f"{tree}/sys/dev/block/{file.read().strip()}"
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(os.path.relpath(folder, os.path.dirname(link)), link)


def disks(tree, ours):
    text = run("lsblk", "--sysroot", tree, "-bia", "--json", "-oKNAME,TYPE," + ",".join(COLUMNS).upper())
    rows = {}
    for row in json.loads(text or '{"blockdevices": []}')["blockdevices"]:
        if (row["type"] in ("disk", "mpath") or "raid" in row["type"]) and row["size"] and not row["kname"].startswith(("fd", "zram")):
            rows.setdefault(f"/dev/{row['kname']}", row)
    for name in rows.keys() - ours.keys():
        yield f"{name} is a {rows[name]['type']} for lsblk, and not expected"
    for name, disk in ours.items():
        if name not in rows:
            yield f"{name} is not listed by lsblk"
            continue
        for theirs, field in COLUMNS.items():
            if (rows[name][theirs] or None) != (disk[field] or None):
                yield f"{name} {field}: {rows[name][theirs]!r} for lsblk, {disk[field]!r} expected"
    both = [name for name in rows if name in ours]
    if both != list(ours):
        yield f"order: {both} for lsblk"


def processors(tree, cpu):
    seen = dict(line.split(":", 1) for line in run("lscpu", "--sysroot", tree).splitlines() if ":" in line)
    seen = {key.strip(): value.strip() for key, value in seen.items()}
    wanted = {"CPU(s)": str(cpu["count"]), "Model name": cpu["model_name"], "Flags": " ".join(cpu["flags"])}
    if "CPU max MHz" in seen:
        wanted["CPU max MHz"] = cpu["frequency"]
    for key, value in wanted.items():
        if seen and seen.get(key) != value:
            yield f"{key}: {seen.get(key)!r} for lscpu, {value!r} expected"


def main():
    found = 0
    for name in sorted(os.listdir(MACHINES)):
        if not os.path.isdir(os.path.join(MACHINES, name)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            tree = os.path.join(folder, name)
            shutil.copytree(os.path.join(MACHINES, name), tree, symlinks=True)
            with_device_numbers(tree)
            with open(f"{tree}/expected.json", encoding="utf-8") as file:
                inventory = json.load(file)["inventory"]
            listed = {disk["name"]: disk for disk in inventory["disks"]}
            for difference in [*disks(tree, listed), *processors(tree, inventory["cpu"])]:
                print(f"{name}: {difference}")
                found += 1
    print(f"{found} differences")


if __name__ == "__main__":
    sys.exit(main())
