"""The API of Claude Managed Agents, as the SDK of Anthropic uses it: the queue of a self-hosted environment, sessions
with their events, skills and memory stores. A session's agent is a script of tool calls. Its work items have tokens of
their own, which are valid for their session only.

Nothing here depends on time: a lease expires when a test calls `expire`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

KEY = "sk-ant-world-environment-key-0123456789"
ENVIRONMENT = "env_World"
PREFIXES = ("/v1/environments/", "/v1/sessions/", "/v1/skills/", "/v1/memory_stores/")
AT = "2026-01-01T00:00:00Z"
Json = dict[str, Any]


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Work:
    id: str
    session: str
    secret: bool
    kind: str = "session"
    state: str = "queued"
    ttl_s: int = 60
    heartbeats: int = 0
    forced: bool = False
    metadata: Json = field(default_factory=dict)


@dataclass
class Session:
    """`steps`: tool calls, then the end of the turn, unless it is held: then at `release`."""

    id: str
    steps: list[Json]
    held: bool
    skills: list[str]
    memory: list[str]
    status: str = "running"
    events: list[Json] = field(default_factory=list)


def token_of(session: str) -> str:
    return f"world-session-token-{session}-0123456789"


class ManagedAgents:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.works: dict[str, Work] = {}
        self.sessions: dict[str, Session] = {}
        self.skills: dict[str, Json] = {}
        self.stores: dict[str, dict[str, Json]] = {}
        self.requests: list[Json] = []
        self.changed = asyncio.Event()

    # -- for tests ----------------------------------------------------------------------------------------------------

    def control(self, name: str, *arguments: Any) -> Any:
        return getattr(self, f"do_{name}")(*arguments)

    def do_add(self, session: str, steps: list[Json], more: Json) -> str:
        """Create a session, or give one more steps, and queue a work item."""
        found = self.sessions.get(session)
        if found is None:
            found = Session(session, [], False, list(more.get("skills", {})), list(more.get("memory", {})))
            self.sessions[session] = found
        found.held = more.get("held", False)
        found.steps += steps
        self.skills.update(more.get("skills", {}))
        for store, texts in more.get("memory", {}).items():
            self.stores[store] = {
                f"mem_{n}": _memory(f"mem_{n}", path, text) for n, (path, text) in enumerate(texts.items())
            }
        self._event(found, "user.message", content=[{"type": "text", "text": "go"}])
        self._step(found)
        kind, ttl_s = more.get("kind", "session"), more.get("ttl_s", 60)
        work = Work(f"work_{len(self.works)}", session, more.get("secret", True), kind, ttl_s=ttl_s)
        self.works[work.id] = work
        return work.id

    def do_release(self, session: str) -> None:
        self.sessions[session].held = False
        self._step(self.sessions[session])

    def do_expire(self, work: str) -> None:
        """Let the lease of an item expire: it is queued again."""
        found = self.works[work]
        assert found.state != "stopped"
        found.state, found.heartbeats = "queued", 0

    def do_take(self, work: str) -> None:
        """Let another worker claim an item whose lease has expired."""
        self.do_expire(work)
        self.works[work].state = "starting"

    def do_terminate(self, session: str) -> None:
        self.sessions[session].status = "terminated"

    def do_report(self) -> Json:
        return {
            "works": {one.id: vars(one) for one in self.works.values()},
            "events": {one.id: one.events for one in self.sessions.values()},
            "memory": {
                store: {one["path"]: one["content"] for one in memories.values()}
                for store, memories in self.stores.items()
            },
            "requests": self.requests,
        }

    # -- the agent ----------------------------------------------------------------------------------------------------

    def _event(self, session: Session, kind: str, **fields: Any) -> Json:
        event = {"id": f"sevt_{session.id}_{len(session.events)}", "type": kind, "processed_at": AT, **fields}
        session.events.append(event)
        self.changed.set()
        self.changed = asyncio.Event()
        return event

    def _step(self, session: Session) -> None:
        if session.steps:
            session.status = "running"
            self._event(session, "session.status_running")
            call = self._event(session, "agent.tool_use", evaluated_permission="allow", **session.steps.pop(0))
            reason = {"type": "requires_action", "event_ids": [call["id"]]}
            self._event(session, "session.status_idle", stop_reason=reason)
        elif not session.held:
            session.status = "idle"
            self._event(session, "agent.message", content=[{"type": "text", "text": "done"}])
            self._event(session, "session.status_idle", stop_reason={"type": "end_turn"})

    # -- requests -----------------------------------------------------------------------------------------------------

    def answer(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, str, bytes]:
        """Return the status, the media type and the body. Streams of events are answered by `following`."""
        self._record(method, path, headers)
        try:
            found = self._route(
                method, path.strip("/").split("/")[1:], parse_qs(query), headers, json.loads(body or b"{}")
            )
        except Refused as refused:
            kind = "authentication_error" if refused.status == 401 else "invalid_request_error"
            found = {"type": "error", "error": {"type": kind, "message": str(refused)}}
            return refused.status, "application/json", json.dumps(found).encode()
        if isinstance(found, bytes):
            return 200, "application/zip", found
        return 200, "application/json", json.dumps(found).encode()

    def following(self, path: str, headers: Mapping[str, str]) -> Session | None:
        """Return the session of a stream of events."""
        match path.strip("/").split("/"):
            case ["v1", "sessions", session, "events", "stream"] if self._may(headers, session):
                self._record("GET", path, headers)
                return self.sessions.get(session)
        return None

    def _record(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        tokens = {token_of(session): session for session in self.sessions} | {KEY: "environment"}
        caller = tokens.get(bearer, "unknown")
        self.requests.append({"method": method, "path": path, "by": caller, "key": headers.get("x-api-key")})

    def _may(self, headers: Mapping[str, str], session: str | None) -> bool:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return bearer == KEY or (session is not None and bearer == token_of(session))

    def _route(self, method: str, parts: list[str], query: Json, headers: Mapping[str, str], body: Json) -> Any:
        match method, parts:
            case "GET", ["environments", environment, "work", "poll"]:
                self._check(self._may(headers, None) and environment == ENVIRONMENT)
                return self._poll()
            case _, ["environments", environment, "work", work, *action]:
                found = self._work(work)
                self._check(self._may(headers, found.session) and environment == ENVIRONMENT)
                return self._work_call(found, action, query, body)
            case "GET", ["sessions", session]:
                return _shown(self._session(session, headers))
            case "GET", ["sessions", session, "events"]:
                return {"data": self._session(session, headers).events, "next_page": None}
            case "POST", ["sessions", session, "events"]:
                return self._sent(self._session(session, headers), body["events"])
        token = any(headers.get("authorization") == f"Bearer {token_of(one)}" for one in self.sessions)
        self._check(token)  # the environment's key is not accepted below
        match method, parts:
            case "GET", ["skills", skill, "versions", _]:
                name = self.skills[skill]["name"]
                return {
                    "id": "1",
                    "type": "skill_version",
                    "skill_id": skill,
                    "name": name,
                    "description": "",
                    "created_at": AT,
                }
            case "GET", ["skills", skill, "versions", _, "content"]:
                return _archive(self.skills[skill])
            case _, ["memory_stores", store, "memories", *memory]:
                return self._memory_call(method, self.stores[store], memory, body)
        raise Refused(404, "not found")

    def _check(self, allowed: bool) -> None:
        if not allowed:
            raise Refused(401, "invalid bearer token")

    def _work(self, work: str) -> Work:
        if work not in self.works:
            raise Refused(404, "work not found")
        return self.works[work]

    def _session(self, session: str, headers: Mapping[str, str]) -> Session:
        self._check(self._may(headers, session))
        if session not in self.sessions:
            raise Refused(404, "session not found")
        return self.sessions[session]

    def _poll(self) -> Json | None:
        for work in self.works.values():
            if work.state == "queued":
                work.state = "starting"
                secret = json.dumps({"sessions_token": token_of(work.session), "version": 1}).encode()
                return {
                    **_work(work),
                    "secret": base64.urlsafe_b64encode(secret).decode().rstrip("=") if work.secret else None,
                }
        return None

    def _work_call(self, work: Work, action: list[str], query: Json, body: Json) -> Any:
        if action == ["heartbeat"]:
            (expected,) = query.get("expected_last_heartbeat", ["NO_HEARTBEAT"])
            current = f"beat-{work.heartbeats}" if work.heartbeats else "NO_HEARTBEAT"
            if expected != current and work.state != "stopped":
                raise Refused(412, "heartbeat precondition failed")
            if work.state != "stopped":
                work.state, work.heartbeats = "active", work.heartbeats + 1
            return {
                "type": "work_heartbeat", "last_heartbeat": f"beat-{work.heartbeats}", "state": work.state,
                "lease_extended": work.state == "active", "ttl_seconds": work.ttl_s,
            }  # fmt: skip
        if action == ["stop"]:
            if work.state == "stopped":
                raise Refused(409, "the work is stopped")
            work.state, work.forced = "stopped", bool(body.get("force"))
        elif not action:
            work.metadata |= body.get("metadata", {})
        elif action != ["ack"]:
            raise Refused(404, "not found")
        return _work(work)

    def _sent(self, session: Session, events: list[Json]) -> Json:
        for event in events:
            kind = event.pop("type")
            self._event(session, kind, **event)
            if kind == "user.tool_result":
                self._step(session)
        return {"data": events}

    def _memory_call(self, method: str, store: dict[str, Json], memory: list[str], body: Json) -> Any:
        if not memory and method == "GET":
            return {"data": list(store.values()), "next_page": None}
        if not memory:
            made = _memory(f"mem_{len(store)}", body["path"], body["content"])
            store[made["id"]] = made
            return made
        found = store[memory[0]]
        if method == "DELETE":
            return store.pop(found["id"])
        if method == "POST":
            found |= _memory(found["id"], found["path"], body["content"])
        return found


def _work(work: Work) -> Json:
    return {
        "id": work.id, "type": "work", "environment_id": ENVIRONMENT, "state": work.state, "created_at": AT,
        "metadata": work.metadata, "data": {"type": work.kind, "id": work.session},
    }  # fmt: skip


def _shown(session: Session) -> Json:
    resources = [
        {
            "type": "memory_store", "memory_store_id": store, "name": store, "access": "read_write",
            "mount_path": f"/mnt/memory/{store}",
        }
        for store in session.memory
    ]  # fmt: skip
    skills = [{"type": "custom", "skill_id": skill, "version": "latest"} for skill in session.skills]
    agent = {
        "type": "agent",
        "id": "agent_1",
        "name": "world",
        "version": 1,
        "skills": skills,
        "tools": [],
        "mcp_servers": [],
    }
    return {
        "id": session.id, "type": "session", "status": session.status, "environment_id": ENVIRONMENT, "agent": agent,
        "resources": resources, "created_at": AT, "updated_at": AT, "metadata": {}, "vault_ids": [],
        "outcome_evaluations": [], "stats": {}, "usage": {},
    }  # fmt: skip


def _archive(skill: Json) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in skill["files"].items():
            archive.writestr(f"{skill['name']}/{name}", text)
    return content.getvalue()


def _memory(id_: str, path: str, text: str) -> Json:
    return {
        "id": id_, "type": "memory", "path": path, "content": text, "memory_store_id": "s", "memory_version_id": "v",
        "content_sha256": hashlib.sha256(text.encode()).hexdigest(), "content_size_bytes": len(text.encode()),
        "created_at": AT, "updated_at": AT,
    }  # fmt: skip
