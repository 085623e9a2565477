"""A secret's value goes where its secret names the host, in the form it says, and nowhere else."""

from __future__ import annotations

import base64

import pytest

from skerry.network.messages import Brokered
from skerry.network.worker.brokering import HEAD_MOST, Broker, BrokeringHooks
from skerry.network.worker.hooks import Blocked, Headers, Refusal, RequestHead, ResponseHead

VALUE = "ghp_s3cr3t/+=&value0123456789"
PLACEHOLDER = "skerry-secret-TOKEN-abcdefghijklmnop"


def secret(**form: str) -> Brokered:
    return Brokered(name="TOKEN", hosts=("api.example.com",), placeholder=PLACEHOLDER, value=VALUE, **form)


def hooks(*secrets: Brokered, host: str = "api.example.com", port: int = 443, tls: bool = True) -> BrokeringHooks:
    return Broker(secrets).hooks(host, port, tls=tls)


def head(target: str = "/", method: str = "GET", body: bool = False, **headers: str) -> RequestHead:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return RequestHead(method.encode(), target.encode(), (*lines,), body)


def passed(told: RequestHead | Refusal) -> RequestHead:
    assert isinstance(told, RequestHead), told
    return told


def refused(told: object) -> Refusal:
    assert isinstance(told, Refusal), told
    return told


def values(headers: Headers, name: str) -> list[bytes]:
    return [value for key, value in headers if key == name.encode()]


def basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


# -- forms ------------------------------------------------------------------------------------------------------------


def test_a_header_is_set_even_if_the_client_sent_none() -> None:
    mine = hooks(secret(header="Authorization: Bearer {}"))
    told = passed(mine.on_request(head()))
    assert values(told.headers, "authorization") == [f"Bearer {VALUE}".encode()]
    assert mine.secrets() == ("TOKEN",)


def test_a_header_takes_the_place_of_every_one_that_the_client_sent() -> None:
    sent = RequestHead(b"GET", b"/", ((b"authorization", b"one"), (b"x", b"y"), (b"authorization", b"two")))
    told = passed(hooks(secret(header="Authorization: Bearer {}")).on_request(sent))
    assert values(told.headers, "authorization") == [f"Bearer {VALUE}".encode()]
    assert values(told.headers, "x") == [b"y"]


def test_a_basic_login_is_set() -> None:
    told = passed(hooks(secret(basic="me")).on_request(head(authorization=basic("me:" + PLACEHOLDER))))
    assert values(told.headers, "authorization") == [basic(f"me:{VALUE}").encode()]


@pytest.mark.parametrize("sent", ["/p", "/p?", "/p?key=x", "/p?key=x&key=y", "/p?%6bey=" + PLACEHOLDER])
def test_a_parameter_takes_the_place_of_what_the_client_sent(sent: str) -> None:
    told = passed(hooks(secret(query="key")).on_request(head(sent)))
    assert told.target == b"/p?key=ghp_s3cr3t%2F%2B%3D%26value0123456789"


def test_a_parameter_leaves_the_others() -> None:
    told = passed(hooks(secret(query="key")).on_request(head("/p?a=1&key=x&b=2")))
    assert told.target.startswith(b"/p?a=1&b=2&key=ghp_")


def test_without_a_form_the_placeholder_is_replaced_where_it_stands() -> None:
    mine = hooks(secret())
    told = passed(
        mine.on_request(head(f"/p?a={PLACEHOLDER}", authorization=f"Bearer {PLACEHOLDER}", x_key=PLACEHOLDER))
    )
    assert told.target == b"/p?a=ghp_s3cr3t%2F%2B%3D%26value0123456789"
    assert values(told.headers, "authorization") == [f"Bearer {VALUE}".encode()]
    assert values(told.headers, "x-key") == [VALUE.encode()]
    assert mine.secrets() == ("TOKEN",)


def test_without_a_form_the_placeholder_is_replaced_inside_a_basic_login() -> None:
    told = passed(hooks(secret()).on_request(head(authorization=basic(f"x-access-token:{PLACEHOLDER}"))))
    assert values(told.headers, "authorization") == [basic(f"x-access-token:{VALUE}").encode()]


