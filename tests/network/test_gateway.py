"""A gateway in a test's namespace: every connection from inside reaches it, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable

import pytest
from support.descriptors import descriptors, left_over
from support.namespaces import NetworkNamespace

from skerry.errors import SandboxUnavailable
from skerry.network.gateway import checks, netlink
from skerry.network.gateway import gateway as gateways
from skerry.network.gateway.gateway import Gateway
from skerry.network.gateway.netns import Namespaces

CONNECT = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family) as one:
    one.settimeout(5)
    one.connect((sys.argv[1], int(sys.argv[2])))
    one.sendall(b"hello")
    print(one.recv(100).decode())
"""
SQUAT = """
import socket, sys, time
one = socket.socket(socket.AF_INET6)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
one.bind(("::", int(sys.argv[1])))
one.listen()
print("mine", flush=True)
while True:
    taken = one.accept()[0]
    taken.sendall(b"squatter")
    taken.close()
"""
SEND = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as one:
    one.settimeout(5)
    one.connect((sys.argv[1], int(sys.argv[2])))
    one.send(b"question")
    try:
        print(one.recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture
async def gateway(namespaces: Namespaces, namespace: NetworkNamespace) -> AsyncIterator[Gateway]:
    made = await gateways.open_gateway(namespaces, namespace.pidfd)
    yield made
    made.close()


def original(taken: socket.socket) -> tuple[str, int]:
    """Return the original destination."""
    if not taken.getpeername()[0].startswith("::ffff:"):
        found = taken.getsockopt(socket.IPPROTO_IPV6, 80, 28)
        return socket.inet_ntop(socket.AF_INET6, found[8:24]), struct.unpack_from(">H", found, 2)[0]
    found = taken.getsockopt(socket.IPPROTO_IP, 80, 16)
    return socket.inet_ntoa(found[4:8]), struct.unpack_from(">H", found, 2)[0]


async def serve(gateway: Gateway, count: int) -> list[tuple[str, int]]:
    """Accept so many connections and greet each; return their original destinations."""
    loop = asyncio.get_running_loop()
    seen = []
    for _ in range(count):
        taken, _ = await asyncio.wait_for(loop.sock_accept(gateway.tcp), 10)
        with taken:
            seen.append(original(taken))
            assert await loop.sock_recv(taken, 5) == b"hello"
            await loop.sock_sendall(taken, b"the door")
    return seen


async def query(gateway: Gateway, namespace: NetworkNamespace, code: str, address: str = "198.18.0.1") -> str:
    """Answer the datagram that a program sends to port 53; return what the program printed."""
    loop = asyncio.get_running_loop()
    printed = loop.run_in_executor(None, namespace.python, code, address, "53")
    data, sender = await asyncio.wait_for(loop.sock_recvfrom(gateway.udp, 100), 30)
    assert data == b"question"
    await loop.sock_sendto(gateway.udp, b"answer", sender)
    return str(await printed)


@pytest.mark.parametrize(
    "target",
    [
        ("198.18.0.7", 443), ("203.0.113.9", 1), ("169.254.169.254", 80), ("10.0.0.1", 65535), ("255.255.255.254", 25),
        ("2001:db8::1", 443), ("fd00::9", 5432), ("::ffff:203.0.113.9", 80), ("64:ff9b::7f00:1", 80),
    ],
)  # fmt: skip
async def test_connection_to_any_address_reaches_the_gateway(
    gateway: Gateway, namespace: NetworkNamespace, target: tuple[str, int]
) -> None:
    served = asyncio.create_task(serve(gateway, 1))
    said = await asyncio.to_thread(namespace.python, CONNECT, target[0], str(target[1]))
    assert said == "the door"
    meant = target[0].removeprefix("::ffff:")
    assert await served == [(meant, target[1])]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
async def test_loopback_stays_the_sandboxs_own(gateway: Gateway, namespace: NetworkNamespace, address: str) -> None:
    with namespace.running(SQUAT, "8000"):
        assert await asyncio.to_thread(namespace.python, CONNECT, address, "8000") == "squatter"


@pytest.mark.parametrize("address", ["198.18.0.1", "192.0.2.53"])
async def test_dns_query_reaches_the_gateway_and_its_answer_returns(
    gateway: Gateway, namespace: NetworkNamespace, address: str
) -> None:
    assert await query(gateway, namespace, SEND, address) == "answer"


@pytest.mark.parametrize(("address", "port"), [("192.0.2.1", 443), ("198.18.0.1", 54), ("::1", 53)])
async def test_all_other_datagrams_are_refused_at_once(
    gateway: Gateway, namespace: NetworkNamespace, address: str, port: int
) -> None:
    assert await asyncio.to_thread(namespace.python, SEND, address, str(port)) == "ConnectionRefusedError"


async def test_ipv6_datagrams_are_not_sent(gateway: Gateway, namespace: NetworkNamespace) -> None:
    """Each destination would be an entry of the host's neighbour table."""
    with pytest.raises(AssertionError, match="PermissionError"):
        await asyncio.to_thread(namespace.python, SEND, "2001:db8::1", "53")


async def test_an_accepted_connection_comes_from_the_address_that_it_goes_to(
    gateway: Gateway, namespace: NetworkNamespace
) -> None:
    """So that no two are equal once they are redirected, however many come from one port."""
    loop = asyncio.get_running_loop()
    connected = loop.run_in_executor(None, namespace.python, CONNECT, "203.0.113.4", "443")
    taken, peer = await asyncio.wait_for(loop.sock_accept(gateway.tcp), 10)
    with taken:
        assert peer[0] == "::ffff:203.0.113.4"
        await loop.sock_sendall(taken, b"the door")
    assert await connected == "the door"


async def test_a_restarted_server_takes_a_fresh_port_and_a_squatter_on_the_old_one_gets_nothing(
    namespaces: Namespaces, namespace: NetworkNamespace
) -> None:
    first = await gateways.open_gateway(namespaces, namespace.pidfd)
    first.close()
    with namespace.running(SQUAT, str(first.port)):
        assert (
            await asyncio.to_thread(namespace.python, CONNECT, "203.0.113.1", "80") == "squatter"
        )  # a connection to itself
        second = await gateways.open_gateway(namespaces, namespace.pidfd)
        assert second.port != first.port
        served = asyncio.create_task(serve(second, 2))
        assert await asyncio.to_thread(namespace.python, CONNECT, "203.0.113.1", "80") == "the door"
        assert await asyncio.to_thread(namespace.python, CONNECT, "2001:db8::7", "80") == "the door"
        assert await served == [("203.0.113.1", 80), ("2001:db8::7", 80)]
        second.close()


async def test_source_port_that_an_earlier_gateway_answered_works_with_the_next_one(
    namespaces: Namespaces, namespace: NetworkNamespace
) -> None:
    """The connection table remembers for seconds where a redirected query went. A resolver gives up at once if the next
    query from its port goes to a port that is closed now."""
    code = SEND.replace("one.settimeout(5)", "one.settimeout(5); one.bind(('198.18.0.3', 40000))")
    for _ in range(3):
        made = await gateways.open_gateway(namespaces, namespace.pidfd)
        assert await query(made, namespace, code) == "answer"
        made.close()


async def test_programs_inside_cannot_bind_the_gateways_port(gateway: Gateway, namespace: NetworkNamespace) -> None:
    code = """
import itertools, socket, sys
for family, kind, address in [(2, 1, "127.0.0.1"), (2, 1, "0.0.0.0"), (2, 1, "198.18.0.1"), (10, 1, "::1"),
                              (10, 1, "::"), (2, 2, "127.0.0.1"), (2, 2, "0.0.0.0")]:
    with socket.socket(family, kind) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            one.bind((address, int(sys.argv[1])))
            if kind == 1:
                one.listen()
            print("bound", address, kind)
        except OSError:
            pass
"""
    assert await asyncio.to_thread(namespace.python, code, str(gateway.port)) == ""


async def test_gateway_is_replaced_in_one_step_and_leaves_one_rule(
    namespaces: Namespaces, namespace: NetworkNamespace
) -> None:
    made = [await gateways.open_gateway(namespaces, namespace.pidfd) for _ in range(5)]
    listed = subprocess.run(
        ["nsenter", "-t", str(namespace.process.pid), "-n", "nft", "list", "ruleset"], capture_output=True, text=True
    ).stdout
    assert listed.count(f"redirect to :{made[-1].port}") == 3
    assert listed.count("redirect") == 3
    for one in made:
        one.close()


async def test_gateway_is_never_built_in_the_hosts_namespace(namespaces: Namespaces) -> None:
    own = os.pidfd_open(os.getpid())
    try:
        with pytest.raises(SandboxUnavailable, match="in the host's network namespace"):
            await gateways.open_gateway(namespaces, own)
    finally:
        os.close(own)


async def test_gateway_of_a_dead_process_fails(namespaces: Namespaces, namespace: NetworkNamespace) -> None:
    namespace.process.kill()
    namespace.process.wait()
    with pytest.raises(SandboxUnavailable):
        await gateways.open_gateway(namespaces, namespace.pidfd)


async def test_gateway_leaks_no_descriptor(
    namespaces: Namespaces, make_namespace: Callable[[], NetworkNamespace]
) -> None:
    places = [make_namespace() for _ in range(3)]
    before = descriptors()
    for one in places:
        (await gateways.open_gateway(namespaces, one.pidfd)).close()
    namespaces._closer.submit(lambda: None).result()
    assert left_over(before) == 0


def test_request_that_the_kernel_rejects_is_an_error() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.ROUTE) as one:
        with pytest.raises(netlink.NetlinkError) as caught:
            netlink._exchange(one, [netlink._message(24, 0x5, 1, b"\0" * 12)])
        assert caught.value.errno


