"""The Python kernel: runs code in the module `__main__` and reports the outcome (`skerry/code/kernel_protocol.py`).

It shares its process with that code. It is parsed at every start of a context, so it imports only built-in modules
of the interpreter; the other parts are compiled when a run first needs them.

Whether an interrupt is the code's or comes at a bad time is read off the stack: below `within` it is the code's, below
`say` it waits, in an event loop it cancels."""

from __future__ import annotations

import _ast
import _signal
import _thread
import builtins
import posix
import sys
from posix import _exit, fstat, getpid, read, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

CHANNEL, STDIN, STDOUT, STDERR = 100, 103, 101, 102  # where this kernel keeps its own copies
OURS = "<skerry>"
AWAITABLE = 0x80  # CO_COROUTINE
MAX_SOURCES = 32 << 20


class Kernel:
    """State that lasts between runs."""

    def __init__(self, parts: dict[str, str], bounds: tuple[int, ...]) -> None:
        self.max_text, self.max_picture, self.max_results, self.max_bytes = bounds
        self.parts = parts
        self.loaded: dict[str, dict[str, Any]] = {}
        self.main = sys.modules["__main__"]
        self.names = self.main.__dict__
        self.flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.pid = getpid()
        self.thread = _thread.get_ident()
        self.lock = _thread.RLock()
        self.identity = [_identity(fd) for fd in (0, 1, 2, CHANNEL)]
        self.run = b""  # the secret of the run that is under way
        self.cell = ""
        self.cells = 0
        self.count = self.size = 0  # of the results of this run
        self.sources: dict[str, str] = {}
        self.sources_size = 0
        self.loop: Any = None
        self.task: Any = None  # that the loop runs for
        self.pending = False
        self.has_stdin = False
        self.held = b""
        self.stdin: Any = sys.stdin
        self.stdout: Any = sys.stdout
        self.stderr: Any = sys.stderr

    # -- talking --

    def take(self, count: int) -> bytes:
        """That many bytes from the server. The channel's end is the kernel's."""
        pieces = [self.held]
        size = len(self.held)
        while size < count:
            piece = read(CHANNEL, max(65536, count - size))
            if not piece:
                sys.exit()
            pieces.append(piece)
            size += len(piece)
        data = b"".join(pieces)
        self.held = data[count:]
        return data[:count]

    def receive(self) -> dict[str, bytes]:
        body = self.take(int.from_bytes(self.take(5)[1:], "big"))
        fields = {}
        at = 0
        while at < len(body):
            name_end = at + 1 + body[at]
            value_end = name_end + 4 + int.from_bytes(body[name_end : name_end + 4], "big")
            fields[body[at + 1 : name_end].decode()] = body[name_end + 4 : value_end]
            at = value_end
        return fields

    def deliver(self, data: bytes) -> None:
        """Send a whole message in spite of signals: half a message would end the context. If the code replaced
        descriptor 100, send nothing."""
        if getpid() != self.pid or _identity(CHANNEL) != self.identity[3]:
            _exit(70)
        view = memoryview(data)
        while view:
            view = view[write(CHANNEL, view) :]

    def say(self, data: bytes, run: bytes) -> None:
        """Unless that run is over: a thread may be late."""
        with self.lock:
            if run == self.run:
                self.deliver(data)

    def heed(self) -> None:
        """The interrupt that came at a bad time."""
        if self.pending and _thread.get_ident() == self.thread:
            self.pending = False
            raise KeyboardInterrupt

    def part(self, name: str) -> Any:
        if name not in self.loaded:
            space: dict[str, Any] = {"__name__": OURS, "__builtins__": builtins}
            exec(compile(self.parts[name], OURS, "exec", dont_inherit=True), space)
            self.loaded[name] = space
        return self.loaded[name]

    # -- results --

    def show(self, value: object, main: bool = False) -> None:
        """Publish a value in all its forms as a result of the current run; print it if no run is active."""
        self.publish(*forms(self, value), main=main)

    def publish(self, found: dict[str, Any], cut: set[str], main: bool = False) -> None:
        fields = {}
        for name, form in found.items():
            most = self.max_picture if name in ("image/png", "image/jpeg") else self.max_text
            data = form if isinstance(form, bytes) else form.encode("utf-8", "backslashreplace")
            if len(data) > most:
                cut.add(name)
                if name not in ("text/plain", "text/markdown", "text/latex"):
                    continue  # half of it is of no use
                data = data[: most - 4].decode("utf-8", "ignore").encode() + "…".encode()
            fields[name] = data
        run = self.run
        if run and getpid() == self.pid:
            self.result(run, fields, cut, main)
        elif "text/plain" in fields:
            print(fields["text/plain"].decode())

    def result(self, run: bytes, fields: dict[str, bytes], cut: set[str], main: bool) -> None:
        self.flush()
        head = {"run": run, "main": b"1" if main else b"0"}
        if cut:
            head["cut"] = " ".join(sorted(cut)).encode()
        sent = message(b"O", {**head, **fields})
        room = 0 if main else 1  # the last value has its place kept
        self.count += 1
        self.size += len(sent)
        if self.count + room <= self.max_results and self.size + (room << 22) <= self.max_bytes:
            self.say(sent, run)
            self.heed()
        else:
            self.count -= 1
            self.size -= len(sent)
            print("skerry: too many or too large results in one run; this one is left out", file=sys.stderr)

    # -- the code's streams --

    def flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, self.stdout, self.stderr):
            _usable(stream)
        if "ctypes" in sys.modules:
            try:
                sys.modules["ctypes"].CDLL(None).fflush(None)
            except Exception:
                pass  # a module of the code's own by that name

    def put_back(self) -> None:
        """Streams and descriptors as they were before the run."""
        theirs = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.stdout, self.stderr
        for stream in theirs:
            self.attempt(_usable, stream)
        self.attempt(self.flush)
        for fd, kept in ((0, STDIN), (1, STDOUT), (2, STDERR)):
            if _identity(fd) != self.identity[fd]:
                posix.dup2(kept, fd)
        if not _usable(self.stdin):
            self.stdin = _stream(0, "r", "surrogateescape")
        if not _usable(self.stdout):
            self.stdout = _stream(1, "w", "backslashreplace")
        if not _usable(self.stderr):
            self.stderr = _stream(2, "w", "backslashreplace")
        for name in ("stdin", "stdout", "stderr"):
            vars(sys)[name] = vars(sys)[f"__{name}__"] = getattr(self, name)

    # -- running --

    def turn(self) -> None:
        fields = self.wait()
        self.cells += 1
        self.cell = f"<cell {self.cells}>"
        self.count = self.size = 0
        run = self.run = fields["run"]
        self.say(message(b"B", {"run": run}), run)
        self.has_stdin = "stdin" in fields
        if self.has_stdin:
            self.part("stdin")["give"](fields.pop("stdin"))
        before = set_variables(fields.pop("env", b""))
        failure = self.attempt(self.execute, fields.pop("code").decode("utf-8", "surrogatepass"))
        if getpid() != self.pid:
            self.part("errors")["leave"](self, failure)
        failure = self.draw(failure)
        last = self.report(failure) if failure is not None else b""
        status = b"ok" if not last else b"interrupted" if is_interrupt(failure) else b"error"
        failure = None
        for variable, value in before.items():
            set_variable(variable, value)
        self.put_back()
        if _signal.getsignal(2) is not on_interrupt:
            _signal.signal(2, on_interrupt)
        with self.lock:
            self.run = b""
            self.deliver(last + message(b"D", {"run": run, "status": status}))
        self.pending = False

    def attempt(self, task: Callable[..., object], *args: object) -> BaseException | None:
        try:
            within(task, *args)
        except BaseException as failure:
            return failure
        return None

    def execute(self, code: str) -> None:
        self.heed()
        self.names.pop("__warningregistry__", None)
        code = code.replace("\r\n", "\n").replace("\r", "\n")
        code = unindented(code)
        self.remember(code)
        body, last, hidden = self.compile(code)
        if body is not None:
            self.evaluate(body)
        if last is not None:
            value = self.evaluate(last)
            if value is not None:
                builtins._ = value  # type: ignore[attr-defined]
                if not hidden:
                    self.show(value, main=True)

    def compile(self, code: str) -> tuple[Any, Any, bool]:
        """Return the code before the last expression, that expression, and whether a `;` after it hides its value."""
        flags = self.flags | _ast.PyCF_ONLY_AST
        tree: Any = None
        try:
            tree = compile(code, self.cell, "exec", flags, dont_inherit=True)
        except SyntaxError as failure:
            code = self.part("magics")["plain_python"](self, code, failure)
        if tree is None:
            tree = compile(code, self.cell, "exec", flags, dont_inherit=True)
        last: Any = tree.body.pop() if tree.body and type(tree.body[-1]) is _ast.Expr else None
        body: Any = compile(tree, self.cell, "exec", self.flags, dont_inherit=True) if tree.body else None
        if body is not None and "__future__" in code:
            import __future__

            for name in __future__.all_feature_names:
                self.flags |= body.co_flags & getattr(__future__, name).compiler_flag
        if last is None:
            return body, None, False
        hidden = hides(code, last)
        return body, compile(_ast.Expression(last.value), self.cell, "eval", self.flags, dont_inherit=True), hidden

    def evaluate(self, code: Any) -> Any:
        value = eval(code, self.names)
        return self.part("tasks")["wait_for"](self, value) if code.co_flags & AWAITABLE else value

    def wait(self) -> dict[str, bytes]:
        """The next run. Tasks that the code left go on meanwhile."""
        if self.loop is not None and not self.held:
            self.part("tasks")["go_on_until_called"](self, CHANNEL)
        if getpid() != self.pid:
            _exit(0)
        return self.receive()

    def draw(self, failure: BaseException | None) -> BaseException | None:
        """The figures that the run left open."""
        if "matplotlib.pyplot" in sys.modules:
            drawing = self.attempt(self.part("figures")["draw_open_figures"], self, not is_interrupt(failure))
            failure = drawing if failure is None else failure
        return failure

    def report(self, failure: BaseException) -> bytes:
        """Return the message for an error; empty for a successful exit."""
        if ended_well(failure):
            return b""
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 500)  # the code may have left little
        fields = {"run": self.run, "name": type(failure).__name__.encode(), "message": b"", "traceback": b""}
        self.attempt(lambda: fields.update(self.part("errors")["describe"](self, failure)))
        sys.setrecursionlimit(limit)
        return message(b"E", fields)

    def remember(self, code: str) -> None:
        """For tracebacks, warnings and `inspect`, whenever they are first asked for."""
        linecache: Any = sys.modules.get("linecache")
        self.sources[self.cell] = code
        self.sources_size += len(code)
        while self.sources_size > MAX_SOURCES and len(self.sources) > 1:
            oldest = next(iter(self.sources))
            self.sources_size -= len(self.sources.pop(oldest))
            if linecache is not None:
                linecache.cache.pop(oldest, None)
        if linecache is not None:
            put_in_linecache(linecache, {self.cell: code})


