"""The network lets nothing through to the rank any more: no error, no closed connection, no answer.

A filter of the kernel on each of its connections drops whatever arrives, acknowledgements too; peers go on
sending into nothing. It needs no rights (SO_ATTACH_FILTER), so it works in a container. Linux only. Spared:
the rendezvous store, whose loss is another fault, and connections that are made afterwards.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from components import plugins
from components.errors import ConfigError

SO_ATTACH_FILTER = 26
"""Of Linux's asm-generic/socket.h; the socket module does not name it."""
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of classic BPF: accept no byte of any packet."""


class Config(plugins.Config):
    """Nothing to choose: the filter stays until the rank ends."""


def strike(config: Config) -> None:
    """Cut off every connection to another rank; ConfigError when there is none."""
    code = ctypes.create_string_buffer(DROP, len(DROP))
    program = struct.pack("HL", 1, ctypes.addressof(code))
    cut = 0
    for connection in connections():
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
            cut += 1
    if not cut:
        raise ConfigError("this rank has no connection to another one; strike after the job has formed")


def connections() -> Iterator[socket.socket]:
    """The connections of this process to other ranks: doubles, for the caller to close."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself, open while it was listed
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
            if _leads_to_a_rank(found):
                yield found
            else:
                found.close()


def _leads_to_a_rank(found: socket.socket) -> bool:
    """A TCP connection, and not that of the store."""
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return False
    try:
        ports = {found.getsockname()[1], found.getpeername()[1]}
    except OSError:  # it listens
        return False
    return int(os.environ.get("MASTER_PORT", "0")) not in ports
