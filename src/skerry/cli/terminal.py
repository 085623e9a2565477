"""The terminal and the stdin of this program."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Iterator, Sequence

from skerry.errors import InvalidRequest
from skerry.types import MAX_PTY, Pty

DEFAULT_SIZE = Pty()


def is_terminal(descriptor: int = 0) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def require_terminal(instead: str) -> None:
    if not is_terminal():
        raise InvalidRequest("stdin is not a terminal", hint=f"without a terminal: {instead}")


def size() -> Pty:
    """Return the size of the window, or the default size if the terminal does not report one."""
    for descriptor in (0, 1):
        with contextlib.suppress(OSError):
            cols, rows = os.get_terminal_size(descriptor)
            if 0 < cols <= MAX_PTY and 0 < rows <= MAX_PTY:
                return Pty(cols=cols, rows=rows)
    return DEFAULT_SIZE


def environment() -> dict[str, str]:
    """Return the variables that describe the terminal to programs in a sandbox. The locale is not included: the sandbox
    may not have it."""
    return {name: value for name in ("TERM", "COLORTERM") if (value := os.environ.get(name))}


def is_interactive() -> bool:
    """Return whether stdin and stdout are a terminal with a movable cursor."""
    return is_terminal() and is_terminal(1) and os.environ.get("TERM", "dumb") not in ("", "dumb")


def is_foreground() -> bool:
    """Return whether this program is in the foreground, so that it receives the keys."""
    try:
        return is_interactive() and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def raw(descriptor: int = 0, *, signals: bool = False) -> Iterator[None]:
    """Deliver each key press, including Ctrl-C unless `signals` is set. Always restore the mode at the
    end."""
    before = termios.tcgetattr(descriptor)
    try:
        (tty.setcbreak if signals else tty.setraw)(descriptor, termios.TCSADRAIN)
        yield
    finally:
        # In the background, tcsetattr would stop this program. A closed terminal needs no restoring.
        old = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
        signal.signal(signal.SIGTTOU, old)


# -- programs that need a terminal --

_SHELLS = frozenset(("ash", "bash", "dash", "fish", "ksh", "sh", "zsh"))
_SHELL_FLAGS = frozenset(("-i", "-il", "-l", "-li", "--login", "--noprofile", "--norc"))
_PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqRsSuvx]+")
_PYTHON_SHELLS = frozenset(("IPython", "bpython", "code", "ipdb", "pdb", "ptpython", "pudb"))
# Without arguments they show a prompt.
_PROMPTS = frozenset(
    ("bc", "bpython", "clojure", "deno", "erl", "ghci", "guile", "iex", "ipython", "ipython3", "irb", "julia", "lua",
     "node", "octave", "php", "pry", "ptpython", "R", "redis-cli", "scala", "sbcl", "swipl", "utop")
)  # fmt: skip
_PROMPT_FLAGS = {
    "deno": ("repl",), "ipython": ("-i",), "ipython3": ("-i",), "julia": ("-i",), "lua": ("-i",),
    "node": ("-i", "--interactive", "inspect"), "php": ("-a", "--interactive"),
}  # fmt: skip
# They show a prompt or a screen, with files, a database or a prompt as arguments, unless one of these options is there.
_INTERACTIVE: dict[str, tuple[str, ...]] = {
    "aider": ("-m", "--message", "--message-file", "-f", "--lint", "--test", "--commit", "--apply"),
    "claude": ("-p", "--print", "-v", "-h", "auth", "config", "doctor", "install", "mcp", "plugin", "update"),
    "codex": ("-V", "-h", "apply", "completion", "debug", "exec", "e", "login", "logout", "mcp", "mcp-server", "proto"),
    "gdb": ("-batch", "--batch", "-v", "-h"),
    "gemini": ("-p", "--prompt", "-v", "-h", "extensions", "mcp"),
    "lldb": ("-b", "--batch", "-v", "-h", "-P"),
    "mariadb": ("-e", "--execute", "-B", "--batch", "-V", "-?"),
    "mongosh": ("--eval", "-f", "--file"),
    "mysql": ("-e", "--execute", "-B", "--batch", "-V", "-?"),
    "opencode": (
        "-v",
        "-h",
        "agent",
        "auth",
        "export",
        "github",
        "import",
        "models",
        "run",
        "serve",
        "stats",
        "upgrade",
    ),
    "psql": ("-c", "--command", "-f", "--file", "-l", "--list", "-V", "-?"),
    "qwen": ("-p", "--prompt", "-v", "-h", "extensions", "mcp"),
    "su": ("-c", "--command", "-h", "-V"),
}
_INFORMATION = ("--help", "--version")
_SCREENS = frozenset(
    ("atop", "aptitude", "btop", "cfdisk", "dialog", "elinks", "emacs", "fzf", "gitui", "glances", "helix", "htop",
     "hx", "iftop", "iotop", "joe", "k9s", "kak", "lazydocker", "lazygit", "less", "lf", "links", "lynx", "man",
     "mc", "micro", "more", "most", "mutt", "nano", "ncdu", "nethogs", "nmtui", "nnn", "nvim", "nvimdiff", "nvtop",
     "pudb", "ranger", "screen", "tig", "tmux", "top", "vi", "view", "vim", "vimdiff", "vimtutor", "w3m", "watch",
     "weechat", "whiptail", "yazi", "zellij")
)  # fmt: skip


def needs_terminal(words: Sequence[str]) -> bool:
    """Return whether a command is useless without a terminal: a shell or interpreter without a script, a debugger, a
    client of a database, a coding agent without a prompt, or a full-screen program. Without a terminal, it would end at
    once and in silence. So would the command of most images, which is the one without words."""
    if not words:
        return True
    name, rest = os.path.basename(words[0]), list(words[1:])
    if name == "sudo" and rest:
        return rest in (["-i"], ["-s"]) or needs_terminal(rest)
    if name in _SHELLS:
        return _SHELL_FLAGS.issuperset(rest)
    if _has_option(rest, _INFORMATION):
        return False
    if _PYTHON.fullmatch(name):
        return _shows_python_prompt(rest)
    if name == "sqlite3":  # with a statement after the database, it runs that and ends
        return sum(not word.startswith("-") for word in rest) <= 1 and not _has_option(rest, ("-version", "-help"))
    if name in _INTERACTIVE:
        return not _has_option(rest, _INTERACTIVE[name])
    return name in _SCREENS or (name in _PROMPTS and (not rest or _has_option(rest, _PROMPT_FLAGS.get(name, ()))))


def _has_option(words: Sequence[str], options: Sequence[str]) -> bool:
    """Return whether an option is there: as a word, with `=value`, or a single letter with its value attached."""
    return any(
        word.partition("=")[0] in options or (word[:2] in options and word[1:2] not in ("-", "") and word[:1] == "-")
        for word in words
    )


def _shows_python_prompt(words: Sequence[str]) -> bool:
    """Return whether Python shows a prompt: without a script, with -i, or as a debugger."""
    inspects = False
    for at, word in enumerate(words):
        if word in ("-m", "-c"):
            return inspects or (word == "-m" and words[at + 1 : at + 2] != [] and words[at + 1] in _PYTHON_SHELLS)
        if not _PYTHON_FLAGS.fullmatch(word):
            return inspects
        inspects = inspects or "i" in word
    return True


def wanted(flag: bool | None, words: Sequence[str], *, possible: bool) -> bool:
    """Return whether to give a command a terminal: as -t or -T requests, else if it needs one and this program has
    one."""
    if flag is not None:
        return flag
    return possible and needs_terminal(words) and is_foreground() and is_terminal(2)


# -- stdin --


def piped_stdin(*, interactive: bool = False) -> Iterator[bytes] | None:
    """Return the chunks of stdin, or None if stdin is closed or, unless `interactive`, a terminal."""
    try:
        if os.isatty(0) and not interactive:
            return None
        os.fstat(0)
    except OSError:
        return None
    return read_chunks(0)


def read_chunks(descriptor: int) -> Iterator[bytes]:
    # Not a Python file object: if a thread holds its buffer at exit, the interpreter aborts.
    while True:
        select.select([descriptor], [], [])
        piece = os.read(descriptor, 64 << 10)
        if not piece:
            return
        yield piece