def test_without_a_form_a_request_that_does_not_ask_for_it_gets_nothing() -> None:
    mine = hooks(secret())
    told = passed(mine.on_request(head("/p", authorization="Bearer mine")))
    assert VALUE.encode() not in repr(told).encode()
    assert mine.secrets() == ()


def test_without_a_form_a_path_keeps_its_placeholder() -> None:
    assert VALUE not in repr(hooks(secret()).on_request(head(f"/{PLACEHOLDER}")))


def test_of_two_secrets_for_one_header_the_one_asked_for_is_put_in() -> None:
    one = secret(header="Authorization: Bearer {}")
    other = Brokered(
        name="OTHER", hosts=one.hosts, placeholder="skerry-secret-OTHER-x", value="0th3r-value", basic="me"
    )
    asked = hooks(one, other).on_request(head(authorization="Bearer skerry-secret-OTHER-x"))
    assert values(passed(asked).headers, "authorization") == [basic("me:0th3r-value").encode()]
    unasked = hooks(one, other).on_request(head())
    assert values(passed(unasked).headers, "authorization") == [f"Bearer {VALUE}".encode()]


def test_what_could_hide_an_echo_is_not_asked_for() -> None:
    sent = head(accept_encoding="gzip, br", sec_websocket_extensions="permessage-deflate")
    told = passed(hooks(secret()).on_request(sent))
    assert values(told.headers, "accept-encoding") == [b"identity"]
    assert values(told.headers, "sec-websocket-extensions") == []


# -- where it may go --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "host", "port", "goes"),
    [
        ("api.example.com", "api.example.com", 443, True),
        ("api.example.com", "api.example.com", 8443, False),
        ("API.example.com.", "api.example.com", 443, True),
        ("api.example.com:8443", "api.example.com", 8443, True),
        ("api.example.com:8443", "api.example.com", 443, False),
        ("api.example.com", "api.example.com.evil.com", 443, False),
        ("api.example.com", "xapi.example.com", 443, False),
        ("*.example.com", "api.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("192.0.2.1", "192.0.2.1", 443, True),
        ("[2001:db8::1]:443", "2001:db8::1", 443, True),
        ("2001:db8::1", "2001:db8::1", 443, True),
        ("api.example.com:*", "api.example.com", 8443, True),
        ("0x7f.1", "127.0.0.1", 443, True),
    ],
)
def test_a_secret_goes_to_the_hosts_that_it_names(pattern: str, host: str, port: int, goes: bool) -> None:
    named = Brokered(name="TOKEN", hosts=(pattern,), placeholder=PLACEHOLDER, value=VALUE)
    assert bool(Broker([named]).named(host, port)) is goes


@pytest.mark.parametrize(
    "sent",
    [
        head("/", authorization=f"Bearer {PLACEHOLDER}"),
        head("/", authorization=basic(f"me:{PLACEHOLDER}")),
        head(f"/?key={PLACEHOLDER}"),
        head("/?key=" + PLACEHOLDER.replace("-", "%2d")),
        head(f"/{PLACEHOLDER}"),
        head("/", cookie=f"a={PLACEHOLDER}"),
    ],
)
def test_a_placeholder_on_its_way_elsewhere_is_stopped_and_says_whose_it_is(sent: RequestHead) -> None:
    told = refused(hooks(secret(), host="evil.example").on_request(sent))
    assert told.why == "it carries the placeholder of secret TOKEN"
    assert told.hint is not None
    assert "api.example.com" in told.hint
    assert VALUE not in repr(told)


def test_a_placeholder_in_a_body_on_its_way_elsewhere_is_stopped_wherever_it_is_cut() -> None:
    elsewhere = hooks(secret(), host="evil.example")
    wire = elsewhere.request_filter(passed(elsewhere.on_request(head(method="POST", body=True))))
    assert wire is not None
    assert wire.feed(b"x" * 1000 + PLACEHOLDER[:20].encode())
    with pytest.raises(Blocked, match="placeholder of secret TOKEN"):
        wire.feed(PLACEHOLDER[20:].encode())


def test_without_tls_a_placeholder_is_stopped_at_its_own_host_too() -> None:
    plain = hooks(secret(header="Authorization: Bearer {}"), tls=False)
    assert refused(plain.on_request(head(authorization=f"Bearer {PLACEHOLDER}"))).why.endswith("secret TOKEN")
    told = passed(plain.on_request(head()))
    assert values(told.headers, "authorization") == []
    assert plain.secrets() == ()


