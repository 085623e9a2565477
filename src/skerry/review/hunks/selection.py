"""The files of a review that a caller selects, and the generated files that are kept apart.

Generated files are caches and build outputs that a command left behind. A list of changes and a bulk decision leave
them out and count them; a path or glob that itself names them selects them. A file that the base contains is never
generated, nor is a new file in a directory of the base, nor a file that was decided about."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Final

from skerry.review.ledger.diff import Delta
from skerry.review.ledger.ledger import Ledger
from skerry.types.globs import Glob, is_glob, matching
from skerry.types.review import GeneratedFiles

PathFilter = Callable[[Delta], bool]
MAX_GROUPS: Final = 1000
DIRECTORIES: Final = (
    "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".tox", ".nox",
    ".venv", "venv", ".eggs", "*.egg-info", "htmlcov", "node_modules", ".npm", ".pnpm-store", ".next", ".nuxt",
    ".svelte-kit", ".parcel-cache", ".turbo", ".nyc_output", ".gradle", ".cache", "target", "build", "dist",
    "cmake-build-*", ".terraform",
)  # fmt: skip
FILES: Final = ("*.pyc", "*.pyo", ".coverage", ".coverage.*", ".DS_Store", "*.o", "*.class", "*.tsbuildinfo")


def _matcher(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(name) for name in names))


_DIRECTORIES: Final = _matcher(DIRECTORIES)
_FILES: Final = _matcher(FILES)


class Selection:
    """A filter of changes by `paths`, which may be globs, without those that match `exclude`. `generated`: globs of
    further generated files. `decided`: paths that were decided about."""

    def __init__(
        self,
        ledger: Ledger,
        base: str,
        paths: Sequence[bytes] = (),
        *,
        exclude: Sequence[str] = (),
        generated: Sequence[str] = (),
        decided: Container[bytes] = (),
    ) -> None:
        self._ledger, self._base, self._decided = ledger, base, decided
        self._paths = _Paths(paths) if paths else None
        self._excluded, self._more = [*map(Glob, exclude)], [*map(Glob, generated)]
        named = [path.decode("utf-8", "surrogateescape") for path in paths]
        self._labels: dict[str, str | None] = {}
        generated_paths = [path for path, text in zip(paths, named, strict=True) if self._label(text) is not None]
        self._named = _Paths(generated_paths) if generated_paths else None
        self._apart: dict[bytes, str] = {}
        self._directories: set[str] | None = None

    def __call__(self, delta: Delta) -> bool:
        if self._paths is not None and not self._paths.select(delta):
            return False
        path = delta.path.decode("utf-8", "surrogateescape")
        if matching(self._excluded, path) is not None:
            return False
        if delta.path in self._decided or (self._named is not None and self._named.select(delta)):
            return True
        if (label := self._group(delta, path)) is None:
            return True
        self._apart[delta.path] = label
        return False

    @property
    def generated(self) -> tuple[GeneratedFiles, ...]:
        """The generated files that were left out so far."""
        counted = sorted(Counter(self._apart.values()).items())
        return tuple(GeneratedFiles(path=path, files=number) for path, number in counted[:MAX_GROUPS])

    def _group(self, delta: Delta, path: str) -> str | None:
        if (glob := matching(self._more, path)) is not None:
            return glob.text
        if delta.kind != "added" or (label := self._label(path)) is None:
            return None
        return None if label.endswith("/") and label[:-1] in self._of_base() else _readable(label)

    def _label(self, path: str) -> str | None:
        """Return the generated directory of a path, the path itself, or None."""
        directory, _, name = path.rpartition("/")
        if directory not in self._labels:
            self._labels[directory] = _generated_directory(directory)
        if (label := self._labels[directory]) is not None:
            return label
        if _DIRECTORIES.fullmatch(name):
            return f"{path}/"
        return path if _FILES.fullmatch(name) or matching(self._more, path) is not None else None

    def _of_base(self) -> set[str]:
        if self._directories is None:
            self._directories = set()
            for path, _, _ in self._ledger.files(self._base):
                above = posixpath.dirname(path.decode("utf-8", "surrogateescape"))
                while above and above not in self._directories:
                    self._directories.add(above)
                    above = posixpath.dirname(above)
        return self._directories


class _Paths:
    """Files at or below one of these paths, or matched by one of these globs."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        self._named, self._within = set(paths), tuple(path.rstrip(b"/") + b"/" for path in paths)
        texts = (path.decode("utf-8", "surrogateescape") for path in paths)
        self._globs = [Glob(f"/{text}" if "/" in text else text) for text in texts if is_glob(text)]

    def select(self, delta: Delta) -> bool:
        return any(self._selects(path) for path in (delta.path, delta.old_path) if path)

    def _selects(self, path: bytes) -> bool:
        if path in self._named or path.startswith(self._within):
            return True
        return bool(self._globs) and matching(self._globs, path.decode("utf-8", "surrogateescape")) is not None


def _generated_directory(directory: str) -> str | None:
    parts = directory.split("/")
    for number, part in enumerate(parts, 1):
        if _DIRECTORIES.fullmatch(part):
            return "/".join(parts[:number]) + "/"
    return None


def _readable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
