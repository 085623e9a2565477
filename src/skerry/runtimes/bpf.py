"""Compile a seccomp profile once with libseccomp, instead of in the runtime at every start (10 ms).

crun accepts the program as an annotation. It is the library that crun would call, so the meaning is the same, except
for two settings that the OCI format cannot express: calls are looked up in a tree, and a foreign ABI kills the process
instead of the thread.
"""

from __future__ import annotations

import base64
import ctypes
import os
from typing import Any, Final

ANNOTATION: Final = "run.oci.seccomp_bpf_data"

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL_PROCESS: Final = 0x80000000
_ATTRIBUTE_BAD_ARCHITECTURE: Final = 2
_ATTRIBUTE_OPTIMIZE: Final = 8
_OPERATORS: Final = {
    f"SCMP_CMP_{name}": number for number, name in enumerate(("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"), 1)
}
_UNKNOWN_CALL: Final = -1


class _ArgCompare(ctypes.Structure):
    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    ]


def compiled(profile: dict[str, Any]) -> str | None:
    """Return the program in base64 for this machine; None if libseccomp is missing or rejects the profile."""
    try:
        library = _library()
    except (OSError, AttributeError):
        return None
    default = _ERRNO | profile["defaultErrnoRet"]
    context = library.seccomp_init(default)
    if not context:
        return None
    try:
        ok = _set(library, context) and all(_add(library, context, default, rule) for rule in profile["syscalls"])
        return base64.b64encode(_export(library, context)).decode() if ok else None
    finally:
        library.seccomp_release(ctypes.c_void_p(context))


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_ArgCompare),
    )
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return library


def _set(library: ctypes.CDLL, context: int) -> bool:
    tree = library.seccomp_attr_set(context, _ATTRIBUTE_OPTIMIZE, 2)
    foreign = library.seccomp_attr_set(context, _ATTRIBUTE_BAD_ARCHITECTURE, _KILL_PROCESS)
    return bool(tree == 0 and foreign == 0)


def _add(library: ctypes.CDLL, context: int, default: int, rule: dict[str, Any]) -> bool:
    action = _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _ERRNO | rule["errnoRet"]
    if action == default:  # the library rejects a rule that changes nothing
        return True
    args = [
        _ArgCompare(arg["index"], _OPERATORS[arg["op"]], arg["value"], arg.get("valueTwo", 0))
        for arg in rule.get("args", ())
    ]
    array = (_ArgCompare * max(1, len(args)))(*args)
    for name in rule["names"]:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == _UNKNOWN_CALL:  # newer than the library: the default action returns ENOSYS
            continue
        if library.seccomp_rule_add_array(context, action, number, len(args), array) != 0:
            return False
    return True


def _export(library: ctypes.CDLL, context: int) -> bytes:
    fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    try:
        if library.seccomp_export_bpf(context, fd) != 0:
            raise OSError("libseccomp exports no program")
        os.lseek(fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read()
    finally:
        os.close(fd)
