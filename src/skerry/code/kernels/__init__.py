"""Kernels: scripts that are sent to a sandbox as text, need only its language there, and keep a context's variables.

`python.py` and the parts that it loads on first use (`python_errors.py`, `python_rich.py`, …) are not imported here:
they run on Python 3.8 and newer, in a process of the sandbox. `javascript.js` and its parts
are one script for Node 20 and newer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources

from skerry.types import MAX_PICTURE, MAX_RESULTS, MAX_RESULTS_BYTES, MAX_TEXT


@dataclass(frozen=True)
class KernelScript:
    """`argv` follows the language's own command; the started program reads message K from descriptor 3 and executes the
    `script` in it."""

    name: str
    argv: tuple[str, ...]
    script: Callable[[], bytes]


# Move the channel to descriptor 100, away from the code. `<skerry>` marks frames that tracebacks omit.
PYTHON_BOOT = (
    "import posix;posix.dup2(3,100,False);posix.close(3);f=open(100,'rb',closefd=False);n=int.from_bytes;"
    "b=f.read(n(f.read(5)[1:],'big'));exec(compile(b[11:11+n(b[7:11],'big')],'<skerry>','exec'),{'channel':f})"
)
PYTHON_PARTS = ("errors", "stdin", "tasks", "rich", "figures", "charts", "magics")
# `load` imports relative to the cwd, as code there would.
JAVASCRIPT_BOOT = (
    '{const f=require("fs"),r=n=>{const b=Buffer.alloc(n);for(let a=0,k;a<n;a+=k)if(!(k=f.readSync(3,b,a,n-a)))'
    'process.reallyExit(0);return b},s=r(r(5).readUInt32BE(1)).toString("utf8",11);'
    'require("vm").compileFunction(s,["require","load"],{filename:"<skerry>"})(require,(m,o)=>import(m,o))}'
)
JAVASCRIPT_ARGV = ("--v8-pool-size=1", "-e", JAVASCRIPT_BOOT)
JAVASCRIPT_PARTS = ("javascript_values.js", "javascript_source.js", "javascript.js")


def _source(name: str) -> str:
    return (resources.files(__name__) / name).read_text()


@cache
def _python() -> bytes:
    """The core, and the parts as texts that are compiled when they are needed."""
    parts = {part: _source(f"python_{part}.py") for part in PYTHON_PARTS}
    bounds = (MAX_TEXT, MAX_PICTURE, MAX_RESULTS, MAX_RESULTS_BYTES)
    return f"{_source('python.py')}\nstart(channel, {parts!r}, {bounds!r})\n".encode()


@cache
def _javascript(language: str) -> bytes:
    bounds = f"MAX_TEXT = {MAX_TEXT}, MAX_PICTURE = {MAX_PICTURE}, MAX_BYTES = {MAX_RESULTS_BYTES - MAX_TEXT}"
    head = f'"use strict"; const LANGUAGE = "{language}", {bounds}, MAX_RESULTS = {MAX_RESULTS};\n'
    return (head + "".join(_source(part) for part in JAVASCRIPT_PARTS)).encode()


KERNELS = {
    "python": KernelScript("python", ("-c", PYTHON_BOOT), _python),
    "javascript": KernelScript("javascript", JAVASCRIPT_ARGV, partial(_javascript, "javascript")),
    "typescript": KernelScript("typescript", JAVASCRIPT_ARGV, partial(_javascript, "typescript")),
}