@pytest.mark.parametrize("data", [b"\0" * 8, struct.pack("=IHHIIi", 20, 3, 0, 1, 0, 0), b"\xff" * 36])
def test_reply_other_than_an_acknowledgement_is_an_error(data: bytes) -> None:
    with pytest.raises(netlink.NetlinkError):
        netlink._acknowledged(data)


# -- dialling in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0", "::1", "::"])
async def test_dial_reaches_a_listener_inside(namespaces: Namespaces, namespace: NetworkNamespace, listen: str) -> None:
    (await gateways.open_gateway(namespaces, namespace.pidfd)).close()
    code = SQUAT.replace('"::"', f'"{listen}"')
    if "." in listen:
        code = code.replace("AF_INET6", "AF_INET")
    with namespace.running(code, "3000"), await namespaces.dial(namespace.pidfd, 3000) as one:
        assert await asyncio.get_running_loop().sock_recv(one, 100) == b"squatter"


async def test_dial_to_an_unused_port_is_refused(namespaces: Namespaces, namespace: NetworkNamespace) -> None:
    (await gateways.open_gateway(namespaces, namespace.pidfd)).close()
    with pytest.raises(ConnectionRefusedError):
        await namespaces.dial(namespace.pidfd, 3000)


def test_doctor_builds_a_gateway_and_leaves_nothing() -> None:
    before = descriptors()
    check = next(one for one in checks.checks() if one.name == "egress")
    assert (check.name, check.ok) == ("egress", True)
    assert "IPv4" in check.detail
    assert left_over(before) == 0
    assert os.readlink("/proc/self/ns/net") == os.readlink("/proc/thread-self/ns/net")


