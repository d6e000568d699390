"""Builds a machine as a tree of files, as `ferric-agent capture` writes one: what the kernel shows in /sys and /proc,
raw SMBIOS tables, vital product data pages, answers of the BMC. Used by make.py; see tests/fixtures/machines/INDEX.md.

Layouts are those of the kernel's Documentation/ABI; SMBIOS is DSP0134 3.7, page numbers of SCSI are those of SPC-5 7.7
and SAT-3 12.4, ATA words those of ACS-3 7.12, IPMI parameters those of IPMI 2.0 table 23-4.
"""

import ipaddress
import json
import os
import shutil
import struct


class Tree:
    """One machine. Paths are relative to its root."""

    def __init__(self, root):
        self.root = root
        self.nics = {}
        self.ipmi = []
        self.frames = {}
        if os.path.isdir(root):
            for name in os.listdir(root):
                # Written by hand or by the test, not here.
                if name not in ("expected.json", "dmi.json"):
                    path = os.path.join(root, name)
                    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)

    def bytes(self, path, content):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(content)

    def file(self, path, text):
        self.bytes(path, f"{text}\n".encode())

    def attrs(self, folder, **attributes):
        for name, value in attributes.items():
            if value is not None:
                self.file(f"{folder}/{name}", value)

    def link(self, path, target):
        """A relative link as sysfs writes it: up to a folder that holds the target, never only to the target itself."""
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        here, there = path.split("/")[:-1], target.split("/")
        common = len(os.path.commonprefix([here, there[:-1]]))
        os.symlink("/".join([".."] * (len(here) - common) + there[common:]), full)

    def finish(self):
        if self.nics:
            self.bytes("nics.json", (json.dumps(self.nics, indent=1) + "\n").encode())
        if self.ipmi:
            self.bytes("ipmi.json", (json.dumps(self.ipmi, indent=1) + "\n").encode())
        if self.frames:
            self.bytes("lldp.json", (json.dumps(self.frames, indent=1) + "\n").encode())

    # The system

    def system(self, hostname, arch="x86_64", mem_kib=None, efi=None, secure_boot=None, tpm=None):
        self.file("proc/sys/kernel/hostname", hostname)
        self.file("proc/sys/kernel/arch", arch)
        self.file("proc/sys/kernel/osrelease", "6.1.0-28-" + {"x86_64": "amd64", "aarch64": "arm64"}[arch])
        self.bytes("proc/self/mountinfo", b"")
        if mem_kib:
            self.file("proc/meminfo", f"MemTotal:       {mem_kib} kB\nMemFree:        {mem_kib // 2} kB")
        if efi:
            self.file("sys/firmware/efi/fw_platform_size", efi)
        if secure_boot is not None:
            # Four bytes of attributes, then the value.
            name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
            self.bytes(f"sys/firmware/efi/efivars/{name}", struct.pack("<IB", 6, secure_boot))
        if tpm:
            self.file("sys/devices/platform/MSFT0101:00/tpm/tpm0/tpm_version_major", tpm)
            self.link("sys/class/tpm/tpm0", "sys/devices/platform/MSFT0101:00/tpm/tpm0")

    def cpus(self, info, present, topology=(), max_khz=None, online=None):
        """`info` is /proc/cpuinfo; `topology` rows of processor, package and core."""
        self.bytes("proc/cpuinfo", info.encode())
        base = "sys/devices/system/cpu"
        self.file(f"{base}/present", present)
        self.file(f"{base}/possible", present)
        self.file(f"{base}/online", online or present)
        for cpu, package, core in topology:
            self.attrs(f"{base}/cpu{cpu}/topology", physical_package_id=package, core_id=core)
            if max_khz:
                self.file(f"{base}/cpu{cpu}/cpufreq/cpuinfo_max_freq", max_khz)

    def numa(self, node, mem_kib, cpus):
        base = f"sys/devices/system/node/node{node}"
        self.file(f"{base}/meminfo", f"Node {node} MemTotal:       {mem_kib} kB")
        self.file(f"{base}/cpulist", ",".join(map(str, cpus)))
        self.file(f"{base}/cpumap", f"{sum(1 << cpu for cpu in cpus):08x}")
        for cpu in cpus:
            self.link(f"{base}/cpu{cpu}", f"sys/devices/system/cpu/cpu{cpu}")

    def dmi(self, tables):
        """SMBIOS tables, and the attributes that the kernel makes of them."""
        blob = b"".join(table.encode() for table in tables) + Table(127, 0x7F00, b"").encode()
        self.bytes("sys/firmware/dmi/tables/DMI", blob)
        entry = bytearray(struct.pack("<5sBBBBBBBIQ", b"_SM3_", 0, 24, 3, 2, 0, 1, 0, len(blob), 0x8F000000))
        entry[5] = -sum(entry) & 0xFF
        self.bytes("sys/firmware/dmi/tables/smbios_entry_point", bytes(entry))
        by_type = {}
        for table in tables:
            by_type.setdefault(table.type, table)
        for name, kind, offset in [
            ("bios_vendor", 0, 4), ("bios_version", 0, 5), ("bios_date", 0, 8), ("sys_vendor", 1, 4),
            ("product_name", 1, 5), ("product_version", 1, 6), ("product_serial", 1, 7), ("product_sku", 1, 0x19),
            ("product_family", 1, 0x1A), ("board_vendor", 2, 4), ("board_name", 2, 5), ("board_serial", 2, 7),
            ("board_asset_tag", 2, 8), ("chassis_vendor", 3, 4), ("chassis_serial", 3, 7), ("chassis_asset_tag", 3, 8),
        ]:
            text = by_type[kind].string(offset) if kind in by_type else None
            # The kernel drops blanks at the ends, and does not show what is empty.
            if text:
                self.file(f"sys/devices/virtual/dmi/id/{name}", text.strip())
        if 1 in by_type:
            raw = by_type[1].body[4:20]
            parts = struct.unpack("<IHH", raw[:8]) + struct.unpack(">HHI", raw[8:])
            uuid = "%08x-%04x-%04x-%04x-%04x%08x" % parts
            self.file("sys/devices/virtual/dmi/id/product_uuid", uuid)
        self.link("sys/class/dmi/id", "sys/devices/virtual/dmi/id")

    # Buses

    def pci(self, path, vendor, device, cls, rev="00", numa="-1", driver=None, sub=None, label=None, index=None):
        """A PCI function; `path` is below sys/devices, numbers are hex without 0x."""
        address, folder = path.rsplit("/", 1)[-1], f"sys/devices/{path}"
        self.attrs(folder, vendor=f"0x{vendor}", device=f"0x{device}", revision=f"0x{rev}", label=label,
                   acpi_index=index, numa_node=numa)
        self.file(f"{folder}/class", f"0x{cls}")
        if sub:
            self.attrs(folder, subsystem_vendor=f"0x{sub[:4]}", subsystem_device=f"0x{sub[5:]}")
        self.link(f"{folder}/subsystem", "sys/bus/pci")
        self.link(f"sys/bus/pci/devices/{address}", folder)
        if driver:
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        return path

    def usb(self, path, bus, num, vendor, product, cls="00", maker=None, name=None, serial=None):
        folder = f"sys/devices/{path}"
        self.attrs(folder, idVendor=vendor, idProduct=product, bDeviceClass=cls, busnum=bus, devnum=num,
                   manufacturer=maker, product=name, serial=serial)
        self.link(f"{folder}/subsystem", "sys/bus/usb")
        self.link(f"sys/bus/usb/devices/{path.rsplit('/', 1)[-1]}", folder)
        return path

    def platform(self, path, bus="platform", driver=None):
        folder = f"sys/devices/{path}"
        self.file(f"{folder}/uevent", "")
        self.link(f"{folder}/subsystem", f"sys/bus/{bus}")
        if driver:
            self.link(f"{folder}/driver", f"sys/bus/{bus}/drivers/{driver}")
        return path

    # Network

    def nic(self, name, device, address, index, carrier=True, speed=None, permanent=None, max_mbps=None, ipv4=None,
            ipv6=None, kind=1, record=True, **attributes):
        """`device` is the bus device below sys/devices; None makes a virtual interface. `permanent=True` means the
        same as the current address, None that the driver does not say."""
        folder = f"sys/devices/{device or 'virtual'}/net/{name}"
        self.attrs(folder, address=address, ifindex=index, type=kind, carrier=None if carrier is None else int(carrier),
                   speed=speed if carrier and speed else ("-1" if device else None),
                   duplex="full" if carrier and speed else None, **attributes)
        if device:
            self.link(f"{folder}/device", f"sys/devices/{device}")
        self.link(f"sys/class/net/{name}", folder)
        facts = {"permanent": address if permanent is True else permanent, "max_speed_mbps": max_mbps, "ipv4": ipv4,
                 "ipv6": ipv6}
        facts = {key: value for key, value in facts.items() if value is not None}
        if facts:
            self.nics[name] = facts
        return folder

    def booted_over(self, address):
        """What the boot loader told the kernel: the kind of network, and the address of the card."""
        self.file("proc/cmdline", f"BOOTIF=01-{address.replace(':', '-')}")

    def lldp(self, name, chassis_mac, port, system, ttl=120):
        """A frame with the mandatory TLVs (IEEE 802.1AB 8.5), the switch's name and the end."""
        tlvs = [(1, "04" + chassis_mac.replace(":", "")), (2, "05" + port.encode().hex()), (3, f"{ttl:04x}"),
                (5, system.encode().hex()), (0, "")]
        self.frames[name] = tlvs

    def loopback(self):
        self.attrs("sys/devices/virtual/net/lo", address="00:00:00:00:00:00", ifindex=1, type=772, carrier=1)
        self.link("sys/class/net/lo", "sys/devices/virtual/net/lo")

    # Disks

    def block(self, folder, kname, devno, sectors, rotational, logical=512, physical=None, device=None, ro=0, **attributes):
        """A block device whose folder is below sys/devices; sectors are of 512 bytes."""
        folder = f"sys/devices/{folder}"
        self.attrs(folder, dev=devno, size=sectors, ro=ro, **attributes)
        self.attrs(f"{folder}/queue", rotational=rotational, logical_block_size=logical,
                   physical_block_size=physical or logical,
                   scheduler="none" if devno.split(":")[0] in ("9", "253", "259") else "[mq-deadline] none")
        if device:
            self.link(f"{folder}/device", f"sys/devices/{device}")
        self.link(f"sys/block/{kname}", folder)
        self.link(f"sys/class/block/{kname}", folder)
        return folder

    def part(self, disk, name, devno, number, start, sectors):
        self.attrs(f"{disk}/{name}", dev=devno, partition=number, start=start, size=sectors, ro=0)
        self.link(f"sys/class/block/{name}", f"{disk}/{name}")
        return f"{disk}/{name}"

    def holds(self, upper, lower):
        """`lower`, a block device's folder, is a part of `upper`."""
        self.link(f"{lower}/holders/{upper.rsplit('/', 1)[-1]}", upper)
        self.link(f"{upper}/slaves/{lower.rsplit('/', 1)[-1]}", lower)

    def host(self, path, driver, kind=None, **attributes):
        """A SCSI host; `kind` is the class of its transport, such as fc."""
        name = path.rsplit("/", 1)[-1]
        self.file(f"sys/devices/{path}/scsi_host/{name}/proc_name", driver)
        self.link(f"sys/class/scsi_host/{name}", f"sys/devices/{path}/scsi_host/{name}")
        if kind:
            folder = f"sys/devices/{path}/{kind}_host/{name}"
            self.attrs(folder, uevent="", **attributes)
            self.link(f"sys/class/{kind}_host/{name}", folder)
        return path

    def scsi(self, above, hctl, kname, devno, sectors, vendor, model, rotational=1, rev="0001", pages=None, wwid=None,
             kind=0, state="running", access=None, **attributes):
        """A SCSI unit below a host or a port, and its disk unless `kname` is None."""
        host, channel, target, _ = hctl.split(":")
        device = f"{above}/target{host}:{channel}:{target}/{hctl}"
        folder = f"sys/devices/{device}"
        self.attrs(folder, vendor=f"{vendor:<8}", model=f"{model:<16}"[:16], rev=f"{rev:<4}", type=kind, state=state,
                   access_state=access, wwid=wwid)
        self.file(f"{folder}/scsi_device/{hctl}/uevent", "")
        self.link(f"{folder}/subsystem", "sys/bus/scsi")
        for page, content in (pages or {}).items():
            self.bytes(f"{folder}/vpd_pg{page}", content)
        if kname is None:
            return None
        return self.block(f"{device}/block/{kname}", kname, devno, sectors, rotational, device=device, **attributes)

    def ata(self, above, port, kname, devno, sectors, model, serial, wwn=None, number=1, host=0, target=0, rotational=1,
            revision="1.0", vendor="ATA", **attributes):
        """An ATA disk below a controller: port, SCSI host and unit, as libata shows them."""
        path = f"{above}/ata{port}"
        self.attrs(f"sys/devices/{path}/ata_port/ata{port}", port_no=number)
        pages = ata_pages(model, serial, wwn)
        return self.scsi(f"{path}/host{host}", f"{host}:0:{target}:0", kname, devno, sectors, vendor, model, rotational,
                         revision, pages, f"naa.{wwn:016x}" if wwn else None, **attributes)

    def nvme(self, pci, number, model, serial, firmware, namespaces, rotational=0, transport="pcie"):
        """A controller below a PCI function, and its namespaces: rows of number, devno, sectors, wwid, logical size."""
        path = f"{pci}/nvme/nvme{number}"
        folder = f"sys/devices/{path}"
        self.attrs(folder, model=f"{model:<40}", serial=f"{serial:<20}", firmware_rev=f"{firmware:<8}", state="live",
                   transport=transport, address=pci.rsplit("/", 1)[-1], cntlid=number)
        self.link(f"{folder}/device", f"sys/devices/{pci}")
        self.link(f"sys/class/nvme/nvme{number}", folder)
        for nsid, devno, sectors, wwid, logical in namespaces:
            name = f"nvme{number}n{nsid}"
            self.block(f"{path}/{name}", name, devno, sectors, rotational, logical, device=path, nsid=nsid, wwid=wwid)
        return folder

    # BMC

    def lan(self, channel, ipv4="0.0.0.0", mac=None, enables=None, dynamic=(), static=()):
        """LAN parameters of a channel. IPv6 addresses are rows of slot, source, address and status."""
        self.answer(channel, 3, 0, ipaddress.ip_address(ipv4).packed)
        if mac:
            self.answer(channel, 5, 0, bytes.fromhex(mac.replace(":", "")))
        if enables is None:
            # Completion code: parameter not supported.
            self.answer(channel, 51, 0, None, 0x80)
            return
        self.answer(channel, 51, 0, bytes([enables]))
        self.answer(channel, 55, 0, bytes([max(1, len(static)), max(1, len(dynamic)), 3]))
        empty = (0, "::", 3)
        for parameter, entries, bit in ((56, static, 0x80), (59, dynamic, 0)):
            for slot in range(max(1, len(entries))):
                source, address, status = entries[slot] if slot < len(entries) else empty
                used = bit if slot < len(entries) else 0
                body = bytes([slot, source | used]) + ipaddress.ip_address(address).packed + bytes([64, status])
                self.answer(channel, parameter, slot, body)

    def answer(self, channel, parameter, selector, data, code=0):
        request = bytes([0x0C, 0x02, channel, parameter, selector, 0]).hex()
        answer = bytes([code]) if data is None else bytes([code, 0x11]) + data
        self.ipmi.append({"request": request, "answer": answer.hex()})


