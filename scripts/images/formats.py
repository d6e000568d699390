"""Image files byte by byte: what qemu-img does not make, or not so small."""

import random
import struct
import uuid
import zlib

SECTOR = 512
LINUX = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4")
DISK_GUID = uuid.UUID("11111111-2222-3333-4444-555555555555")


def up(value, to):
    return -(-value // to) * to


def noise(count, seed=1):
    return random.Random(seed).randbytes(count)


def put(data, offset, value):
    """`data` with other bytes at an offset; it grows when they reach beyond its end."""
    data = bytearray(data)
    if offset < 0:
        offset += len(data)
    data.extend(bytes(max(0, offset + len(value) - len(data))))
    data[offset:offset + len(value)] = value
    return bytes(data)


def be32(value):
    return struct.pack(">I", value)


def be64(value):
    return struct.pack(">Q", value)


def le32(value):
    return struct.pack("<I", value)


def le64(value):
    return struct.pack("<Q", value)


def mbr_entry(kind=0x83, start=2048, sectors=2048, flag=0x80):
    return bytes([flag, 0, 2, 0, kind, 0xff, 0xff, 0xff]) + struct.pack("<II", start, sectors)


def mbr(*entries):
    """A first sector with a partition table."""
    return bytes(440) + b"\x78\x56\x34\x12\0\0" + b"".join(entries).ljust(64, b"\0") + b"\x55\xaa"


def gpt_header(sector, lba, other, entries_lba, entries, last, count, first=None, size=92):
    table = -(-len(entries) // sector)
    fields = struct.pack("<8sIII4xQQQQ16sQIII", b"EFI PART", 0x10000, size, 0, lba, other, first or 2 + table,
                         last - table - 1, DISK_GUID.bytes_le, entries_lba, count, 128, zlib.crc32(entries))
    return put(fields, 16, le32(zlib.crc32(fields))).ljust(sector, b"\0")


def gpt(size, parts=((2048, 3071), (3072, 4095)), sector=SECTOR, count=128, backup=True, **header):
    """A disk with a GPT; `parts` are first and last sectors."""
    last = size // sector - 1
    entries = b"".join(
        LINUX.bytes_le + uuid.UUID(int=number + 1).bytes_le + struct.pack("<QQQ", first, end, 0)
        + f"part {number + 1}".encode("utf-16-le").ljust(72, b"\0") for number, (first, end) in enumerate(parts))
    entries = entries.ljust(count * 128, b"\0")
    table = -(-len(entries) // sector)
    disk = put(bytes(size), 0, mbr(mbr_entry(0xee, 1, min(last, 0xffffffff), 0)))
    disk = put(disk, sector, gpt_header(sector, 1, last, 2, entries, last, count, **header))
    disk = put(disk, 2 * sector, entries)
    if backup:
        disk = put(disk, (last - table) * sector, entries)
        disk = put(disk, last * sector, gpt_header(sector, last, 1, last - table, entries, last, count, **header))
    return disk


def raw_deflate(data):
    packer = zlib.compressobj(6, zlib.DEFLATED, -12)
    return packer.compress(data) + packer.flush()


def zstd_frame(data, size=True, runs=()):
    """A zstd frame of plain blocks, then of runs (byte, count), as RFC 8878 has it."""
    blocks = [(0, data[at:at + 0x10000]) for at in range(0, len(data), 0x10000)]
    blocks += [(1, bytes([byte]), min(0x10000, count - at)) for byte, count in runs for at in range(0, count, 0x10000)]
    total = len(data) + sum(count for _, count in runs)
    out = b"\x28\xb5\x2f\xfd" + (b"\xe0" + le64(total) if size else b"\x00\x58")
    blocks = blocks or [(0, b"")]
    for number, (kind, content, *count) in enumerate(blocks):
        word = (count[0] if count else len(content)) << 3 | kind << 1 | (number == len(blocks) - 1)
        out += struct.pack("<I", word)[:3] + content
    return out


def qcow2(disk, bits=9, version=3, pack=None, zstd=False, zero=(), tables_last=False, header_bytes=112, size=None):
    """A qcow2 file. `pack(index, cluster)` gives compressed bytes or None; clusters of zeroes are left out, those whose
    numbers are in `zero` are marked as zero, every second of them with a place of its own."""
    cluster, size = 1 << bits, size or len(disk)
    per_table = cluster // 8
    clusters = [disk[at:at + cluster].ljust(cluster, b"\0") for at in range(0, len(disk), cluster)]
    tables = -(-len(clusters) // per_table)
    body, entries = bytearray(), [0] * (tables * per_table)
    l1_at = 2 * cluster  # behind a table of reference counts, which may be empty
    data_at = l1_at + up(tables * 8, cluster)
    if not tables_last:
        data_at += tables * cluster
    for index, content in enumerate(clusters):
        if index in zero:
            entries[index] = 1
            if index % 2:
                body.extend(bytes(-len(body) % cluster))
                entries[index] |= data_at + len(body)
                body.extend(b"\xee" * cluster)
        elif content.strip(b"\0"):
            packed = pack(index, content) if pack else None
            if packed is None:
                body.extend(bytes(-len(body) % cluster))
                entries[index] = 1 << 63 | data_at + len(body)
                body.extend(content)
            else:
                host = data_at + len(body)
                sectors = (host % 512 + len(packed) - 1) // 512
                entries[index] = 1 << 62 | sectors << 62 - (bits - 8) | host
                body.extend(packed)
    body.extend(bytes(-len(body) % cluster))
    l2_at = data_at + len(body) if tables_last else data_at - tables * cluster
    l1 = b"".join(be64(1 << 63 | l2_at + number * cluster) for number in range(tables))
    l2 = b"".join(map(be64, entries))
    header = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", version, 0, 0, bits, size, 0, tables, l1_at, cluster, 1, 0, 0)
    if version > 2:
        header += struct.pack(">QQQIIB7x", 8 if zstd else 0, 0, 0, 4, header_bytes, 1 if zstd else 0)[:header_bytes - 72]
    head = put(bytes(l1_at), 0, header) + l1.ljust(up(len(l1), cluster), b"\0")
    return bytes(head + (bytes(body) + l2 if tables_last else l2 + bytes(body)))


def descriptor(kind, size, extent='RW {} SPARSE "disk.vmdk"', extra=""):
    return (f'# Disk DescriptorFile\nversion=1\nCID=7f2a51d2\nparentCID=ffffffff\ncreateType="{kind}"\n\n'
            f'# Extent description\n{extent.format(size // SECTOR)}\n\n#DDB\nddb.adapterType = "ide"\n{extra}').encode()


def vmdk_header(size, flags, directory, overhead, grain, text_sectors, version, packed):
    head = struct.pack("<4sIIQQQQIQQQB4sH", b"KDMV", version, flags, size // SECTOR, grain, 1, text_sectors, 512, 0,
                       directory, overhead, 0, b"\n \r\n", packed)
    return head.ljust(SECTOR, b"\0")


def vmdk(disk, grain=8, text=None, zeroed=(), flags=3):
    """monolithicSparse with grains of so many sectors; those in `zeroed` are marked as zero."""
    size, unit = len(disk), grain * SECTOR
    text = (text or descriptor("monolithicSparse", size)).ljust(2 * SECTOR, b"\0")
    grains = [disk[at:at + unit] for at in range(0, size, unit)]
    tables = -(-len(grains) // 512)
    directory = 3
    first_table = directory + -(-tables * 4 // SECTOR)
    overhead = up(first_table + tables * 4, grain)
    entries, body = [0] * tables * 512, bytearray()
    for index, content in enumerate(grains):
        if index in zeroed:
            entries[index] = 1
        elif content.strip(b"\0"):
            entries[index] = overhead + len(body) // SECTOR
            body.extend(content.ljust(unit, b"\0"))
    head = vmdk_header(size, flags | (4 if zeroed else 0), directory, overhead, grain, 2, 1, 0) + text
    head += b"".join(le32(first_table + number * 4) for number in range(tables)).ljust((first_table - 3) * SECTOR, b"\0")
    head += b"".join(map(le32, entries))
    return head.ljust(overhead * SECTOR, b"\0") + bytes(body)


def vmdk_stream(disk, grain=8, text=None):
    """streamOptimized with its tables at the end, as VMware's programs write it."""
    size, unit = len(disk), grain * SECTOR
    text = (text or descriptor("streamOptimized", size, 'RDONLY {} SPARSE "disk.vmdk"')).ljust(2 * SECTOR, b"\0")
    flags = 1 | 1 << 16 | 1 << 17
    out = bytearray(vmdk_header(size, flags, 2**64 - 1, up(3, grain), grain, 2, 3, 1) + text)
    out.extend(bytes(up(3, grain) * SECTOR - len(out)))

    def block(data):
        out.extend(data.ljust(up(len(data), SECTOR), b"\0"))

    def marker(value, kind):
        block(struct.pack("<QII", value, 0, kind))

    directory = []
    for at in range(0, size, 512 * unit):
        table = []
        for place in range(at, min(at + 512 * unit, size), unit):
            content = disk[place:min(place + unit, size)]
            if content.strip(b"\0"):
                table.append(len(out) // SECTOR)
                packed = zlib.compress(content)
                block(struct.pack("<QI", place // SECTOR, len(packed)) + packed)
            else:
                table.append(0)
        marker(4, 1)
        directory.append(len(out) // SECTOR)
        block(b"".join(map(le32, table)).ljust(2048, b"\0"))
    marker(-(-len(directory) * 4 // SECTOR), 2)
    place = len(out) // SECTOR
    block(b"".join(map(le32, directory)))
    marker(1, 3)
    block(vmdk_header(size, flags, place, up(3, grain), grain, 2, 3, 1))
    marker(0, 0)
    return bytes(out)


def vhd_sum(data, at):
    return put(data, at, be32(~sum(put(data, at, bytes(4))) & 0xffffffff))


def vhd_footer(size, kind):
    footer = struct.pack(">8sIIQI4sI4sQQHBBII16s", b"conectix", 2, 0x10000, 512 if kind > 2 else 2**64 - 1, 0, b"qem2",
                         0x50003, b"Wi2k", size, size, size // SECTOR // 68, 4, 17, kind, 0, DISK_GUID.bytes)
    return vhd_sum(footer.ljust(512, b"\0"), 64)


def vhd_fixed(disk):
    return disk + vhd_footer(len(disk), 2)


def vhd(disk, block=4096, kind=3, entries=None):
    """A dynamic VHD."""
    count = -(-len(disk) // block)
    bitmap = up(max(block // SECTOR // 8, 1), SECTOR)
    table_bytes = up(count * 4, SECTOR)
    table, body = [], bytearray()
    for index in range(count):
        content = disk[index * block:(index + 1) * block]
        if content.strip(b"\0"):
            table.append((1536 + table_bytes + len(body)) // SECTOR)
            body.extend(b"\xff" * bitmap + content.ljust(block, b"\0"))
        else:
            table.append(0xffffffff)
    header = struct.pack(">8sQQIII", b"cxsparse", 2**64 - 1, 1536, 0x10000, entries or count, block)
    header = vhd_sum(header.ljust(1024, b"\0"), 36)
    footer = vhd_footer(len(disk), kind)
    return footer + header + b"".join(map(be32, table)).ljust(table_bytes, b"\xff") + bytes(body) + footer
