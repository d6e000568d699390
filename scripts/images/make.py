#!/usr/bin/env python3
"""Writes the images that tests/fixtures/images/images.toml judges: python3 scripts/images/make.py DIR [NAME]...

Each is made by qemu-img or by formats.py, or is one of those with other bytes in a place. What an image holds is written to
NAME.flat where no qemu-img can tell it: of those that are compressed as a whole. INDEX.md beside the table says more.
"""

import gzip
import lzma
import os
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor

from formats import (be32, be64, descriptor, gpt, le32, le64, mbr, mbr_entry, noise, put, qcow2, raw_deflate, up, vhd,
                     vhd_fixed, vhd_footer, vhd_sum, vmdk, vmdk_stream, zstd_frame)

MIB = 1 << 20
IMAGES = {}


def image(name, data, flat=None):
    """`data` is bytes or a function that makes them, called only when they are wanted."""
    assert name not in IMAGES, name
    IMAGES[name] = (data, flat)


def content(size, table=True):
    """What a used disk looks like: noise, text, holes, and a partition table."""
    out = bytearray()
    for block in range(-(-size // 0x8000)):
        kind = block % 7
        out += noise(0x8000, block) if kind in (0, 4) else b"lorem ipsum " * 2731 if kind == 1 else bytes(0x8000)
    out = bytes(out[:size])
    return put(out, 0, mbr(mbr_entry(start=8, sectors=size // 512 - 8))) if table else out


DISK = content(2 * MIB + 3 * 512)
SMALL = content(160 << 10)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")


def qemu_img(fmt, options="", *more, disk=DISK, work=(), snapshot=False):
    """A file that qemu-img converts from a disk, with some work by qemu-io done on it."""
    def make():
        with tempfile.TemporaryDirectory() as directory:
            raw, made = f"{directory}/raw", f"{directory}/disk"
            with open(raw, "wb") as file:
                file.write(disk)
            run("qemu-img", "convert", "-f", "raw", "-O", fmt, *(["-o", options] if options else []), *more, raw, made)
            commands = [word for line in work for word in ("-c", line)]
            if commands:
                run("qemu-io", "-f", fmt, *commands, made)
            if snapshot:
                run("qemu-img", "snapshot", "-c", "one", made)
                run("qemu-io", "-f", fmt, "-c", "write -P 9 64k 70k", "-c", "write -z 1M 64k", made)
            with open(made, "rb") as file:
                return file.read()
    return make


def changed(name, *changes, cut=None, more=b""):
    """Another image with bytes put in places of it; cut to a length, or with bytes behind it."""
    def make():
        data = produce(name)
        for offset, value in changes:
            data = put(data, offset, value)
        return (data if cut is None else data[:cut]) + more
    return make


def produce(name):
    data, flat = IMAGES[name]
    if callable(data):
        data = data()
        IMAGES[name] = (data, flat)
    return data


def deflate(index, cluster):
    packed = raw_deflate(cluster)
    return packed if len(packed) < len(cluster) else None


def zstd(index, cluster):
    """Several frames in a cluster, and one that says its size."""
    half = len(cluster) // 2
    byte, rest = cluster[-1:], cluster.rstrip(cluster[-1:])
    if len(rest) > len(cluster) - 64:
        return None
    if len(rest) < half:
        return zstd_frame(rest) + zstd_frame(b"", runs=[(byte[0], len(cluster) - len(rest))])
    return zstd_frame(rest, size=False, runs=[(byte[0], len(cluster) - len(rest))])


def bad_pack(make):
    """One compressed cluster, the third of the disk, that `make` makes; the others are good."""
    return lambda index, cluster: make(cluster) if index == 2 else deflate(index, cluster)


def make_qcow2():
    for exponent in range(9, 22):
        size = f"{1 << exponent >> 10}k" if exponent > 9 else "512"
        image(f"qcow2-{size}", qemu_img("qcow2", f"cluster_size={1 << exponent}"))
        image(f"qcow2-zlib-{size}", qemu_img("qcow2", f"cluster_size={1 << exponent}", "-c", "-m", "1"))
    for exponent in (9, 12, 16, 21):
        image(f"qcow2-zstd-{exponent}", qemu_img("qcow2", f"compression_type=zstd,cluster_size={1 << exponent}", "-c", "-m", "1"))
    image("qcow2-v2", qemu_img("qcow2", "compat=0.10"))
    image("qcow2-v2-zlib", qemu_img("qcow2", "compat=0.10", "-c"))
    image("qcow2-no-holes", qemu_img("qcow2", "", "-S", "0"))
    image("qcow2-metadata", qemu_img("qcow2", "preallocation=metadata"))
    image("qcow2-full", qemu_img("qcow2", "preallocation=full,cluster_size=4096"))
    image("qcow2-refcount-64", qemu_img("qcow2", "refcount_bits=64,lazy_refcounts=on"))
    image("qcow2-work", qemu_img("qcow2", "cluster_size=4096", work=[
        "write -P 1 1M 300k", "write -P 2 0 70k", "write -z 1M 64k", "write -z -u 1200k 8k", "discard 512k 64k"]))
    image("qcow2-snapshot", qemu_img("qcow2", "cluster_size=4096", snapshot=True))
    image("qcow2-subclusters", qemu_img("qcow2", "extended_l2=on,cluster_size=128k"))
    # Header, reference counts, L1 and L2 in one cluster of 4 KiB each.
    image("qcow2-base", qemu_img("qcow2", "cluster_size=4096", disk=SMALL))
    image("qcow2-luks-header", changed("qcow2-base", (32, be32(2))))
    image("qcow2-aes", changed("qcow2-base", (32, be32(1))))
    image("qcow2-backing", changed("qcow2-base", (8, be64(0x400)), (16, be32(11)), (0x400, b"/etc/shadow")))
    image("qcow2-backing-length-alone", changed("qcow2-base", (16, be32(11))))
    image("qcow2-backing-empty", changed("qcow2-base", (8, be64(0x400))))
    image("qcow2-data-file", changed("qcow2-base", (72, be64(1 << 2))))
    image("qcow2-dirty", changed("qcow2-base", (72, be64(1))))
    image("qcow2-corrupt", changed("qcow2-base", (72, be64(2))))
    for bit in (5, 6, 17, 31, 32, 63):
        image(f"qcow2-bit-{bit}", changed("qcow2-base", (72, be64(1 << bit))))
    image("qcow2-compatible-bits", changed("qcow2-base", (80, be64(1 << 2 | 1 << 40)), (88, be64(1 << 40))))
    image("qcow2-refcounts-broken", changed("qcow2-base", (0x2000, b"\xff" * 4096)))
    image("qcow2-refcount-order-7", changed("qcow2-base", (96, be32(7))))
    image("qcow2-version-1", changed("qcow2-base", (4, be32(1))))
    image("qcow2-version-4", changed("qcow2-base", (4, be32(4))))
    for bits in (0, 8, 22, 64, 0xffffffff):
        image(f"qcow2-cluster-bits-{bits}", changed("qcow2-base", (20, be32(bits))))
    image("qcow2-8-eib", changed("qcow2-base", (24, be64(1 << 63))))
    image("qcow2-8-eib-of-2m-clusters", changed("qcow2-base", (20, be32(21)), (24, be64(1 << 63)), (36, be32(1 << 24))))
    image("qcow2-16-eib", changed("qcow2-base", (24, be64(2**64 - 1))))
    image("qcow2-1-pib", changed("qcow2-base", (20, be32(21)), (24, be64(1 << 50)), (36, be32(1 << 22)),
                                      (40, be64(2 * MIB))))
    image("qcow2-too-large", changed("qcow2-base", (24, be64(4 * MIB)), (36, be32(2))))
    image("qcow2-no-disk", changed("qcow2-base", (24, be64(0))))
    image("qcow2-l1-short", changed("qcow2-base", (36, be32(0))))
    image("qcow2-l1-long", changed("qcow2-base", (36, be32(0xffffffff))))
    image("qcow2-l1-beyond", changed("qcow2-base", (40, be64(1 << 30))))
    image("qcow2-l1-at-0", changed("qcow2-base", (40, be64(0))))
    image("qcow2-l1-misaligned", changed("qcow2-base", (40, be64(0x3200))))
    image("qcow2-l1-wraps", changed("qcow2-base", (40, be64(0xfffffffffffff000))))
    image("qcow2-header-long", changed("qcow2-512", (100, be32(520))))
    image("qcow2-header-longer-than-file", changed("qcow2-base", (100, be32(0x1000)), cut=2048))
    image("qcow2-header-96", changed("qcow2-base", (100, be32(96))))
    image("qcow2-header-odd", changed("qcow2-base", (100, be32(107))))
    image("qcow2-header-104", qcow2(SMALL, 12, header_bytes=104))
    image("qcow2-header-cut", changed("qcow2-base", cut=60))
    image("qcow2-cut", changed("qcow2-base", cut=-0x2800))
    image("qcow2-cut-in-only-cluster", qcow2(noise(4096), 12)[:-600])
    image("qcow2-cut-before-only-cluster", qcow2(noise(4096), 12)[:-4096])
    image("qcow2-cut-in-tables", changed("qcow2-base", cut=0x3800))
    image("qcow2-more", changed("qcow2-base", more=noise(777)))
    image("qcow2-zstd-without-bit", changed("qcow2-base", (104, b"\x01")))
    image("qcow2-compression-2", changed("qcow2-base", (72, be64(8)), (104, b"\x02")))

    # Made here, with clusters of 512 bytes: header, reference counts, L1 of 5 tables from 1024, L2 from 1536.
    image("qcow2-small", qcow2(SMALL))
    image("qcow2-small-v2", qcow2(SMALL, version=2))
    image("qcow2-small-zlib", qcow2(SMALL, pack=deflate))
    image("qcow2-small-zstd", qcow2(SMALL, 12, pack=zstd, zstd=True))
    image("qcow2-small-zero", qcow2(SMALL, zero=range(1, 80)))
    image("qcow2-small-tables-last", qcow2(SMALL, tables_last=True))
    image("qcow2-small-zlib-tables-last", qcow2(SMALL, pack=deflate, tables_last=True))
    image("qcow2-zero-v2", changed("qcow2-small-v2", (1536 + 5 * 8, be64(1))))
    image("qcow2-l2-misaligned", changed("qcow2-base", (0x3000, be64(1 << 63 | 0x4200))))
    image("qcow2-l2-twice", changed("qcow2-small", (1024 + 8, be64(1 << 63 | 1536))))
    image("qcow2-l2-is-l1", changed("qcow2-small", (1024, be64(1 << 63 | 1024))))
    image("qcow2-l2-before-l1", changed("qcow2-small", (1024, be64(1 << 63 | 512))))
    image("qcow2-l2-beyond", changed("qcow2-small", (1024, be64(1 << 63 | 1 << 40))))
    image("qcow2-cluster-beyond", changed("qcow2-small", (1536, be64(1 << 63 | 1 << 40))))
    image("qcow2-cluster-misaligned", changed("qcow2-base", (0x4000, be64(1 << 63 | 0x5200))))
    image("qcow2-cluster-is-refcounts", changed("qcow2-small", (1536, be64(1 << 63 | 512))))
    image("qcow2-cluster-is-l1", changed("qcow2-small", (1536, be64(1 << 63 | 1024))))
    image("qcow2-cluster-is-l2", changed("qcow2-small", (1536 + 8, be64(1 << 63 | 1536))))
    image("qcow2-clusters-same", changed("qcow2-small", (1536 + 8, produce("qcow2-small")[1536:1544])))
    image("qcow2-clusters-in-a-loop", changed("qcow2-small", *[(1536 + 8 * index, be64(1 << 63 | 1536 + 512 * (index % 5)))
                                                              for index in range(64)]))
    image("qcow2-reserved-bits", changed("qcow2-small", (1536, be64(1 << 56 | int.from_bytes(
        produce("qcow2-small")[1536:1544], "big")))))
    image("qcow2-packed-beyond", changed("qcow2-small-zlib", (1536 + 2 * 8, be64(1 << 62 | 1 << 40))))
    whole = qcow2(bytes(1024) + b"a" * 512, pack=deflate)
    image("qcow2-packed-in-cut-sector", whole[:whole.index(raw_deflate(b"a" * 512)) + len(raw_deflate(b"a" * 512))])
    for name, make in (
            ("long", lambda cluster: raw_deflate(cluster * 3)),
            ("bomb", lambda cluster: raw_deflate(cluster[:1] * (400 << 10))),
            ("short", lambda cluster: raw_deflate(cluster[:500])),
            ("empty", lambda cluster: raw_deflate(b"")),
            ("zlib-header", zlib.compress),
            ("noise", lambda cluster: b"\xff" * 100),
            ("cut", lambda cluster: raw_deflate(noise(400))[:200])):
        image(f"qcow2-packed-{name}", qcow2(SMALL, pack=bad_pack(make)))
    for name, make in (
            ("long", lambda cluster: zstd_frame(cluster * 3)),
            ("bomb", lambda cluster: zstd_frame(b"", runs=[(1, 1 << 25)])),
            ("short", lambda cluster: zstd_frame(cluster[:500])),
            ("noise", lambda cluster: b"\x28\xb5\x2f\xfd" + b"\xff" * 90),
            ("skippable", lambda cluster: le32(0x184d2a50) + le32(9) + bytes(9) + zstd_frame(cluster))):
        image(f"qcow2-zstd-{name}", qcow2(SMALL, 12, zstd=True, pack=lambda index, cluster, make=make:
                                          make(cluster) if index == 2 else zstd(index, cluster)))


def make_vmdk():
    image("vmdk-sparse", qemu_img("vmdk", "subformat=monolithicSparse"))
    image("vmdk-zeroed", qemu_img("vmdk", "subformat=monolithicSparse,zeroed_grain=on", work=["write -z 64k 192k"]))
    image("vmdk-stream", qemu_img("vmdk", "subformat=streamOptimized"))
    image("vmdk-small", vmdk(SMALL))
    image("vmdk-small-zeroed", vmdk(SMALL, zeroed=range(1, 9)))
    image("vmdk-grains-16", vmdk(SMALL, grain=16))
    image("vmdk-tables-last", vmdk_stream(SMALL))
    image("vmdk-permitted-not", IMAGES["vmdk-small"][0])
    for name, text in (
            ("flat", descriptor("monolithicFlat", len(SMALL), 'RW {} FLAT "disk-flat.vmdk" 0')),
            ("extent-flat", descriptor("monolithicSparse", len(SMALL), 'RW {} FLAT "disk-flat.vmdk" 0')),
            ("extent-path", descriptor("monolithicSparse", len(SMALL), 'RW {} SPARSE "/etc/shadow"')),
            ("extent-upwards", descriptor("monolithicSparse", len(SMALL), 'RW {} SPARSE "../disk.vmdk"')),
            ("extents-two", descriptor("monolithicSparse", len(SMALL), 'RW {0} SPARSE "a"\nRW {0} SPARSE "b"')),
            ("extent-none", descriptor("monolithicSparse", len(SMALL), "")),
            ("device", descriptor("fullDevice", len(SMALL), 'RW {} FLAT "/dev/sda" 0')),
            ("vmfs", descriptor("vmfsSparse", len(SMALL), 'RW {} VMFSSPARSE "disk-delta.vmdk"')),
            ("parent", descriptor("monolithicSparse", len(SMALL), extra='parentFileNameHint="base.vmdk"\n')),
            ("parent-cid", descriptor("monolithicSparse", len(SMALL)).replace(b"ffffffff", b"12345678")),
            ("unknown-line", descriptor("monolithicSparse", len(SMALL), extra="hello\n"))):
        image(f"vmdk-{name}", vmdk(SMALL, text=text))
    image("vmdk-descriptor-alone", descriptor("monolithicFlat", len(SMALL), 'RW {} FLAT "/etc/shadow" 0').ljust(1024, b"\n"))
    image("vmdk-cowd", changed("vmdk-small", (0, b"COWD")))
    image("vmdk-version-4", changed("vmdk-small", (4, le32(4))))
    image("vmdk-flags", changed("vmdk-small", (8, le32(0x10003))))
    image("vmdk-text-mode", changed("vmdk-small", (73, b"\n\n\r\n")))
    image("vmdk-grain-4", changed("vmdk-small", (20, le64(4))))
    image("vmdk-2-eib", changed("vmdk-small", (12, le64(1 << 52))))
    image("vmdk-directory-beyond", changed("vmdk-small", (56, le64(1 << 40))))
    image("vmdk-table-beyond", changed("vmdk-small", (3 * 512, le32(0xfffffff0))))
    image("vmdk-table-none", changed("vmdk-small", (3 * 512, le32(0))))
    image("vmdk-grain-beyond", changed("vmdk-small", (4 * 512, le32(0xfffffff0))))
    image("vmdk-grains-same", changed("vmdk-small", (4 * 512 + 4, produce("vmdk-small")[4 * 512:4 * 512 + 4])))
    image("vmdk-grain-is-1", changed("vmdk-small", (4 * 512, le32(1))))
    image("vmdk-cut", changed("vmdk-small", cut=-5000))
    # Of the last grain only half is on the disk: less than a grain is missing, but all of the last one.
    image("vmdk-cut-before-last-grain", vmdk(noise(40 * 512), grain=16)[:23000])
    image("vmdk-cut-in-only-grain", vmdk(noise(4096))[:-600])
    image("vmdk-stream-short-grain", vmdk_stream(noise(2048)))
    image("vmdk-stream-cut", changed("vmdk-tables-last", cut=-1024))
    image("vmdk-stream-more", changed("vmdk-tables-last", more=bytes(512)))
    image("vmdk-stream-no-zlib", changed("vmdk-tables-last", (8 * 512 + 12, b"\0\0")))
    image("vmdk-stream-wrong-place", changed("vmdk-tables-last", (8 * 512, le64(8))))
    image("vmdk-stream-huge-grain", changed("vmdk-tables-last", (8 * 512 + 8, le32(0xffffffff))))
    image("vmdk-stream-footer", changed("vmdk-tables-last", (-1024 + 12, le64(7))))


def make_vhd():
    image("vhd-dynamic", qemu_img("vpc", "subformat=dynamic,force_size=on"))
    image("vhd-fixed", qemu_img("vpc", "subformat=fixed,force_size=on"))
    image("vhd-small", vhd(SMALL))
    image("vhd-fixed-small", vhd_fixed(SMALL))
    image("vhd-fixed-not-declared", vhd_fixed(SMALL))
    image("vhd-permitted-not", IMAGES["vhd-small"][0])
    image("vhd-differencing", vhd(SMALL, kind=4))
    image("vhd-fixed-differencing", SMALL + vhd_footer(len(SMALL), 4))
    image("vhd-fixed-longer", SMALL + vhd_footer(len(SMALL) + 512, 2))
    image("vhd-fixed-no-footer", SMALL)
    image("vhd-checksum", changed("vhd-small", (64, b"\1")))
    image("vhd-header-checksum", changed("vhd-small", (512 + 36, b"\1")))
    image("vhd-table-short", vhd(SMALL, entries=3))
    image("vhd-block-beyond", changed("vhd-small", (1536, be32(0xfffffff0))))
    image("vhd-blocks-same", changed("vhd-small", (1540, produce("vhd-small")[1536:1540])))
    image("vhd-block-is-table", changed("vhd-small", (1536, be32(2))))
    image("vhd-cut", changed("vhd-small", cut=20000))
    image("vhdx", lambda: qemu_img("vhdx", disk=SMALL)()[:MIB])
    image("vhdx-permitted", lambda: produce("vhdx"))
    image("vdi", qemu_img("vdi", disk=SMALL))
    image("qed", qemu_img("qed", disk=SMALL))
    image("luks", b"LUKS\xba\xbe\0\2" + noise(0x8000))


def make_packed():
    def packed(name, data, flat=None):
        image(name, data, flat)
    for name, pack in (("gzip", lambda data: gzip.compress(data, 6, mtime=0)), ("xz", lzma.compress),
                       ("zstd", zstd_frame)):
        whole = pack(SMALL)
        half = len(SMALL) // 2
        packed(f"{name}", whole, SMALL)
        packed(f"{name}-members", pack(SMALL[:half]) + pack(SMALL[half:]), SMALL)
        packed(f"{name}-empty-member", pack(SMALL) + pack(b""), SMALL)
        packed(f"{name}-of-nothing", pack(b""))
        packed(f"{name}-trailing", whole + b"more")
        packed(f"{name}-trailing-zeroes", whole + bytes(512), SMALL if name == "xz" else None)
        packed(f"{name}-cut", whole[:-20])
        packed(f"{name}-cut-last-byte", whole[:-1])
        packed(f"{name}-cut-early", whole[:30])
        packed(f"{name}-damaged", put(whole, 13 if name == "zstd" else len(whole) // 2, b"\xff\x5a\xff"))
        packed(f"{name}-of-qcow2", pack(produce("qcow2-small")))
        packed(f"{name}-of-{name}", pack(whole))
        packed(f"{name}-declared-qcow2", whole)
        packed(f"{name}-not-declared", whole, SMALL)
    whole = produce("gzip")
    packed("gzip-crc", put(whole, -8, b"\0\0\0\0"))
    packed("gzip-length", put(whole, -4, b"\0\0\0\0"))
    packed("gzip-method", put(whole, 2, b"\7"))
    packed("gzip-bomb", gzip.compress(content(1 * MIB) + bytes(24 * MIB), 9, mtime=0))
    packed("xz-bomb", lzma.compress(bytes(64 * MIB), preset=0))
    packed("xz-check", put(produce("xz"), -30, b"\0\0\0\0"))
    packed("xz-dictionary", put_dictionary(produce("xz")))
    packed("xz-alone", lzma.compress(SMALL, format=lzma.FORMAT_ALONE))
    packed("zstd-bomb", zstd_frame(SMALL, runs=[(0, 1 << 30)]))
    packed("zstd-bomb-of-unknown-size", zstd_frame(SMALL, size=False, runs=[(0, 24 * MIB)]))
    packed("zstd-window", b"\x28\xb5\x2f\xfd\x00\xf8" + zstd_frame(SMALL, size=False)[6:])
    packed("zstd-size-lies", put(produce("zstd"), 5, le64(len(SMALL) + 1)))
    packed("zstd-says-8-eib", put(produce("zstd"), 5, le64(1 << 63)))
    packed("zstd-skippable-last", produce("zstd") + le32(0x184d2a50) + le32(9) + bytes(9), SMALL)


def put_dictionary(data):
    """An .xz file whose block header asks for a dictionary of 1.5 GiB."""
    header = put(data[12:12 + (data[12] + 1) * 4 - 4], 4, b"\x25")
    return put(data, 12, header + le32(zlib.crc32(header)))


def make_raw():
    size = 2 * MIB
    image("raw", DISK)
    image("raw-not-declared", DISK)
    image("raw-noise", b"\x11" + noise(70000))
    image("raw-one-byte", b"\x11")
    image("raw-empty", b"")
    image("raw-too-large", b"\x11" * (3 * MIB + 1))
    image("raw-of-qcow2", IMAGES["qcow2-small"][0])
    image("raw-of-vmdk", IMAGES["vmdk-small"][0])
    image("raw-as-qcow2", DISK)
    image("raw-with-qcow2-magic-as-qcow2", put(DISK, 0, b"QFI\xfb"))
    image("raw-with-qcow2-magic", put(content(100_000, table=False), 0, b"QFI\xfb"))
    image("qcow2-with-mbr", changed("qcow2-small", (446, mbr(mbr_entry())[446:])))
    image("qcow2-declared-vmdk", IMAGES["qcow2-small"][0])
    image("iso", put(bytes(40 << 10), 0x8000, b"\1CD001\1"))
    image("iso-raw", put(bytes(40 << 10), 0x8000, b"\1CD001\1"))
    image("iso-hybrid", put(put(bytes(40 << 10), 0x8000, b"\1CD001\1"), 0, mbr(mbr_entry(0x17, 0, 80))))
    image("iso-hybrid-raw", put(put(bytes(40 << 10), 0x8000, b"\1CD001\1"), 0, mbr(mbr_entry(0x17, 0, 80))))
    image("mbr-no-partition", mbr().ljust(size, b"\0"))
    image("mbr-no-partition-raw", mbr().ljust(size, b"\0"))
    image("mbr-flags", mbr(mbr_entry(flag=7)).ljust(size, b"\0"))
    image("mbr-cut", mbr(mbr_entry())[:511])
    image("fat", put(put(bytes(size), 0, b"\xeb\x3c\x90MSDOS5.0\0\2\4\1\0\2\0\2\0\x10\xf8"), 510, b"\x55\xaa"))
    image("gpt", gpt(size))
    image("gpt-raw", gpt(size))
    image("gpt-whole-disk", gpt(3 * MIB))
    image("gpt-4096", gpt(size, ((256, 300),), sector=4096))
    image("gpt-header-damaged", put(gpt(size), 512 + 24, b"\7"))
    image("gpt-header-damaged-whole-disk", put(gpt(3 * MIB), 512 + 24, b"\7"))
    image("gpt-entries-damaged-whole-disk", put(gpt(3 * MIB), 1024, b"\7"))
    image("gpt-both-damaged", put(put(gpt(3 * MIB), 1024, b"\7"), 3 * MIB - 512 + 24, b"\7"))
    image("gpt-backup-damaged", put(gpt(3 * MIB), 3 * MIB - 512 + 24, b"\7"))
    image("gpt-without-backup", gpt(size, backup=False))
    image("gpt-of-no-partition", gpt(size, ()))
    image("gpt-partition-beyond", gpt(size, ((2048, 1 << 20),)))
    image("gpt-partition-backwards", gpt(size, ((3000, 2999),)))
    image("gpt-partition-over-table", gpt(size, ((20, 4000),)))
    image("gpt-partition-over-backup", gpt(3 * MIB, ((2048, 6143),)))
    image("gpt-partitions-overlap", gpt(size, ((2048, 3071), (3000, 4000))))
    image("gpt-4-billion-entries", resealed(gpt(size), 80, le32(0xffffffff)))
    image("gpt-entries-of-4096", resealed(gpt(size), 84, le32(4096)))
    image("gpt-header-of-4096", resealed(gpt(size), 12, le32(4096)))
    image("gpt-header-of-0", resealed(gpt(size), 12, le32(0)))
    image("gpt-entries-wrap", resealed(gpt(size), 72, le64(2**64 - 1)))
    image("gpt-usable-wraps", resealed(gpt(size), 40, le64(5) + le64(2**64 - 1)))
    image("gpt-in-hybrid-mbr", put(gpt(size), 0, mbr(mbr_entry(0xee, 1, 2047, 0), mbr_entry(0x83, 2048, 1024))))
    image("gpt-in-hybrid-mbr-raw", put(gpt(size), 0, mbr(mbr_entry(0xee, 1, 2047, 0), mbr_entry(0x83, 2048, 1024))))
    image("gpt-left-over-under-mbr", put(gpt(size), 0, mbr(mbr_entry(0x83, 2048, 1024))))
    image("gpt-without-mbr", put(gpt(size), 0, bytes(512)))
    image("gpt-protective-elsewhere", put(gpt(size), 0, mbr(mbr_entry(0xee, 63, 4000, 0))))
    chain = [mbr(mbr_entry(0x83, 1, 10, 0), mbr_entry(5, 0, 100, 0)), mbr(mbr_entry(5, 0, 100, 0))]
    image("mbr-logical-loop", put(put(mbr(mbr_entry(5, 2048, 1024, 0)).ljust(size, b"\0"), 2048 * 512, chain[0]),
                                  2049 * 512, chain[1]))


def resealed(disk, offset, value):
    """A GPT whose primary header has another field, and the right checksum again."""
    header = put(put(disk[512:1024], offset, value), 16, bytes(4))
    return put(disk, 512, put(header, 16, le32(zlib.crc32(header[:92]))))


def make_all():
    for make in (make_qcow2, make_vmdk, make_vhd, make_packed, make_raw):
        make()


def main(directory, names):
    make_all()
    os.makedirs(directory, exist_ok=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(produce, [name for name in names or IMAGES if callable(IMAGES[name][0])]))
    for name in names or IMAGES:
        data = produce(name)
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)
        if IMAGES[name][1] is not None:
            with open(os.path.join(directory, f"{name}.flat"), "wb") as file:
                file.write(IMAGES[name][1])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
