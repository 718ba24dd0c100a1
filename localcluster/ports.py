"""Loopback ports that stay ours while the programs behind them come and go.

A port that was only found free can be taken before the program binds it, or while that program
restarts. So a port is held by a socket that is bound but never listens (the kernel hands it no
connection), and the programs bind beside it with SO_REUSEPORT.
"""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def reserve() -> socket.socket:
    """A socket that holds a free loopback port for as long as any process has it open."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((LOOPBACK, 0))
    return held


def number(held: socket.socket) -> int:
    port = held.getsockname()[1]
    assert isinstance(port, int)
    return port
