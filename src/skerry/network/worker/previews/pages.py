"""The listener's error pages. They contain nothing from inside and do not reveal which previews exist."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import h11

_STYLE = "body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:34em;padding:0 1em;color:#333}"


@dataclass(frozen=True)
class ErrorPage:
    """`retry_after_s`: when to try again. `close`: end the connection."""

    status: int
    title: str
    text: str
    retry_after_s: int | None = None
    close: bool = False

    def render(self, wants_html: bool) -> tuple[h11.Response, bytes]:
        body = (self._html() if wants_html else f"{self.title}. {self.text}\n").encode()
        kind = "text/html" if wants_html else "text/plain"
        headers = [
            ("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"),
        ]  # fmt: skip
        if self.retry_after_s is not None:
            headers.append(("Retry-After", str(self.retry_after_s)))
        if self.close:
            headers.append(("Connection", "close"))
        return h11.Response(status_code=self.status, headers=headers, reason=HTTPStatus(self.status).phrase), body

    def _html(self) -> str:
        refresh = (
            f'<meta http-equiv="refresh" content="{self.retry_after_s}">' if self.retry_after_s is not None else ""
        )
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8">{refresh}<title>{self.title}</title>'
            f"<style>{_STYLE}</style><h1>{self.title}</h1><p>{self.text}</p></html>\n"
        )


class EndedWithPage(Exception):
    """End a request early, with a page instead of its response."""

    def __init__(self, page: ErrorPage) -> None:
        self.page = page


FOR_PROGRAMS = (
    b"This link is for browsers, which keep its token as a cookie. A program sends the token with each request,"
    b" as the header X-Skerry-Preview-Token.\n"
)
NOTHING_HERE = ErrorPage(
    404,
    "No preview here",
    "No preview exists at this address, or it is private: open it with the link that contains its token.",
)
NOT_OURS = ErrorPage(421, "Not this server", "Previews have separate host names; this is not one of them.", close=True)
NOT_HTTP = ErrorPage(400, "Bad request", "This is not a valid HTTP/1.1 request.", close=True)
TOO_LARGE = ErrorPage(431, "Headers too large", "The request's headers are larger than 64 KiB.", close=True)
TOO_SLOW = ErrorPage(408, "Too slow", "The request did not arrive in time.", close=True)
TOO_MANY = ErrorPage(503, "Too busy", "This preview has reached its limit of connections.", retry_after_s=2, close=True)
GONE = ErrorPage(502, "No response", "The program inside closed the connection without a response.", close=True)
BAD_ANSWER = ErrorPage(502, "Bad response", "The response of the program inside is not HTTP/1.1.", close=True)


def nothing_listens(port: int) -> ErrorPage:
    return ErrorPage(
        502, f"Nothing listens on port {port}", "Start the program inside; then this page will show it.", 2
    )


def not_reached(port: int) -> ErrorPage:
    return ErrorPage(
        503,
        f"Port {port} is unreachable",
        "The sandbox is not running, or the program inside accepts no connections.",
        5,
    )
