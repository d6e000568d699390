#!/usr/bin/env python3
"""Writes the machines of tests/fixtures/machines that are described here: python3 scripts/machines/make.py [NAME]...

INDEX.md there says what is taken from reports of real machines. A machine's expected.json is not written here: what the
agent must make of it is decided by the specification, not by this program.
"""

import os
import sys

from tree import (Tree, bios, board, chassis, designator, dimm, host_interface, ipmi_device, memory_array, naa, page80,
                  page83, processor, system, t10, x86_cpuinfo)

MACHINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/fixtures/machines")
ETHERNET, SERVER_FLAGS = "020000", "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr aes avx avx2 avx512f vmx rdrand"


def dell_r740_perc(m):
    """Values of the virtual disk and of the SAS disks are those of an introspection by the reference agent."""
    m.system("localhost.localdomain", mem_kib=196_608_000, efi=64, secure_boot=0, tpm=2)
    m.dmi([
        bios("Dell Inc.", "2.3.10", "08/15/2019"),
        system("Dell Inc.", "PowerEdge R740", "", "FXR740A", "4c4c4544-0058-5210-8037-c6c04f373430",
               "SKU=NotProvided;ModelName=PowerEdge R740", "PowerEdge"),
        board("Dell Inc.", "0F9N89", "A00", ".FXR740A.CNFX00740AAAA.", ""),
        chassis("Dell Inc.", 0x17, "FXR740A", "RACK-7-U12"),
        processor(0x400, "CPU1", "Intel", "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", 16, 32, 2100, 4000),
        processor(0x401, "CPU2", "Intel", "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", 16, 32, 2100, 4000),
        memory_array(0x1000, 24),
    ] + [
        dimm(0x1100 + n, 0x1000, f"{'AB'[n // 12]}{n % 12 + 1}", "Not Specified", 16384 if n % 12 < 6 else 0,
             "00CE00B300CE", f"F100{n:04X}", "M393A2K40CB2-CTD")
        for n in range(24)
    ] + [ipmi_device(), host_interface("44454c4c-5800-1052-8037-c6c04f373430", "169.254.0.2", "255.255.255.0",
                                       "169.254.0.1", 443, "idrac-fxr740a")])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", "1000.000", SERVER_FLAGS), "0-63",
           [(0, 0, 0), (1, 1, 0), (32, 0, 0), (33, 1, 0)], 3_700_000)
    perc = m.pci("pci0000:17/0000:17:00.0/0000:18:00.0", "1000", "005d", "010400", "02", "0", "megaraid_sas", "1028:1f47")
    m.host(f"{perc}/host0", "megaraid_sas")
    m.scsi(f"{perc}/host0", "0:0:0:0", "sda", "8:0", 2_344_225_968, "SEAGATE", "ST1200MM0088", 1, "TT31",
           {"80": page80("Z4000001"), "83": page83(naa("5000c50093f978b7"))}, "naa.5000c50093f978b7")
    m.scsi(f"{perc}/host0", "0:0:1:0", "sdb", "8:16", 2_344_225_968, "SEAGATE", "ST1200MM0088", 1, "TT31",
           {"80": page80("Z4000002"), "83": page83(naa("5000c50093f9867f"))}, "naa.5000c50093f9867f")
    # An enclosure is a SCSI unit without a disk.
    m.scsi(f"{perc}/host0", "0:0:32:0", None, None, 0, "DP", "BP14G+EXP", kind=13, rev="2.46")
    m.scsi(f"{perc}/host0", "0:2:0:0", "sdc", "8:32", 734_003_200, "DELL", "PERC H730P Mini", 1, "4.30",
           {"80": page80("00a4248d440822a52100a584dce03f08"), "83": page83(naa("6b083fe0dc84a50021a52208448d24a4"))},
           "naa.6b083fe0dc84a50021a52208448d24a4")
    ahci = m.pci("pci0000:00/0000:00:11.5", "8086", "a1d2", "010601", "09", "0", "ahci", "1028:0715")
    m.host(f"{ahci}/ata1/host1", "ahci")
    m.pci("pci0000:00/0000:00:1c.0", "8086", "a190", "060400", "f9", "0", "pcieport")
    for function in (0, 1):
        port = m.pci(f"pci0000:00/0000:00:1c.0/0000:04:00.{function}", "14e4", "165f", ETHERNET, "00", "0", "tg3",
                     "1028:08ff", label=f"NIC{function + 3}", index=function + 3)
        m.nic(f"eno{function + 3}", port, f"e4:43:4b:00:74:{0x22 + function:02x}", 4 + function, function == 0, 1000, True,
              1000, "192.0.2.74" if function == 0 else None)
    for function in (0, 1):
        port = m.pci(f"pci0000:17/0000:17:02.0/0000:19:00.{function}", "8086", "1572", ETHERNET, "01", "0", "i40e",
                     "1028:1f99", label=f"NIC{function + 1}", index=function + 1)
        m.nic(f"eno{function + 1}", port, f"e4:43:4b:00:74:{0x20 + function:02x}", 2 + function, function == 0, 10000, True,
              10000, ipv6="fe80::e643:4bff:fe00:7420" if function == 0 else None)
    xhci = m.pci("pci0000:00/0000:00:14.0", "8086", "a1af", "0c0330", "09", "0", "xhci_hcd", "1028:0715")
    m.usb(f"{xhci}/usb1", 1, 1, "1d6b", "0002", "09", "Linux 6.1.0 xhci-hcd", "xHCI Host Controller", "0000:00:14.0")
    m.usb(f"{xhci}/usb1/1-14/1-14.3", 1, 4, "413c", "a102", "02", "Dell(TM)", "iDRAC Virtual NIC USB Device", "G4801FXR740A")
    interface = f"{xhci}/usb1/1-14/1-14.3/1-14.3:1.0"
    m.platform(interface, "usb", "cdc_ether")
    m.nic("idrac", interface, "d0:8e:79:00:74:30", 6, True, None, True)
    m.booted_over("e4:43:4b:00:74:22")
    m.lldp("eno1", "10:00:00:74:00:01", "Ethernet1/7", "leaf-74a")
    m.lldp("eno3", "10:00:00:74:00:02", "ge-0/0/7", "oob-74")
    m.loopback()
    m.lan(1, "10.74.0.100", "d0:8e:79:00:74:2f", 2, dynamic=[(1, "fe80::d28e:79ff:fe00:742f", 0)],
          static=[(0, "2001:db8:74::100", 0)])


