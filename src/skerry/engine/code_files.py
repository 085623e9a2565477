"""Code of languages without contexts: written to a file, compiled if need be, run, and removed."""

from __future__ import annotations

from skerry.engine.code_runs import CodeRun
from skerry.engine.contexts import Asked
from skerry.engine.languages import Languages
from skerry.engine.processes import Processes


class CodeFiles:
    def __init__(self, processes: Processes, languages: Languages) -> None:
        self._processes = processes
        self._languages = languages

    async def run(self, asked: Asked) -> CodeRun:
        raise NotImplementedError