class After:
    """Call the waiting function when its module has been imported."""

    def __init__(self, waiting: dict[str, Callable[[Any], None]]) -> None:
        self.waiting = waiting
        for name in [name for name in waiting if name in sys.modules]:
            waiting.pop(name)(sys.modules[name])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        then = self.waiting.pop(name, None)
        if then is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None and spec.loader is not None:
                self.follow(name, spec.loader, then)
                return spec
        self.waiting[name] = then
        return None

    def follow(self, name: str, loader: Any, then: Callable[[Any], None]) -> None:
        execute = loader.exec_module

        def execute_and_notify(module: Any) -> None:
            execute(module)
            if module.__name__ == name:  # a loader may have other modules too
                then(module)

        loader.exec_module = execute_and_notify


def within(task: Callable[..., object], *args: object) -> object:
    return task(*args)


def on_interrupt(_number: int, frame: Any) -> None:
    """Interrupt the code. An exception in the middle of an event loop would break the loop: there, cancel the awaited
    task."""
    in_code = False
    while frame is not None:
        code = frame.f_code
        in_code = in_code or code.co_filename in kernel.sources
        waiting = code.co_filename == OURS and code.co_name == "wait_for"
        if code is Kernel.say.__code__ or (waiting and not in_code):
            kernel.pending = True
            if waiting and kernel.task is not None:
                kernel.task.cancel()
                kernel.loop.call_soon_threadsafe(int)  # wakes it
            return
        if code is within.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back


