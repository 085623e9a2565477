"""What the host puts below /run/skerry: certificates beside the image's own, and files of presets."""

from __future__ import annotations

import asyncio

import pytest
from keeper.room import Room

from skerry.errors import FileMissing, InvalidRequest, QuotaExceeded


async def text(room: Room, path: str) -> str:
    return (await (await room.keeper.files.read(path, user="0")).read(4 << 20)).decode()


async def test_certificates_stand_beside_those_of_the_image(room: Room) -> None:
    image = await text(room, "/etc/ssl/certs/ca-certificates.crt")
    await room.keeper.put_own("MINE\n", {})
    assert await text(room, "/run/skerry/ca.pem") == image.rstrip("\n") + "\nMINE\n"


async def test_an_image_without_certificates_gets_the_given_ones(room: Room) -> None:
    await room.keeper.files.remove("/etc/ssl", recursive=True, user="0")
    await room.keeper.put_own("MINE\n", {})
    assert await text(room, "/run/skerry/ca.pem") == "MINE\n"


async def test_what_is_no_file_in_the_bundles_place_holds_nothing_up(room: Room) -> None:
    odd = "rm -r /etc/ssl && mkdir -p /etc/ssl/certs && cd /etc/ssl && mkfifo certs/ca-certificates.crt"
    assert (await room.run(f"{odd} && ln -s /dev/zero cert.pem"))[0].exit_code == 0
    async with asyncio.timeout(10):
        await room.keeper.put_own("MINE\n", {})
    assert await text(room, "/run/skerry/ca.pem") == "MINE\n"


async def test_what_is_put_later_replaces_all_that_was_put_before(room: Room) -> None:
    await room.keeper.put_own("ONE\n", {"truststore.p12": b"\0\1", "presets/pip/pip.conf": b"[global]\n"})
    assert await text(room, "/run/skerry/presets/pip/pip.conf") == "[global]\n"
    await room.keeper.put_own("", {"truststore.p12": b"\2"})
    for gone in ("/run/skerry/ca.pem", "/run/skerry/presets"):
        with pytest.raises(FileMissing):
            await room.keeper.files.stat(gone, user="0")
    assert await text(room, "/run/skerry/truststore.p12") == "\2"


@pytest.mark.parametrize(
    "name", ["", "x", "bin/sudo", "ca.pem", "presets", "presets/", "presets/../x", "/etc/passwd", "presets/a//b"]
)
async def test_no_other_place_can_be_written(room: Room, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await room.keeper.put_own("", {name: b"x"})


async def test_a_directory_in_the_way_is_told_of(room: Room) -> None:
    await room.keeper.files.mkdir("/run/skerry/ca.pem/x", parents=True, user="0")
    with pytest.raises(QuotaExceeded):
        await room.keeper.put_own("MINE\n", {})


async def test_everybody_inside_may_read_it(room: Room) -> None:
    await room.keeper.put_own("MINE\n", {"presets/pip/pip.conf": b"x"})
    _, out, _ = await room.run("stat -c %a /run/skerry/ca.pem /run/skerry/presets /run/skerry/presets/pip/pip.conf")
    assert out == b"644\n755\n644\n"


async def test_what_a_review_rejected_stands_there_whatever_else_comes_and_goes(room: Room) -> None:
    await room.keeper.put_review(b'{"rejected":[]}')
    await room.keeper.put_own("", {"truststore.p12": b"\0"})
    await room.keeper.put_own("", {})
    assert await text(room, "/run/skerry/review.json") == '{"rejected":[]}'
    await room.keeper.put_review(b"{}")
    assert await text(room, "/run/skerry/review.json") == "{}"
