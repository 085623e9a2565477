"""A secret's value goes to the hosts that it names, in its form, and to no other."""

from __future__ import annotations

import base64

import pytest

from skerry.network.messages import InjectedSecret
from skerry.network.worker.http.filters import BlockedByFilter, FilterDenial, Headers, RequestHead, ResponseHead
from skerry.network.worker.secrets.injection import MAX_HEAD, InjectionFilters, SecretInjector

VALUE = "ghp_s3cr3t/+=&value0123456789"
PLACEHOLDER = "skerry-secret-TOKEN-abcdefghijklmnop"


def secret(**form: str) -> InjectedSecret:
    return InjectedSecret(name="TOKEN", hosts=("api.example.com",), placeholder=PLACEHOLDER, value=VALUE, **form)


def filters(
    *secrets: InjectedSecret, host: str = "api.example.com", port: int = 443, tls: bool = True
) -> InjectionFilters:
    return SecretInjector(secrets).filters(host, port, tls=tls)


def head(target: str = "/", method: str = "GET", body: bool = False, **headers: str) -> RequestHead:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return RequestHead(method.encode(), target.encode(), (*lines,), body)


def passed(told: RequestHead | FilterDenial) -> RequestHead:
    assert isinstance(told, RequestHead), told
    return told


def refused(told: object) -> FilterDenial:
    assert isinstance(told, FilterDenial), told
    return told


def values(headers: Headers, name: str) -> list[bytes]:
    return [value for key, value in headers if key == name.encode()]


def basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


# -- forms ------------------------------------------------------------------------------------------------------------


def test_header_is_set_if_the_client_sent_none() -> None:
    mine = filters(secret(header="Authorization: Bearer {}"))
    told = passed(mine.on_request(head()))
    assert values(told.headers, "authorization") == [f"Bearer {VALUE}".encode()]
    assert mine.secrets() == ("TOKEN",)


def test_header_replaces_every_one_that_the_client_sent() -> None:
    sent = RequestHead(b"GET", b"/", ((b"authorization", b"one"), (b"x", b"y"), (b"authorization", b"two")))
    told = passed(filters(secret(header="Authorization: Bearer {}")).on_request(sent))
    assert values(told.headers, "authorization") == [f"Bearer {VALUE}".encode()]
    assert values(told.headers, "x") == [b"y"]


def test_a_basic_login_is_set() -> None:
    told = passed(filters(secret(basic="me")).on_request(head(authorization=basic("me:" + PLACEHOLDER))))
    assert values(told.headers, "authorization") == [basic(f"me:{VALUE}").encode()]


@pytest.mark.parametrize("sent", ["/p", "/p?", "/p?key=x", "/p?key=x&key=y", "/p?%6bey=" + PLACEHOLDER])
def test_query_parameter_replaces_the_clients(sent: str) -> None:
    told = passed(filters(secret(query="key")).on_request(head(sent)))
    assert told.target == b"/p?key=ghp_s3cr3t%2F%2B%3D%26value0123456789"


def test_query_parameter_keeps_the_others() -> None:
    told = passed(filters(secret(query="key")).on_request(head("/p?a=1&key=x&b=2")))
    assert told.target.startswith(b"/p?a=1&b=2&key=ghp_")


def test_placeholder_without_a_form_is_replaced_in_place() -> None:
    mine = filters(secret())
    told = passed(
        mine.on_request(head(f"/p?a={PLACEHOLDER}", authorization=f"Bearer {PLACEHOLDER}", x_key=PLACEHOLDER))
    )
    assert told.target == b"/p?a=ghp_s3cr3t%2F%2B%3D%26value0123456789"
    assert values(told.headers, "authorization") == [f"Bearer {VALUE}".encode()]
    assert values(told.headers, "x-key") == [VALUE.encode()]
    assert mine.secrets() == ("TOKEN",)


def test_placeholder_without_a_form_is_replaced_inside_a_basic_login() -> None:
    told = passed(filters(secret()).on_request(head(authorization=basic(f"x-access-token:{PLACEHOLDER}"))))
    assert values(told.headers, "authorization") == [basic(f"x-access-token:{VALUE}").encode()]


def test_request_without_a_placeholder_gets_no_value() -> None:
    mine = filters(secret())
    told = passed(mine.on_request(head("/p", authorization="Bearer mine")))
    assert VALUE.encode() not in repr(told).encode()
    assert mine.secrets() == ()


def test_placeholder_in_a_path_is_kept() -> None:
    assert VALUE not in repr(filters(secret()).on_request(head(f"/{PLACEHOLDER}")))


def test_placeholder_chooses_between_two_secrets_for_one_header() -> None:
    one = secret(header="Authorization: Bearer {}")
    other = InjectedSecret(
        name="OTHER", hosts=one.hosts, placeholder="skerry-secret-OTHER-x", value="0th3r-value", basic="me"
    )
    asked = filters(one, other).on_request(head(authorization="Bearer skerry-secret-OTHER-x"))
    assert values(passed(asked).headers, "authorization") == [basic("me:0th3r-value").encode()]
    unasked = filters(one, other).on_request(head())
    assert values(passed(unasked).headers, "authorization") == [f"Bearer {VALUE}".encode()]