def hpe_dl380_gen10(m):
    m.system("localhost", mem_kib=131_072_000, efi=64, secure_boot=1, tpm=2)
    m.dmi([
        bios("HPE", "U30", "02/02/2019"),
        system("HPE", "ProLiant DL380 Gen10", "", "CZFX380G10", "30303038-3936-4d32-3238-333930304638", "868703-B21",
               "ProLiant"),
        board("HPE", "ProLiant DL380 Gen10", "", "PWFX38000ABC12"),
        chassis("HPE", 0x17, "CZFX380G10", " "),
        processor(0x100, "Proc 1", "Intel(R) Corporation", "Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz", 10, 20, 2200, 4000),
        processor(0x101, "Proc 2", "Intel(R) Corporation", "", 0, 0, 0, 4000, populated=False),
        memory_array(0x0C, 12),
    ] + [
        dimm(0x17 + n, 0x0C, f"PROC 1 DIMM {n + 1}", "Not Specified", 65536 if n in (4, 7) else 0, "HPE", f"2FX{n:05X}",
             "850882-001", 2666)
        for n in range(12)
    ] + [ipmi_device()])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz", "800.032", SERVER_FLAGS), "0-19",
           [(0, 0, 0), (10, 0, 0)], 3_000_000)
    smart = m.pci("pci0000:5b/0000:5b:00.0/0000:5c:00.0", "9005", "028f", "010400", "01", "0", "smartpqi", "103c:0654")
    m.host(f"{smart}/host1", "smartpqi", "sas")
    m.scsi(f"{smart}/host1", "1:1:0:0", "sda", "8:0", 1_875_302_800, "HPE", "LOGICAL VOLUME", 0, "2.62",
           {"80": page80("PEYHC0FXB380G1  "), "83": page83(naa("600508b1001cf85bbf0924e1f842e4e8"), t10("HPE     LOGICAL VOLUME  01"))},
           "naa.600508b1001cf85bbf0924e1f842e4e8")
    m.scsi(f"{smart}/host1", "1:1:0:1", "sdb", "8:16", 15_627_854_000, "HPE", "LOGICAL VOLUME", 1, "2.62",
           {"80": page80("PEYHC0FXB380G1  "), "83": page83(naa("600508b1001cb1a8751c137b30610682"))},
           "naa.600508b1001cb1a8751c137b30610682", physical=4096)
    m.scsi(f"{smart}/host1", "1:2:0:0", None, None, 0, "HPE", "P408i-a SR Gen10", kind=12, rev="2.62")
    for function in range(2):
        port = m.pci(f"pci0000:00/0000:00:1c.4/0000:02:00.{function}", "14e4", "1657", ETHERNET, "01", "0", "tg3", "103c:22be")
        m.nic(f"eno{function + 1}", port, f"9c:dc:71:00:38:{0x80 + function:02x}", 2 + function, function == 0, 1000, True, 1000)
    for function in range(2):
        port = m.pci(f"pci0000:11/0000:11:00.0/0000:12:00.{function}", "8086", "1572", ETHERNET, "02", "0", "i40e", "103c:22fc")
        m.nic(f"ens1f{function}", port, f"48:df:37:00:38:{0x90 + function:02x}", 4 + function, True, 10000, True, 10000,
              "192.0.2.38" if function == 0 else None)
    m.file("sys/bus/pci/slots/1/address", "0000:12:00")
    # Virtual functions whose address the cloud's network service has set; the driver of the second one still knows
    # another permanent one.
    for number, permanent in ((0, None), (1, "06:1d:37:00:38:a1")):
        port = m.pci(f"pci0000:11/0000:11:00.0/0000:12:02.{number}", "8086", "154c", ETHERNET, "02", "0", "iavf", "103c:0000")
        m.nic(f"ens1f0v{number}", port, f"fa:16:3e:00:38:a{number}", 6 + number, True, 10000, permanent, None)
    xhci = m.pci("pci0000:00/0000:00:14.0", "8086", "a1af", "0c0330", "09", "0", "xhci_hcd", "1590:00ea")
    m.usb(f"{xhci}/usb1/1-3", 1, 2, "03f0", "2927", "02", "HPE", "iLO Virtual NIC", None)
    m.platform(f"{xhci}/usb1/1-3/1-3:1.0", "usb", "cdc_eem")
    m.nic("usb0", f"{xhci}/usb1/1-3/1-3:1.0", "0a:ca:fe:f0:0d:04", 9)
    m.booted_over("48:df:37:00:38:90")
    m.loopback()
    m.lan(2, "192.0.2.138", "9c:dc:71:00:38:7e", 2, dynamic=[(2, "2001:db8:38::2", 0), (1, "fe80::9edc:71ff:fe00:387e", 0)])


def supermicro_1029u_nvme(m):
    m.system("localhost.localdomain", mem_kib=98_566_144, efi=64, secure_boot=0)
    m.dmi([
        bios("American Megatrends Inc.", "3.1", "04/30/2019"),
        # Texts that nobody has filled in, as found on real boards.
        system("Supermicro", "SYS-1029U-TN10RT", "0123456789", "A0FX1029000001", "00000000-0000-0000-0000-ac1f6b001029",
               "To be filled by O.E.M.", "To be filled by O.E.M."),
        board("Supermicro", "X11DPU", "1.10", "ZMFX29S000001", "To be filled by O.E.M."),
        chassis("Supermicro", 1, "C1FX29ABCDE0001", "To be filled by O.E.M."),
        processor(0x4A, "CPU1", "Intel(R) Corporation", "Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz", 8, 16, 2100, 4000),
        processor(0x4E, "CPU2", "Intel(R) Corporation", "Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz", 8, 16, 2100, 4000),
        memory_array(0x21, 24),
    ] + [
        dimm(0x22 + n, 0x21, f"P{n // 6 + 1}-DIMM{'ABCDEF'[n % 6]}1", f"P{n // 6}_Node{n // 6}_Channel{n % 6}_Dimm0", 8192,
             "SK Hynix", f"2AFX29{n:02X}", "HMA81GR7AFR8N-VK   ", 2666, f"P{n // 6 + 1}-DIMM{'ABCDEF'[n % 6]}1_AssetTag (date:18/39)")
        for n in range(12)
    ] + [ipmi_device()])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz", "2100.000", SERVER_FLAGS), "0-31",
           [(0, 0, 0), (8, 1, 0)], 3_000_000)
    u2 = m.pci("pci0000:64/0000:64:00.0/0000:65:00.0", "8086", "0a54", "010802", "00", "0", "nvme", "8086:4702")
    m.nvme(u2, 0, "INTEL SSDPE2KX010T8", "PHLJFX1029001P0FGN", "VDV10131",
           [(1, "259:1", 1_953_525_168, "eui.01000000010000005cd2e4001029a101", 512)])
    # Formatted to 4 KiB; its firmware gives no name, so the kernel makes one.
    u2 = m.pci("pci0000:64/0000:64:01.0/0000:66:00.0", "144d", "a808", "010802", "00", "0", "nvme", "144d:a801")
    m.nvme(u2, 1, "SAMSUNG MZQLB1T9HAJR-00007", "S439FX1029002", "EDA5202Q",
           [(1, "259:3", 3_750_748_848,
             "nvme.144d-53343339465831303239303032-53414d53554e47204d5a514c42315439"
             "48414a522d3030303037-00000001", 4096)])
    # Two namespaces.
    u2 = m.pci("pci0000:64/0000:64:02.0/0000:67:00.0", "1344", "51a2", "010802", "02", "0", "nvme", "1344:4000")
    m.nvme(u2, 2, "Micron_9300_MTFDHAL3T8TDP", "19FX1029003A", "11300DN0",
           [(1, "259:5", 3_750_748_848, "eui.000000000000001100a0750129feaaaa", 512),
            (2, "259:6", 3_750_748_848, "eui.000000000000001200a0750129feaaaa", 512)])
    # Behind a volume management device, in a PCI domain of its own.
    m.pci("pci0000:ae/0000:ae:05.5", "8086", "201d", "010400", "04", "1", "vmd", "15d9:095d")
    u2 = m.pci("pci0000:ae/0000:ae:05.5/pci10000:00/10000:00:02.0/10000:01:00.0", "8086", "0a54", "010802", "00", "1",
               "nvme", "8086:4702")
    m.nvme(u2, 3, "INTEL SSDPE2KX010T8", "PHLJFX1029004P0FGN", "VDV10131",
           [(1, "259:7", 1_953_525_168, "eui.01000000010000005cd2e4001029a104", 512)])
    ahci = m.pci("pci0000:00/0000:00:17.0", "8086", "a182", "010601", "09", "0", "ahci", "15d9:095d")
    m.ata(ahci, 5, "sda", "8:0", 250_069_680, "SuperMicro SSD", "SMC0515D9FX1029005", number=5, host=4, rotational=0,
          revision="SOB2")
    m.host(f"{ahci}/ata5/host4", "ahci")
    for function in range(2):
        port = m.pci(f"pci0000:17/0000:17:02.0/0000:19:00.{function}", "8086", "1528", ETHERNET, "01", "0", "ixgbe", "15d9:0734")
        m.nic(f"eno{function + 1}", port, f"ac:1f:6b:00:10:{0x28 + function:02x}", 2 + function, function == 0,
              10000 if function == 0 else None, True, 10000, "192.0.2.29" if function == 0 else None,
              "2001:db8:29::29" if function == 0 else None)
    m.loopback()
    # Its BMC answers on channel 8 only, and has an address by SLAAC beside one that is still tentative.
    m.lan(8, "192.0.2.129", "ac:1f:6b:00:10:30", 2,
          dynamic=[(2, "2001:db8:29::d", 2), (1, "2001:db8:29:0:ae1f:6bff:fe00:1030", 0)])