# Vital product data


def page(code, body):
    return struct.pack(">BBH", 0, code, len(body)) + body


def page80(serial):
    return page(0x80, serial.encode())


def designator(code_set, kind, body):
    return bytes([code_set, kind, 0, len(body)]) + body


def naa(digits):
    return designator(1, 3, bytes.fromhex(digits))


def t10(text):
    return designator(2, 1, text.encode())


def page83(*designators):
    return page(0x83, b"".join(designators))


def ata_pages(model, serial, wwn):
    """Pages 0x80, 0x83 and 0x89 as libata's translation makes them."""
    units = [designator(2, 0, f"{serial:>20}".encode()), t10(f"ATA     {model:<40}{serial:>20}")]
    if wwn:
        units.append(naa(f"{wwn:016x}"))

    def swapped(text):
        raw = text.encode()
        return b"".join(raw[at + 1:at + 2] + raw[at:at + 1] for at in range(0, len(raw), 2))

    identify = bytearray(512)
    identify[20:40] = swapped(f"{serial:>20}")
    identify[54:94] = swapped(f"{model:<40}")
    identify[168:170] = identify[174:176] = struct.pack("<H", 0x4100 if wwn else 0x4000)
    for word in range(4):
        identify[216 + 2 * word:218 + 2 * word] = struct.pack("<H", ((wwn or 0) >> (48 - 16 * word)) & 0xFFFF)
    head = b"\0" * 4 + b"linux   libata          3.00" + b"\0" * 20 + b"\xec\0\0\0"
    return {"80": page80(f"{serial:>20}"), "83": page83(*units), "89": page(0x89, head + bytes(identify))}


