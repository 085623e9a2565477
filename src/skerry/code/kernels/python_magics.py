"""IPython's own syntax (`%timeit`, `!ls`, `%%bash`, `name?`): the part of the Python kernel that is compiled when code
that is no Python has it. Where the image has IPython, that runs it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INSTALL = "is IPython's, which is not installed here: `pip install ipython`, or write it in Python"


def plain_python(kernel: Any, code: str, failure: SyntaxError) -> str:
    """Translate magics to plain Python. `failure`: Python's error for the code."""
    if not any(map(looks_magic, code.split("\n"))):
        raise failure
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        return without_ipython(kernel, code)
    shell_of(kernel)
    return str(TransformerManager().transform_cell(code))


def without_ipython(kernel: Any, code: str) -> str:
    """Ignore `%matplotlib inline`, which is the default. Report other magics if theirs is the failing line."""
    lines = ["" if line.strip().startswith("%matplotlib") else line for line in code.split("\n")]
    kept = "\n".join(lines)
    try:
        compile(kept, kernel.cell, "exec", kernel.flags, dont_inherit=True)
    except SyntaxError as error:
        line = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
        if looks_magic(line):
            said = f"`{line.strip()[:80]}` {INSTALL}"
            raise SyntaxError(said, (kernel.cell, error.lineno, 1, line + "\n")) from None
        raise
    return kept


def looks_magic(line: str) -> bool:
    line = line.strip()
    return line[:1] in ("%", "!", "?") or line.endswith("?") or "= !" in line or "= %" in line or "=!" in line


def shell_of(kernel: Any) -> Any:
    """A shell that keeps no history and no files, reads no profile, and has the code's names as its own."""
    from IPython.core.interactiveshell import InteractiveShell

    if InteractiveShell.initialized():
        return InteractiveShell.instance()
    import os
    import tempfile

    from traitlets.config import Config

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "nocolor"
    settings.InteractiveShell.display_page = True
    settings.InteractiveShell.warn_venv = False
    hooks, before_it = (sys.excepthook, sys.displayhook), set(kernel.names)
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("IPYTHONDIR")
        os.environ["IPYTHONDIR"] = folder
        try:
            shell = InteractiveShell.instance(config=settings, user_module=kernel.main, user_ns=kernel.names)
        finally:
            os.environ.pop("IPYTHONDIR")
            if before is not None:
                os.environ["IPYTHONDIR"] = before
    sys.excepthook, sys.displayhook = hooks
    for name in {"exit", "quit", "open"} - before_it:
        kernel.names.pop(name, None)  # keep Python's own functions
    settle(kernel, shell)
    return shell


def settle(kernel: Any, shell: Any) -> None:
    import builtins

    run_command = shell.system_raw

    def system(command: str) -> None:
        kernel.flush()
        run_command(command)

    def publish(data: dict[str, Any], *_given: Any, **_options: Any) -> None:
        cut: set[str] = set()
        kernel.publish(kernel.part("rich")["from_bundle"](kernel, data, cut), cut)

    shell.system = system
    shell.display_pub.publish = publish
    shell.register_magic_function(lambda line: None, "line", "matplotlib")  # figures come back as they are
    builtins.get_ipython = lambda: shell  # type: ignore[attr-defined]
    builtins.display = kernel.display  # type: ignore[attr-defined]