def dell_r730_lpfc_multipath(m):
    """Attributes of the paths and the udev database of the multipath device are those of a published report."""
    wwid = "620000007355abb3b8950167b5790928"
    m.system("localhost", mem_kib=263_842_000)
    m.dmi([
        bios("Dell Inc.", "2.19.0", "12/12/2023"),
        system("Dell Inc.", "PowerEdge R730", "", "FXR730B", "4c4c4544-0058-5210-8037-c6c04f373330",
               "SKU=NotProvided;ModelName=PowerEdge R730"),
        board("Dell Inc.", "0WCJNT", "A08", ".FXR730B.CNFX00730BBBB."),
        chassis("Dell Inc.", 0x17, "FXR730B", ""),
        processor(0x400, "CPU1", "Intel", "Intel(R) Xeon(R) CPU E5-2670 v3 @ 2.30GHz", 12, 24, 2300, 4000),
        processor(0x401, "CPU2", "Intel", "Intel(R) Xeon(R) CPU E5-2670 v3 @ 2.30GHz", 12, 24, 2300, 4000),
        memory_array(0x1000, 24),
    ] + [dimm(0x1100 + n, 0x1000, f"A{n + 1}", "Not Specified", 32768, "00AD00B300AD", f"7FX730{n:02X}", "HMA84GR7MFR4N-UH", 2133)
         for n in range(8)])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) CPU E5-2670 v3 @ 2.30GHz", "1197.656", SERVER_FLAGS, number=63), "0-47",
           [(0, 0, 0), (1, 1, 0)], 3_100_000)
    m.pci("pci0000:80/0000:80:02.0", "8086", "2f04", "060400", "02", "1", "pcieport", label="SLOT 4", index=20)
    hosts = {}
    for function in (0, 1):
        hba = m.pci(f"pci0000:80/0000:80:02.0/0000:82:00.{function}", "10df", "e300", "0c0400", "01", "1", "lpfc", "10df:e332")
        number = 2 + function
        hosts[number] = m.host(f"{hba}/host{number}", "lpfc", "fc", port_name=f"0x10000090fa00730{function}",
                               node_name=f"0x20000090fa00730{function}", port_state="Online",
                               symbolic_name="Emulex LPe32002 FV12.8.340.8 DV14.0.0.4. HN:fx730b. OS:Linux")
    paths = []
    for at, (kname, devno, number, target, port) in enumerate([
            ("sdf", "8:80", 2, 0, "0x21000024ff000a01"), ("sdg", "8:96", 2, 1, "0x21000024ff000a02"),
            ("sdh", "8:112", 3, 0, "0x21000024ff000b01"), ("sdi", "8:128", 3, 1, "0x21000024ff000b02")]):
        rport = f"rport-{number}:0-{target + 4}"
        folder = f"sys/devices/{hosts[number]}/{rport}/fc_remote_ports/{rport}"
        m.attrs(folder, port_name=port, node_name=port.replace("0x21", "0x20"), port_state="Online")
        m.link(f"sys/class/fc_remote_ports/{rport}", folder)
        path = m.scsi(f"{hosts[number]}/{rport}", f"{number}:0:{target}:2", kname, devno, 2_147_483_648, "OSNEXUS", "QUANTASTOR", 0,
                      "380", {"80": page80("b8950167b5790928"), "83": page83(t10("OSNEXUS b8950167b5790928"), naa(wwid))},
                      f"naa.{wwid}", physical=65536, hidden=0, access="active/optimized" if at < 2 else "active/non-optimized")
        m.file(f"run/udev/data/b{devno}",
               f"S:disk/by-id/scsi-3{wwid}\nE:ID_SCSI=1\nE:ID_SERIAL=3{wwid}\nE:ID_SERIAL_SHORT={wwid}\n"
               f"E:ID_SCSI_SERIAL=b8950167b5790928\nE:ID_WWN=0x{wwid[:16]}\nE:ID_WWN_VENDOR_EXTENSION=0x{wwid[16:]}\n"
               f"E:ID_WWN_WITH_EXTENSION=0x{wwid}\nE:DM_MULTIPATH_DEVICE_PATH=1")
        paths.append(path)
    mapped = m.block("virtual/block/dm-0", "dm-0", "253:0", 2_147_483_648, 0, physical=65536)
    m.attrs(f"{mapped}/dm", name="mpatha", uuid=f"mpath-3{wwid}", suspended=0)
    for path in paths:
        m.holds(mapped, path)
    m.file("run/udev/data/b253:0",
           f"S:disk/by-id/dm-name-mpatha\nS:disk/by-id/wwn-0x{wwid}\nE:DM_NAME=mpatha\nE:DM_UUID=mpath-3{wwid}\n"
           f"E:MPATH_DEVICE_READY=1\nE:DM_TYPE=scsi\nE:DM_WWN=0x{wwid}\nE:DM_SERIAL=3{wwid}")
    # A partition of it, made by kpartx.
    part = m.block("virtual/block/dm-1", "dm-1", "253:1", 2_097_152, 0, physical=65536)
    m.attrs(f"{part}/dm", name="mpatha-part1", uuid=f"part1-mpath-3{wwid}", suspended=0)
    m.holds(part, mapped)
    perc = m.pci("pci0000:00/0000:00:01.0/0000:03:00.0", "1000", "005d", "010400", "02", "0", "megaraid_sas", "1028:1f49")
    m.host(f"{perc}/host0", "megaraid_sas")
    m.scsi(f"{perc}/host0", "0:2:0:0", "sda", "8:0", 584_843_264, "DELL", "PERC H730 Mini", 1, "4.30",
           {"80": page80("0012806a108100921f00e7c66ba06d86"), "83": page83(naa("61866da06bc6e7001f920081106a8012"))},
           "naa.61866da06bc6e7001f920081106a8012")
    m.file("run/udev/data/b8:0",
           "E:ID_SERIAL=361866da06bc6e7001f920081106a8012\nE:ID_SERIAL_SHORT=61866da06bc6e7001f920081106a8012\n"
           "E:ID_WWN=0x61866da06bc6e700\nE:ID_WWN_VENDOR_EXTENSION=0x1f920081106a8012\n"
           "E:ID_WWN_WITH_EXTENSION=0x61866da06bc6e7001f920081106a8012")
    for function in range(2):
        port = m.pci(f"pci0000:00/0000:00:02.0/0000:01:00.{function}", "8086", "10f8", ETHERNET, "01", "0", "ixgbe", "1028:1f72",
                     index=function + 1)
        m.nic(f"eno{function + 1}", port, f"98:40:bb:00:73:{0x59 + 2 * function:02x}", 2 + function, function == 1,
              10000 if function == 1 else None, True, 10000, "192.0.2.73" if function == 1 else None)
    card = m.pci("pci0000:80/0000:80:03.0/0000:83:00.0", "15b3", "1003", "028000", "00", "1", "mlx4_core", "15b3:0024")
    m.nic("ib0", card, "80:00:02:08:fe:80:00:00:00:00:00:00:f4:52:14:03:00:75:e5:18", 4, False, None,
          "80:00:02:08:fe:80:00:00:00:00:00:00:f4:52:14:03:00:75:e5:18", 56000, kind=32)
    m.booted_over("98:40:bb:00:73:5b")
    m.loopback()
    # Asked, but it has no address yet.
    m.lan(1)