def test_encodings_that_could_hide_an_echo_are_not_requested() -> None:
    sent = head(accept_encoding="gzip, br", sec_websocket_extensions="permessage-deflate")
    told = passed(filters(secret()).on_request(sent))
    assert values(told.headers, "accept-encoding") == [b"identity"]
    assert values(told.headers, "sec-websocket-extensions") == []


# -- destinations -----------------------------------------------------------------------------------------------------


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
    named = InjectedSecret(name="TOKEN", hosts=(pattern,), placeholder=PLACEHOLDER, value=VALUE)
    assert bool(SecretInjector([named]).allowed_for(host, port)) is goes


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
def test_placeholder_to_another_host_is_denied_with_its_secret_named(sent: RequestHead) -> None:
    told = refused(filters(secret(), host="evil.example").on_request(sent))
    assert told.why == "it carries the placeholder of secret TOKEN"
    assert told.hint is not None
    assert "api.example.com" in told.hint
    assert VALUE not in repr(told)


def test_placeholder_in_a_body_to_another_host_is_blocked_at_any_cut() -> None:
    elsewhere = filters(secret(), host="evil.example")
    wire = elsewhere.request_filter(passed(elsewhere.on_request(head(method="POST", body=True))))
    assert wire is not None
    assert wire.feed(b"x" * 1000 + PLACEHOLDER[:20].encode())
    with pytest.raises(BlockedByFilter, match="placeholder of secret TOKEN"):
        wire.feed(PLACEHOLDER[20:].encode())


def test_placeholder_without_tls_is_blocked_for_its_own_host_too() -> None:
    plain = filters(secret(header="Authorization: Bearer {}"), tls=False)
    assert refused(plain.on_request(head(authorization=f"Bearer {PLACEHOLDER}"))).why.endswith("secret TOKEN")
    told = passed(plain.on_request(head()))
    assert values(told.headers, "authorization") == []
    assert plain.secrets() == ()


def test_a_raw_stream_is_stopped_at_a_placeholder() -> None:
    wire = SecretInjector([secret()]).raw_filter()
    assert wire is not None
    with pytest.raises(BlockedByFilter):
        wire.feed(f"AUTH {PLACEHOLDER}\r\n".encode())


def test_two_secrets_each_go_only_to_their_own_host() -> None:
    one = secret()
    other = InjectedSecret(name="OTHER", hosts=("b.example",), placeholder="skerry-secret-OTHER-x", value="0th3r-value")
    assert refused(filters(one, other).on_request(head(authorization="skerry-secret-OTHER-x"))).why.endswith("OTHER")
    assert refused(filters(one, other, host="b.example").on_request(head(x=PLACEHOLDER))).why.endswith("TOKEN")


def test_each_request_of_a_connection_is_judged_by_itself() -> None:
    mine = filters(secret())
    mine.on_request(head(authorization=f"Bearer {PLACEHOLDER}"))
    assert mine.secrets() == ("TOKEN",)
    told = passed(mine.on_request(head()))
    assert mine.secrets() == ()
    assert VALUE not in repr(told)


# -- responses --------------------------------------------------------------------------------------------------------


def test_an_echo_is_masked_in_the_head() -> None:
    mine = filters(secret())
    sent = passed(mine.on_request(head(authorization=f"Bearer {PLACEHOLDER}")))
    echo = ResponseHead(302, VALUE.encode(), ((b"location", f"https://evil.example/?t={VALUE}".encode()), (b"x", b"y")))
    told = mine.on_response(sent, echo)
    assert isinstance(told, ResponseHead)
    assert "ghp_" not in repr(told)
    assert len(told.headers[0][1]) == len(echo.headers[0][1])


def test_an_echo_is_masked_in_the_body_also_of_a_login_in_base64() -> None:
    mine = filters(secret())
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
    mine = filters(secret())
    back = mine.response_filter(head(), ResponseHead(200, b"OK", ()))
    assert back is not None
    for before in range(6):
        echo = base64.b64encode(b"x" * before + VALUE.encode() + b"yyyy")
        told = back.feed(echo) + back.end()
        assert told.count(b"*") >= len(VALUE) // 3 * 4 - 8


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, identity", "x"])
def test_an_encoded_answer_is_refused(encoding: str) -> None:
    mine = filters(secret())
    told = refused(mine.on_response(head(), ResponseHead(200, b"OK", ((b"content-encoding", encoding.encode()),))))
    assert told.status == 502


def test_an_encoded_answer_without_a_body_is_no_danger() -> None:
    mine = filters(secret())
    encoded = ((b"content-encoding", b"gzip"),)
    assert isinstance(mine.on_response(head(method="HEAD"), ResponseHead(200, b"OK", encoded)), ResponseHead)
    assert isinstance(mine.on_response(head(), ResponseHead(304, b"Not Modified", encoded)), ResponseHead)


