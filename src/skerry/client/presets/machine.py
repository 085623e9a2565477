"""This machine as presets see it: its variables, files, programs and host names."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from skerry.types.hosts import Address, Name, closed, is_own, parse_host, plain

MAX_FILE_BYTES: Final = 4 << 20
PROGRAM_TIMEOUT: Final = 30.0
LOOKUP_TIMEOUT: Final = 5.0


@dataclass(frozen=True)
class Machine:
    environ: Mapping[str, str]
    cwd: Path

    @classmethod
    def this(cls) -> Machine:
        return cls(dict(os.environ), Path.cwd())

    @property
    def home(self) -> Path:
        return Path(self.environ.get("HOME") or Path.home())

    def variable(self, name: str) -> str | None:
        """Return a proxy variable as curl, pip and others read it: lower case first."""
        return self.environ.get(name.lower()) or self.environ.get(name.upper()) or None

    def path(self, text: str) -> Path:
        return self.cwd / (self.home / text[2:] if text.startswith("~/") else text)

    def read(self, path: Path) -> str | None:
        """Return the text of a file; None if it is missing or not readable."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError:
            return None

    def ask(self, *argv: str, here: bool = False, variables: Mapping[str, str] | None = None) -> str | None:
        """Return the output of a program of this machine; None if it is missing, fails or prints nothing in time.
        Unless the question is about the current directory (`here`), it runs elsewhere: a project that is about to be
        isolated must not influence it, neither with an .npmrc nor with a pip.py that Python would find first."""
        environment = {**self.environ, "LC_ALL": "C.UTF-8", **(variables or {})}
        program = self.program(argv[0])
        if program is None:
            return None
        try:
            done = subprocess.run(
                [program, *argv[1:]], env={name: value for name, value in environment.items() if value},
                cwd=self.cwd if here else "/",
                check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=PROGRAM_TIMEOUT,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout[:MAX_FILE_BYTES].decode("utf-8", "replace")

    def program(self, name: str) -> str | None:
        """Return the path of the program that `ask` would run."""
        return shutil.which(name, path=self.environ.get("PATH"))

    def addresses(self, host: str) -> tuple[Address, ...]:
        """Return the addresses of a host name; () if they cannot be found quickly."""
        parsed = parse_host(host)
        if not isinstance(parsed, Name):
            return (parsed,)
        found: list[Address] = []

        def look_up() -> None:
            try:
                answers = socket.getaddrinfo(parsed, None, type=socket.SOCK_STREAM)
            except OSError:
                return
            found.extend(dict.fromkeys(plain(str(answer[4][0])) for answer in answers))

        thread = threading.Thread(target=look_up, daemon=True)
        thread.start()
        thread.join(LOOKUP_TIMEOUT)
        return tuple(found)

    def needs_naming(self, address: Address) -> bool:
        """Return whether a rule must name the address: it is in a private range, or belongs to this machine."""
        return closed(address) is not None or is_own(address)

    def proxy_of(self, url: str) -> str | None:
        """Return the proxy that the usual variables name for a URL."""
        parts = urlsplit(url)
        found = self.variable(f"{parts.scheme}_proxy") or self.variable("all_proxy")
        return None if found is None or self.goes_direct(parts.hostname or "") else found

    def goes_direct(self, host: str, exempt: str | None = None) -> bool:
        """Return whether no_proxy names the host, or a domain above it."""
        for entry in (exempt if exempt is not None else self.variable("no_proxy") or "").replace(",", " ").split():
            domain = entry.partition(":")[0].lstrip("*").lstrip(".").lower()
            if entry == "*" or (domain and (host == domain or host.endswith(f".{domain}"))):
                return True
        return False
