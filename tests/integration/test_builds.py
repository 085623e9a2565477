"""Images built from steps, in real sandboxes."""

from __future__ import annotations

import asyncio
import io
import signal
import tarfile
import threading
from pathlib import Path

import pytest
from support.archives import Item, folder, tar
from support.registry import Made, Real
from support.server import Server

from skerry import AsyncImage, AsyncSnapshot, Client, Image, Limits, Sandbox, Snapshot
from skerry.errors import (
    CommandFailed,
    CommandTimeout,
    Conflict,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    SkerryError,
)
from skerry.results import BuildStep


def base() -> Image:
    return Image.base()


def ran(image: Image, client: Client, **how: object) -> tuple[Snapshot, list[str]]:
    """The built image, and the titles of the steps that ran."""
    steps: list[BuildStep] = []
    snapshot = image.build(server=client, on_step=steps.append, **how)  # type: ignore[call-overload]
    own = [step for step in steps if not step.stage]
    assert [step.number for step in own] == list(range(1, own[0].total + 1))
    return snapshot, [step.title for step in steps if not step.cached]


def inside(client: Client, image: Snapshot | Image, cmd: str, user: str | None = None) -> str:
    with Sandbox(image=image, server=client) as sandbox:
        return sandbox.run(cmd, user=user, check=True).stdout


def builds(client: Client) -> list[Sandbox]:
    return [one for one in Sandbox.list(server=client) if "skerry.build" in one.labels]


def test_only_changed_steps_run_again(client: Client) -> None:
    first = base().run("echo once >> ~/log").env(A="1")
    _, all_of_it = ran(first.run("echo $A >> ~/log"), client)
    assert len(all_of_it) == 3
    built, again = ran(first.run("echo $A >> ~/log"), client)
    assert again == []
    other, part = ran(first.run("echo other >> ~/log"), client)
    assert part == ["env A=1", "run echo other >> ~/log"]
    assert inside(client, built, "cat ~/log") == "once\n1\n"
    assert inside(client, other, "cat ~/log; echo $A") == "once\nother\n1\n"
    assert builds(client) == []


def test_user_directory_and_command_become_part_of_the_image(client: Client) -> None:
    image = base().workdir("/srv/app").user("root").run("id -un; pwd > where; umask 077").entrypoint("a").cmd("b")
    built, _ = ran(image, client)
    assert inside(client, built, "id -un; pwd; cat where") == "root\n/srv/app\n/srv/app\n"
    assert (built.info.entrypoint, built.info.cmd) == (("a",), ("b",))


def test_sandbox_can_start_from_an_image_description(client: Client) -> None:
    image = base().run("echo described > ~/x")
    assert inside(client, image, "cat ~/x") == "described\n"


def test_named_build_is_an_image_that_can_be_extended_and_removed(client: Client) -> None:
    image = base().run("echo named > ~/x").build("tests/built:1", server=client)
    assert (image.name, image.user) == ("tests/built:1", "user")
    on_top, titles = ran(Image.base("tests/built:1").run("cat ~/x > ~/y"), client)
    assert titles == ["run cat ~/x > ~/y"]
    assert inside(client, on_top, "cat ~/y") == "named\n"
    with Sandbox("tests/built:1", server=client) as sandbox, pytest.raises(Conflict, match=sandbox.id):
        client.images.remove("tests/built:1")
    assert base().run("echo other > ~/x").build("tests/built:1", server=client).digest != image.digest
    client.images.remove("tests/built:1")
    with pytest.raises(NotFound):
        client.images.get("tests/built:1")
    assert inside(client, on_top, "cat ~/y") == "named\n", "its layers were still needed"
    with pytest.raises(Conflict, match="Skerry's own"):
        base().run("true").build("base", server=client)


def test_missing_base_is_reported_before_anything_is_created(client: Client) -> None:
    with pytest.raises(NotFound, match=r"image 127\.0\.0\.1:1/nowhere not found, and it cannot be pulled"):
        Image.base("127.0.0.1:1/nowhere").run("x").build(server=client)
    assert builds(client) == []


