"""A kernel on this machine: its channel as descriptor 3, its output by pipes, no sandbox around it."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from skerry.code import kernel_protocol
from skerry.code.kernels import KERNELS

PROGRAMS = {"python": ("/usr/bin/python3",), "javascript": ("node",)}


@dataclass
class Ran:
    """The messages of one run. `outputs`: the forms of each result; of the main one `main` is the text."""

    run: bytes
    status: str = ""
    stdout: bytes = b""
    stderr: bytes = b""
    outputs: list[dict[str, bytes]] = field(default_factory=list)
    error: dict[str, str] | None = None
    after: list[tuple[bytes, dict[str, bytes]]] = field(default_factory=list)

    @property
    def main(self) -> dict[str, bytes] | None:
        found = [output for output in self.outputs if output["main"] == b"1"]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def text(self) -> str | None:
        return self.main["text/plain"].decode() if self.main else None


class KernelDied(Exception):
    """`code` as subprocess has it."""

    def __init__(self, code: int, ran: Ran) -> None:
        super().__init__(f"the kernel ended with {code}: {ran.stderr.decode(errors='replace')[-2000:]}")
        self.code, self.ran = code, ran


class Running:
    """One kernel. It is started with its script and the first run in one piece, as a server does."""

    def __init__(self, name: str, program: tuple[str, ...], **options: Any) -> None:
        kernel = KERNELS[name]
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [*program, *kernel.argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: os.set_inheritable(os.dup2(theirs.fileno(), 3), True),
            pass_fds=[3],
            start_new_session=True,
            **options,
        )
        theirs.close()
        self.channel = ours
        self.decoder = kernel_protocol.KernelMessageDecoder()
        self.first = kernel_protocol.encode(kernel_protocol.SCRIPT, {"script": kernel.script()})
        self.version: str | None = None

    def run(
        self,
        code: str,
        *,
        stdin: bytes | None = None,
        interrupt_at: bytes | None = None,
        timeout: float = 20,
    ) -> Ran:
        """Until it is done and its output is read. `interrupt_at`: once that was printed, SIGINT to its group; again if
        nothing comes of it, since a signal just before a program sleeps is seen only when it wakes."""
        ran = Ran(secrets.token_hex(8).encode())
        fields = {"run": ran.run, "code": code.encode("utf-8", "surrogatepass")}
        if stdin is not None:
            fields["stdin"] = stdin
        body, self.first = self.first + kernel_protocol.encode(kernel_protocol.RUN, fields), b""
        self._talk(ran, body, interrupt_at, time.monotonic() + timeout)
        return ran

    def _talk(self, ran: Ran, body: bytes, interrupt_at: bytes | None, until: float) -> None:
        assert self.process.stdout
        assert self.process.stderr
        self.channel.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for pipe in (self.process.stdout, self.process.stderr):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            again = 0.0
            while not ran.status:
                if time.monotonic() > until:
                    raise TimeoutError(f"no end of the run; it printed {ran.stdout[-500:]!r} {ran.stderr[-500:]!r}")
                for key, events in selector.select(1):
                    if key.fileobj is not self.channel:
                        if not self._read_pipes(ran):
                            selector.unregister(key.fileobj)
                    elif events & selectors.EVENT_WRITE and body:
                        body = body[self.channel.send(body) :]
                        if not body:
                            selector.modify(self.channel, selectors.EVENT_READ)
                    elif events & selectors.EVENT_READ and not self._read_channel(ran):
                        self._read_pipes(ran)
                        raise KernelDied(self.process.wait(30), ran)
                if interrupt_at is not None and interrupt_at in ran.stdout and time.monotonic() > again:
                    self.interrupt()
                    again = time.monotonic() + 3

    def _read_channel(self, ran: Ran) -> bool:
        try:
            data = self.channel.recv(1 << 20)
        except ConnectionResetError:
            return False
        for kind, fields in self.decoder.feed(data):
            self._hear(ran, kind, fields)
        return bool(data)

    def _hear(self, ran: Ran, kind: bytes, fields: dict[str, bytes]) -> None:
        if kind == kernel_protocol.HELLO:
            self.version = fields["version"].decode()
            return
        assert fields.pop("run") == ran.run
        if kind == kernel_protocol.OUTPUT:
            ran.outputs.append(fields)
        elif kind == kernel_protocol.ERROR:
            assert ran.error is None
            ran.error = {name: value.decode() for name, value in fields.items()}
        elif kind == kernel_protocol.DONE:
            self._read_pipes(ran)
            ran.status = fields["status"].decode()

    def _read_pipes(self, ran: Ran) -> bool:
        return all([self._read_pipe(ran, "stdout"), self._read_pipe(ran, "stderr")])

    def _read_pipe(self, ran: Ran, name: Literal["stdout", "stderr"]) -> bool:
        pipe = self.process.stdout if name == "stdout" else self.process.stderr
        assert pipe
        while True:
            try:
                data = os.read(pipe.fileno(), 1 << 20)
            except BlockingIOError:
                return True
            if not data:
                return False
            setattr(ran, name, getattr(ran, name) + data)

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()


@contextmanager
def running(name: str = "python", program: tuple[str, ...] | None = None, **options: Any) -> Iterator[Running]:
    kernel = Running(name, program or PROGRAMS[name], **options)
    try:
        yield kernel
    finally:
        kernel.close()
