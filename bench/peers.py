"""Other tools of this machine that run commands: the same work in turns."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from skerry.config import load
from skerry.errors import SkerryError
from skerry.runtimes.processes import sealed_null
from skerry.storage import ImageStore, LayerStore

Works = dict[str, Callable[[], object]]
TRUE = "subprocess.run(['/bin/true'])"


@contextlib.contextmanager
def peers() -> Iterator[Works]:
    """Tools on this machine that run /bin/true in isolation, by name; the bare runtimes live as long as the block."""
    works: Works = {}
    if shutil.which("bwrap"):
        works["bwrap … /bin/true"] = partial(run, bwrap())
    for engine in ("docker", "podman"):
        if shutil.which(engine) and engine_works(engine):
            works |= engine_run(engine)
    with bare_runtimes() as bare:
        yield works | bare


NULL = sealed_null()  # crun gives its stdio to the sandbox's root: the host's own /dev/null must not be it


def run(argv: list[str]) -> None:
    subprocess.run(argv, check=True, stdin=NULL, stdout=NULL, stderr=NULL, timeout=60)


def docker() -> Works:
    """Where it is there and works."""
    return engine_run("docker") if shutil.which("docker") and engine_works("docker") else {}


def bwrap() -> list[str]:
    return ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"]


@contextlib.contextmanager
def bare_runtimes() -> Iterator[Works]:
    """`runc run` and `crun run` with the runtime's own default configuration, on the files of the image `base`."""
    works: Works = {}
    store = load().state_dir
    layers = LayerStore(store / "layers")
    trees = [str(layers.path(digest)) for digest in ImageStore(store / "images", layers).get("base").layers]
    with tempfile.TemporaryDirectory(prefix="skerry-bench") as work:
        root = Path(work, "root")
        root.mkdir()
        lower = ":".join([*reversed(trees), *(["/var/empty"] if len(trees) == 1 else [])])
        subprocess.run(["mount", "-t", "overlay", "-o", f"ro,lowerdir={lower}", "overlay", str(root)], check=True)
        try:
            for name in ("runc", "crun"):
                bundle = Path(work, name)
                bundle.mkdir()
                with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
                    subprocess.run([name, "spec"], cwd=bundle, check=True, capture_output=True)
                    config = json.loads((bundle / "config.json").read_text())
                    config["process"] |= {"args": ["/bin/true"], "terminal": False}
                    config["root"]["path"] = str(root)
                    (bundle / "config.json").write_text(json.dumps(config))
                plain = [name, "--root", f"{work}/state", "run", "--bundle", str(bundle), "skerry-bench"]
                for argv in (plain, without_v2(plain)):
                    with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
                        run(argv)
                        works[f"{name} run (its default configuration)"] = partial(run, argv)
                        break
            yield works
        finally:
            subprocess.run(["umount", str(root)], check=True)


def without_v2(argv: list[str]) -> list[str]:
    """crun refuses a v2 mount beside v1: it gets a mount namespace without it, here as under Skerry."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    point = next((words[1] for words in mounts if words[2] == "cgroup2"), "/none")
    return ["unshare", "--mount", "--propagation", "slave", "/bin/sh", "-c", 'umount "$0" && exec "$@"', point, *argv]


def engine_works(engine: str) -> bool:
    """There, running, and with an image to start: none is pulled for this."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        run([engine, "image", "inspect", "skerry-bench"])
        return True
    return import_image(engine)


def engine_run(engine: str) -> Works:
    """With its own choice of runtime; where that does not work here (crun beside cgroup v1), with runc."""
    for runtime in ([], ["--runtime", "runc"]):
        argv = [engine, "run", "--rm", "--network", "none", *runtime, "skerry-bench", "/bin/true"]
        with contextlib.suppress(subprocess.SubprocessError):
            run(argv)
            return {f"{engine} run --rm --network none": partial(run, argv)}
    return {}


def import_image(engine: str) -> bool:
    """A part of our own base image, so that no registry is asked."""
    state = load().state_dir
    layers = LayerStore(state / "layers")
    with contextlib.suppress(subprocess.SubprocessError, OSError, SkerryError), tempfile.TemporaryDirectory() as work:
        run([engine, "info"])
        root = layers.path(ImageStore(state / "images", layers).get("base").layers[0])
        parts = [part for part in ("bin", "lib", "lib64", "usr/bin", "usr/lib", "usr/lib64") if (root / part).exists()]
        run(["tar", "-C", str(root), "-cf", f"{work}/root.tar", *parts])
        run([engine, "import", f"{work}/root.tar", "skerry-bench"])
        return True
    return False
