"""A network namespace for a test, and programs that run in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class NetworkNamespace:
    process: subprocess.Popen[bytes]
    pidfd: int

    def command(self, code: str, *arguments: str) -> list[str]:
        return ["nsenter", "-t", str(self.process.pid), "-n", sys.executable, "-c", code, *arguments]

    def python(self, code: str, *arguments: str) -> str:
        """Run a Python program in it and return its output."""
        done = subprocess.run(self.command(code, *arguments), capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def status(self, code: str, *arguments: str) -> str:
        """Run a program that fails and return its stderr."""
        return subprocess.run(self.command(code, *arguments), capture_output=True, text=True, timeout=30).stderr

    @contextlib.contextmanager
    def running(self, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a program in it for the duration of the block; it has started once it has printed a line."""
        program = subprocess.Popen(self.command(code, *arguments), stdout=subprocess.PIPE, text=True)
        try:
            assert program.stdout is not None
            assert program.stdout.readline()
            yield program
        finally:
            program.kill()
            program.wait()
            program.stdout.close()

    def end(self) -> None:
        os.close(self.pidfd)
        self.process.kill()
        self.process.wait()


# A program that tries to get out as fast as it can, and waits for no answer.
FLOOD = """
import socket
print("on", flush=True)
while True:
    one = socket.socket()
    one.setblocking(False)
    try:
        one.connect(("203.0.113.1", 443))
    except OSError:
        pass
    one.close()
"""