# SMBIOS


class Table:
    """One structure. `body` follows the four bytes of the header; strings are numbered from 1."""

    def __init__(self, kind, handle, body, *strings):
        self.type, self.handle, self.body, self.strings = kind, handle, body, strings

    def encode(self):
        tail = b"".join((text or " ").encode() + b"\0" for text in self.strings) + b"\0"
        return struct.pack("<BBH", self.type, 4 + len(self.body), self.handle) + self.body + (tail if self.strings else b"\0\0")

    def string(self, offset):
        number = self.body[offset - 4] if offset - 4 < len(self.body) else 0
        return self.strings[number - 1] if 0 < number <= len(self.strings) else None


def bios(vendor, version, date):
    return Table(0, 0, bytes([1, 2, 0, 0xF0, 3, 0xFF]) + struct.pack("<Q", 0x13F8B9880) + bytes([3, 0x0D, 2, 10, 255, 255, 16, 0]),
                 vendor, version, date)


def system(maker, product, version, serial, uuid, sku="", family=""):
    """The first three fields of a UUID are little-endian since SMBIOS 2.6."""
    raw = bytes.fromhex(uuid.replace("-", ""))
    raw = raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]
    return Table(1, 1, bytes([1, 2, 3, 4]) + raw + bytes([6, 5 if sku else 0, 6 if family else 0]),
                 maker, product, version or " ", serial, sku or " ", family or " ")