def ampere_altra(m):
    m.system("localhost", "aarch64", 535_822_336, 64, 1)
    m.dmi([
        bios("Ampere(R)", "1.5.20210721 (SCP: 1.06.20210615)", "2021/07/21"),
        system("WIWYNN", "Mt.Jade Server System B81.03001.0005", "EVT", "FXB810300100001", "8d8a3a50-1d5b-11eb-9a03-0242ac130003"),
        board("WIWYNN", "Mt.Jade Motherboard", "EVT", "FXB810300100002", "B81.03001.0005"),
        chassis("WIWYNN", 0x17, "FXB810300100003", "AT-FX-81030"),
        processor(0x40, "CPU 1", "Ampere(R)", "Ampere(R) Altra(R) Processor", 80, 80, 3000, 3000, "FX0000000000000000008103", 0xFE),
        processor(0x41, "CPU 2", "Ampere(R)", "Ampere(R) Altra(R) Processor", 80, 80, 3000, 3000, "FX0000000000000000008104", 0xFE),
        memory_array(0x30, 32),
    ] + [dimm(0x31 + n, 0x30, f"DIMM {n + 1}", f"Bank {n + 1}", 32768 if n % 2 == 0 else 0, "Samsung", f"03FX81{n:02X}",
              "M393A4K40DB3-CWE", 3200) for n in range(32)] + [ipmi_device(kcs=False)])
    features = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
    m.cpus(f"processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
           "CPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n", "0-159",
           [(0, 36, 0), (1, 36, 256), (80, 5418, 0), (159, 5418, 20224)], 3_000_000)
    drive = m.pci("pci0003:00/0003:00:01.0/0003:01:00.0", "144d", "a824", "010802", "00", "0", "nvme", "144d:a801")
    m.nvme(drive, 0, "SAMSUNG MZQL23T8HCLS-00A07", "S64HFX0T810301", "GDC5302Q",
           [(1, "259:0", 7_501_476_528, "eui.36344830548103010025384500000001", 512)])
    for function in range(2):
        port = m.pci(f"pci000c:00/000c:00:01.0/000c:01:00.{function}", "15b3", "1015", ETHERNET, "00", "1", "mlx5_core", "15b3:0016")
        m.nic(f"enP12p1s0f{function}np{function}", port, f"b8:59:9f:00:81:{0x0A + function:02x}", 2 + function, function == 0,
              25000 if function == 0 else None, True, 25000, "192.0.2.81" if function == 0 else None, phys_port_name=f"p{function}")
    port = m.pci("pci0004:00/0004:00:03.0/0004:03:00.0", "8086", "1533", ETHERNET, "03", "0", "igb", "1d49:0000")
    m.nic("enP4p3s0", port, "3c:18:a0:00:81:03", 4, False, None, True, 1000)
    m.lldp("enP12p1s0f0np0", "98:03:9b:00:81:aa", "swp17", "sn2700-81", 3601)
    m.loopback()
    # An address by DHCPv6 only: MAC and placeholder for IPv4.
    m.lan(1, "0.0.0.0", "3c:18:a0:00:81:04", 1, dynamic=[(2, "2001:db8:81::b", 0)])


def lenovo_sr650_m2(m):
    m.system("localhost.localdomain", mem_kib=327_000_000, efi=64, secure_boot=0, tpm=2)
    m.dmi([
        bios("Lenovo", "-[IVE636Z-2.13]-", "07/18/2019"),
        system("Lenovo", "ThinkSystem SR650 -[7X06CTO1WW]-", "06", "J3FX650A", "7fae1b00-6f20-11e9-8a5d-7ed30a006500",
               "7X06CTO1WW", "ThinkSystem"),
        board("Lenovo", "-[7X06CTO1WW]-", "XYZ", "Z1FX65000001"),
        chassis("Lenovo", 0x17, "J3FX650A", "none"),
        processor(0x4F, "CPU 1", "Intel(R) Corporation", "Intel(R) Xeon(R) Silver 4210R CPU @ 2.40GHz", 10, 20, 2400, 4000),
        processor(0x53, "CPU 2", "Intel(R) Corporation", "Intel(R) Xeon(R) Silver 4210R CPU @ 2.40GHz", 10, 20, 2400, 4000),
        memory_array(0x2D, 24),
    ] + [dimm(0x2E + n, 0x2D, f"DIMM {n + 1}", f"P{n // 12}_Node0", 32768 if n in (0, 2, 4, 12, 14, 16) else 0, "Hynix",
              f"83FX65{n:02X}", "HMA84GR7CJR4N-WM", 2933) for n in range(24)]
        + [dimm(0x60 + n, 0x2D, f"PMEM {n}", "P0_Node1", 129_408, "Intel", f"00FX65{n:02X}", "NMA1XBD128GQS", 2666, kind=0x1F)
           for n in range(1)] + [ipmi_device()])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Silver 4210R CPU @ 2.40GHz", "1000.000", SERVER_FLAGS), "0-39",
           [(0, 0, 0), (10, 1, 0)], 3_200_000)
    # Two M.2 modules behind a Marvell RAID chip, which shows an AHCI disk and a processor device.
    marvell = m.pci("pci0000:00/0000:00:1d.0/0000:05:00.0", "1b4b", "9230", "010601", "11", "0", "ahci", "1d49:0300")
    m.ata(marvell, 9, "sda", "8:0", 937_571_968, "ThinkSystem M.2 VD", "67fx650000010010", 0x0050_0430_0000_0000, number=1, host=8,
          rotational=0, revision="1010")
    m.host(f"{marvell}/ata9/host8", "ahci")
    m.attrs(f"sys/devices/{marvell}/ata16/ata_port/ata16", port_no=8)
    m.scsi(f"{marvell}/ata16/host15", "15:0:0:0", None, None, 0, "Marvell", "Console", kind=3, rev="1.01")
    raid = m.pci("pci0000:5d/0000:5d:00.0/0000:5e:00.0", "1000", "0016", "010400", "01", "0", "megaraid_sas", "1d49:0503")
    m.host(f"{raid}/host16", "megaraid_sas")
    m.scsi(f"{raid}/host16", "16:2:0:0", "sdb", "8:16", 9_365_766_144, "Lenovo", "RAID 730-8i-1GB", 1, "5.13",
           {"80": page80("00fe0e6500000102270065020bb00506"), "83": page83(naa("600605b00b0265002702010000650efe"))},
           "naa.600605b00b0265002702010000650efe")
    xhci = m.pci("pci0000:00/0000:00:14.0", "8086", "a1af", "0c0330", "09", "0", "xhci_hcd", "17aa:7860")
    reader = m.usb(f"{xhci}/usb1/1-8", 1, 3, "1d6b", "0104", "00", "Lenovo", "Internal SD Reader", "FX6500000A3B")
    m.platform(f"{reader}/1-8:1.0", "usb", "usb-storage")
    m.link("sys/bus/usb/drivers/usb-storage/1-8:1.0", f"sys/devices/{reader}/1-8:1.0")
    m.host(f"{reader}/1-8:1.0/host17", "usb-storage")
    m.scsi(f"{reader}/1-8:1.0/host17", "17:0:0:0", "sdc", "8:32", 62_333_952, "LENOVO", "Internal SD-1", 1, "1.00", removable=1)
    m.scsi(f"{reader}/1-8:1.0/host17", "17:0:0:1", "sdd", "8:48", 0, "LENOVO", "Internal SD-2", 1, "1.00", removable=1)
    m.usb(f"{xhci}/usb1/1-11", 1, 5, "046b", "ff10", "00", "American Megatrends Inc.", "Virtual Keyboard and Mouse")
    m.usb(f"{xhci}/usb1/1-12", 1, 6, "04b3", "4010", "02", "IBM", "XClarity Controller", "FX650XCC")
    m.platform(f"{xhci}/usb1/1-12/1-12:1.0", "usb", "cdc_ether")
    m.nic("enp0s20f0u12", f"{xhci}/usb1/1-12/1-12:1.0", "7e:d3:0a:00:65:5f", 4, True, None, True)
    m.booted_over("7c:d3:0a:00:65:50")
    for function in range(2):
        port = m.pci(f"pci0000:17/0000:17:00.0/0000:18:00.{function}", "8086", "37d1", ETHERNET, "09", "0", "i40e", "17aa:4022",
                     label=f"Onboard LAN{function + 1}", index=function + 1)
        m.nic(f"eno{function + 1}", port, f"7c:d3:0a:00:65:{0x50 + function:02x}", 2 + function, function == 0, 1000, True, 1000,
              "192.0.2.65" if function == 0 else None)
    m.loopback()
    m.lan(1, "192.0.2.165", "7c:d3:0a:00:65:5e", 0)
    m.lan(3, "192.0.2.166", "7c:d3:0a:00:65:5d", 0)


