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
_SHELL_FLAGS = re.compile(r"[-+][abefhiklmnprsuvxBEHP]*[oO]?|--(login|noprofile|norc|posix|rcfile|init-file)")
_SHELL_VALUES = ("o", "O", "--rcfile", "--init-file")  # flags that end so take the next word
_PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqRsSuvx]+|-[XW].*")
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
_PROMPT_ENDS = ("-c", "-e", "-E", "-h", "-p", "-r", "-v", "-V", "--eval", "--print")  # with these they do not
# They start another command, after options and, in part, variables. The listed options take the next word.
_WRAPPERS: dict[str, tuple[str, ...]] = {
    "busybox": (), "doas": ("-u",), "env": ("-u", "--unset", "-C", "--chdir"), "ionice": ("-c", "-n"), "nice": ("-n",),
    "stdbuf": ("-i", "-o", "-e"), "sudo": ("-u", "--user", "-g", "--group", "-D", "--chdir"), "time": ("-f", "-o"),
}  # fmt: skip
# They read stdin unless more operands than these follow: a file.
_FILTERS = {
    "awk": 1, "egrep": 1, "fgrep": 1, "gawk": 1, "grep": 1, "jq": 1, "mawk": 1, "perl": 0, "rg": 1, "sed": 1, "tee": 9,
    "tr": 2, "xargs": 9,
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
    inner = _wrapped(words)
    if not inner:
        return os.path.basename(words[0]) in ("doas", "sudo") and _has_option(words[1:], ("-i", "-s"))
    name, rest = os.path.basename(inner[0]), inner[1:]
    if name in _SHELLS:
        return _shows_shell_prompt(rest)
    if _has_option(rest, _INFORMATION):
        return False
    if _PYTHON.fullmatch(name):
        return _shows_python_prompt(rest)
    if name == "sqlite3":  # with a statement after the database, it runs that and ends
        return sum(not word.startswith("-") for word in rest) <= 1 and not _has_option(rest, ("-version", "-help"))
    if name in _INTERACTIVE:
        return not _has_option(rest, _INTERACTIVE[name])
    if _has_option(rest, _PROMPT_FLAGS.get(name, ())):
        return True
    return name in _SCREENS or (name in _PROMPTS and _only_options(rest) and not _has_option(rest, _PROMPT_ENDS))


def reads_stdin(words: Sequence[str]) -> bool:
    """Return whether a command probably reads stdin: a program without operands, or a filter without a file. If it
    printed nothing and stdin was empty, the user needs a hint."""
    inner = _wrapped(words)
    if not inner or "=" in inner[0]:
        return False
    operands = sum(not word.startswith("-") for word in inner[1:])
    return operands <= _FILTERS.get(os.path.basename(inner[0]), 0) or needs_terminal(inner)


def _wrapped(words: Sequence[str]) -> list[str]:
    """Return the words of the command that `env`, `sudo` and others start; of the command itself without them."""
    rest = list(words)
    while rest and (valued := _WRAPPERS.get(os.path.basename(rest[0]))) is not None:
        del rest[0]
        while rest and (rest[0].startswith("-") or "=" in rest[0]):
            word = rest.pop(0)
            if word == "--":
                break
            if word in valued:
                del rest[:1]
    return rest


def _only_options(words: Sequence[str]) -> bool:
    return all(word.startswith("-") for word in words)


def _shows_shell_prompt(words: Sequence[str]) -> bool:
    """Return whether a shell shows a prompt: without a script and without -c."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-", "--"):
            return not rest
        if not _SHELL_FLAGS.fullmatch(word):
            return False
        if word[:1] == "-" != word[1:2] and "s" in word:
            return True  # operands are parameters
        if word.endswith(_SHELL_VALUES):
            del rest[:1]
    return True


def _has_option(words: Sequence[str], options: Sequence[str]) -> bool:
    """Return whether an option is there: as a word, with `=value`, or a single letter with its value attached."""
    return any(
        word.partition("=")[0] in options or (word[:2] in options and word[1:2] not in ("-", "") and word[:1] == "-")
        for word in words
    )


def _shows_python_prompt(words: Sequence[str]) -> bool:
    """Return whether Python shows a prompt: without a script, with -i, or as a debugger."""
    inspects, rest = False, list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "-c"):
            return inspects or (word == "-m" and rest != [] and rest[0] in _PYTHON_SHELLS)
        if not _PYTHON_FLAGS.fullmatch(word):
            return inspects or word == "-"
        if word in ("-X", "-W"):
            del rest[:1]
        inspects = inspects or ("i" in word and word[1] not in "XW")
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
