"""The route table: every path that the server answers, and nothing else.

Starlette's routes and the OpenAPI document are both made from it; a test compares the three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.server import (
    archives,
    code,
    contexts,
    edits,
    entries,
    events,
    files,
    host,
    images,
    languages,
    mcp,
    network,
    outputs,
    pool,
    ports,
    previews,
    processes,
    remotes,
    review,
    review_decisions,
    sandboxes,
    sessions,
    snapshots,
    terminals,
    tokens,
    trees,
    watches,
)
from skerry.server.answers import BYTES, DIFF, EVENTS, FRAMES, JSON, NDJSON, PACK, TAR
from skerry.server.code import CODE_LIMIT
from skerry.server.control import Control
from skerry.server.edits import REPLACE_LIMIT
from skerry.server.endpoint import Application
from skerry.server.openapi import document
from skerry.server.processes import RUN_LIMIT
from skerry.server.route import Route
from skerry.types import ProcessInfo

if TYPE_CHECKING:
    from skerry.engine.engine import Engine

ONE = "/v1/sandboxes/{ref}"
PROCESS = f"{ONE}/processes/{{process}}"
CONTEXTS = f"{ONE}/contexts"
SESSIONS = f"{ONE}/sessions"
FILES = f"{ONE}/files"
NETWORK = f"{ONE}/network"
REVIEW = f"{ONE}/review"
SNAPSHOT = "/v1/snapshots/{snapshot}"
WAKES = (404, 409, 429, 503)  # what a call may meet that has to find a sandbox, and wake it

ROUTES: tuple[Route, ...] = (
    Route("POST", f"{ONE}/processes", processes.run, "use", "Run a command; without `wait`, leave it to itself (201)",
          errors=(*WAKES, 406, 413, 415), gives=(JSON, FRAMES, NDJSON), limit=RUN_LIMIT, also={201: ProcessInfo}),
    Route("GET", f"{ONE}/processes", processes.list_, "use", "List processes", errors=WAKES),
    Route("GET", PROCESS, processes.get, "use", "One process", errors=WAKES),
    Route("DELETE", PROCESS, processes.remove, "use", "Forget a process that has ended", 204, WAKES),
    Route("GET", f"{PROCESS}/output", outputs.get, "use", "What it printed, from any byte on; followed if asked to",
          errors=(*WAKES, 406), gives=(JSON, FRAMES, NDJSON)),
    Route("GET", f"{PROCESS}/wait", processes.wait, "use", "Its end; 204 if it still runs", errors=WAKES,
          also={204: None}),
    Route("POST", f"{PROCESS}/signal", processes.signal, "use", "Send a signal", 204, (*WAKES, 413, 415)),
    Route("POST", f"{PROCESS}/stdin", processes.stdin, "use", "Send input", 204, WAKES, takes=BYTES),
    Route("POST", f"{PROCESS}/resize", processes.resize, "use", "Tell its terminal a new size", 204,
          (*WAKES, 413, 415)),
    Route("GET", f"{PROCESS}/terminal", terminals.attach, "use", "Watch and use its terminal (WebSocket)", 101,
          (*WAKES, 426)),

    Route("POST", SESSIONS, sessions.open_, "use", "The session of a name, made if there is none",
          errors=(*WAKES, 413, 415)),
    Route("GET", SESSIONS, sessions.list_, "use", "List sessions", errors=WAKES),
    Route("GET", f"{SESSIONS}/{{session}}", sessions.get, "use", "One session", errors=WAKES),
    Route("DELETE", f"{SESSIONS}/{{session}}", sessions.remove, "use", "Forget a session's state", 204, WAKES),
    Route("POST", f"{ONE}/code", code.run, "use", "Run code for its values", errors=(*WAKES, 406, 413, 415),
          gives=(JSON, FRAMES, NDJSON), limit=CODE_LIMIT),
    Route("POST", CONTEXTS, contexts.create, "use", "A new memory for a language", 201, (*WAKES, 413, 415)),
    Route("GET", CONTEXTS, contexts.list_, "use", "List contexts", errors=(404,)),
    Route("GET", f"{CONTEXTS}/{{context}}", contexts.get, "use", "One context", errors=(404,)),
    Route("DELETE", f"{CONTEXTS}/{{context}}", contexts.remove, "use", "Delete a context with what runs in it", 204,
          WAKES),
    Route("POST", f"{CONTEXTS}/{{context}}/interrupt", contexts.interrupt, "use",
          "Interrupt what runs in it; it remembers what it did", errors=WAKES),
    Route("POST", f"{CONTEXTS}/{{context}}/restart", contexts.restart, "use", "End what runs in it; it begins anew",
          errors=WAKES),
    Route("GET", f"{ONE}/ports/{{port}}/wait", ports.wait, "use", "Wait until something listens on a port",
          errors=WAKES),
    Route("GET", f"{ONE}/ports/{{port}}/connect", ports.connect, "use", "A TCP connection to a port (WebSocket)", 101,
          (*WAKES, 426)),
    Route("POST", f"{ONE}/previews", previews.create, "use", "Show a port by URL; again: with new terms",
          errors=(404, 409, 413, 415, 429)),
    Route("GET", f"{ONE}/previews", previews.list_, "use", "List previews, with their tokens", errors=(404, 409)),
    Route("DELETE", f"{ONE}/previews/{{port}}", previews.remove, "use", "Revoke a preview; who is in is put out", 204,
          (404,)),

    Route("GET", f"{ONE}/languages", languages.there, "use", "List languages, with the versions that are there",
          errors=WAKES),

    Route("GET", FILES, files.read, "use", "Read a file", errors=(*WAKES, 416), gives=(BYTES,), headers=("Range",)),
    Route("PUT", FILES, files.write, "use", "Write a file, whole or not at all; or add to one", errors=WAKES,
          takes=BYTES),
    Route("DELETE", FILES, entries.remove, "use", "Remove a file or directory", 204, WAKES),
    Route("GET", f"{FILES}/stat", entries.stat, "use", "What is at a path", errors=WAKES),
    Route("GET", f"{FILES}/list", entries.list_, "use", "List a directory", errors=WAKES),
    Route("GET", f"{FILES}/glob", entries.glob, "use", "Find files by a pattern of their names", errors=WAKES),
    Route("GET", f"{FILES}/search", entries.search, "use", "Find lines in files by a pattern", errors=WAKES),
    Route("GET", f"{FILES}/lines", files.lines, "use", "Some lines of a file", errors=WAKES),
    Route("GET", f"{FILES}/checksum", files.checksum, "use", "A checksum of a file", errors=WAKES),
    Route("POST", f"{FILES}/mkdir", entries.mkdir, "use", "Make a directory", errors=WAKES),
    Route("POST", f"{FILES}/move", entries.move, "use", "Move a file or directory", errors=WAKES),
    Route("POST", f"{FILES}/copy", entries.copy, "use", "Copy a file or directory", errors=WAKES),
    Route("POST", f"{FILES}/chmod", entries.chmod, "use", "Change modes", 204, WAKES),
    Route("POST", f"{FILES}/chown", entries.chown, "use", "Change owners", 204, WAKES),
    Route("POST", f"{FILES}/link", entries.link, "use", "Make a link", errors=WAKES),
    Route("POST", f"{FILES}/replace", edits.replace, "use", "Replace a text in a file", errors=(*WAKES, 413, 415),
          limit=REPLACE_LIMIT),
    Route("POST", f"{FILES}/patch", edits.patch, "use", "Apply a unified diff", errors=(*WAKES, 413), takes=DIFF),
    Route("GET", f"{FILES}/tree", trees.download, "use", "A directory as a tar archive", errors=(*WAKES, 406),
          gives=(TAR, FRAMES)),
    Route("PUT", f"{FILES}/tree", trees.upload, "use", "Unpack a tar archive", errors=WAKES, takes=TAR),
    Route("GET", f"{FILES}/watch", watches.watch, "use", "Changes below a directory, as they come",
          errors=(*WAKES, 406), gives=(NDJSON,)),

    Route("GET", NETWORK, network.show, "use", "What may leave it, and how much went through", errors=(404,)),
    Route("PUT", NETWORK, network.set_, "use", "Another policy", errors=(404, 413, 415, 429, 503), limit=network.LIMIT),
    Route("PATCH", NETWORK, network.change, "use", "More rules; what they no longer allow is closed",
          errors=(404, 413, 415, 503), limit=network.LIMIT),
    Route("GET", f"{NETWORK}/log", network.log, "use", "What was tried, as lines; followed if asked to",
          errors=(404, 406), gives=(NDJSON,)),
    Route("GET", f"{NETWORK}/learn", network.learn, "use", "The smallest policy that allows what was tried",
          errors=(404,)),
    Route("GET", f"{NETWORK}/questions", network.questions, "use", "Questions about what no rule names, as they come",
          errors=(404, 406), gives=(NDJSON,)),
    Route("POST", f"{NETWORK}/questions/{{question}}", network.reply, "use", "Answer one", 204, (404, 413, 415)),

    Route("POST", REVIEW, review.begin, "use", "Keep its changes from now on", 201, (*WAKES, 413, 415, 501),
          limit=review.BEGIN_LIMIT),
    Route("GET", REVIEW, review_decisions.show, "use", "All that differs from what the user has, hunk by hunk",
          errors=(404, 409)),
    Route("GET", f"{REVIEW}/hunks/{{hunk}}", review_decisions.hunk, "use", "One hunk, whole", errors=(404, 409)),
    Route("GET", f"{REVIEW}/why/{{hunk}}", review_decisions.why, "use", "The commands that made a hunk",
          errors=(404, 409, 503)),
    Route("POST", f"{REVIEW}/decisions", review_decisions.decide, "review", "Accept, reject, reopen, split, edit hunks",
          errors=(404, 409, 413, 415), limit=review_decisions.DECIDE_LIMIT),
    Route("GET", f"{REVIEW}/accepted", review_decisions.accepted, "use", "What is to land", errors=(404, 409)),
    Route("GET", f"{REVIEW}/blobs/{{oid}}", review_decisions.blob, "use", "A content by its object id",
          errors=(404, 406, 409), gives=(BYTES,)),
    Route("POST", f"{REVIEW}/applied", review_decisions.applied, "review", "It has landed", 204, (404, 409, 413, 415)),
    Route("POST", f"{REVIEW}/unapplied", review_decisions.unapplied, "review", "It was taken back", 204,
          (404, 409, 413, 415)),
    Route("GET", f"{REVIEW}/diff", review.diff, "use", "All that differs from what the user has, as a patch",
          errors=(404, 406, 409), gives=(DIFF, JSON)),
    Route("GET", f"{REVIEW}/history", review.history, "use", "What each command changed", errors=(404, 409)),
    Route("GET", f"{REVIEW}/watch", review.watch, "use", "Changes and decisions, as they come",
          errors=(404, 406, 409), gives=(NDJSON,)),

    Route("POST", "/v1/sandboxes", sandboxes.create, "use", "Create a sandbox", 201, (404, 409, 413, 415, 429, 501),
          limit=network.LIMIT, headers=("Idempotency-Key",)),
    Route("POST", f"{REVIEW}/pack", remotes.pack, "use", "Objects behind its refs, as a pack of git",
          errors=(404, 406, 409, 413, 415), gives=(PACK,)),
    Route("GET", "/v1/reviews", remotes.list_, "use", "What each sandbox's ledger is at, and the agent's own branches"),
    Route("GET", "/v1/sandboxes", sandboxes.list_, "use", "List sandboxes"),
    Route("GET", ONE, sandboxes.get, "use", "One sandbox", errors=(404,)),
    Route("PATCH", ONE, sandboxes.update, "use", "Change a sandbox", errors=(*WAKES, 413, 415)),
    Route("DELETE", ONE, sandboxes.delete, "use", "Delete a sandbox with its files", 204, (404,)),
    Route("POST", f"{ONE}/stop", sandboxes.stop, "use", "End its processes, keep its files", errors=(404, 409)),
    Route("POST", f"{ONE}/resume", sandboxes.resume, "use", "Wake a stopped or paused one", errors=(*WAKES, 501)),
    Route("POST", f"{ONE}/pause", sandboxes.pause, "use", "Freeze its processes", errors=(404, 409, 503)),
    Route("GET", f"{ONE}/usage", sandboxes.usage, "use", "What it uses", errors=(404, 503)),

    Route("POST", f"{ONE}/snapshots", snapshots.take, "use", "Take a snapshot of its files", 201,
          (404, 409, 413, 415, 429, 503), headers=("Idempotency-Key",)),
    Route("GET", f"{ONE}/snapshots", snapshots.of_one, "use", "List what was taken of it, oldest first", errors=(404,)),
    Route("POST", f"{ONE}/fork", snapshots.fork, "use", "New sandboxes that begin as it is now, all or none", 201,
          (404, 409, 413, 415, 429, 501, 503), headers=("Idempotency-Key",)),
    Route("POST", f"{ONE}/rollback", snapshots.rollback, "use", "Its files as they were; its processes end",
          errors=(404, 409, 413, 415, 429, 501, 503)),
    Route("GET", "/v1/snapshots", snapshots.list_, "use", "List snapshots"),
    Route("GET", SNAPSHOT, snapshots.get, "use", "One snapshot", errors=(404,)),
    Route("GET", f"{SNAPSHOT}/changes", snapshots.changes, "use", "What changed from it to another point",
          errors=(404, 409, 429, 503)),
    Route("POST", "/v1/snapshots/import", archives.import_snapshot, "use", "A snapshot of an archive", 201,
          (409, 429), takes=TAR),
    Route("GET", f"{SNAPSHOT}/export", archives.export_snapshot, "use", "It as an archive, which other tools read too",
          errors=(404, 406, 409, 429), gives=(TAR, FRAMES)),
    Route("DELETE", SNAPSHOT, snapshots.remove, "use", "Delete a snapshot on which nothing stands", 204, (404, 409)),

    Route("GET", "/v1/images", images.list_, "use", "List images"),
    Route("POST", "/v1/images", images.build, "admin", "Build an image; lines tell how far it is",
          errors=(404, 409, 413, 415), gives=(NDJSON,)),
    Route("POST", "/v1/images/import", archives.import_image, "admin", "An image of an archive", 201, (409, 429),
          takes=TAR),
    Route("GET", "/v1/images/export", archives.export_image, "use", "It as an archive, which other tools read too",
          errors=(404, 406, 409, 429), gives=(TAR, FRAMES)),
    Route("POST", "/v1/images/from-snapshot", images.from_snapshot, "admin", "A snapshot as an image", 201,
          (404, 409, 413, 415)),
    Route("POST", "/v1/images/pull", images.pull, "admin", "Pull an image from a registry; lines tell how far it is",
          errors=(413, 415), gives=(NDJSON,)),
    Route("POST", "/v1/images/prune", images.prune, "admin", "Remove what nothing needs", errors=(413, 415)),
    Route("POST", "/v1/images/verify", images.verify, "admin", "Read every byte of layers; lines tell how far it is",
          errors=(413, 415), gives=(NDJSON,)),
    Route("GET", "/v1/images/{name:path}", images.get, "use", "One image", errors=(404,)),
    Route("DELETE", "/v1/images/{name:path}", images.remove, "admin", "Delete an image", 204, (404, 409)),

    Route("GET", "/v1/languages", languages.list_, "use", "List languages, and which image has which version"),

    Route("GET", "/v1/pool", pool.show, "admin", "The ready sandboxes"),
    Route("PUT", "/v1/pool", pool.set_, "admin", "Keep so many of an image ready", errors=(404, 413, 415)),
    Route("DELETE", "/v1/pool", pool.drain, "admin", "Let all ready ones go; none is made until one is wanted again"),

    Route("POST", "/v1/tokens", tokens.create, "admin", "Create a token; its secret is shown once", 201, (413, 415)),
    Route("GET", "/v1/tokens", tokens.list_, "admin", "List tokens"),
    Route("DELETE", "/v1/tokens/{token}", tokens.remove, "admin", "Delete a token", 204, (404,)),

    Route("GET", "/v1/events", events.list_, "use", "What happened, as lines; followed if asked to",
          errors=(406,), gives=(NDJSON,)),

    Route("POST", "/mcp", mcp.post, "use", "Speak MCP: one message of a client's, and its answer",
          errors=(404, 406, 413), takes=JSON, gives=(JSON, EVENTS), also={202: None}),
    Route("GET", "/mcp", mcp.listen, "use", "What an MCP session has to say by itself", errors=(404, 406, 409),
          gives=(EVENTS,)),
    Route("DELETE", "/mcp", mcp.end, "use", "End an MCP session", errors=(404,)),

    Route("GET", "/v1/server", host.info, "use", "The server"),
    Route("POST", "/v1/server/stop", host.stop, "admin", "Stop the server; sandboxes live on", 202),
    Route("GET", "/v1/doctor", host.doctor, "admin", "What this host can isolate, and what is missing"),
    Route("GET", "/healthz", host.health, None, "Is the server there"),
    Route("GET", "/openapi.json", host.openapi, "use", "This document"),
)  # fmt: skip


def make_app(engine: Engine, control: Control) -> Application:
    """The application; `.behind(door)` is what a listener serves."""
    control.document = document(ROUTES)
    return Application(ROUTES, engine, control)
