"""Servers over real sockets whose engine has tokens and no sandboxes; see `listening`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.listening_server import Listening


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    made = Listening(tmp_path_factory.mktemp("server"), origins=("https://mine.example",), hosts=("box.example",))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def token(listening: Listening) -> str:
    with listening.unix() as http:
        answer = http.post("/v1/tokens", json={"scope": "use", "owner": "ann"})
    assert answer.status_code == 201
    secret = answer.json()["secret"]
    assert isinstance(secret, str)
    return secret