def board(maker, product, version, serial, tag="Not Specified"):
    return Table(2, 2, bytes([1, 2, 3, 4, 5, 9, 0, 3, 0, 10, 0]), maker, product, version, serial, tag)


def chassis(maker, kind, serial, tag="Not Specified"):
    return Table(3, 3, bytes([1, kind, 0, 2, 3, 3, 3, 3, 3]) + bytes(4) + bytes([2, 2, 0, 0, 0]), maker, serial, tag)


def processor(handle, socket, maker, version, cores, threads, mhz, max_mhz, serial="Not Specified", family=0xB3,
              populated=True):
    status = 0x41 if populated else 0
    body = bytes([1, 3, family, 2]) + bytes.fromhex("54060500fffbebbf") + bytes([3, 0x8C])
    body += struct.pack("<HHHBB", 100, max_mhz, mhz, status, 0x36) + struct.pack("<HHH", 0xFFFF, 0xFFFF, 0xFFFF)
    body += bytes([4, 5, 6, cores, cores, min(threads, 255)]) + struct.pack("<HH", 0xFC, family)
    body += struct.pack("<HHH", cores, cores, threads)
    return Table(4, handle, body, socket, maker, version if populated else " ", serial, "Not Specified", "Not Specified")


def memory_array(handle, slots, max_kib=0x80000000):
    return Table(16, handle, bytes([3, 3, 6]) + struct.pack("<IHHQ", max_kib, 0xFFFE, slots, 0))