async def test_connections_waiting_without_a_worker_can_be_reset(gateway: Gateway, namespace: NetworkNamespace) -> None:
    loop = asyncio.get_running_loop()
    code = CONNECT.replace("print(one.recv(100).decode())", "print(one.recv(100))")
    waiting = loop.run_in_executor(None, namespace.status, code, "203.0.113.1", "80")
    while not waiting.done():
        await asyncio.sleep(0.05)
        gateway.reset_waiting()
    assert "ConnectionResetError" in await waiting


async def test_traffic_to_loopback_is_not_tracked(gateway: Gateway, namespace: NetworkNamespace) -> None:
    """A table of 262,144 is full after two minutes of 2,000 connections a second between programs inside."""
    counted = """
import socket, sys
families = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
for family, address in families:
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        for _ in range(50):
            with socket.create_connection(server.getsockname()[:2]) as one:
                server.accept()[0].close()
print(open("/proc/net/stat/nf_conntrack").readlines()[1].split()[0])
"""
    assert int(namespace.python(counted), 16) == 0
    others = counted.replace("families = [", 'socket.create_connection(("203.0.113.1", 80))\nfamilies = [')
    assert int(namespace.python(others), 16) == 1


@pytest.mark.parametrize("source", ["127.0.0.1", "127.9.9.9", "::1", "198.18.0.3"])
async def test_client_bound_to_loopback_reaches_the_gateway_too(
    gateway: Gateway, namespace: NetworkNamespace, source: str
) -> None:
    served = asyncio.create_task(serve(gateway, 1))
    target = "2001:db8::1" if ":" in source else "203.0.113.1"
    code = CONNECT.replace("one.settimeout(5)", f"one.settimeout(5); one.bind(({source!r}, 0))")
    assert await asyncio.to_thread(namespace.python, code, target, "80") == "the door"
    assert await served == [(target, 80)]


async def test_gateways_port_is_a_high_one_unless_all_are_taken(
    namespaces: Namespaces, namespace: NetworkNamespace
) -> None:
    made = await gateways.open_gateway(namespaces, namespace.pidfd)
    made.close()
    assert made.port >= 61000
    squat = """
import socket
held = []
for port in range(61000, 65536):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("0.0.0.0", port))
    held.append(one)
print("all", flush=True)
import time
time.sleep(600)
"""
    with namespace.running(squat):
        made = await gateways.open_gateway(namespaces, namespace.pidfd)
        made.close()
    assert 1024 <= made.port < 61000
