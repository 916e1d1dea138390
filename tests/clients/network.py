"""The network that the tests run in: a namespace in which there is nothing but the loopback device."""

import fcntl
import socket
import struct

import pytest

LOOPBACK = "lo"
# From linux/sockios.h and linux/if.h: an interface request is its name in 16 bytes and, here, its flags.
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
REQUEST = "16sh14x"


def require_loopback_alone():
    """Brings the loopback device up. Refuses to go on where there is another one: agents call home."""
    names = [name for _, name in socket.if_nameindex()]
    if names != [LOOPBACK]:
        pytest.exit(f"these tests run in a network namespace of their own: start them with run.sh (here are {names})", 4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack(REQUEST, LOOPBACK.encode(), 0)
        _, flags = struct.unpack(REQUEST, fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack(REQUEST, LOOPBACK.encode(), flags | IFF_UP))