def cisco_b200_fnic(m):
    m.system("localhost.localdomain", mem_kib=394_000_000)
    m.dmi([
        bios("Cisco Systems, Inc.", "B200M5.4.0.4b.0.0407191258", "04/07/2019"),
        system("Cisco Systems Inc", "UCSB-B200-M5", "0", "FCHFX200M5A", "b2000000-0000-11e9-0000-000000fb2005", " ", "Cisco UCS"),
        board("Cisco Systems Inc", "UCSB-B200-M5", "74-105902-03", "FCHFX200M5A", "Unknown"),
        chassis("Cisco Systems Inc", 0x1C, "FOXFX200M5C", "Unknown"),
        processor(0x37, "CPU1", "Intel(R) Corporation", "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", 16, 32, 2100, 4000),
        processor(0x3B, "CPU2", "Intel(R) Corporation", "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", 16, 32, 2100, 4000),
        memory_array(0x25, 24),
    ] + [dimm(0x26 + n, 0x25, f"DIMM_{'ABCDEFGHJKLM'[n // 2]}{n % 2 + 1}", "CPU1", 32768 if n % 2 == 0 else 0, "0xCE00",
              f"40FX20{n:02X}", "M393A4K40BB2-CTD") for n in range(24)] + [ipmi_device()])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", "2095.078", SERVER_FLAGS), "0-63", [(0, 0, 0), (16, 1, 0)])
    bridge = "pci0000:5d/0000:5d:00.0/0000:5e:00.0"
    for number in range(2):
        port = m.pci(f"{bridge}/0000:5f:0{number}.0/0000:6{number}:00.0", "1137", "0043", ETHERNET, "a2", "0", "enic", "1137:0218")
        m.nic(f"eth{number}", port, f"00:25:b5:00:20:0{number}", 2 + number, True, 20000, True, None,
              "192.0.2.200" if number == 0 else None)
    ports = []
    for number in range(2):
        hba = m.pci(f"{bridge}/0000:5f:0{2 + number}.0/0000:6{2 + number}:00.0", "1137", "0045", "0c0400", "a2", "0", "fnic", "1137:0218")
        host = m.host(f"{hba}/host{7 + number}", "fnic", "fc", port_name=f"0x20000025b50020a{number}",
                      node_name="0x20000025b5002000", port_state="Online", symbolic_name=f"fnic v1.6.0.34 over fnic{number}")
        rport = f"rport-{7 + number}:0-1"
        folder = f"sys/devices/{host}/{rport}/fc_remote_ports/{rport}"
        m.attrs(folder, port_name=f"0x50060e80200b20{number}0", node_name="0x50060e80200b2000", port_state="Online")
        m.link(f"sys/class/fc_remote_ports/{rport}", folder)
        ports.append((7 + number, f"{host}/{rport}"))
    # Two paths to the boot volume, no multipath tools; a second volume with 16,384 as number.
    pages = {"80": page80("50 60E80200B2 0001"), "83": page83(naa("60060e80200b20005060200b20000001"))}
    m.scsi(ports[0][1], "7:0:0:0", "sda", "8:0", 209_715_200, "HITACHI", "OPEN-V", 1, "8803", pages,
           "naa.60060e80200b20005060200b20000001", access="active/non-optimized")
    m.scsi(ports[1][1], "8:0:0:0", "sdb", "8:16", 209_715_200, "HITACHI", "OPEN-V", 1, "8803", pages,
           "naa.60060e80200b20005060200b20000001", access="active/optimized")
    m.scsi(ports[1][1], "8:0:0:16384", "sdc", "8:32", 2_147_483_648, "HITACHI", "OPEN-V", 1, "8803",
           {"80": page80("50 60E80200B2 0002"), "83": page83(naa("60060e80200b20005060200b20000002"))},
           "naa.60060e80200b20005060200b20000002", access="active/optimized")
    m.loopback()
    m.lan(1, "192.0.2.201", "00:25:b5:00:20:ff")


def whitebox_md(m):
    m.system("localhost", mem_kib=32_780_000, efi=64)
    m.dmi([
        bios("American Megatrends Inc.", "P2.30", "11/23/2018"),
        system("To Be Filled By O.E.M.", "To Be Filled By O.E.M.", "To Be Filled By O.E.M.", "To Be Filled By O.E.M.",
               "00020003-0004-0005-0006-000700080009"),
        board("ASRockRack", "E3C236D2I", " ", "170FX236000001", " "),
        chassis("To Be Filled By O.E.M.", 3, "To Be Filled By O.E.M.", "To Be Filled By O.E.M."),
        processor(0x10, "CPUSocket", "Intel(R) Corporation", "Intel(R) Xeon(R) CPU E3-1230 v5 @ 3.40GHz", 4, 8, 3400, 4200),
        memory_array(0x0E, 2, 0x2000000),
        dimm(0x0F, 0x0E, "ChannelA-DIMM0", "BANK 0", 16384, "Crucial", "E1FX2360", "CT16G4WFD8213.18FA2", 2133),
        dimm(0x11, 0x0E, "ChannelB-DIMM0", "BANK 2", 16384, "Crucial", "E1FX2361", "CT16G4WFD8213.18FA2", 2133),
    ])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) CPU E3-1230 v5 @ 3.40GHz", "3400.000", SERVER_FLAGS, number=94), "0-7",
           [(cpu, 0, cpu % 4) for cpu in range(8)], 3_800_000)
    ahci = m.pci("pci0000:00/0000:00:17.0", "8086", "a102", "010601", "31", "0", "ahci", "1849:a102")
    parts = []
    for at, kname in enumerate(("sda", "sdb")):
        disk = m.ata(ahci, at + 1, kname, f"8:{16 * at}", 7_814_037_168, "WDC WD4002FYYZ-01B7CB1", f"K4FX2360{at}",
                     0x5000_CCA2_5DFE_2360 + at, number=at + 1, host=at, physical=4096, revision="01.0")
        m.host(f"{ahci}/ata{at + 1}/host{at}", "ahci")
        parts.append(m.part(disk, f"{kname}1", f"8:{16 * at + 1}", 1, 2048, 1_048_576))
        parts.append(m.part(disk, f"{kname}2", f"8:{16 * at + 2}", 2, 1_050_624, 7_812_984_832))
    drives = []
    for number in range(2):
        slot = m.pci(f"pci0000:00/0000:00:1b.{4 * number}/0000:0{number + 2}:00.0", "144d", "a804", "010802", "00", "0", "nvme", "144d:a801")
        drives.append(m.nvme(slot, number, "Samsung SSD 960 PRO 512GB", f"S3EWFX2360{number}N", "2B6QCXP7",
                             [(1, f"259:{number}", 1_000_215_216, f"eui.002538567100236{number}", 512)]) + f"/nvme{number}n1")

    def array(kname, devno, sectors, level, members, physical=512, rotational=1, disks=2, state="clean"):
        folder = m.block(f"virtual/block/{kname}", kname, devno, sectors, rotational, physical=physical)
        m.attrs(f"{folder}/md", level=level, raid_disks=disks, array_state=state, metadata_version="1.2")
        for member in members:
            m.holds(folder, member)
        return folder

    array("md0", "9:0", 1_046_528, "raid1", [parts[0], parts[2]], 4096)
    array("md1", "9:1", 7_812_852_736, "raid1", [parts[1], parts[3]], 4096)
    # Over whole disks.
    array("md2", "9:2", 2_000_166_912, "raid0", drives, rotational=0)
    # Stopped: no members, no size, no level.
    array("md127", "9:127", 0, None, [], state="clear")
    # The group of a fake RAID, which holds arrays and is none.
    array("md126", "9:126", 0, "container", [], state="inactive")
    for function in range(2):
        port = m.pci(f"pci0000:00/0000:00:1c.{function}/0000:0{5 + function}:00.0", "8086", "1533", ETHERNET, "03", "0", "igb", "1849:1533")
        m.nic(f"enp{5 + function}s0", port, f"d0:50:99:00:23:6{function}", 2 + function, function == 0, 1000, True, 1000,
              "192.0.2.36" if function == 0 else None, "2001:db8:36::36" if function == 0 else None)
    m.lldp("enp5s0", "00:07:cb:0b:6c:d7", "RJ-9", "s120-f3-2.itx4")
    m.loopback()


