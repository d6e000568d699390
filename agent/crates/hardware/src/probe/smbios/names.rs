//! Names of the numbers in SMBIOS structures (DMTF DSP0134, section 7), in the words of `dmidecode`, which is what
//! users of the `dmi-decode` collector know. Each list is one text, for the sake of size: the first name is that of 1, and
//! an empty one is not in the standard.

/// The name of a number in a list.
pub(super) fn name(list: &'static str, number: u32) -> Option<&'static str> {
    let place = usize::try_from(number).ok()?.checked_sub(1)?;
    list.split('|').nth(place).filter(|name| !name.is_empty())
}

/// Processor families, section 7.5.2.
pub(super) const FAMILIES: &str = "\
    Other|Unknown|8086|80286|80386|80486|8087|80287|80387|80487|Pentium|Pentium Pro|Pentium II|Pentium MMX|\
    Celeron|Pentium II Xeon|Pentium III|M1|M2|Celeron M|Pentium 4 HT|||Duron|K5|K6|K6-2|K6-3|Athlon|AMD29000|\
    K6-2+|Power PC|Power PC 601|Power PC 603|Power PC 603+|Power PC 604|Power PC 620|Power PC x704|\
    Power PC 750|Core Duo|Core Duo Mobile|Core Solo Mobile|Atom|Core M|Core m3|Core m5|Core m7|Alpha|\
    Alpha 21064|Alpha 21066|Alpha 21164|Alpha 21164PC|Alpha 21164a|Alpha 21264|Alpha 21364|\
    Turion II Ultra Dual-Core Mobile M|Turion II Dual-Core Mobile M|Athlon II Dual-Core M|Opteron 6100|\
    Opteron 4100|Opteron 6200|Opteron 4200|FX|MIPS|MIPS R4000|MIPS R4200|MIPS R4400|MIPS R4600|MIPS R10000|\
    C-Series|E-Series|A-Series|G-Series|Z-Series|R-Series|Opteron 4300|Opteron 6300|Opteron 3300|FirePro|\
    SPARC|SuperSPARC|MicroSPARC II|MicroSPARC IIep|UltraSPARC|UltraSPARC II|UltraSPARC IIi|UltraSPARC III|\
    UltraSPARC IIIi||||||||68040|68xxx|68000|68010|68020|68030|Athlon X4|Opteron X1000|Opteron X2000|\
    Opteron A-Series|Opteron X3000|Zen|||||Hobbit||||||||Crusoe TM5000|Crusoe TM3000|Efficeon TM8000||||||\
    Weitek||Itanium|Athlon 64|Opteron|Sempron|Turion 64|Dual-Core Opteron|Athlon 64 X2|Turion 64 X2|\
    Quad-Core Opteron|Third-Generation Opteron|Phenom FX|Phenom X4|Phenom X2|Athlon X2|PA-RISC|PA-RISC 8500|\
    PA-RISC 8000|PA-RISC 7300LC|PA-RISC 7200|PA-RISC 7100LC|PA-RISC 7100||||||||||V30|Quad-Core Xeon 3200|\
    Dual-Core Xeon 3000|Quad-Core Xeon 5300|Dual-Core Xeon 5100|Dual-Core Xeon 5000|Dual-Core Xeon LV|\
    Dual-Core Xeon ULV|Dual-Core Xeon 7100|Quad-Core Xeon 5400|Quad-Core Xeon|Dual-Core Xeon 5200|\
    Dual-Core Xeon 7200|Quad-Core Xeon 7300|Quad-Core Xeon 7400|Multi-Core Xeon 7400|Pentium III Xeon|\
    Pentium III Speedstep|Pentium 4|Xeon|AS400|Xeon MP|Athlon XP|Athlon MP|Itanium 2|Pentium M|Celeron D|\
    Pentium D|Pentium EE|Core Solo|Core 2 or K7|Core 2 Duo|Core 2 Solo|Core 2 Extreme|Core 2 Quad|\
    Core 2 Extreme Mobile|Core 2 Duo Mobile|Core 2 Solo Mobile|Core i7|Dual-Core Celeron|IBM390|G4|G5|\
    ESA/390 G6|z/Architecture|Core i5|Core i3|Core i9|||C7-M|C7-D|C7|Eden|Multi-Core Xeon|\
    Dual-Core Xeon 3xxx|Quad-Core Xeon 3xxx|Nano|Dual-Core Xeon 5xxx|Quad-Core Xeon 5xxx||\
    Dual-Core Xeon 7xxx|Quad-Core Xeon 7xxx|Multi-Core Xeon 7xxx|Multi-Core Xeon 3400||||Opteron 3000|\
    Sempron II|Embedded Opteron Quad-Core|Phenom Triple-Core|Turion Ultra Dual-Core Mobile|\
    Turion Dual-Core Mobile|Athlon Dual-Core|Sempron SI|Phenom II|Athlon II|Six-Core Opteron|Sempron M|||||||\
    ||||i860|i960";

/// Processor families above 255: first number and names.
pub(super) const MORE_FAMILIES: &[(u32, &str)] = &[
    (0x100, "ARMv7|ARMv8|ARMv9||SH-3|SH-4"),
    (0x118, "ARM|StrongARM"),
    (0x12c, "6x86|MediaGX|MII"),
    (0x140, "WinChip"),
    (0x15e, "DSP"),
    (0x1f4, "Video Processor"),
    (0x200, "RV32|RV64|RV128"),
    (
        0x258,
        "LoongArch|Loongson 1 Processor Family|Loongson 2 Processor Family|Loongson 3 Processor Family|\
         Loongson 2K Processor Family|Loongson 3A Processor Family|Loongson 3B Processor Family|\
         Loongson 3C Processor Family",
    ),
    (0x300, "Core 3|Core 5|Core 7|Core 9|Core Ultra 3|Core Ultra 5|Core Ultra 7|Core Ultra 9"),
];

/// How a processor is fixed, section 7.5.5.
pub(super) const SOCKETS: &str = "\
    Other|Unknown|Daughter Board|ZIF Socket|Replaceable Piggy Back|None|LIF Socket|Slot 1|Slot 2|\
    370-pin Socket|Slot A|Slot M|Socket 423|Socket A (Socket 462)|Socket 478|Socket 754|Socket 940|\
    Socket 939|Socket mPGA604|Socket LGA771|Socket LGA775|Socket S1|Socket AM2|Socket F (1207)|\
    Socket LGA1366|Socket G34|Socket AM3|Socket C32|Socket LGA1156|Socket LGA1567|Socket PGA988A|\
    Socket BGA1288|Socket rPGA988B|Socket BGA1023|Socket BGA1224|Socket BGA1155|Socket LGA1356|\
    Socket LGA2011|Socket FS1|Socket FS2|Socket FM1|Socket FM2|Socket LGA2011-3|Socket LGA1356-3|\
    Socket LGA1150|Socket BGA1168|Socket BGA1234|Socket BGA1364|Socket AM4|Socket LGA1151|Socket BGA1356|\
    Socket BGA1440|Socket BGA1515|Socket LGA3647-1|Socket SP3|Socket SP3r2|Socket LGA2066|Socket BGA1392|\
    Socket BGA1510|Socket BGA1528|Socket LGA4189|Socket LGA1200|Socket LGA4677|Socket LGA1700|Socket BGA1744|\
    Socket BGA1781|Socket BGA1211|Socket BGA2422|Socket LGA1211|Socket LGA2422|Socket LGA5773|Socket BGA5773|\
    Socket AM5|Socket SP5|Socket SP6|Socket BGA883|Socket BGA1190|Socket BGA4129|Socket LGA4710|\
    Socket LGA7529|Socket BGA1964|Socket BGA1792|Socket BGA2049|Socket BGA2551|Socket LGA1851|Socket BGA2114|\
    Socket BGA2833";

/// Kinds of processors, section 7.5.1.
pub(super) const PROCESSOR_TYPES: &str = "\
    Other|Unknown|Central Processor|Math Processor|DSP Processor|Video Processor";

/// Forms of memory modules, section 7.18.1.
pub(super) const FORM_FACTORS: &str = "\
    Other|Unknown|SIMM|SIP|Chip|DIP|ZIP|Proprietary Card|DIMM|TSOP|Row Of Chips|RIMM|SODIMM|SRIMM|FB-DIMM|\
    Die|CAMM";

/// Kinds of memory, section 7.18.2.
pub(super) const MEMORY_TYPES: &str = "\
    Other|Unknown|DRAM|EDRAM|VRAM|SRAM|RAM|ROM|Flash|EEPROM|FEPROM|EPROM|CDRAM|3DRAM|SDRAM|SGRAM|RDRAM|DDR|\
    DDR2|DDR2 FB-DIMM|Reserved|Reserved|Reserved|DDR3|FBD2|DDR4|LPDDR|LPDDR2|LPDDR3|LPDDR4|\
    Logical non-volatile device|HBM|HBM2|DDR5|LPDDR5|HBM3|MRDIMM";

/// Traits of memory by bit, from bit 1, section 7.18.3.
pub(super) const MEMORY_DETAILS: &str = "\
    Other|Unknown|Fast-paged|Static Column|Pseudo-static|RAMBus|Synchronous|CMOS|EDO|Window DRAM|Cache DRAM|\
    Non-Volatile|Registered (Buffered)|Unbuffered (Unregistered)|LRDIMM";

/// How memory modules keep their content, section 7.18.6.
pub(super) const TECHNOLOGIES: &str = "\
    Other|Unknown|DRAM|NVDIMM-N|NVDIMM-F|NVDIMM-P|Intel Optane DC persistent memory";

/// How memory modules can be used, by bit, from bit 1, section 7.18.7.
pub(super) const OPERATING_MODES: &str = "\
    Other|Unknown|Volatile memory|Byte-accessible persistent memory|Block-accessible persistent memory";

/// Where memory is, section 7.17.1.
pub(super) const LOCATIONS: &str = "\
    Other|Unknown|System Board Or Motherboard|ISA Add-on Card|EISA Add-on Card|PCI Add-on Card|\
    MCA Add-on Card|PCMCIA Add-on Card|Proprietary Add-on Card|NuBus";
/// The same from 0xa0 on.
pub(super) const MORE_LOCATIONS: &str =
    "PC-98/C20 Add-on Card|PC-98/C24 Add-on Card|PC-98/E Add-on Card|PC-98/Local Bus Add-on Card|CXL Flexbus 1.0";

/// What memory is for, section 7.17.2.
pub(super) const USES: &str = "\
    Other|Unknown|System Memory|Video Memory|Flash Memory|Non-volatile RAM|Cache Memory";

/// How errors in memory are corrected, section 7.17.3.
pub(super) const CORRECTIONS: &str = "\
    Other|Unknown|None|Parity|Single-bit ECC|Multi-bit ECC|CRC";

/// Traits of firmware by bit, from bit 4, section 7.1.1.
pub(super) const FIRMWARE_TRAITS: &str = "\
    ISA is supported|MCA is supported|EISA is supported|PCI is supported|PC Card (PCMCIA) is supported|\
    PNP is supported|APM is supported|BIOS is upgradeable|BIOS shadowing is allowed|VLB is supported|\
    ESCD support is available|Boot from CD is supported|Selectable boot is supported|BIOS ROM is socketed|\
    Boot from PC Card (PCMCIA) is supported|EDD is supported|\
    Japanese floppy for NEC 9800 1.2 MB is supported (int 13h)|\
    Japanese floppy for Toshiba 1.2 MB is supported (int 13h)|\
    5.25\"/360 kB floppy services are supported (int 13h)|\
    5.25\"/1.2 MB floppy services are supported (int 13h)|3.5\"/720 kB floppy services are supported (int 13h)|\
    3.5\"/2.88 MB floppy services are supported (int 13h)|Print screen service is supported (int 5h)|\
    8042 keyboard services are supported (int 9h)|Serial services are supported (int 14h)|\
    Printer services are supported (int 17h)|CGA/mono video services are supported (int 10h)|NEC PC-98";

/// The same from the first extension byte on, section 7.1.2.
pub(super) const MORE_FIRMWARE_TRAITS: &str = "\
    ACPI is supported|USB legacy is supported|AGP is supported|I2O boot is supported|\
    LS-120 boot is supported|ATAPI Zip drive boot is supported|IEEE 1394 boot is supported|\
    Smart battery is supported|BIOS boot specification is supported|\
    Function key-initiated network boot is supported|Targeted content distribution is supported|\
    UEFI is supported|System is a virtual machine|Manufacturing mode is supported|\
    Manufacturing mode is enabled";

/// Traits of processors by bit, from bit 2, section 7.5.9.
pub(super) const PROCESSOR_TRAITS: &str = "64-bit capable|Multi-Core|Hardware Thread|Execute Protection|Enhanced Virtualization|Power/Performance Control|128-bit Capable|Arm64 SoC ID";

/// Flags of x86 processors by bit of CPUID leaf 1, EDX.
pub(super) const CPUID_FLAGS: &str = "\
    FPU (Floating-point unit on-chip)|VME (Virtual mode extension)|DE (Debugging extension)|\
    PSE (Page size extension)|TSC (Time stamp counter)|MSR (Model specific registers)|\
    PAE (Physical address extension)|MCE (Machine check exception)|CX8 (CMPXCHG8 instruction supported)|\
    APIC (On-chip APIC hardware supported)||SEP (Fast system call)|MTRR (Memory type range registers)|\
    PGE (Page global enable)|MCA (Machine check architecture)|CMOV (Conditional move instruction supported)|\
    PAT (Page attribute table)|PSE-36 (36-bit page size extension)|\
    PSN (Processor serial number present and enabled)|CLFSH (CLFLUSH instruction supported)||\
    DS (Debug store)|ACPI (ACPI supported)|MMX (MMX technology supported)|\
    FXSR (FXSAVE and FXSTOR instructions supported)|SSE (Streaming SIMD extensions)|\
    SSE2 (Streaming SIMD extensions 2)|SS (Self-snoop)|HTT (Multi-threading)|TM (Thermal monitor supported)||\
    PBE (Pending break enabled)";

/// States of a processor, from 1, section 7.5.4.
pub(super) const STATES: &str = "Enabled|Disabled By User|Disabled By BIOS|Idle|||Other";
