"""Images from a real registry, pulled by a real server, and sandboxes on them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.archives import Item, shell_layer, tar, zstandard
from support.registry import PASSWORD, USER, ZSTD, Fake, Handler, Made, Real, digest
from support.server import Server

from skerry import Client, Conflict, InvalidRequest, NotFound, Sandbox
from skerry.storage import LayerStore

UID = 'while read -r k a b; do case $k in Uid:|Gid:) echo "$k$a";; esac; done </proc/self/status'


@pytest.fixture(scope="session")
def shell(base_store: Path) -> bytes:
    return shell_layer(base_store)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with Real(tmp_path_factory.mktemp("registry")).running() as real:
        yield real


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """Start a server that gives up early on a registry that stalls."""
    made = make_server().start(SKERRY_REGISTRY_STALL_TIMEOUT="10s")
    yield made
    made.retire()


def test_pulled_image_runs_with_its_configuration(client: Client, registry: Real, shell: bytes) -> None:
    says = {
        "Env": ["PATH=/bin", "GREETING=hi"], "User": "me:staff", "WorkingDir": "/not/there/yet",
        "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo $GREETING from $0; exit 7", "cmd"],
    }  # fmt: skip
    upper = tar(Item("etc/motd", b"upper"), Item(".wh.gone"))
    lower = tar(Item("etc/motd", b"lower"), Item("gone", b"1"))
    registry.push("app", Made([shell, lower, upper], zstandard, ZSTD, says))
    image = client.images.pull(f"{registry.host}/app")
    assert client.images.get(image.name) == image
    with Sandbox(f"{registry.host}/app:latest", server=client) as sandbox:
        result = sandbox.run(f"echo $GREETING; pwd; read a </etc/motd; echo $a; test -e /gone; echo $?; {UID}")
        assert result.stdout.split() == ["hi", "/not/there/yet", "upper", "1", "Uid:1234", "Gid:50"], result
        result = sandbox.run()
        assert (result.stdout, result.exit_code) == ("hi from cmd\n", 7)
        assert sandbox.spawn().wait(20).exit_code == 7
        with pytest.raises(Conflict, match="in use by sandbox"):
            client.images.remove(image.name)
    client.images.remove(image.name)
    with pytest.raises(NotFound):
        client.images.get(image.name)


def test_image_without_a_command_is_reported(client: Client) -> None:
    with Sandbox(server=client) as sandbox, pytest.raises(InvalidRequest, match="has no command"):
        sandbox.run()


def test_shared_size_of_images_is_shown_separately(client: Client, registry: Real) -> None:
    shared, own = tar(Item("a", os.urandom(300_000))), tar(Item("b", os.urandom(100_000)))
    registry.push("pair", Made([shared]), "one")
    registry.push("pair", Made([shared, own]), "two")
    names = [f"{registry.host}/pair:{tag}" for tag in ("one", "two")]
    for name in names:
        client.images.pull(name)
    one, two = (client.images.get(name) for name in names)
    assert one.size == one.shared == two.shared > 300_000
    assert two.size - two.shared >= 100_000
    client.images.remove(names[0])
    assert client.images.get(names[1]).shared == 0
    gone = client.images.prune(all=True)
    assert (gone.images, gone.layers) == ((names[1],), 2)
    assert gone.bytes == two.size
    assert [image.name for image in client.images.list()] == ["base"]


def test_damaged_layer_is_reported_and_repaired_by_a_pull(
    server: Server, client: Client, registry: Real, shell: bytes
) -> None:
    registry.push("mend", Made([shell, tar(Item("data", b"right"))]))
    image = client.images.pull(f"{registry.host}/mend", name="mend")
    assert client.images.verify("mend").ok
    file = LayerStore(server.state_dir / "layers").path(image.layers[0]) / "data"
    file.write_bytes(b"wrong")
    found = client.images.verify("mend")
    assert [(state.layer, state.images) for state in found.layers if not state.ok] == [(image.layers[0], ("mend",))]
    with pytest.raises(Conflict, match="damaged"), Sandbox("mend", server=client):
        pass
    again = client.images.pull(f"{registry.host}/mend", name="mend")
    assert again.layers == image.layers
    assert client.images.verify("mend").ok
    with Sandbox("mend", server=client) as sandbox:
        assert sandbox.run("read a </data; echo $a").stdout == "right\n"
    client.images.remove("mend")


def test_second_caller_joins_a_pull_that_continues_without_the_first(server: Server, client: Client) -> None:
    image = Made([tar(Item("slow", os.urandom(100_000)))])
    layer = digest(image.layers[0])
    go, asked = threading.Event(), threading.Event()

    def wait(handler: Handler) -> bool:
        asked.set()
        go.wait(30)
        return False

    with Fake().running() as fake:
        fake.push(image)
        fake.manners[layer] = wait
        body = {"reference": f"{fake.host}/app", "name": "slow"}
        with server.http() as first, first.stream("POST", "/v1/images/pull", json=body) as answer:
            assert json.loads(next(answer.iter_lines()))["progress"]["stage"] == "manifest"
            assert asked.wait(20)
        with server.http() as second, second.stream("POST", "/v1/images/pull", json=body) as answer:
            lines = answer.iter_lines()
            assert "progress" in json.loads(next(lines))
            go.set()
            last = [json.loads(line) for line in lines][-1]
        assert last["image"]["name"] == "slow"
        assert len([path for path, _ in fake.asked if layer in path]) == 1
    client.images.remove("slow")


def test_login_is_sent_with_the_request_and_stored_nowhere(server: Server, client: Client, tmp_path: Path) -> None:
    image = Made([tar(Item("f", b"1"))])
    with Fake().running() as fake:
        fake.push(image)
        fake.password = True
        arguments = ["image", "pull", f"{fake.host}/app", "--name", "secret", "--json"]
        done = skerry(server, *arguments, home=tmp_path)
        assert (done.returncode, "--password-stdin" in done.stderr) == (2, True)
        (tmp_path / ".docker").mkdir()
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (tmp_path / ".docker/config.json").write_text(json.dumps({"auths": {fake.host: {"auth": login}}}))
        done = skerry(server, *arguments, home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["name"] == "secret"
        (tmp_path / ".docker/config.json").unlink()
        done = skerry(server, *arguments, "-u", USER, "--password-stdin", home=tmp_path, stdin=PASSWORD + "\n")
        assert done.returncode == 0, done.stderr
    assert skerry(server, "image", "rm", "secret", home=tmp_path).returncode == 0
    for word in (PASSWORD, login):
        found = ["grep", "-rlF", "--exclude-dir=layers", "--", word, server.state_dir, server.log]
        assert subprocess.run(found, check=False).returncode == 1


def skerry(server: Server, *arguments: str, home: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SKERRY_SERVER": server.address, "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "skerry", *arguments],
        env=env, input=stdin or "", capture_output=True, text=True, check=False,
    )  # fmt: skip
