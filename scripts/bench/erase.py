"""Erases a disk as the agent does and as the reference tools do, in turn: erase.py ERASE_DISK OUT-DIRECTORY.

The target is a loop device with direct I/O where that can be had (root), else a file, which is as far as this goes without.
Each pair is run ROUNDS times, one after the other, so that whatever else the machine does hits both; the medians and their
ratio are printed. A ratio above 1 means that the agent is faster. The agent's time includes the samples that it reads before
and after, which the reference tools do not look at.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
SIZE_MIB = 1024
ROUNDS = 5


def seconds(command):
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return time.monotonic() - began


def fill(target):
    """Old data everywhere, so that nothing is gained from what is a hole already."""
    subprocess.run(
        ["dd", "if=/dev/urandom", f"of={target}", "bs=4M", f"count={SIZE_MIB // 4}", "conv=fsync,notrunc", "status=none"], check=True
    )


def attach(backing):
    """A loop device on the file, or nothing where there is none to be had."""
    if os.geteuid() != 0:
        return None
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", backing], capture_output=True, text=True, check=False
    )
    return made.stdout.strip() if made.returncode == 0 else None


def measure(ours, target, is_device):
    write = ["dd", "if=/dev/zero", f"of={target}", "bs=4M", f"count={SIZE_MIB // 4}", "oflag=direct", "conv=fsync,notrunc"]
    cases = [
        ("1 random pass", "dd", write, ["--passes", "1", "--no-zeroes"]),
        ("3 random passes", "3 x dd", ["sh", "-c", " && ".join([" ".join(write)] * 3)], ["--passes", "3", "--no-zeroes"]),
    ]
    if is_device:
        # A discard is over in an instant on holes, so that these have data before.
        cases.append(("zeroes", "blkdiscard -z", ["blkdiscard", "-z", target], ["--passes", "0"]))
    rows = []
    fill(target)
    for what, name, reference, options in cases:
        pairs = []
        for _ in range(ROUNDS):
            times = []
            for command in (reference, [ours, target, *options]):
                if what == "zeroes":
                    fill(target)
                times.append(seconds(command))
            pairs.append(times)
        theirs, mine = (statistics.median(times) for times in zip(*pairs))
        rows.append({"what": what, "reference": name, "reference_s": theirs, "agent_s": mine, "ratio": theirs / mine})
        print(f"  {what:16} {name:>14} {theirs:>8.3f} s {mine:>8.3f} s {theirs / mine:>7.2f}")
    return rows


def main():
    ours, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir=out) as name:
        backing = pathlib.Path(name) / "disk"
        with open(backing, "wb") as file:
            file.truncate(SIZE_MIB * MIB)
        device = attach(backing)
        what = "a loop device with direct I/O" if device else "a file"
        print(f"erasing {SIZE_MIB} MiB of {what}: medians of {ROUNDS} rounds, in turn")
        print(f"  {'':16} {'reference':>14} {'':>10} {'agent':>10} {'ratio':>7}")
        try:
            rows = measure(ours, device or str(backing), device is not None)
        finally:
            if device:
                subprocess.run(["losetup", "--detach", device], check=True)
    report = {"measurement": "erase", "target": what, "mib": SIZE_MIB, "rounds": ROUNDS, "load": os.getloadavg(), "rows": rows}
    (out / "erase.json").write_text(json.dumps(report, indent=2) + "\n")


main()
