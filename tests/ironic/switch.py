"""What a switch tells the machines on its ports about itself: an LLDP frame (IEEE 802.1AB) every two seconds.

Arguments: tap devices, the first of which is port 1.
"""

import socket
import struct
import sys
import time

ADDRESS = bytes.fromhex("0200ca1ec001")
EVERYBODY_NEAR = bytes.fromhex("0180c200000e")
LLDP = bytes.fromhex("88cc")


def tlv(kind, value):
    return struct.pack(">H", kind << 9 | len(value)) + value


def frame(port):
    chassis = tlv(1, b"\x04" + ADDRESS)
    name = tlv(2, b"\x05" + f"Ethernet1/{port}".encode())
    lifetime = tlv(3, struct.pack(">H", 120))
    system = tlv(5, b"switch-1")
    return (EVERYBODY_NEAR + ADDRESS + LLDP + chassis + name + lifetime + system + tlv(0, b"")).ljust(60, b"\0")


def main():
    ports = []
    for number, device in enumerate(sys.argv[1:], 1):
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        port.bind((device, 0))
        ports.append((port, frame(number)))
    while True:
        for port, data in ports:
            try:
                port.send(data)
            except OSError:
                pass  # the machine is off
        time.sleep(2)


main()
