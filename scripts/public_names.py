"""Write tests/docs/public_names.json: public names of the systems in docs/compare.md, from the published packages.

    .venv/bin/python scripts/public_names.py CODOMYRMEX_CHECKOUT

It needs pip, npm and a checkout of Codomyrmex, which is in no package registry. Only names are kept. The sources are
parsed, never run.
"""

import ast
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "tests/docs/public_names.json"
WHEELS = {"E2B": ("e2b==2.63.0", "e2b-code-interpreter==2.11.5"), "Daytona": ("daytona==0.226.1",)}
NPM = "@cloudflare/sandbox@0.12.10"
# A class by its name in the table: its files with the classes whose methods it has
CLASSES = {
    "E2B": {
        "Sandbox": (
            ("e2b/sandbox_sync/main.py", "Sandbox"),
            ("e2b/sandbox/main.py", "SandboxBase"),
            ("e2b/sandbox_sync/sandbox_api.py", "SandboxApi"),
        ),
        "Commands": (("e2b/sandbox_sync/commands/command.py", "Commands"),),
        "CommandHandle": (("e2b/sandbox_sync/commands/command_handle.py", "CommandHandle"),),
        "Volume": (("e2b/volume/volume_sync.py", "Volume"),),
        "Pty": (("e2b/sandbox_sync/commands/pty.py", "Pty"),),
        "Filesystem": (("e2b/sandbox_sync/filesystem/filesystem.py", "Filesystem"),),
        "Git": (("e2b/sandbox_sync/git.py", "Git"),),
        "CodeInterpreter": (("e2b_code_interpreter/code_interpreter_sync.py", "Sandbox"),),
    },
    "Daytona": {
        "Daytona": (("daytona/_sync/daytona.py", "Daytona"),),
        "Sandbox": (("daytona/_sync/sandbox.py", "Sandbox"),),
        "Process": (("daytona/_sync/process.py", "Process"),),
        "FileSystem": (("daytona/_sync/filesystem.py", "FileSystem"),),
        "Git": (("daytona/_sync/git.py", "Git"),),
        "CodeInterpreter": (("daytona/_sync/code_interpreter.py", "CodeInterpreter"),),
        "VolumeService": (("daytona/_sync/volume.py", "VolumeService"),),
    },
}
TYPES = ("declare class Sandbox<", "interface ExecutionSession ", "interface Process ")
CODING = "src/codomyrmex/coding"


def main(checkout: Path) -> None:
    found = {"E2B": {}, "Cloudflare Sandbox": {}, "Daytona": {}, "Codomyrmex": {}}
    with tempfile.TemporaryDirectory() as work:
        for system, packages in WHEELS.items():
            sources = read_wheels(Path(work) / system, packages)
            names = {name: sorted(set(methods(sources, parts))) for name, parts in CLASSES[system].items()}
            found[system] = {"from": ", ".join(packages), "names": names}
        found["Cloudflare Sandbox"] = {"from": NPM, "names": {"": typescript(Path(work))}}
    found["Codomyrmex"] = {"from": "codomyrmex.coding 1.3.0", "names": {"": codomyrmex(checkout)}}
    TARGET.write_text(json.dumps(found, indent=1) + "\n")


def read_wheels(directory: Path, packages: tuple[str, ...]) -> dict[str, str]:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(directory)]
    subprocess.run([*pip, *packages], check=True)
    sources = {}
    for wheel in directory.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            sources |= {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    return sources


def methods(sources: dict[str, str], parts: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for file, name in parts:
        body = next(
            node.body for node in ast.parse(sources[file]).body if isinstance(node, ast.ClassDef) and node.name == name
        )
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            if not {"property", "setter"} & {
                getattr(one, "attr", getattr(one, "id", "")) for one in node.decorator_list
            }:
                yield node.name


def typescript(work: Path) -> list[str]:
    """Return the methods of a sandbox and of a session, and the exported functions for them."""
    subprocess.run(["npm", "pack", "--silent", NPM], cwd=work, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(next(work.glob("*.tgz"))) as archive:
        texts = {
            one.name: (archive.extractfile(one) or sys.exit(one.name)).read().decode()
            for one in archive.getmembers()
            if re.fullmatch(r"package/dist/(index|sandbox-.*)\.d\.ts", one.name)
        }
    types = next(text for name, text in texts.items() if "/sandbox-" in name)
    exported = re.findall(r"\b(getSandbox|proxyToSandbox|proxyTerminal)\b", texts["package/dist/index.d.ts"])
    return sorted({name for start in TYPES for name in members(block(types, start))} | set(exported))


def block(text: str, start: str) -> str:
    at = opened = re.compile(re.escape(start) + r"[^\n]*\{\n").search(text).end()  # type: ignore[union-attr]
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[opened : at - 1]


def members(body: str) -> Iterator[str]:
    body, depth = re.sub(r"/\*.*?\*/|//[^\n]*", "", body, flags=re.DOTALL), 0
    for line in body.splitlines():
        match = re.match(
            r"\s*(?!private|protected|constructor)(?:readonly |static |get )*([A-Za-z]\w*)(?:\??: )?[(<]", line
        )
        if depth == 0 and match:
            yield match[1]
        depth += sum(line.count(c) for c in "{([") - sum(line.count(c) for c in "})]")


def codomyrmex(checkout: Path) -> list[str]:
    """Return the exports of execution, sandbox and monitoring, and the exceptions of running code."""
    found: list[str] = []
    for module in ("execution", "sandbox", "monitoring"):
        for node in ast.parse((checkout / CODING / module / "__init__.py").read_text()).body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
                found += ast.literal_eval(node.value)
    for node in ast.parse((checkout / CODING / "exceptions.py").read_text()).body:
        bases = [getattr(base, "id", "") for base in getattr(node, "bases", [])]
        if isinstance(node, ast.ClassDef) and {"CodeExecutionError", "SandboxError"} & set(bases):
            found.append(node.name)
    return sorted(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