def huawei_2488h_numa(m):
    gib = 1 << 20
    m.system("localhost", mem_kib=3 * 64 * gib - 3_000_000, efi=64, secure_boot=0)
    m.dmi([
        bios("INSYDE Corp.", "0.68", "09/30/2018"),
        system("Huawei", "2488H V5", "Purley", "2102FX2488H0000", "a2488000-1dd2-11b2-8000-0018e1c52488", "Type1Sku0", "Purley"),
        board("Huawei", "BC61FDCA", "V100R005", "022FX2488H00001", ""),
        chassis("Huawei", 0x17, "2102FX2488H0000", ""),
    ] + [processor(0x40 + n, f"CPU0{n + 1}", "Intel(R) Corporation", "Intel(R) Xeon(R) Gold 6140 CPU @ 2.30GHz", 4, 4, 2300, 4000)
         for n in range(4)] + [memory_array(0x50, 4)]
        + [dimm(0x51 + n, 0x50, f"DIMM{n}00", f"_Node{n}_Channel0_Dimm0", 65536 if n != 2 else 0, "Micron", f"1AFX24{n:02X}",
                "72ASS8G72LZ-2G6D2") for n in range(4)])
    # Four cores in each of four sockets; the last socket is offline but for one core. Node 2 has no memory.
    online = [cpu for cpu in range(16) if cpu < 13]
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Gold 6140 CPU @ 2.30GHz", "2300.000", SERVER_FLAGS), "0-15",
           [(cpu, cpu // 4, cpu % 4) for cpu in online], 3_700_000, "0-12")
    for node in range(4):
        m.numa(node, 0 if node == 2 else 64 * gib - 1_000_000, [cpu for cpu in range(16) if cpu // 4 == node])
    for cpu in (13, 14, 15):
        m.file(f"sys/devices/system/cpu/cpu{cpu}/online", 0)
    raid = m.pci("pci0000:17/0000:17:00.0/0000:18:00.0", "1000", "005d", "010400", "02", "0", "megaraid_sas", "19e5:d207")
    m.host(f"{raid}/host0", "megaraid_sas")
    m.scsi(f"{raid}/host0", "0:2:0:0", "sda", "8:0", 1_169_920_000, "AVAGO", "HW-SAS3508", 1, "5.02",
           {"80": page80("00fe00882400000102270088240b0000"), "83": page83(naa("6000000b2488002702010000248800fe"))},
           "naa.6000000b2488002702010000248800fe")
    for node, bus in ((0, "1a"), (1, "3a"), (3, "b1")):
        port = m.pci(f"pci0000:{bus}/0000:{bus}:00.0", "8086", "37d3", ETHERNET, "09", str(node), "i40e", "19e5:d12a")
        m.nic(f"enp{int(bus, 16)}s0", port, f"44:a1:91:00:24:{bus}", 2 + node, node == 0, 10000 if node == 0 else None, True, 10000,
              "192.0.2.48" if node == 0 else None)
    # An old driver's card does not say where it is.
    port = m.pci("pci0000:00/0000:00:1f.6", "8086", "15b9", ETHERNET, "21", None, "e1000e", "19e5:0000")
    m.nic("enp0s31f6", port, "44:a1:91:00:24:99", 9, False, None, True, 1000)
    card = m.pci("pci0000:3a/0000:3a:02.0/0000:3c:00.0", "15b3", "1013", "020700", "00", "1", "mlx5_core", "15b3:0033")
    m.nic("ib0", card, "80:00:02:08:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:80:34:41", 10, True, 100000,
          "80:00:02:08:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:80:34:41", 100000, kind=32)
    m.loopback()
    m.lan(1, "192.0.2.148", "44:a1:91:00:24:f0", 0)


def gigabyte_infiniband(m):
    m.system("localhost", mem_kib=263_000_000, efi=64)
    m.dmi([
        bios("GIGABYTE", "R23", "06/25/2021"),
        system("GIGABYTE", "R282-Z92-00", "0100", "GJFX282Z92A0001", "b4200000-2821-0292-0000-b42e99002820", "01234567890123456789AB", "Server"),
        board("GIGABYTE", "MZ92-FS0-00", "01000100", "JIFX282Z9200001", "01234567890123456789AB"),
        chassis("GIGABYTE", 0x17, "01234567890123456789AB", "01234567890123456789AB"),
        processor(0x2A, "P0", "Advanced Micro Devices, Inc.", "AMD EPYC 7302 16-Core Processor", 16, 32, 3000, 3300, "Unknown", 0x6B),
        processor(0x2E, "P1", "Advanced Micro Devices, Inc.", "AMD EPYC 7302 16-Core Processor", 16, 32, 3000, 3300, "Unknown", 0x6B),
        memory_array(0x12, 32),
    ] + [dimm(0x13 + n, 0x12, f"DIMM_P{n // 16}_{'ABCDEFGHIJKLMNOP'[n % 16]}0", "BANK 0", 16384 if n % 2 == 0 else 0, "Samsung",
              f"0AFX28{n:02X}", "M393A2K43DB3-CWE", 3200) for n in range(32)])
    m.cpus(x86_cpuinfo("AMD EPYC 7302 16-Core Processor", "1500.000", "fpu vme de pse tsc msr svm sse4a avx2 sha_ni", "AuthenticAMD",
                       family=23, number=49), "0-63", [(0, 0, 0), (16, 1, 0)], 3_000_000)
    card = m.pci("pci0000:40/0000:40:01.1/0000:41:00.0", "15b3", "1017", "020700", "00", "1", "mlx5_core", "15b3:0006")
    m.nic("ib0", card, "80:00:02:08:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:be:5d:e1", 4, True, 100000,
          "80:00:02:08:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:be:5d:e1", 100000, "192.0.2.82", kind=32, dev_port=0, dev_id="0x0")
    m.attrs(f"sys/devices/{card}/infiniband/mlx5_0", node_guid="7cfe:9003:00be:5de1", fw_ver="16.28.2006", hca_type="MT4119")
    m.link("sys/class/infiniband/mlx5_0", f"sys/devices/{card}/infiniband/mlx5_0")
    # The second port of the card speaks Ethernet.
    card = m.pci("pci0000:40/0000:40:01.1/0000:41:00.1", "15b3", "1017", ETHERNET, "00", "1", "mlx5_core", "15b3:0006")
    m.nic("enp65s0f1np1", card, "7c:fe:90:be:5d:e2", 5, False, None, True, 100000, phys_port_name="p1")
    for function in range(2):
        port = m.pci(f"pci0000:60/0000:60:03.1/0000:61:00.{function}", "8086", "1521", ETHERNET, "01", "0", "igb", "1458:0000")
        m.nic(f"eno{function + 1}", port, f"b4:2e:99:00:28:2{function}", 2 + function, function == 0, 1000, True, 1000)
    drive = m.pci("pci0000:20/0000:20:03.2/0000:21:00.0", "1e0f", "0007", "010802", "01", "0", "nvme", "1e0f:0001")
    m.nvme(drive, 0, "KXG60ZNV1T02 NVMe TOSHIBA 1024GB", "19FXA109SK07", "10604103",
           [(1, "259:0", 2_000_409_264, "eui.00000000000000108ce38e0100282001", 512)])
    m.loopback()
    m.lan(1, "192.0.2.182", "b4:2e:99:00:28:2f", 2, dynamic=[(1, "fe80::b62e:99ff:fe00:282f", 0)])


def vmware_pvscsi(m):
    m.system("localhost.localdomain", mem_kib=4_026_000)
    m.dmi([
        bios("Phoenix Technologies LTD", "6.00", "11/12/2020"),
        system("VMware, Inc.", "VMware Virtual Platform", "None", "VMware-56 4d fe a1 b2 c3 d4 e5-01 23 45 67 89 ab cd ef",
               "564dfea1-b2c3-d4e5-0123-456789abcdef"),
        board("Intel Corporation", "440BX Desktop Reference Platform", "None", "None"),
        chassis("No Enclosure", 1, "None", "No Asset Tag"),
        processor(0x04, "CPU #000", "GenuineIntel", "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", 1, 1, 3000, 30000),
        processor(0x05, "CPU #001", "GenuineIntel", "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", 1, 1, 3000, 30000),
        memory_array(0x1C, 64, 0x400000),
        dimm(0x1D, 0x1C, "RAM slot #0", "RAM slot #0", 4096, "VMware Virtual RAM", "00000001", "VMW-4096MB", 4800, kind=3),
    ] + [dimm(0x1E + n, 0x1C, f"RAM slot #{n + 1}", f"RAM slot #{n + 1}", 0) for n in range(3)])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", "2992.968", f"{SERVER_FLAGS} hypervisor"), "0-1",
           [(0, 0, 0), (1, 2, 0)])
    pvscsi = m.pci("pci0000:00/0000:00:15.0/0000:03:00.0", "15ad", "07c0", "010700", "02", "-1", "vmw_pvscsi", "15ad:07c0")
    m.host(f"{pvscsi}/host2", "vmw_pvscsi")
    # Without disk.EnableUUID a disk has no name at all; the second one has it.
    m.scsi(f"{pvscsi}/host2", "2:0:0:0", "sda", "8:0", 83_886_080, "VMware", "Virtual disk", 1, "2.0")
    m.scsi(f"{pvscsi}/host2", "2:0:1:0", "sdb", "8:16", 209_715_200, "VMware", "Virtual disk", 0, "2.0",
           {"80": page80("6000c29fd0123456789abcdef0123456"), "83": page83(naa("6000c29fd0123456789abcdef0123456"))},
           "naa.6000c29fd0123456789abcdef0123456")
    ide = m.pci("pci0000:00/0000:00:07.1", "8086", "7111", "01018a", "01", "-1", "ata_piix", "15ad:1976")
    m.attrs(f"sys/devices/{ide}/ata2/ata_port/ata2", port_no=2)
    m.host(f"{ide}/ata2/host1", "ata_piix")
    m.scsi(f"{ide}/ata2/host1", "1:0:0:0", "sr0", "11:0", 2_097_151, "NECVMWar", "VMware IDE CDR10", 1, "1.00", kind=5, removable=1,
           logical=2048)
    for number, port_path in enumerate(("pci0000:00/0000:00:16.0/0000:0b:00.0", "pci0000:00/0000:00:17.0/0000:13:00.0")):
        port = m.pci(port_path, "15ad", "07b0", ETHERNET, "01", "-1", "vmxnet3", "15ad:07b0", label=f"Ethernet{number}")
        m.file(f"sys/bus/pci/slots/{(192, 224)[number]}/address", port_path.rsplit("/", 1)[-1][:-2])
        m.nic(("ens192", "ens224")[number], port, f"00:50:56:9a:00:1{number}", 2 + number, number == 0, 10000, True, 10000,
              "192.0.2.15" if number == 0 else None, "fe80::250:56ff:fe9a:10" if number == 0 else None)
    m.booted_over("00:50:56:9a:00:10")
    m.loopback()


def hyperv_gen2(m):
    m.system("localhost", mem_kib=4_027_000, efi=64, secure_boot=1, tpm=2)
    m.dmi([
        bios("Microsoft Corporation", "Hyper-V UEFI Release v4.1", "04/06/2022"),
        system("Microsoft Corporation", "Virtual Machine", "Hyper-V UEFI Release v4.1", "0000-0014-9876-5432-1098-7654-32",
               "f8b3781a-1e82-4818-a1c3-63d806ec15bb", "None", "Virtual Machine"),
        board("Microsoft Corporation", "Virtual Machine", "Hyper-V UEFI Release v4.1", "0000-0014-9876-5432-1098-7654-32", "None"),
        chassis("Microsoft Corporation", 3, "0000-0014-9876-5432-1098-7654-32", "0000-0014-9876-5432-1098-7654-32"),
        processor(0x08, "None", "Intel(R) Corporation", "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", 2, 2, 2793, 4000),
        memory_array(0x09, 1),
        dimm(0x0A, 0x09, "M0001", "None", 4096, "Microsoft Corporation", "None", "None", 0, "None", 2),
    ])
    m.cpus(x86_cpuinfo("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", "2793.437", f"{SERVER_FLAGS} hypervisor", number=106), "0-1",
           [(0, 0, 0), (1, 0, 0)])
    bus = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00"
    for folder in ("LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00", bus):
        m.link(f"sys/devices/{folder}/subsystem", "sys/bus/acpi")
    scsi = f"{bus}/f8b3781a-1e82-4818-a1c3-63d806ec15bb"
    m.attrs(f"sys/devices/{scsi}", vendor="0x1414", device="0x2", device_id="{f8b3781a-1e82-4818-a1c3-63d806ec15bb}")
    m.link(f"sys/devices/{scsi}/subsystem", "sys/bus/vmbus")
    m.link(f"sys/devices/{scsi}/driver", "sys/bus/vmbus/drivers/hv_storvsc")
    m.host(f"{scsi}/host0", "storvsc_host")
    m.scsi(f"{scsi}/host0", "0:0:0:0", "sda", "8:0", 62_914_560, "Msft", "Virtual Disk", 1, "1.0",
           {"80": page80(""), "83": page83(t10("MSFT    {7a025e35-d999-4b5f-1d81-cf8f00000000}"), naa("600224807a025e35d9994b5f1d81cf8f"))},
           "naa.600224807a025e35d9994b5f1d81cf8f", physical=4096)
    m.scsi(f"{scsi}/host0", "0:0:0:1", "sr0", "11:0", 2_097_151, "Msft", "Virtual DVD-ROM", 1, "1.0", kind=5, removable=1)
    synthetic = f"{bus}/00155d01-0a0b-0015-5d01-0a0b00155d01"
    m.attrs(f"sys/devices/{synthetic}", vendor="0x1414", device="0x3", device_id="{00155d01-0a0b-0015-5d01-0a0b00155d01}")
    m.link(f"sys/devices/{synthetic}/subsystem", "sys/bus/vmbus")
    m.link(f"sys/devices/{synthetic}/driver", "sys/bus/vmbus/drivers/hv_netvsc")
    m.nic("eth0", synthetic, "00:15:5d:01:0a:0b", 2, True, 50000, True, None, "192.0.2.14", "fe80::215:5dff:fe01:a0b")
    m.loopback()


def qemu_pc_ide(m):
    m.system("localhost", mem_kib=1_004_000)
    m.dmi([
        bios("SeaBIOS", "rel-1.16.2-0-gea1b7a073390-prebuilt.qemu.org", "04/01/2014"),
        system("QEMU", "Standard PC (i440FX + PIIX, 1996)", "pc-i440fx-7.2", "Not Specified", "5ca1ab1e-0000-4000-8000-000000440f11"),
        chassis("QEMU", 1, "Not Specified"),
        processor(0x400, "CPU 0", "QEMU", "pc-i440fx-7.2", 1, 1, 2000, 2000, family=1),
        memory_array(0x1000, 1, 0x100000),
        dimm(0x1100, 0x1000, "DIMM 0", " ", 1024, "QEMU", "Not Specified", "Not Specified", 0, kind=7),
    ])
    m.cpus(x86_cpuinfo("QEMU Virtual CPU version 2.5+", "2095.078", "fpu de pse tsc msr pae mce cx8 apic sep hypervisor", "AuthenticAMD",
                       family=15, number=107), "0", [(0, 0, 0)])
    ide = m.pci("pci0000:00/0000:00:01.1", "8086", "7010", "010180", "00", "-1", "ata_piix", "1af4:1100")
    m.ata(ide, 1, "sda", "8:0", 20_971_520, "QEMU HARDDISK", "QM00001", number=1, host=0, target=0, revision="2.5+")
    # The slave on the same cable.
    m.ata(ide, 1, "sdb", "8:16", 12_582_912, "QEMU HARDDISK", "FX440 second disk", 0x5000_C500_4401_0002, number=1, host=0, target=1,
          revision="2.5+")
    m.host(f"{ide}/ata1/host0", "ata_piix")
    m.attrs(f"sys/devices/{ide}/ata2/ata_port/ata2", port_no=2)
    m.host(f"{ide}/ata2/host1", "ata_piix")
    m.scsi(f"{ide}/ata2/host1", "1:0:0:0", "sr0", "11:0", 0, "QEMU", "QEMU DVD-ROM", 1, "2.5+", kind=5, removable=1)
    m.platform("platform/floppy.0", driver="floppy")
    m.block("platform/floppy.0/block/fd0", "fd0", "2:0", 2_880, 1, device="platform/floppy.0", removable=1)
    port = m.pci("pci0000:00/0000:00:03.0", "8086", "100e", ETHERNET, "03", "-1", "e1000", "1af4:1100")
    m.nic("ens3", port, "52:54:00:12:34:56", 2, True, 1000, True, 1000, "10.0.2.15", "fec0::5054:ff:fe12:3456")
    m.booted_over("52:54:00:12:34:56")
    m.loopback()


def qemu_microvm(m):
    """Neither PCI nor SMBIOS; the kernel finds its devices on the command line."""
    m.system("localhost", mem_kib=498_000)
    m.cpus(x86_cpuinfo("AMD EPYC-Rome Processor", "2445.404", "fpu vme de pse hypervisor sha_ni", "AuthenticAMD", family=23, number=49),
           "0-1", [(0, 0, 0), (1, 0, 1)])
    for number, kind in ((22, "net"), (23, "block")):
        holder = m.platform(f"platform/virtio-mmio.{number}", driver="virtio-mmio")
        virtio = m.platform(f"{holder}/virtio{number - 22}", "virtio", f"virtio_{'blk' if kind == 'block' else 'net'}")
        m.attrs(f"sys/devices/{virtio}", vendor="0x554d4551", device="0x0002" if kind == "block" else "0x0001")
        if kind == "block":
            m.block(f"{virtio}/block/vda", "vda", "254:0", 16_777_216, 1, device=virtio, serial="fx-microvm-vda")
        else:
            m.nic("eth0", virtio, "52:54:00:00:0f:ee", 2, True, None, None, None, "10.0.2.15")
    m.loopback()


def qemu_arm_virt(m):
    """Neither /proc/cpuinfo nor cpufreq tells how fast the processors are, and their packages have no number."""
    m.system("localhost", "aarch64", 2_018_000, 64)
    m.dmi([
        bios("EFI Development Kit II / OVMF", "0.0.0", "02/06/2015"),
        system("QEMU", "KVM Virtual Machine", "virt-7.2", "Not Specified", "0fa40fa4-0000-4000-8000-0000000a5464"),
        chassis("QEMU", 1, "Not Specified"),
        processor(0x400, "CPU 0", "QEMU", "virt-7.2", 4, 4, 0, 0, family=1),
        memory_array(0x1000, 1, 0x200000),
        dimm(0x1100, 0x1000, "DIMM 0", " ", 2048, "QEMU", "Not Specified", "Not Specified", 0, kind=7),
    ])
    m.cpus("processor\t: 0\nBogoMIPS\t: 125.00\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid\n"
           "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd07\nCPU revision\t: 0\n\n",
           "0-3", [(cpu, -1, cpu) for cpu in range(4)])
    slot = m.pci("pci0000:00/0000:00:01.0", "1af4", "1000", ETHERNET, "00", "-1", "virtio-pci", "1af4:0001")
    virtio = m.platform(f"{slot}/virtio0", "virtio", "virtio_net")
    m.attrs(f"sys/devices/{virtio}", vendor="0x1af4", device="0x0001")
    m.nic("enp0s1", virtio, "52:54:00:0f:a4:01", 2, True, None, None, None, "10.0.2.15")
    slot = m.pci("pci0000:00/0000:00:02.0", "1af4", "1004", "010000", "00", "-1", "virtio-pci", "1af4:0008")
    virtio = m.platform(f"{slot}/virtio1", "virtio", "virtio_scsi")
    m.host(f"{virtio}/host0", "virtio_scsi")
    m.scsi(f"{virtio}/host0", "0:0:0:0", "sda", "8:0", 41_943_040, "QEMU", "QEMU HARDDISK", 1, "2.5+",
           {"80": page80("FXARM0001"), "83": page83(designator(2, 0, b"FXARM0001"))}, "t10.0QEMU    QEMU HARDDISK FXARM0001")
    m.loopback()


def raspberry_cm4(m):
    """No SMBIOS, no PCI: a device tree."""
    m.system("localhost", "aarch64", 3_884_320)
    m.bytes("proc/device-tree/model", b"Raspberry Pi Compute Module 4 Rev 1.0\0")
    m.bytes("proc/device-tree/serial-number", b"10000000fe0c4400\0")
    m.cpus("processor\t: 0\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\n"
           "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n\n"
           "Hardware\t: BCM2835\nRevision\t: d03141\nSerial\t\t: 10000000fe0c4400\nModel\t\t: Raspberry Pi Compute Module 4 Rev 1.0\n",
           "0-3", [(cpu, 0, cpu) for cpu in range(4)], 1_500_000)
    emmc = m.platform("platform/emmc2bus/fe340000.mmc", driver="sdhci-iproc")
    m.platform("platform/emmc2bus")
    card = f"{emmc}/mmc_host/mmc0/mmc0:0001"
    m.attrs(f"sys/devices/{card}", name="BJTD4R", serial="0x0fe0c4a1", type="MMC", manfid="0x000015", cid="150100424a544434520fe0c4a1000000")
    m.link(f"sys/devices/{card}/subsystem", "sys/bus/mmc")
    disk = m.block(f"{card}/block/mmcblk0", "mmcblk0", "179:0", 61_071_360, 0, device=card, removable=0)
    m.part(disk, "mmcblk0p1", "179:1", 1, 8192, 524_288)
    # Hardware partitions of the card are disks of their own.
    for number in range(2):
        m.block(f"{card}/block/mmcblk0/mmcblk0boot{number}", f"mmcblk0boot{number}", f"179:{32 * (number + 1)}", 8192, 0, ro=1, removable=0)
        m.link(f"sys/devices/{card}/block/mmcblk0/mmcblk0boot{number}/device", f"sys/devices/{card}/block/mmcblk0")
    port = m.platform("platform/scb/fd580000.ethernet", driver="bcmgenet")
    m.nic("eth0", port, "dc:a6:32:00:c4:40", 2, True, 1000, True, 1000, "192.0.2.44")
    xhci = m.platform("platform/soc/fe980000.usb", driver="dwc2")
    m.usb(f"{xhci}/usb1", 1, 1, "1d6b", "0002", "09", "Linux 6.1.0 dwc2_hsotg", "DWC OTG Controller", "fe980000.usb")
    m.usb(f"{xhci}/usb1/1-1", 1, 2, "0bda", "8152", "00", "Realtek", "USB 10/100 LAN", "00E04C360001")
    # An adapter whose address was never programmed.
    m.platform(f"{xhci}/usb1/1-1/1-1:1.0", "usb", "r8152")
    m.nic("eth1", f"{xhci}/usb1/1-1/1-1:1.0", "00:00:00:00:00:00", 3, False)
    m.loopback()


ALL = [dell_r740_perc, hpe_dl380_gen10, supermicro_1029u_nvme, dell_r730_lpfc_multipath, ampere_altra, lenovo_sr650_m2,
       cisco_b200_fnic, whitebox_md, huawei_2488h_numa, gigabyte_infiniband, vmware_pvscsi, hyperv_gen2, qemu_pc_ide,
       qemu_microvm, qemu_arm_virt, raspberry_cm4]


def main(wanted):
    for make in ALL:
        name = make.__name__.replace("_", "-")
        if not wanted or name in wanted:
            machine = Tree(os.path.join(MACHINES, name))
            make(machine)
            machine.finish()


if __name__ == "__main__":
    main(sys.argv[1:])
