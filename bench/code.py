"""Code run for its values: a context's first result, those after it, many contexts in one sandbox, much output."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.measure import Figure, Part, repeat, row, side_by_side, timed, times
from skerry import Context, Options, Sandbox

COLD = Options(use_pool=False)
MANY = {"python": 50, "javascript": 20}
PRINTED = 10 << 20
TRUE = "run(['/bin/true'])"


@dataclass(frozen=True)
class Language:
    name: str
    bare: list[str]
    value: str


LANGUAGES = (
    Language("python", ["python3", "-c", "pass"], "6 * 7"),
    Language("javascript", ["node", "-e", "0"], "6 * 7"),
)


def code(count: int) -> Part:
    return joined([work(count) for work in (first_results, further_results, together, printed)])


def joined(parts: list[Part]) -> Part:
    return [one for rows, _ in parts for one in rows], [one for _, figures in parts for one in figures]


def first_results(count: int) -> Part:
    with Sandbox(options=COLD) as sandbox:
        return joined([first_of(sandbox, language, count) for language in LANGUAGES])


def first_of(sandbox: Sandbox, language: Language, count: int) -> Part:
    """A new context up to its first value, in turns with the bare language of the same sandbox."""
    begun: list[Context] = []
    works: dict[str, Callable[[], object]] = {
        f"{language.name}: a new context's first value": lambda: begun.append(fresh(sandbox, language)),
        " ".join(language.bare): lambda: sandbox.run(language.bare, check=True),
        "(the context's end)": lambda: begun.pop().delete(),
    }
    first, bare, _ = side_by_side(works, count)
    return [first, bare], [times(first, bare, most=3)]


def fresh(sandbox: Sandbox, language: Language) -> Context:
    context = sandbox.code.context(language.name)
    expect(context, language)
    return context


def expect(context: Context, language: Language) -> None:
    found = context.run(language.value).text
    if found != "42":
        raise AssertionError(f"{language.name}: {found!r}")


def further_results(count: int) -> Part:
    with Sandbox(options=COLD) as sandbox:
        return joined([further_of(sandbox, language, count) for language in LANGUAGES])


def further_of(sandbox: Sandbox, language: Language, count: int) -> Part:
    context = sandbox.code.context(language.name)
    works: dict[str, Callable[[], object]] = {
        f"{language.name}: a further value": lambda: expect(context, language),
        TRUE: lambda: sandbox.run(["/bin/true"], check=True),
    }
    further, true = side_by_side(works, count * 5)
    return [further, true], [times(further, true, most=3)]


def together(_: int) -> Part:
    """Open as many contexts as a sandbox of the default size must hold, each with another value."""
    with Sandbox(options=COLD) as sandbox:
        start = time.perf_counter()
        held = {name: [sandbox.code.context(name) for _ in range(many)] for name, many in MANY.items()}
        for contexts in held.values():
            for number, context in enumerate(contexts):
                context.run(f"mine = {number}")
        spent = (time.perf_counter() - start) * 1000
        kept = sum(context.run("mine").text == str(n) for some in held.values() for n, context in enumerate(some))
        memory = sandbox.usage().memory_peak or 0
    wanted = sum(MANY.values())
    beside = f"begun within {spent / 1000:.1f} s; the sandbox's peak was {memory / 1e6:.0f} MB"
    name = " and ".join(f"{many} {language}" for language, many in MANY.items())
    return [], [Figure(f"{name} contexts that kept their values", kept, beside, least=wanted)]


def printed(count: int) -> Part:
    """Ten mebibytes, whole, through a stream."""
    with Sandbox(options=COLD) as sandbox:
        line = "x" * 1023
        lines = PRINTED // 1024
        got = 0

        def once() -> None:
            nonlocal got
            events = sandbox.code.stream(f"for _ in range({lines}): print({line!r})")
            got = sum(len(event.data) for event in events if event.type == "stdout")

        spent = repeat("python: 10 MiB printed", max(count // 4, 2), once)
        plain = row("run: 10 MiB printed", [timed(lambda: whole(sandbox)) for _ in range(max(count // 4, 2))])
    return [spent, plain], [
        Figure("MiB of 10 printed that came", got / (1 << 20), f"{spent.p50:.0f} ms", least=PRINTED >> 20),
        times(spent, plain),
    ]


def whole(sandbox: Sandbox) -> None:
    sandbox.run(["python3", "-c", f"for _ in range({PRINTED // 1024}): print({'x' * 1023!r})"], check=True)
