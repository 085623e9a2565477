"""Guest files below /run/skerry: certificates in addition to the image's, and files of presets."""

from __future__ import annotations

import asyncio

import pytest
from support.keeper import Room

from skerry.errors import FileNotFound, InvalidRequest, QuotaExceeded


async def text(room: Room, path: str) -> str:
    return (await (await room.keeper.files.read(path, user="0")).read(4 << 20)).decode()


async def test_certificates_are_added_to_the_image_bundle(room: Room) -> None:
    image = await text(room, "/etc/ssl/certs/ca-certificates.crt")
    await room.keeper.put_guest_files("MINE\n", {})
    assert await text(room, "/run/skerry/ca.pem") == image.rstrip("\n") + "\nMINE\n"


async def test_image_without_a_bundle_gets_only_the_given_certificates(room: Room) -> None:
    await room.keeper.files.remove("/etc/ssl", recursive=True, user="0")
    await room.keeper.put_guest_files("MINE\n", {})
    assert await text(room, "/run/skerry/ca.pem") == "MINE\n"


async def test_bundle_that_is_not_a_file_does_not_block(room: Room) -> None:
    odd = "rm -r /etc/ssl && mkdir -p /etc/ssl/certs && cd /etc/ssl && mkfifo certs/ca-certificates.crt"
    assert (await room.run(f"{odd} && ln -s /dev/zero cert.pem"))[0].exit_code == 0
    async with asyncio.timeout(10):
        await room.keeper.put_guest_files("MINE\n", {})
    assert await text(room, "/run/skerry/ca.pem") == "MINE\n"


async def test_later_files_replace_all_earlier_ones(room: Room) -> None:
    await room.keeper.put_guest_files("ONE\n", {"truststore.p12": b"\0\1", "presets/pip/pip.conf": b"[global]\n"})
    assert await text(room, "/run/skerry/presets/pip/pip.conf") == "[global]\n"
    await room.keeper.put_guest_files("", {"truststore.p12": b"\2"})
    for gone in ("/run/skerry/ca.pem", "/run/skerry/presets"):
        with pytest.raises(FileNotFound):
            await room.keeper.files.stat(gone, user="0")
    assert await text(room, "/run/skerry/truststore.p12") == "\2"


@pytest.mark.parametrize(
    "name", ["", "x", "bin/sudo", "ca.pem", "presets", "presets/", "presets/../x", "/etc/passwd", "presets/a//b"]
)
async def test_other_places_cannot_be_written(room: Room, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await room.keeper.put_guest_files("", {name: b"x"})


async def test_directory_in_the_way_is_reported(room: Room) -> None:
    await room.keeper.files.mkdir("/run/skerry/ca.pem/x", parents=True, user="0")
    with pytest.raises(QuotaExceeded):
        await room.keeper.put_guest_files("MINE\n", {})


async def test_all_users_may_read_the_files(room: Room) -> None:
    await room.keeper.put_guest_files("MINE\n", {"presets/pip/pip.conf": b"x"})
    _, out, _ = await room.run("stat -c %a /run/skerry/ca.pem /run/skerry/presets /run/skerry/presets/pip/pip.conf")
    assert out == b"644\n755\n644\n"


async def test_review_file_is_independent_of_the_others(room: Room) -> None:
    await room.keeper.put_review_file(b'{"rejected":[]}')
    await room.keeper.put_guest_files("", {"truststore.p12": b"\0"})
    await room.keeper.put_guest_files("", {})
    assert await text(room, "/run/skerry/review.json") == '{"rejected":[]}'
    await room.keeper.put_review_file(b"{}")
    assert await text(room, "/run/skerry/review.json") == "{}"