def dimm(handle, array, locator, bank, mib, maker="Samsung", serial="", part="", speed=2666, tag="Not Specified", kind=0x1A):
    """Sizes from 32767 MiB on are in the extended field; 0 is an empty slot."""
    size, extended = (mib, 0) if mib < 0x7FFF else (0x7FFF, mib)
    body = struct.pack("<HHHHHBBBBBHH", array, 0xFFFE, 72, 64, size, 9, 0, 1, 2, kind, 0x2080, speed if mib else 0)
    body += bytes([3, 4, 5, 6, 2]) + struct.pack("<IHHHH", extended, speed if mib else 0, 1200, 1200, 1200)
    return Table(17, handle, body, locator, bank, maker if mib else "NO DIMM", serial if mib else "NO DIMM", tag,
                 part if mib else "NO DIMM")


def ipmi_device(kcs=True):
    return Table(38, 0x2600, bytes([1 if kcs else 4, 0x20, 0x10, 0xFF]) + struct.pack("<QBB", 0xCA3 if kcs else 0x20, 0, 0))


def host_interface(uuid, host_ip, mask, service_ip, port, name):
    """Redfish over IP: a USB network device and one protocol record (DSP0270)."""
    device = bytes([2]) + struct.pack("<HHBB", 0x413C, 0xA102, 2, 3)
    record = bytes.fromhex(uuid.replace("-", "")) + bytes([1, 1])
    record += ipaddress.ip_address(host_ip).packed + bytes(12) + ipaddress.ip_address(mask).packed + bytes(12)
    record += bytes([1, 1]) + ipaddress.ip_address(service_ip).packed + bytes(12)
    record += ipaddress.ip_address(mask).packed + bytes(12) + struct.pack("<HI", port, 0)
    record += bytes([len(name)]) + name.encode()
    body = bytes([0x40, len(device)]) + device + bytes([1, 4, len(record)]) + record
    return Table(42, 0x2A00, body)


def x86_cpuinfo(model, mhz, flags, vendor="GenuineIntel", package=0, family=6, number=85):
    """The first processor; the others say the same but for their numbers."""
    return (f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {number}\nmodel name\t: {model}\n"
            f"stepping\t: 4\ncpu MHz\t\t: {mhz}\nphysical id\t: {package}\ncore id\t\t: 0\nflags\t\t: {flags}\n\n")