def is_interrupt(failure: BaseException | None) -> bool:
    seen = 0
    while failure is not None and seen < 100:
        if isinstance(failure, KeyboardInterrupt):
            return True
        cause = failure.__cause__
        failure, seen = cause if cause is not None else failure.__context__, seen + 1
    return False


def ended_well(failure: BaseException) -> bool:
    """By an exit without a status, or with 0."""
    code = failure.code if isinstance(failure, SystemExit) else 1
    return code is None or (isinstance(code, int) and code == 0)


def set_variables(env: bytes) -> dict[bytes, bytes | None]:
    """Set the environment variables of a run; return those from before it."""
    before: dict[bytes, bytes | None] = {}
    for item in env.split(b"\0"):
        if item:
            name, given, value = item.partition(b"=")
            before[name] = sys.modules["os"].environb.get(name)
            set_variable(name, value if given else None)
    return before


def set_variable(name: bytes, value: bytes | None) -> None:
    environ = sys.modules["os"].environb  # `os` is always loaded: `site` needs it
    if value is None:
        environ.pop(name, None)
    else:
        environ[name] = value


def message(kind: bytes, fields: dict[str, bytes]) -> bytes:
    parts = [b""]
    for name, value in fields.items():
        parts += [bytes((len(name),)), name.encode(), len(value).to_bytes(4, "big"), value]
    parts[0] = kind + sum(map(len, parts)).to_bytes(4, "big")
    return b"".join(parts)


