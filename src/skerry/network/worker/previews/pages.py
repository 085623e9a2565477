"""What the listener says in its own name. Nothing of it comes from inside, and none of it tells what exists."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import h11

_STYLE = "body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:34em;padding:0 1em;color:#333}"


@dataclass(frozen=True)
class Page:
    """`again`: worth another try after so many seconds. `close`: and then the connection ends."""

    status: int
    title: str
    text: str
    again: int | None = None
    close: bool = False

    def render(self, wants_html: bool) -> tuple[h11.Response, bytes]:
        body = (self._html() if wants_html else f"{self.title}. {self.text}\n").encode()
        kind = "text/html" if wants_html else "text/plain"
        headers = [
            ("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"),
        ]  # fmt: skip
        if self.again is not None:
            headers.append(("Retry-After", str(self.again)))
        if self.close:
            headers.append(("Connection", "close"))
        return h11.Response(status_code=self.status, headers=headers, reason=HTTPStatus(self.status).phrase), body

    def _html(self) -> str:
        refresh = f'<meta http-equiv="refresh" content="{self.again}">' if self.again is not None else ""
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8">{refresh}<title>{self.title}</title>'
            f"<style>{_STYLE}</style><h1>{self.title}</h1><p>{self.text}</p></html>\n"
        )


class Ended(Exception):
    """A request ends early, with a page instead of its answer."""

    def __init__(self, page: Page) -> None:
        self.page = page


FOR_PROGRAMS = (
    b"This link is for browsers, which keep its token as a cookie. A program sends the token with each request,"
    b" as the header X-Skerry-Preview-Token.\n"
)
NOTHING_HERE = Page(
    404, "No preview here", "There is none at this address, or it is private: open it by the link that has its token."
)
NOT_OURS = Page(421, "Not this server", "Previews have names of their own; this is none of them.", close=True)
NOT_HTTP = Page(400, "Bad request", "This is not HTTP/1.1 as it is spoken here.", close=True)
TOO_LARGE = Page(431, "Headers too large", "The request's headers are larger than 64 KiB.", close=True)
TOO_SLOW = Page(408, "Too slow", "The request did not come in time.", close=True)
TOO_MANY = Page(503, "Too busy", "This preview has as many connections as it may have.", again=2, close=True)
GONE = Page(502, "No answer", "The program inside closed the connection without an answer.", close=True)
BAD_ANSWER = Page(502, "Bad answer", "What the program inside answered is not HTTP/1.1.", close=True)


def nothing_listens(port: int) -> Page:
    return Page(502, f"Nothing listens on port {port}", "Start the program inside; then this page will show it.", 2)


def not_reached(port: int) -> Page:
    return Page(
        503, f"Port {port} can't be reached", "The sandbox does not run, or the program inside takes no connections.", 5
    )