def test_answers_of_hosts_without_secrets_pass_as_they_are() -> None:
    elsewhere = filters(secret(), host="other.example")
    answer = ResponseHead(200, b"OK", ((b"content-encoding", b"gzip"),))
    assert elsewhere.on_response(head(), answer) is answer
    assert elsewhere.response_filter(head(), answer) is None
    assert values(passed(elsewhere.on_request(head(accept_encoding="gzip"))).headers, "accept-encoding") == [b"gzip"]


# -- attacks ----------------------------------------------------------------------------------------------------------


def test_trace_is_not_sent_to_a_host_that_gets_secrets() -> None:
    assert refused(filters(secret()).on_request(head(method="TRACE", x=PLACEHOLDER))).status == 405


def test_a_head_can_not_be_blown_up_by_many_placeholders() -> None:
    long = InjectedSecret(name="TOKEN", hosts=("api.example.com",), placeholder=PLACEHOLDER, value="v" * 16000)
    told = filters(long).on_request(head(x=PLACEHOLDER * (MAX_HEAD // 16000 + 1)))
    assert refused(told).status == 431


def test_many_logins_on_one_connection_cost_no_memory_without_end() -> None:
    mine = filters(secret())
    for number in range(200):
        passed(mine.on_request(head(authorization=basic(f"user{number}:{PLACEHOLDER}"))))
    assert len(mine._logins) < 50


def test_a_login_that_is_no_base64_is_left_alone() -> None:
    told = passed(filters(secret()).on_request(head(authorization="Basic !!!!")))
    assert values(told.headers, "authorization") == [b"Basic !!!!"]


def websocket(payload: bytes, first: int = 0x81) -> bytes:
    if len(payload) < 126:
        return bytes([first, len(payload)]) + payload
    return bytes([first, 126]) + len(payload).to_bytes(2) + payload


def test_an_echo_in_a_websocket_is_masked_wherever_it_is_cut() -> None:
    stream = websocket(b"hello") + websocket(b"x" * 200 + VALUE.encode()) + websocket(b"bye")
    for cut in range(len(stream)):
        back = filters(secret()).response_filter(head(), ResponseHead(101, b"", ()))
        assert back is not None
        told = back.feed(stream[:cut]) + back.feed(stream[cut:])
        assert told == websocket(b"hello") + websocket(b"x" * 200 + b"*" * len(VALUE)) + websocket(b"bye")


def test_echo_split_over_frames_is_masked() -> None:
    text, stars = b"say " + VALUE.encode() + b" ok", b"say " + b"*" * len(VALUE) + b" ok"
    for split in range(len(text) + 1):
        for ping in (b"", websocket(b"are you there", 0x89), websocket(b"", 0x00)):
            frames = [websocket(text[:split], 0x01), ping, websocket(text[split:], 0x80), websocket(b"bye")]
            told = [websocket(stars[:split], 0x01), ping, websocket(stars[split:], 0x80), websocket(b"bye")]
            for size in (1, 7, 1000):
                back = filters(secret()).response_filter(head(), ResponseHead(101, b"", ()))
                assert back is not None
                stream = b"".join(frames)
                got = b"".join(back.feed(stream[at : at + size]) for at in range(0, len(stream), size))
                assert got == b"".join(told)
                assert back.end() == b""


def test_echo_in_a_lowercased_header_name_is_masked() -> None:
    """Like a host that turns the query into headers: `?TOKEN=1`."""
    value = "Ghp_AbCdEfGh0123456789"
    mine = filters(InjectedSecret(name="TOKEN", hosts=("api.example.com",), placeholder=PLACEHOLDER, value=value))
    told = mine.on_response(head(), ResponseHead(200, b"OK", ((b"x-" + value.lower().encode(), b"1"),)))
    assert isinstance(told, ResponseHead)
    assert told.headers == ((b"x-" + b"*" * len(value), b"1"),)


def test_websocket_that_makes_the_mask_hold_back_too_much_is_blocked() -> None:
    back = filters(secret()).response_filter(head(), ResponseHead(101, b"", ()))
    assert back is not None
    back.feed(websocket(VALUE[:6].encode(), 0x01))
    with pytest.raises(BlockedByFilter):
        back.feed(websocket(b"", 0x89) * 2_000)


def test_a_right_guess_in_a_websocket_comes_back_as_soon_as_a_wrong_one() -> None:
    for guess in (VALUE[:6], "ghp_xx"):
        back = filters(secret()).response_filter(head(), ResponseHead(101, b"", ()))
        assert back is not None
        assert back.feed(websocket(guess.encode())) == websocket(guess.encode())


def test_websocket_frames_that_hide_their_content_are_not_let_in() -> None:
    for frame in (bytes([0xC1, 5]) + b"hello", bytes([0x81, 0x85]) + b"keyshello"):
        back = filters(secret()).response_filter(head(), ResponseHead(101, b"", ()))
        assert back is not None
        with pytest.raises(BlockedByFilter):
            back.feed(frame)