def test_a_raw_stream_is_stopped_at_a_placeholder() -> None:
    wire = Broker([secret()]).wire()
    assert wire is not None
    with pytest.raises(Blocked):
        wire.feed(f"AUTH {PLACEHOLDER}\r\n".encode())


def test_of_two_secrets_each_goes_to_its_own_host_only() -> None:
    one = secret()
    other = Brokered(name="OTHER", hosts=("b.example",), placeholder="skerry-secret-OTHER-x", value="0th3r-value")
    assert refused(hooks(one, other).on_request(head(authorization="skerry-secret-OTHER-x"))).why.endswith("OTHER")
    assert refused(hooks(one, other, host="b.example").on_request(head(x=PLACEHOLDER))).why.endswith("TOKEN")


def test_each_request_of_a_connection_is_judged_by_itself() -> None:
    mine = hooks(secret())
    mine.on_request(head(authorization=f"Bearer {PLACEHOLDER}"))
    assert mine.secrets() == ("TOKEN",)
    told = passed(mine.on_request(head()))
    assert mine.secrets() == ()
    assert VALUE not in repr(told)


# -- what comes back --------------------------------------------------------------------------------------------------


def test_an_echo_is_masked_in_the_head() -> None:
    mine = hooks(secret())
    sent = passed(mine.on_request(head(authorization=f"Bearer {PLACEHOLDER}")))
    echo = ResponseHead(302, VALUE.encode(), ((b"location", f"https://evil.example/?t={VALUE}".encode()), (b"x", b"y")))
    told = mine.on_response(sent, echo)
    assert isinstance(told, ResponseHead)
    assert "ghp_" not in repr(told)
    assert len(told.headers[0][1]) == len(echo.headers[0][1])


def test_an_echo_is_masked_in_the_body_also_of_a_login_in_base64() -> None:
    mine = hooks(secret())
    sent = passed(mine.on_request(head(authorization=basic(f"anybody:{PLACEHOLDER}"))))
    back = mine.response_filter(sent, ResponseHead(200, b"OK", ()))
    assert back is not None
    echo = f"{VALUE} {values(sent.headers, 'authorization')[0].decode()} x"
    told = back.feed(echo.encode()) + back.end()
    assert b"ghp_" not in told
    assert b"YW55Ym9keTp" not in told
    assert told.endswith(b" x")
    assert len(told) == len(echo)


def test_a_secret_in_the_base64_of_some_other_text_is_masked_but_for_its_edges() -> None:
    mine = hooks(secret())
    back = mine.response_filter(head(), ResponseHead(200, b"OK", ()))
    assert back is not None
    for before in range(6):
        echo = base64.b64encode(b"x" * before + VALUE.encode() + b"yyyy")
        told = back.feed(echo) + back.end()
        assert told.count(b"*") >= len(VALUE) // 3 * 4 - 8


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, identity", "x"])
def test_an_encoded_answer_is_refused(encoding: str) -> None:
    mine = hooks(secret())
    told = refused(mine.on_response(head(), ResponseHead(200, b"OK", ((b"content-encoding", encoding.encode()),))))
    assert told.status == 502


def test_an_encoded_answer_without_a_body_is_no_danger() -> None:
    mine = hooks(secret())
    encoded = ((b"content-encoding", b"gzip"),)
    assert isinstance(mine.on_response(head(method="HEAD"), ResponseHead(200, b"OK", encoded)), ResponseHead)
    assert isinstance(mine.on_response(head(), ResponseHead(304, b"Not Modified", encoded)), ResponseHead)


def test_answers_of_hosts_without_secrets_pass_as_they_are() -> None:
    elsewhere = hooks(secret(), host="other.example")
    answer = ResponseHead(200, b"OK", ((b"content-encoding", b"gzip"),))
    assert elsewhere.on_response(head(), answer) is answer
    assert elsewhere.response_filter(head(), answer) is None
    assert values(passed(elsewhere.on_request(head(accept_encoding="gzip"))).headers, "accept-encoding") == [b"gzip"]


# -- attacks ----------------------------------------------------------------------------------------------------------


def test_trace_is_not_sent_to_a_host_that_gets_secrets() -> None:
    assert refused(hooks(secret()).on_request(head(method="TRACE", x=PLACEHOLDER))).status == 405


