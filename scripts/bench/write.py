"""Writes images as the agent does and as the reference tools do, in turn: write.py IMAGE_WRITE OUT-DIRECTORY.

The target is a loop device over memory where that can be had (root), else a file. Each pair is run ROUNDS times, one after
the other, so that whatever else the machine does hits both; the medians and their ratio are printed, and the processor
time of each. A ratio above 1 means that the agent is faster. It hashes, the references do not: a device of memory shows
what that costs, and the same device slowed down to the speed of an SSD (by the blkio or io controller) what is left of it.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
SIZE_MIB = 1024
ROUNDS = 5
# Bytes per second; None for as fast as it goes.
SPEEDS = [None, 1_000_000_000, 500_000_000]
MEMORY = pathlib.Path("/dev/shm")
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
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * SIZE_MIB * MIB
    with tempfile.TemporaryDirectory(dir=MEMORY if in_memory else directory) as name:
        backing = pathlib.Path(name) / "disk"
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
            yield device, "a loop device over memory" if in_memory else "a loop device over a file"
        finally:
            subprocess.run(["losetup", "--detach", device], check=True)


@contextlib.contextmanager
def limited(device, speed):
    """The file that takes the number of a process whose writes to the device are to be that fast; None without limit."""
    if speed is None:
        yield None
        return
    number = os.stat(device).st_rdev
    place = f"{os.major(number)}:{os.minor(number)}"
    old = pathlib.Path("/sys/fs/cgroup/blkio")
    group = (old if old.is_dir() else pathlib.Path("/sys/fs/cgroup")) / f"ferric-bench-{os.getpid()}"
    group.mkdir()
    try:
        if old.is_dir():
            (group / "blkio.throttle.write_bps_device").write_text(f"{place} {speed}")
        else:
            (group / "io.max").write_text(f"{place} wbps={speed}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def seconds(command, group):
    """Time and processor time of a command."""
    join = None if group is None else lambda: group.write_text(str(os.getpid()))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=join)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return took, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compare(kind, reference, command, group):
    """Medians of both, in turn."""
    pairs = [(seconds(reference, group), seconds(command, group)) for _ in range(ROUNDS)]
    (theirs, their_cpu), (mine, my_cpu) = (map(statistics.median, zip(*runs)) for runs in zip(*pairs))
    print(f"  {kind:12} {theirs:>8.2f} s {mine:>8.2f} s {theirs / mine:>7.2f} {their_cpu:>12.2f} s {my_cpu:>7.2f} s")
    return {"image": kind, "reference_s": theirs, "agent_s": mine, "ratio": theirs / mine, "reference_cpu_s": their_cpu, "agent_cpu_s": my_cpu}


def measure(images, ours, device, where, speed):
    """The rows for all images at one speed."""
    rows = []
    with limited(device, speed) as group:
        print(f"writing {SIZE_MIB} MiB to {where}: medians of {ROUNDS} rounds, in turn")
        print(f"  {'image':12} {'reference':>10} {'agent':>10} {'ratio':>7} {'reference CPU':>14} {'agent':>9}")
        for kind, path, reference in images:
            digest = hashlib.file_digest(path.open("rb"), "sha256").hexdigest()
            disk_format = "raw" if kind == "raw" else "qcow2"
            command = [ours, path, device, "--format", disk_format, "--checksum", digest]
            rows.append({"target": where, **compare(kind, reference(device), command, group)})
    return rows


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
            for speed in SPEEDS:
                at = "as fast as it goes" if speed is None else f"at {speed // 1_000_000} MB/s"
                try:
                    rows += measure(images, ours, device, f"{what}, {at}", speed)
                except OSError as error:
                    print(f"not measured {at}: {error}")
    report = {"measurement": "write", "mib": SIZE_MIB, "rounds": ROUNDS, "load": os.getloadavg(), "rows": rows}
    (out / "write.json").write_text(json.dumps(report, indent=2) + "\n")


main()
