"""Writes images as the agent does and as the reference tools do, in turn: write.py IMAGE_WRITE OUT-DIRECTORY.

The target is a loop device with direct I/O where that can be had (root), else a file. Each pair is run ROUNDS times, one
after the other, so that whatever else the machine does hits both; the medians and their ratio are printed. A ratio above
1 means that the agent is faster.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
SIZE_MIB = 1024
ROUNDS = 5
# What the agent is compared with writes directly to the device, too, and flushes at the end.
CONVERT = ["qemu-img", "convert", "-n", "-W", "-t", "none", "-O", "raw"]


def mixed(path):
    """Zeroes, noise and text by turns, a MiB each, with a partition table: what a disk with a system looks like."""
    chance = random.Random(1)
    words = [bytes(chance.choices(b"abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(2000)]
    with open(path, "wb") as file:
        for index in range(SIZE_MIB):
            kind = index % 4
            if kind == 0:
                block = bytearray(MIB)
            elif kind == 1:
                block = bytearray(chance.randbytes(MIB))
            elif kind == 2:
                block = bytearray(b" ".join(chance.choices(words, k=200_000))[:MIB].ljust(MIB))
            else:
                block = bytearray(chance.randbytes(MIB // 4) + bytes(MIB - MIB // 4))
            if index == 0:
                block[446:462] = bytes([0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0])
                block[510:512] = b"\x55\xaa"
            file.write(block)


@contextlib.contextmanager
def target(directory):
    """A device to write to, and what it is."""
    backing = directory / "disk"
    with open(backing, "wb") as file:
        file.truncate((SIZE_MIB + 64) * MIB)
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", backing], capture_output=True, text=True, check=False
    ) if os.geteuid() == 0 else None
    if made is None or made.returncode != 0:
        yield str(backing), "a file"
        return
    device = made.stdout.strip()
    try:
        yield device, "a loop device with direct I/O"
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def seconds(command):
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return time.monotonic() - began


def main():
    ours, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir=out) as name:
        directory = pathlib.Path(name)
        raw = directory / "image.raw"
        mixed(raw)
        images = [("raw", raw, lambda to: ["dd", f"if={raw}", f"of={to}", "bs=4M", "oflag=direct", "conv=fsync,notrunc"])]
        for kind, options in [
            ("qcow2", []),
            ("qcow2 zlib", ["-c"]),
            ("qcow2 zstd", ["-c", "-o", "compression_type=zstd"]),
        ]:
            path = directory / f"{kind.replace(' ', '-')}.qcow2"
            subprocess.run(["qemu-img", "convert", "-O", "qcow2", *options, raw, path], check=True)
            images.append((kind, path, lambda to, path=path: [*CONVERT, path, to]))
        rows = []
        with target(directory) as (device, what):
            print(f"writing {SIZE_MIB} MiB to {what}: medians of {ROUNDS} rounds, in turn")
            print(f"  {'image':12} {'reference':>10} {'agent':>10} {'ratio':>7}")
            for kind, path, reference in images:
                digest = hashlib.file_digest(path.open("rb"), "sha256").hexdigest()
                disk_format = "raw" if kind == "raw" else "qcow2"
                command = [ours, path, device, "--format", disk_format, "--checksum", digest]
                pairs = []
                for _ in range(ROUNDS):
                    pairs.append((seconds(reference(device)), seconds(command)))
                theirs, mine = (statistics.median(times) for times in zip(*pairs))
                rows.append({"image": kind, "reference_s": theirs, "agent_s": mine, "ratio": theirs / mine})
                print(f"  {kind:12} {theirs:>8.2f} s {mine:>8.2f} s {theirs / mine:>7.2f}")
    report = {"measurement": "write", "target": what, "mib": SIZE_MIB, "rounds": ROUNDS, "load": os.getloadavg(), "rows": rows}
    (out / "write.json").write_text(json.dumps(report, indent=2) + "\n")


main()