def test_a_head_can_not_be_blown_up_by_many_placeholders() -> None:
    long = Brokered(name="TOKEN", hosts=("api.example.com",), placeholder=PLACEHOLDER, value="v" * 16000)
    told = hooks(long).on_request(head(x=PLACEHOLDER * (HEAD_MOST // 16000 + 1)))
    assert refused(told).status == 431


def test_many_logins_on_one_connection_cost_no_memory_without_end() -> None:
    mine = hooks(secret())
    for number in range(200):
        passed(mine.on_request(head(authorization=basic(f"user{number}:{PLACEHOLDER}"))))
    assert len(mine._logins) < 50


def test_a_login_that_is_no_base64_is_left_alone() -> None:
    told = passed(hooks(secret()).on_request(head(authorization="Basic !!!!")))
    assert values(told.headers, "authorization") == [b"Basic !!!!"]


def websocket(payload: bytes, first: int = 0x81) -> bytes:
    if len(payload) < 126:
        return bytes([first, len(payload)]) + payload
    return bytes([first, 126]) + len(payload).to_bytes(2) + payload


def test_an_echo_in_a_websocket_is_masked_wherever_it_is_cut() -> None:
    stream = websocket(b"hello") + websocket(b"x" * 200 + VALUE.encode()) + websocket(b"bye")
    for cut in range(len(stream)):
        back = hooks(secret()).response_filter(head(), ResponseHead(101, b"", ()))
        assert back is not None
        told = back.feed(stream[:cut]) + back.feed(stream[cut:])
        assert told == websocket(b"hello") + websocket(b"x" * 200 + b"*" * len(VALUE)) + websocket(b"bye")


def test_an_echo_that_is_split_over_a_messages_frames_is_masked() -> None:
    text, stars = b"say " + VALUE.encode() + b" ok", b"say " + b"*" * len(VALUE) + b" ok"
    for split in range(len(text) + 1):
        for ping in (b"", websocket(b"are you there", 0x89), websocket(b"", 0x00)):
            frames = [websocket(text[:split], 0x01), ping, websocket(text[split:], 0x80), websocket(b"bye")]
            told = [websocket(stars[:split], 0x01), ping, websocket(stars[split:], 0x80), websocket(b"bye")]
            for size in (1, 7, 1000):
                back = hooks(secret()).response_filter(head(), ResponseHead(101, b"", ()))
                assert back is not None
                stream = b"".join(frames)
                got = b"".join(back.feed(stream[at : at + size]) for at in range(0, len(stream), size))
                assert got == b"".join(told)
                assert back.end() == b""


def test_an_echo_as_a_headers_name_is_masked_though_its_letters_are_small_by_then() -> None:
    """As of a host that makes headers of the query: `?TOKEN=1`."""
    value = "Ghp_AbCdEfGh0123456789"
    mine = hooks(Brokered(name="TOKEN", hosts=("api.example.com",), placeholder=PLACEHOLDER, value=value))
    told = mine.on_response(head(), ResponseHead(200, b"OK", ((b"x-" + value.lower().encode(), b"1"),)))
    assert isinstance(told, ResponseHead)
    assert told.headers == ((b"x-" + b"*" * len(value), b"1"),)


def test_a_websocket_that_only_holds_back_is_ended() -> None:
    back = hooks(secret()).response_filter(head(), ResponseHead(101, b"", ()))
    assert back is not None
    back.feed(websocket(VALUE[:6].encode(), 0x01))
    with pytest.raises(Blocked):
        back.feed(websocket(b"", 0x89) * 2_000)


def test_a_right_guess_in_a_websocket_comes_back_as_soon_as_a_wrong_one() -> None:
    for guess in (VALUE[:6], "ghp_xx"):
        back = hooks(secret()).response_filter(head(), ResponseHead(101, b"", ()))
        assert back is not None
        assert back.feed(websocket(guess.encode())) == websocket(guess.encode())


def test_websocket_frames_that_hide_their_content_are_not_let_in() -> None:
    for frame in (bytes([0xC1, 5]) + b"hello", bytes([0x81, 0x85]) + b"keyshello"):
        back = hooks(secret()).response_filter(head(), ResponseHead(101, b"", ()))
        assert back is not None
        with pytest.raises(Blocked):
            back.feed(frame)