def forms(kernel: Kernel, value: object) -> tuple[dict[str, Any], set[str]]:
    """Return a value by MIME type, and the omitted forms."""
    kind = type(value)
    if kind in (bool, int, float) or (kind is str and len(value) < 10000):  # type: ignore[arg-type]
        try:
            return {"text/plain": repr(value)}, set()
        except ValueError:
            pass  # an integer of too many digits
    found: tuple[dict[str, Any], set[str]] = kernel.part("rich")["forms"](kernel, value)
    return found


def hides(code: str, last: Any) -> bool:
    """Is there a `;` after the last expression? Beside it only brackets and comments can follow."""
    lines = code.split("\n")[last.end_lineno - 1 :]
    lines[0] = lines[0].encode("utf-8", "surrogatepass")[last.end_col_offset :].decode("utf-8", "replace")
    return any(";" in line.partition("#")[0] for line in lines)


def unindented(code: str) -> str:
    """Code that is indented as a whole, without that indentation, as in IPython: its first line decides. No valid
    program begins with an indented statement."""
    first = next((line for line in code.split("\n") if line.strip() and not line.lstrip().startswith("#")), "")
    margin = first[: len(first) - len(first.lstrip(" \t"))]
    if not margin:
        return code
    return "\n".join(line[len(margin) :] if line.startswith(margin) else line for line in code.split("\n"))


def display(*values: object, raw: bool = False, **_more: object) -> None:
    """Shows values as results of the run."""
    for value in values:
        if raw and isinstance(value, dict):
            cut: set[str] = set()
            kernel.publish(kernel.part("rich")["from_bundle"](kernel, value, cut), cut)
        else:
            kernel.show(value)


def ask(prompt: object = "") -> str:
    try:
        return builtin_input(prompt)
    except EOFError:
        reason = "its stdin is at its end" if kernel.has_stdin else "it was given no stdin"
        raise EOFError(f"input() has nothing to read: the run is not interactive, and {reason}") from None


def put_in_linecache(linecache: Any, sources: dict[str, str]) -> None:
    for name, code in sources.items():
        linecache.cache[name] = (len(code), None, [line + "\n" for line in code.split("\n")], name)


def fork_by_default(context: Any) -> None:
    """With Python 3.14's default a child looks in vain for the file that defines the code's functions."""
    try:
        context._default_context._default_context = context._concrete_contexts["fork"]
    except (AttributeError, KeyError):
        pass


def close_channel() -> None:
    try:
        posix.close(CHANNEL)
    except OSError:
        pass  # by the code's doing


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _usable(stream: Any) -> bool:
    try:
        stream.flush()
        return not stream.closed
    except Exception:
        return False


def _stream(fd: int, mode: str, errors: str) -> Any:
    return open(fd, mode, 1 if mode == "w" else -1, encoding="utf-8", errors=errors, closefd=False)


def prepare() -> None:
    for fd, kept in ((0, STDIN), (1, STDOUT), (2, STDERR)):
        posix.dup2(fd, kept, False)
    kernel.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    kernel.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    kernel.stderr.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.argv[:] = [""]
    for name in [name for name in kernel.names if not name.startswith("__")]:
        del kernel.names[name]
    kernel.display = builtins.display = display  # type: ignore[attr-defined]
    ask.__name__ = ask.__qualname__ = "input"
    builtins.input = ask
    _signal.signal(2, on_interrupt)
    posix.register_at_fork(after_in_child=close_channel)
    sys.meta_path.insert(0, After({
        "signal": lambda signal: setattr(signal, "default_int_handler", on_interrupt),
        "linecache": lambda linecache: put_in_linecache(linecache, kernel.sources),
        "threading": lambda threading: kernel.part("errors")["watch_threads"](kernel, threading),
        "multiprocessing.context": fork_by_default,
        "matplotlib.pyplot": lambda pyplot: kernel.part("figures")["take_figures"](kernel, pyplot),
        "PIL.ImageShow": lambda module: kernel.part("figures")["take_images"](kernel, module),
        "IPython.core.display_functions": lambda module: setattr(module, "display", display),
    }))  # fmt: skip


def start(channel: BinaryIO, parts: dict[str, str], bounds: tuple[int, ...]) -> None:
    global kernel
    if sys.version_info < (3, 8):
        sys.exit("skerry: a context needs Python 3.8 or newer")
    kernel = Kernel(parts, bounds)
    prepare()
    version = ".".join(map(str, sys.version_info[:3]))
    kernel.deliver(message(b"H", {"version": version.encode()}))
    kernel.held = channel.read1(65536)  # type: ignore[attr-defined]
    channel.close()
    while True:
        kernel.turn()


kernel: Kernel
builtin_input = builtins.input
