"""Fixed values for repeatable runs (`Options(reproducible=True)`): machine id, locale, time zone, hash seed and dates,
and on request the clock. The host name is fixed too (`SandboxRecord.hostname`)."""

from __future__ import annotations

import contextlib
import platform
import struct
from typing import Final

from skerry.errors import FileError, HostUnsupported
from skerry.keeper import Keeper
from skerry.types import Options, parse_clock

MACHINE_ID: Final = "5ce44e5a9d0b4d6f8f1c2a7b3e60d914"
EPOCH: Final = 1767225600  # 2026-01-01T00:00:00Z
_CLOCK: Final = "/var/lib/skerry/clock.so"  # not in /run/skerry, from which nothing can be executed
_CONSTANTS: Final = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}
_DATES: Final = ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")  # a commit's hash covers both
VARIABLES: Final = frozenset((*_CONSTANTS, *_DATES, "SOURCE_DATE_EPOCH", "LD_PRELOAD"))


def environment(options: Options) -> dict[str, str]:
    """Return the variables of a reproducible sandbox. A caller's own have precedence."""
    if not options.reproducible:
        return {}
    moment = EPOCH if options.clock is None else parse_clock(options.clock)
    variables = {**_CONSTANTS, "SOURCE_DATE_EPOCH": str(moment), **dict.fromkeys(_DATES, f"{moment} +0000")}
    return variables if options.clock is None else {**variables, "LD_PRELOAD": _CLOCK}


async def write(keeper: Keeper, options: Options) -> None:
    """Write the machine id, and the library that stops the clock."""
    if options.clock is not None:
        library = clock_library(parse_clock(options.clock))
        await keeper.files.write(_CLOCK, library, mode=0o644, user="0", parents=True)
    if options.reproducible:
        with contextlib.suppress(FileError):  # an image without /etc
            await keeper.files.write("/etc/machine-id", f"{MACHINE_ID}\n".encode(), mode=0o444, user="0")


# -- the library that stops the clock ---------------------------------------------------------------------------------
#
# A small shared object for LD_PRELOAD, built here for each moment. A time namespace shifts only the monotonic clocks.
# libfaketime 0.9.10, of Debian 12, fails `clock_nanosleep` with an absolute time, so that Python's `time.sleep` raises.
# This library replaces only the functions that read the real time: `time`, `gettimeofday`, `clock_gettime` and
# `timespec_get`. The monotonic clocks, sleeps and timers are the kernel's. Static programs, such as those of Go, do not
# load it.

_MACHINE: Final = "x86_64"
_PAGE: Final = 0x1000
_HEADER, _PROGRAM_HEADER, _SYMBOL = 64, 56, 24
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ_EXECUTE, _READ_WRITE = 5, 6
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT = 4, 5, 6, 10, 11  # of the dynamic section
_GLOBAL_FUNCTION: Final = 0x12


def _functions(moment: int) -> dict[str, bytes]:
    """Return the code of each function."""
    load = b"\x48\xb8" + struct.pack("<q", moment)  # mov rax, moment
    return {
        "time": load
        + b"\x48\x85\xff\x74\x03"  # test rdi, rdi; je over
        + b"\x48\x89\x07"  # mov [rdi], rax
        + b"\xc3",  # ret
        "gettimeofday": b"\x48\x85\xff\x74\x15"  # test rdi, rdi; je over
        + load
        + b"\x48\x89\x07"  # mov [rdi], rax
        + b"\x48\xc7\x47\x08\0\0\0\0"  # mov qword [rdi + 8], 0
        + b"\x48\x85\xf6\x74\x07"  # test rsi, rsi; je over
        + b"\x48\xc7\x06\0\0\0\0"  # mov qword [rsi], 0: the time zone
        + b"\x31\xc0\xc3",  # xor eax, eax; ret
        "clock_gettime": b"\x85\xff\x74\x16"  # test edi, edi; je fixed: CLOCK_REALTIME
        + b"\x83\xff\x05\x74\x11"  # cmp edi, 5; je fixed: CLOCK_REALTIME_COARSE
        + b"\x83\xff\x0b\x74\x0c"  # cmp edi, 11; je fixed: CLOCK_TAI
        + b"\xb8\xe4\0\0\0\x0f\x05"  # mov eax, 228; syscall: of the other clocks
        + b"\x48\xc1\xf8\x3f\xc3"  # sar rax, 63; ret: 0, or -1 for any error
        + load
        + b"\x48\x89\x06"  # fixed: mov [rsi], rax
        + b"\x48\xc7\x46\x08\0\0\0\0"  # mov qword [rsi + 8], 0
        + b"\x31\xc0\xc3",  # xor eax, eax; ret
        "timespec_get": load
        + b"\x48\x89\x07"  # mov [rdi], rax
        + b"\x48\xc7\x47\x08\0\0\0\0"  # mov qword [rdi + 8], 0
        + b"\x89\xf0\xc3",  # mov eax, esi; ret
    }


def clock_library(moment: int) -> bytes:
    """Return the shared object for a Unix time. Raise HostUnsupported on other machines than x86_64."""
    if platform.machine() != _MACHINE:
        raise HostUnsupported(f"options.clock: {platform.machine()} is not supported", hint=f"it needs {_MACHINE}")
    functions = _functions(moment)
    names, positions = b"\0", {}
    for name in functions:
        positions[name] = len(names)
        names += name.encode() + b"\0"
    symbols_at = _HEADER + 4 * _PROGRAM_HEADER
    names_at = symbols_at + _SYMBOL * (len(functions) + 1)
    hash_at = _aligned(names_at + len(names))
    count = len(functions) + 1
    # One bucket: the chain goes through all symbols.
    hashes = struct.pack(f"<3I{count}I", 1, count, 1, 0, *(range(2, count)), 0)
    code_at = _aligned(hash_at + len(hashes))
    symbols, code = bytes(_SYMBOL), b""
    for name, body in functions.items():
        symbols += struct.pack("<IBBHQQ", positions[name], _GLOBAL_FUNCTION, 0, 1, code_at + len(code), len(body))
        code += body + b"\xcc" * (-len(body) % 16)
    entries = ((_HASH, hash_at), (_STRTAB, names_at), (_SYMTAB, symbols_at), (_STRSZ, len(names)), (_SYMENT, _SYMBOL))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in (*entries, (0, 0)))
    read_only = code_at + len(code)
    segments = (
        _segment(_LOAD, _READ_EXECUTE, 0, read_only),
        _segment(_LOAD, _READ_WRITE, _PAGE, len(dynamic)),  # the linker writes addresses there
        _segment(_DYNAMIC, _READ_WRITE, _PAGE, len(dynamic)),
        _segment(_STACK, _READ_WRITE, 0, 0),  # without it, stacks would become executable
    )
    content = _elf_header(len(segments)) + b"".join(segments) + symbols + names
    content = content.ljust(hash_at, b"\0") + hashes
    content = content.ljust(code_at, b"\0") + code
    return content.ljust(_PAGE, b"\0") + dynamic


def _elf_header(segments: int) -> bytes:
    magic = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return magic + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, _HEADER, 0, 0, _HEADER, _PROGRAM_HEADER, segments, 0, 0, 0
    )


def _segment(kind: int, flags: int, at: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, _PAGE if kind == _LOAD else 8)


def _aligned(at: int) -> int:
    return at + (-at % 16)
