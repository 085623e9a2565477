"""Creating sandboxes: cold, from the pool, many at once; in turns with other tools of this machine."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.measure import Figure, Part, Row, private_memory, row, side_by_side, timed, times
from bench.peers import TRUE, docker, peers, run
from skerry import Client, Options, Sandbox

COLD = Options(use_pool=False)
CREATE, CLAIM = "create → first output, cold", "create → first output, claimed from the pool"
OWN_IMAGES = ("base", "base-slim", "data", "browser", "base-go", "base-java")
READY_WITHIN_S = 30.0


def first_output(options: Options, client: Client | None = None) -> tuple[float, Sandbox]:
    start = time.perf_counter()
    sandbox = Sandbox.create(options=options, server=client)
    assert sandbox.run(["echo", "up"]).stdout == "up\n"
    return (time.perf_counter() - start) * 1000, sandbox


def cold(count: int) -> Part:
    creates: list[float] = []
    deletes: list[float] = []

    def create() -> None:
        spent, sandbox = first_output(COLD)
        creates.append(spent)
        deletes.append(timed(sandbox.delete))

    with peers() as works:
        others = side_by_side({CREATE: create, **works}, count)[1:]
    made, by_name = row(CREATE, creates[2:]), {one.name: one for one in others}
    with Sandbox(options=COLD) as sandbox:
        sandbox.run(["/bin/true"])
        memory = private_memory(sandbox.id)
        runtime = sandbox.isolation.runtime if sandbox.isolation else "runc"
    figures = [Figure("private memory of an idle sandbox, MB", memory / 1e6, most=6)]
    if (bare := by_name.get(f"{runtime} run (its default configuration)")) is not None:
        figures.append(times(made, bare, most=2))
    if (other := by_name.get("docker run --rm --network none")) is not None:
        figures.append(times(other, made, least=5))
    return [made, *others, row("delete", deletes[2:])], figures


def images(count: int) -> Part:
    """Cold creates from Skerry's own images that are built here: their size and their number of layers cost nothing."""
    with Client() as client:
        there = {image.name for image in client.images.list()}
    works = {name: partial(create_from, name) for name in OWN_IMAGES if name in there}
    found = {one.name: one for one in side_by_side(works, count)}
    made = {name: row(f"{CREATE}, image {name}", list(one.times)) for name, one in found.items()}
    figures = [times(one, made["base"], most=1.25) for name, one in made.items() if name != "base"]
    return list(made.values()), figures


def create_from(image: str) -> None:
    with Sandbox(image, options=COLD) as sandbox:
        assert sandbox.run(["echo", "up"]).stdout == "up\n"


def claim(count: int) -> Part:
    """Each claim waits until a sandbox is ready, as for an occasional caller."""
    claims: list[float] = []
    missed = 0
    with Client() as client:
        before = client.pool.show()
        client.pool.set("base", 2)

        def one() -> None:
            nonlocal missed
            if not await_ready(client):
                missed += 1
            spent, sandbox = first_output(Options(), client)
            claims.append(spent)
            sandbox.delete()

        works = {CLAIM: one, TRUE: lambda: run(["/bin/true"]), **docker()}
        others = {found.name: found for found in side_by_side(works, count)}
        client.pool.set("base", before.size)
    made = row(CLAIM, claims[2:])
    figures = [times(made, others[TRUE], most=8)]
    if (other := others.get("docker run --rm --network none")) is not None:
        figures.append(times(other, made, least=30))
    if missed:
        figures.append(Figure("creates that found no ready sandbox within 30 s", missed, f"of {count + 2}", most=0))
    return [made, *(found for name, found in others.items() if name != CLAIM)], figures


def await_ready(client: Client) -> bool:
    """Wait until the pool is full and idle: sandboxes that are created during a claim slow it down."""
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end:
        images = [image for image in client.pool.show().images if image.image == "base"]
        if images and images[0].ready >= images[0].size and not images[0].making:
            return True
        time.sleep(0.005)
    return False


def at_once(count: int) -> Part:
    """`count` of one after another; then 10, 50 and 100 at the same time, of which all have to succeed."""
    alone = row(f"{CREATE}, one after another", [alone_once() for _ in range(count)])
    rows, figures = [alone], []
    for number in (10, 50, 100):
        made, right = crowd(number)
        rows.append(made)
        beside = f"p95 {made.at(0.95):.0f} ms; one after another: p95 {alone.at(0.95):.0f} ms"
        figures.append(Figure(f"{number} creates at once, right first outputs", right, beside, least=number))
    beside = f"{rows[-1].at(0.95):.0f} ms / {alone.p50:.0f} ms"
    figures.append(Figure("100 creates at once: p95 / one create", rows[-1].at(0.95) / alone.p50, beside, most=35))
    return rows, figures


def alone_once() -> float:
    spent, sandbox = first_output(COLD)
    sandbox.delete()
    return spent


def crowd(number: int) -> tuple[Row, int]:
    """They are deleted when all have answered: these are creates, not creates beside the deletes of the first ones."""

    def one(_: int) -> tuple[float, str, Sandbox | None]:
        start, sandbox, output = time.perf_counter(), None, ""
        try:
            sandbox = Sandbox.create(options=COLD)
            output = sandbox.run(["hostname"]).stdout
        except Exception as error:  # counted and reported
            print(f"one of {number} at once failed: {error}", file=sys.stderr)
        return (time.perf_counter() - start) * 1000, output, sandbox

    with ThreadPoolExecutor(number) as pool:
        done = list(pool.map(one, range(number)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Sandbox.delete, [sandbox for _, _, sandbox in done if sandbox is not None]))
    right = len({output for _, output, _ in done} - {""})
    return row(f"{CREATE}, {number} at once", [spent for spent, _, _ in done]), right