def test_missing_base_is_pulled_and_unused_layers_are_pruned(client: Client, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("copied")
    with Real(tmp_path / "registry").running() as registry:
        name = f"{registry.host}/tiny"
        registry.push("tiny", Made([tar(folder("etc"), Item("etc/who", b"tiny"))], config={"Env": ["A=1"]}))
        built, _ = ran(Image.base(name).copy(tmp_path / "f", "/opt/f"), client)
    with Sandbox(image=built, server=client) as sandbox:
        assert (sandbox.files.read_text("/etc/who"), sandbox.files.read_text("/opt/f")) == ("tiny", "copied")
        assert built.info.env["A"] == "1"
        assert client.images.prune(all=True).images == (), "a sandbox stands on it"
        assert [one.id for one in Snapshot.list(kind="build", server=client)] == [built.id]
    assert client.images.prune(all=True).images == (name,)
    assert Snapshot.list(kind="build", server=client) == []


def test_use_token_may_build_without_naming_or_sharing_cached_steps(client: Client, server: Server) -> None:
    image = base().run("echo mine > ~/m")
    ran(image, client)
    token = client.tokens.create(scope="use", owner="stranger").secret
    with Client(server.address, token=token) as stranger:
        built, titles = ran(image, stranger)
        assert titles == ["run echo mine > ~/m"]
        with pytest.raises(PermissionDenied):
            image.build("tests/theirs", server=stranger)
        with pytest.raises(NotFound, match="not found"):
            Image.base("127.0.0.1:1/x").build(server=stranger)
        built.delete()


def test_build_without_the_cache_runs_every_step_and_fills_the_cache(client: Client) -> None:
    image = base().run("head -c8 /dev/urandom | od -An -tx8 > ~/r").run("true")
    first, _ = ran(image, client)
    fresh, titles = ran(image, client, cache=False)
    assert len(titles) == 2
    found, titles = ran(image, client)
    assert (titles, found.id) == ([], fresh.id)
    assert fresh.id != first.id
    with pytest.raises(NotFound):
        Snapshot.get(first.id, server=client)


def test_step_with_a_damaged_layer_runs_again(client: Client, server: Server) -> None:
    image = base().run("echo whole > ~/x")
    built, _ = ran(image, client)
    (server.state_dir / "layers" / f"snap-{built.info.layers[0].removeprefix('snap:')}.damaged").touch()
    again, titles = ran(image, client)
    assert (titles, again.id != built.id) == (["run echo whole > ~/x"], True)
    assert ran(image, client)[1] == []
    assert inside(client, again, "cat ~/x") == "whole\n"


def test_concurrent_equal_builds_have_the_same_result(client: Client) -> None:
    image = AsyncImage.base().run("sleep 0.3; echo $RANDOM > ~/r")

    async def both() -> list[AsyncSnapshot]:
        return list(await asyncio.gather(*(image.build(server=str(client.address)) for _ in range(2))))

    one, other = asyncio.run(both())
    assert one.id == other.id
    assert builds(client) == []


def test_failed_step_reports_its_line_and_the_end_of_its_output(client: Client, tmp_path: Path) -> None:
    text = "FROM base\nRUN echo fine\n\nRUN seq 3000 >&2 && echo the end >&2 && exit 7\nRUN true\n"
    (tmp_path / "Dockerfile").write_text(text)
    image = Image.dockerfile(tmp_path / "Dockerfile")
    with pytest.raises(CommandFailed) as caught:
        image.build(server=client)
    said = caught.value.message
    assert f"{tmp_path}/Dockerfile:4: RUN seq 3000" in said
    assert "step 2 of 3 ended with exit code 7" in said
    assert {"2999", "3000", "the end"} <= set(said.splitlines()[-20:])  # of one stream: the order of two may vary
    assert caught.value.details["line"] == 4
    assert caught.value.result is not None
    assert caught.value.result.exit_code == 7
    assert builds(client) == []
    (tmp_path / "Dockerfile").write_text(text.replace("exit 7", "exit 0"))
    _, titles = ran(Image.dockerfile(tmp_path / "Dockerfile"), client)
    assert len(titles) == 2, "what went well before is kept"


def test_step_that_needs_root_says_so(client: Client, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM base\nRUN apt-get install -y hello\n")
    with pytest.raises(CommandFailed) as caught:
        Image.dockerfile(tmp_path / "Dockerfile").build(server=client)
    assert "ran as the user 'user'" in (caught.value.hint or "")
    assert "`USER root`" in (caught.value.hint or "")
    with pytest.raises(CommandFailed) as caught:
        base().user("user").run("touch /etc/x").build(server=client)
    assert '.user("root")' in (caught.value.hint or "")
    with pytest.raises(CommandFailed) as caught:
        base().user("root").run("echo permission denied; false").build(server=client)
    assert "USER" not in (caught.value.hint or "")


def test_endless_step_is_ended_by_its_timeout(client: Client) -> None:
    with pytest.raises(CommandTimeout, match="step 1 of 1 timed out") as caught:
        base().run("echo begun; sleep 600").build(server=client, timeout=2)
    assert "begun" in caught.value.message
    assert builds(client) == []


def test_interrupted_build_leaves_nothing_behind(client: Client) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        base().run("echo begun; sleep 600").build(server=client, on_output=interrupt)
    assert builds(client) == []


def test_sandbox_of_a_killed_builder_is_deleted(client: Client) -> None:
    def look(_: object) -> None:
        (building,) = builds(client)
        seen.append(building.cached_info.lifecycle)

    seen: list[object] = []
    base().run("echo looked at").build(server=client, on_output=look)
    assert [(one.idle_timeout, one.on_idle) for one in seen] == [("5m", "delete")]  # type: ignore[attr-defined]


def test_steps_have_no_network_unless_the_build_allows_it(client: Client) -> None:
    with pytest.raises(CommandFailed) as caught:
        base().run("curl -sS --max-time 20 https://elsewhere.example/").build(server=client)
    assert "elsewhere.example" in (caught.value.hint or "")
    assert "--allow" in (caught.value.hint or "")


def test_limits_of_the_build_apply_to_steps(client: Client) -> None:
    built, _ = ran(base().run("nproc; cat /proc/meminfo > /dev/null; ulimit -n > ~/n"), client, limits=Limits(pids=100))
    assert inside(client, built, "cat ~/n") != ""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name, text in {
        "a.txt": "a", "b.txt": "b", "src/main.py": "print(1)", "src/deep/data": "d", "ignored/x": "x",
        ".dockerignore": "ignored\n*.log\n", "noise.log": "n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "src/main.py").chmod(0o755)
    (tmp_path / "src/link").symlink_to("deep/data")
    with tarfile.open(tmp_path / "pack.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("packed/file")
        entry.size = 6
        tar.addfile(entry, io.BytesIO(b"packed"))
    return tmp_path


DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG FROM=base
FROM ${FROM} AS tools
ARG WHAT=tool
RUN mkdir -p ~/out/sub && echo $WHAT > ~/out/$WHAT && ln -s $WHAT ~/out/link && chmod 700 ~/out/sub

FROM base
ENV GREETING="hello there" \\
    PATH=/opt/bin:$PATH
WORKDIR /app
COPY . .
COPY --chown=user:user --chmod=640 a.txt b.txt /data/
COPY a.txt /data/renamed
COPY a.txt /tmp
COPY --chown=user src /owned
COPY --from=tools /home/user/out /tools
COPY --from=tools --chown=user /home/user/out/tool /tools/again
ADD pack.tar.gz /packed
COPY <<EOF /etc/greeting
$GREETING
EOF
RUN <<EOF
set -e
cat /etc/greeting > /greeted
EOF
USER user
LABEL ignored=1
ENTRYPOINT ["cat"]
CMD ["/greeted"]
"""


def test_dockerfile_has_the_same_result_as_docker(client: Client, context: Path) -> None:
    (context / "Dockerfile").write_text(DOCKERFILE.replace("FROM base\nENV", "FROM base\nUSER root\nENV"))
    image = Image.dockerfile(context / "Dockerfile", arguments={"WHAT": "tool"})
    assert [notice.partition(": ")[2] for notice in image.notices] == ["LABEL is ignored: it has no effect here"]
    built, _ = ran(image, client)
    with Sandbox(image=built, server=client) as sandbox:

        def said(cmd: str) -> list[str]:
            return sandbox.run(cmd, check=True, user="root").stdout.splitlines()

        assert sandbox.run(["sh", "-c", "id -un; pwd; echo $GREETING; echo ${PATH%%:*}"]).stdout.splitlines() == [
            "user", "/app", "hello there", "/opt/bin",
        ]  # fmt: skip
        assert said("cd /app; ls; stat -c '%a %U' src/main.py; readlink src/link") == [
            "Dockerfile", "a.txt", "b.txt", "pack.tar.gz", "src", "755 root", "deep/data",
        ]  # fmt: skip
        assert said("stat -c '%a %U %G %n' /data /data/a.txt /data/b.txt /data/renamed /tmp/a.txt") == [
            "755 user user /data", "640 user user /data/a.txt", "640 user user /data/b.txt",
            "644 root root /data/renamed", "644 root root /tmp/a.txt",
        ]  # fmt: skip
        assert said("stat -c '%a %n' /tmp; find /owned -not -user user; ls /owned") == [
            "1777 /tmp", "deep", "link", "main.py",
        ]  # fmt: skip
        assert said("cd /tools; cat tool link; stat -c '%a %U %n' sub tool again") == [
            "tool", "tool", "700 root sub", "644 root tool", "644 user again",
        ]  # fmt: skip
        assert said("cat /packed/packed/file; echo; cat /greeted") == ["packed", "hello there"]
    assert (built.info.entrypoint, built.info.cmd) == (("cat",), ("/greeted",))
    (context / "noise.log").write_text("more")
    (context / "ignored/x").write_text("more")
    assert ran(image, client)[1] == [], "what .dockerignore names changes nothing"
    (context / "b.txt").write_text("B")
    titles = ran(Image.dockerfile(context / "Dockerfile"), client)[1]
    assert "COPY . ." in titles
    assert not any(title.startswith("RUN mkdir") for title in titles), "the other stage is as it was"


def test_files_changed_during_a_copy_are_not_cached_under_the_old_key(client: Client, context: Path) -> None:
    image = base().run("echo before").copy(context / "a.txt", "/x")

    def change(_: object) -> None:
        (context / "a.txt").write_text("changed")

    with pytest.raises(Conflict, match="changed while they were copied"):
        image.build(server=client, on_output=change)
    built, _ = ran(image, client)
    assert inside(client, built, "cat /x") == "changed"


def test_step_error_names_the_step(client: Client, context: Path) -> None:
    with pytest.raises(SkerryError, match=r"copy .*a\.txt /x: chown"):
        base().copy(context / "a.txt", "/x", owner="nobody-here").build(server=client)
    with pytest.raises(SkerryError, match=r"run true: .*stranger"):
        base().user("stranger").run("true").build(server=client)
    with pytest.raises(InvalidRequest, match="not found"):
        base().copy(context / "missing", "/x").build(server=client)
    assert builds(client) == []


def test_build_interrupted_by_a_server_crash_resumes(own_server: Server) -> None:
    own_server.start(SKERRY_FAULT="build.image")
    first = base().run("echo one > ~/x")
    with pytest.raises(SkerryError):
        first.build("tests/kept", server=own_server.address)
    assert own_server.process is not None
    own_server.process.wait(30)
    own_server.start()
    with Sandbox("tests/kept", server=own_server.address) as sandbox:
        assert sandbox.run("cat ~/x").stdout == "one\n", "it was whole before it had its name"
    begun, met = threading.Event(), list[SkerryError]()

    def build() -> None:
        try:
            first.run("echo begun; sleep 600").build(server=own_server.address, on_output=lambda _: begun.set())
        except SkerryError as error:
            met.append(error)

    builder = threading.Thread(target=build)
    builder.start()
    assert begun.wait(30)
    own_server.end(signal.SIGKILL)
    builder.join(30)
    assert len(met) == 1, "it was told"
    own_server.start()
    with Client(own_server.address) as client:
        assert len(Snapshot.list(kind="build", server=client)) == 1
        built, titles = ran(first.run("echo two >> ~/x"), client)
        assert titles == ["run echo two >> ~/x"]
        assert inside(client, built, "cat ~/x") == "one\ntwo\n"
        (left,) = builds(client)  # it goes once it was idle
        left.delete()
        client.images.remove("tests/kept")
