"""A keeper that means harm, whole: in a real sandbox, under a real server. It ends its own sandbox and nothing else; a
bystander with an honest keeper goes on, and the server's memory stays flat."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TypeVar

import pytest
from support.server import Server, wait_until

from skerry import Client, Limits, Sandbox, run
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import binary, build_id

LIAR = Path(__file__).parent / "liar"
FLAT = 200 << 20  # a listing may have 32 MiB of text, and its values more
LIMITS = Limits(memory="256M", pids=300, cpus=1)


@dataclass
class Court:
    """A server; its next sandbox gets the keeper that `keeper` links to."""

    server: Server
    keeper: Path
    liar: Path
    bystander: Sandbox

    def send_for(self, program: Path) -> None:
        fresh = self.keeper.with_suffix(".new")
        fresh.symlink_to(program)
        fresh.replace(self.keeper)

    def witness(self, lie: str) -> Sandbox:
        env = {"LIE": lie, "BUILD": build_id()}
        return Sandbox.create(env=env, limits=LIMITS, server=self.server.address)

    def memory(self) -> int:
        """The most that the server ever held."""
        assert self.server.process is not None
        text = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", text)[0]) << 10

    def is_well(self) -> bool:
        return self.bystander.run(["echo", "well"], timeout=30).stdout == "well\n"


@pytest.fixture(scope="module")
def court(
    make_server: Callable[[], Server], go_program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Court]:
    keeper = tmp_path_factory.mktemp("court") / "keeper"
    keeper.symlink_to(binary())
    for directory in keeper.parents:  # the keeper is started by a user of the sandbox's
        if directory.stat().st_uid == os.getuid() and str(directory).startswith("/tmp/"):
            directory.chmod(directory.stat().st_mode | 0o011)
    liar = go_program("liar")
    # After a timeout a keeper may still send a whole journal: a small one, so that it ends soon.
    server = make_server().start(SKERRY_KEEPER=str(keeper), SKERRY_OUTPUT_MAX_PER_PROCESS="1M")
    with Sandbox(server=server.address) as bystander:
        court = Court(server, keeper, liar, bystander)
        court.send_for(liar)
        before = court.memory()
        yield court
        assert court.is_well()
        assert court.memory() - before < FLAT
    assert server.http().get("/v1/sandboxes").json() == {"sandboxes": []}
    server.retire()


T = TypeVar("T")
TIMEOUT_S = 40.0


def at_once(work: Callable[[str], T], items: list[str], meanwhile: Callable[[], object]) -> dict[str, T]:
    """Each in a separate thread, since some lies consist of waiting. An item that never returns is missing in the
    result, and its thread does not keep the tests from ending."""
    done: dict[str, T] = {}
    threads = [Thread(target=lambda item=item: done.update({item: work(item)}), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    end = time.monotonic() + TIMEOUT_S
    while any(thread.is_alive() for thread in threads) and time.monotonic() < end:
        meanwhile()
        threads[-1].join(0.05)
    return dict(done)


def lies(table: str, file: str = "lies.go") -> list[str]:
    """Read from the source of the lying keeper, so that every lie there has a test here."""
    text = (LIAR / file).read_text().partition(f"var {table} = ")[2].partition("\n}\n")[0]
    return re.findall(r'^\t"([^"]+)":', text, re.MULTILINE)


def test_control_honest_keeper_works(court: Court) -> None:
    """The control: nothing but its lies stands between it and a good life."""
    sandbox = court.witness("")
    with contextlib.closing(Ended(sandbox)):
        assert sandbox.run(["anything"]).stdout == "I did as I was told\n"
        assert sandbox.info().state == "running"


@dataclass
class Ended:
    sandbox: Sandbox

    def close(self) -> None:
        self.sandbox.delete()


def use(sandbox: Sandbox, lie: str) -> object:
    """The calls of a caller that expects no lie."""
    if "write" in lie:
        return sandbox.files.write("/workspace/x", (b"x" * 65536 for _ in range(200)))
    if "list" in lie:
        return sandbox.files.list("/workspace")
    if "file" in lie or "chunk" in lie or ("length" in lie and "both" not in lie):
        taken = 0
        for piece in sandbox.files.stream("/workspace/x"):
            taken += len(piece)
            if taken > 100 << 20:
                return taken  # endless: the caller has had enough
        return taken
    return sandbox.run(["true"], timeout=0.5)


@dataclass(frozen=True)
class Verdict:
    """The response for the caller, and the state of the sandbox."""

    answer: object
    error: SkerryError | None
    state: str


def judge(court: Court, lie: str) -> Verdict:
    try:
        sandbox = court.witness(lie)
    except SkerryError as error:
        return Verdict(None, error, "unborn")
    with contextlib.closing(Ended(sandbox)):
        answer, error = None, None
        try:
            answer = use(sandbox, lie)
        except SkerryError as found:
            error = found
        return Verdict(answer, error, sandbox.info().state)


FIRST = lies("firstLies")
LATER = [lie for lie in lies("lies") if "linger" not in lie]


@pytest.fixture(scope="module")
def trial(court: Court) -> Iterator[Future[dict[str, Verdict]]]:
    """Every lie at once, each in its own sandbox, while the bystander is asked over and over. Some lies consist of
    waiting: work that does not need the verdicts runs meanwhile."""

    def hear() -> dict[str, Verdict]:
        well: list[bool] = []
        verdicts = at_once(lambda lie: judge(court, lie), [*FIRST, *LATER], lambda: well.append(court.is_well()))
        assert len(well) > 10
        assert all(well)
        return verdicts

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(hear)


@pytest.fixture(scope="module")
def tried(trial: Future[dict[str, Verdict]]) -> dict[str, Verdict]:
    return trial.result()


FLOODS = ("a flood", "lost for ever")


@pytest.mark.usefixtures("trial")
@pytest.mark.parametrize("lie", [lie for lie in lies("eventLies", "events.go") if lie not in FLOODS])
def test_keeper_with_false_events_fails_its_sandbox(court: Court, lie: str) -> None:
    sandbox = court.witness(lie)
    with contextlib.closing(Ended(sandbox)):
        wait_until(lambda: sandbox.info().state == "failed", "the lie to be noticed")
        assert court.is_well()


@pytest.mark.parametrize("lie", FIRST)
def test_keeper_that_misbehaves_at_start_fails_the_create(tried: dict[str, Verdict], lie: str) -> None:
    assert lie in tried, "the call never ended"
    assert isinstance(tried[lie].error, SandboxUnavailable)
    assert tried[lie].state == "unborn"


def test_failed_creates_leave_nothing(court: Court, tried: dict[str, Verdict]) -> None:
    assert tried
    known = {sandbox.id for sandbox in Sandbox.list(server=court.server.address)}
    left = re.findall(r"sb-[a-z2-7]{10}", "\n".join(court.server.leftovers()))
    assert set(left) == known == {court.bystander.id}


# Misbehaviour within the protocol: the caller gets a typed error or a bounded response, and the sandbox may continue.
BEARABLE = {
    "a long error", "an error in colour", "a list of hostile names", "more than was asked for",
    "a file longer than it said", "a file of an exabyte", "a file without end", "a file in bytes",
}  # fmt: skip


@pytest.mark.parametrize("lie", LATER)
def test_protocol_error_fails_only_its_sandbox_or_is_a_bounded_response(tried: dict[str, Verdict], lie: str) -> None:
    assert lie in tried, "the call never ended"
    verdict = tried[lie]
    if lie in BEARABLE:
        assert verdict.error is None or isinstance(verdict.error, SkerryError)
        assert verdict.state in ("running", "failed")
    else:
        assert isinstance(verdict.error, SandboxUnavailable), verdict
        assert verdict.state == "failed"


def test_error_from_inside_is_bounded(tried: dict[str, Verdict]) -> None:
    for lie in ("a long error", "an error in colour"):
        error = tried[lie].error
        assert error is not None
        assert len(str(error)) < 20_000


@pytest.mark.parametrize("lie", FLOODS)
def test_event_flood_drops_no_events_of_others(court: Court, lie: str) -> None:
    def times() -> float:
        assert court.server.process is not None
        fields = Path(f"/proc/{court.server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with Client(court.server.address) as client:
        since = max(event.seq for event in client.events())
        before, began = times(), time.monotonic()
        sandbox = court.witness(lie)
        with contextlib.closing(Ended(sandbox)):
            while time.monotonic() < began + 3:
                assert court.is_well()
            spent = (times() - before) / (time.monotonic() - began)
            assert sandbox.info().state in ("running", "failed")
            told = sum(event.sandbox == sandbox.id for event in client.events(since=since))
    assert told < 10_000
    assert spent < 0.9, "the server has time left for others"


def test_lingering_sockets_do_not_block_the_server(court: Court) -> None:
    sandbox = court.witness("sockets that linger")
    with contextlib.closing(Ended(sandbox)):
        with contextlib.suppress(SkerryError):
            sandbox.run(["true"], timeout=5)
        assert court.is_well()


def test_files_with_hostile_names_are_written_only_to_the_output_directory(court: Court, tmp_path: Path) -> None:
    told: list[str] = []
    env = {"LIE": "a list of hostile names", "BUILD": build_id()}
    out = tmp_path / "deep" / "out"
    with contextlib.suppress(SkerryError):
        run(["true"], out=out, env=env, limits=LIMITS, server=court.server.address, on_warning=told.append)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and out not in path.parents] == []
    assert not Path("/etc/cron.d/x").exists()
