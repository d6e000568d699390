#!/usr/bin/env python3
"""Writes the seeds of a fuzz target: python3 scripts/images/seeds.py TARGET DIR. They are the small ones of make.py's images
and what belongs to the targets that are about no images; the targets are in agent/fuzz."""

import base64
import gzip
import os
import sys

import make
from formats import gpt, mbr, mbr_entry, noise, put, qcow2, vhd, vhd_fixed, vmdk, vmdk_stream

LIMIT = 128 << 10
TINY = make.content(20 << 10)
SHA = "0123456789abcdef" * 4


def images(prefix, flags=b""):
    for name in make.IMAGES:
        if name.startswith(prefix):
            data = make.produce(name)
            if len(data) <= LIMIT:
                yield flags + data


def qcow2_seeds():
    for version in (2, 3):
        for pack in (None, make.deflate):
            yield qcow2(TINY, version=version, pack=pack)
            yield qcow2(TINY, 10, version=version, pack=pack, tables_last=True)
    yield qcow2(TINY, 12, pack=make.zstd, zstd=True)
    yield qcow2(TINY, zero=range(1, 20))
    yield from images("qcow2-")


def vmdk_seeds():
    yield from (vmdk(TINY), vmdk(TINY, zeroed=range(3)), vmdk_stream(TINY), vmdk(TINY, grain=16))
    yield from images("vmdk-")


def vhd_seeds():
    yield from (vhd(TINY), vhd_fixed(TINY), vhd(TINY, block=8192))
    yield from images("vhd-")


def packed_seeds():
    for flags in range(0, 256, 4):
        for kind in (1, 2, 3):
            yield bytes([flags | kind, flags]) + TINY[:6000]
    for prefix in ("gzip", "zstd", "xz"):
        yield from images(prefix, b"\0\0")
        yield from images(prefix, b"\x40\0")


def table_seeds():
    def ends(flags, disk, sector=512):
        return bytes([flags]) + (disk[:34 * 512] + disk[-33 * 512:] if sector == 512 else disk[:34 * 512])
    size = 2 << 20
    for name in make.IMAGES:
        if name.startswith(("gpt", "mbr")):
            yield ends(0, make.produce(name))
            yield ends(2, make.produce(name))
    yield ends(0, gpt(size))
    yield ends(0, gpt(size, count=4))
    yield ends(1, gpt(size, ((64, 100),), sector=4096), 4096)
    yield ends(0, mbr(mbr_entry(0x83, 8, 800)).ljust(size, b"\0"))
    yield ends(0, mbr(mbr_entry(5, 2, 800)).ljust(1024, b"\0") + mbr(mbr_entry(0x83, 2, 4), mbr_entry(5, 5, 10)).ljust(size, b"\0"))


def csv_seeds():
    text = "shimx64.efi,Debian,,This is the boot entry\r\nother.efi,Second\r\n"
    for encoding in ("utf-16-le", "utf-16-be", "utf-8"):
        yield text.encode(encoding)
        yield ("\ufeff" + text).encode(encoding)
    yield b"\1\0\0\0\x2a\0" + "Debian\0".encode("utf-16-le") + b"\4\1\x2a\0"


def checksums_seeds():
    lists = (SHA, f"{SHA}  disk.img\n", f"{SHA} *disk.img\r\n{SHA} *other\r\n", f"SHA256 (disk.img) = {SHA}\n", f"# x\n\n{SHA}\tdisk.img",
             f"MD5 (disk.img) = {SHA[:32]}\nSHA512 (disk.img) = {SHA * 2}\n", f"-----BEGIN PGP SIGNED MESSAGE-----\n{SHA}  disk.img\n",
             f"disk.img {SHA}")
    for flags in range(16):
        for text in lists:
            yield bytes([flags]) + text.encode()


def iso():
    """A CD of one directory with one file, in plain ISO 9660, Rock Ridge and Joliet by xorriso."""
    import subprocess
    import tempfile
    with tempfile.TemporaryDirectory() as directory:
        os.makedirs(f"{directory}/tree/openstack/latest")
        with open(f"{directory}/tree/openstack/latest/meta_data.json", "w", encoding="ascii") as file:
            file.write("{}")
        subprocess.run(["xorriso", "-as", "mkisofs", "-quiet", "-R", "-J", "-V", "config-2", "-o", f"{directory}/iso",
                        f"{directory}/tree"], check=True, stderr=subprocess.DEVNULL)
        with open(f"{directory}/iso", "rb") as file:
            return file.read()[:LIMIT - 1024]


def configdrive_seeds():
    data = iso()
    for flags in (0, 2, 6, 7, 8, 16, 24, 10, 26):
        yield bytes([flags]) + data
    for flags in range(8):
        yield bytes([flags]) + b"hello"
    packed = gzip.compress(data, mtime=0)
    yield b"\0" + packed
    yield b"\0" + base64.encodebytes(packed)
    yield b"\1" + base64.b64encode(packed)
    yield b"\1" + base64.b64encode(packed).rstrip(b"=")
    yield b"\0<html>no</html>"


def fat(bits=12):
    """A small FAT file system with EFI/BOOT/BOOTX64.EFI and a list beside it, by hand."""
    sectors, fat_sectors = 200, 1
    head = b"\xeb\x3c\x90MSDOS5.0" + b"\0\2\1\1\0\2\x10\0" + bytes([sectors, 0, 0xf8, fat_sectors, 0]) + bytes(12)
    head += bytes(2) + b"\x80\0\x29" + b"\1\2\3\4" + b"CONFIG-2   FAT12   "
    disk = put(put(bytes(sectors * 512), 0, head), 510, b"\x55\xaa")
    chains = [0xff8, 0xfff, 0xfff, 0xfff, 0xfff, 0xfff, 0xfff]
    table = bytearray()
    for low, high in zip(chains[0::2], chains[1::2] + [0]):
        table += bytes([low & 255, low >> 8 | (high & 15) << 4, high >> 4])
    disk = put(put(disk, 512, bytes(table)), 1024, bytes(table))

    def entry(name, attributes, cluster, size=0):
        return name + bytes([attributes]) + bytes(14) + bytes([cluster, 0]) + size.to_bytes(4, "little")
    root, data = 3 * 512, 4 * 512
    disk = put(disk, root, entry(b"CONFIG-2   ", 8, 0) + entry(b"EFI        ", 16, 2))
    disk = put(disk, data, entry(b"BOOT       ", 16, 3))
    disk = put(disk, data + 512, entry(b"BOOTX64 EFI", 32, 4, 20) + entry(b"BOOTX64 CSV", 32, 5, 40))
    return put(disk, data + 3 * 512, "shimx64.efi,Debian".encode("utf-16-le"))


def filesystem_seeds():
    yield fat()
    yield iso()
    yield put(put(bytes(8192), 1024 + 56, b"\x53\xef"), 1024 + 120, b"config-2")
    yield put(bytes(70000), 65536 + 64, b"_BHRfS_M" + noise(64))
    yield b"XFSB" + noise(508)
    yield b"LUKS\xba\xbe\0\2" + noise(4000)
    yield put(bytes(4096), 4086, b"SWAPSPACE2")
    yield put(bytes(1024), 512, b"LABELONE" + noise(200))
    yield put(bytes(128 << 10), (128 << 10) - 8192, b"\xfc\x4e\x2b\xa9" + noise(200))


def main(target, directory):
    make.make_all()
    os.makedirs(directory, exist_ok=True)
    for number, seed in enumerate(globals()[f"{target}_seeds"]()):
        with open(os.path.join(directory, f"{number:03}"), "wb") as file:
            file.write(seed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
