"""Network policies of sandboxes, running or not: show, change, suggest, approve."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine.hooks import Hook
from skerry.engine.network import policy_resolution
from skerry.engine.network.approvals import ApprovalAnswer, ApprovalQueue
from skerry.engine.network.attempts import WorkerProtocolError
from skerry.engine.network.cassettes import CassetteDraft, CassetteStore
from skerry.engine.network.gateway import GatewayManager, WorkerHandler
from skerry.engine.sandboxes import guest_files
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import check_spec_size
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, NotFound
from skerry.network.messages import ApprovalMessage, ApprovalNeeded, FromWorker
from skerry.network.policy.rules import check_rules
from skerry.network.policy.suggest import suggest_network
from skerry.types import (
    Approval,
    ApprovalRequest,
    Caller,
    CassetteInfo,
    Network,
    NetworkAttempt,
    NetworkChange,
    NetworkInfo,
    parse_span,
)

_PIECE = 256 << 10
MAX_ASKS = 256  # requests of one sandbox that wait for an answer


class PolicyService(Hook, WorkerHandler):
    """`engine.network`."""

    def __init__(
        self,
        settings: Settings,
        gateways: GatewayManager,
        cassettes: CassetteStore,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        tasks: Tasks,
    ) -> None:
        self._settings, self._gateways, self._cassettes = settings, gateways, cassettes
        self._registry, self._lifecycle, self._tasks = registry, lifecycle, tasks
        self._approvals = ApprovalQueue(settings["network.approval_webhook"], self._remember)
        self._asks: Counter[str] = Counter()

    # -- for the API --------------------------------------------------------------------------------------------------

    def show(self, caller: Caller, ref: str) -> NetworkInfo:
        return self._gateways.info(self._registry.find(caller, ref))

    async def set(self, caller: Caller, ref: str, network: Network) -> NetworkInfo:
        sandbox = self._registry.find(caller, ref)
        settled = policy_resolution.resolve(network, self._settings, self.peers(caller, sandbox.record.owner))
        await self._tasks.shield(self._put(sandbox, lambda _: settled, caller))
        return self._gateways.info(sandbox)

    async def change(self, caller: Caller, ref: str, change: NetworkChange) -> NetworkInfo:
        sandbox = self._registry.find(caller, ref)
        given = Network(
            allow=change.allow, deny=change.deny, presets=change.presets, handlers=change.handlers,
            mirror=change.mirror or (),
        )  # fmt: skip
        check_rules(given)
        policy_resolution.check_handled(given)
        await self._tasks.shield(
            self._put(sandbox, lambda network: policy_resolution.apply_change(network, change), caller)
        )
        return self._gateways.info(sandbox)

    async def log(
        self, caller: Caller, ref: str, since: int = 0, follow: bool = False, denied: bool = False
    ) -> AsyncGenerator[list[NetworkAttempt], None]:
        """Pages of it. A sandbox that is gone is not found from the start, not in the middle."""
        return self._gateways.attempts(self._registry.find(caller, ref).record.id, since, follow, denied)

    async def learn(self, caller: Caller, ref: str) -> Network:
        """Return the smallest policy that permits the recorded attempts, as far as rules can express it."""
        pages = self._gateways.attempts(self._registry.find(caller, ref).record.id, 0, False, False)
        return suggest_network([attempt async for page in pages for attempt in page])

    def questions(self, caller: Caller, ref: str) -> AsyncGenerator[list[ApprovalRequest], None]:
        return self._approvals.read(self._registry.find(caller, ref).record.id)

    async def reply(self, caller: Caller, ref: str, question: str, reply: Approval) -> None:
        await self._approvals.answer(self._registry.find(caller, ref).record.id, question, reply)

    async def cassette(self, caller: Caller, ref: str) -> AsyncGenerator[bytes, None]:
        """Return the sandbox's cassette in pieces. A missing or damaged one is reported at once, not in the middle."""
        sandbox_id = self._registry.find(caller, ref).record.id
        await self.cassette_info(caller, sandbox_id)
        return _in_thread(self._cassettes.export(sandbox_id))

    async def cassette_info(self, caller: Caller, ref: str) -> CassetteInfo:
        sandbox_id = self._registry.find(caller, ref).record.id
        await self._gateways.settle(sandbox_id)
        return await asyncio.to_thread(self._cassettes.info, sandbox_id)

    async def load_cassette(self, caller: Caller, ref: str, body: AsyncIterator[bytes]) -> CassetteInfo:
        """Replace the cassette of a sandbox that replays; connections are closed, and the replay starts again."""
        sandbox = self._registry.find(caller, ref)
        if sandbox.record.spec.network.cassette != "replay":
            raise Conflict(
                f"{sandbox.record.id} does not replay a cassette", hint='network=Network(cassette="replay") does'
            )
        draft = await self._cassettes.receive(sandbox.record.id, body)
        try:
            await self._tasks.shield(self._replace_cassette(sandbox, draft))
        finally:
            draft.discard()
        return draft.info

    async def _replace_cassette(self, sandbox: Sandbox, draft: CassetteDraft) -> None:
        async with self._registry.locked(sandbox):
            draft.commit()
            await self._gateways.reassign(sandbox)

    def peers(self, caller: Caller, owner: str) -> policy_resolution.Peer:
        """Return a function that resolves a name to the id of another sandbox of that owner. Sandboxes of other owners
        are not found."""

        def peer(ref: str) -> str:
            record = self._registry.find(caller, ref).record
            if record.owner != owner:
                raise NotFound(f"network.peers: {owner} has no sandbox {ref[:80]!r}", details={"sandbox": ref[:80]})
            return record.id

        return peer

    # -- for the worker -----------------------------------------------------------------------------------------------

    def on_worker_message(self, message: FromWorker) -> bool:
        """Handle an approval request for a destination that no rule names."""
        if not isinstance(message, ApprovalNeeded):
            return False
        sandbox = self._gateways.sandbox_of(message.sandbox)
        if len(message.approval_id) > 64 or len(message.host) > 300:
            raise WorkerProtocolError("an approval request that is too long")
        if self._asks[sandbox.record.id] >= MAX_ASKS:
            self._gateways.send(
                ApprovalMessage(
                    approval_id=message.approval_id, allow=False, why="too many approval requests are waiting"
                )
            )
        else:
            self._asks[sandbox.record.id] += 1
            self._tasks.spawn(self._answer(message, sandbox))
        return True

    async def _answer(self, message: ApprovalNeeded, sandbox: Sandbox) -> None:
        try:
            process = self._gateways.process_of(sandbox.record.id, message.cgroup)
            answered = await self.ask(sandbox, message.host, message.port, process)
            self._gateways.send(
                ApprovalMessage(approval_id=message.approval_id, allow=answered.allow, why=answered.why)
            )
        finally:
            self._asks[sandbox.record.id] -= 1
            if self._asks[sandbox.record.id] <= 0:
                del self._asks[sandbox.record.id]

    async def ask(self, sandbox: Sandbox, host: str, port: int | None, process: str | None) -> ApprovalAnswer:
        """Bounded by the sandbox's own time limit."""
        within = parse_span(sandbox.record.spec.network.approval_timeout or self._settings["network.approval_timeout"])
        return await self._approvals.ask(sandbox.record.id, host, port, within, process)

    async def on_deleted(self, sandbox: Sandbox) -> None:
        self._approvals.drop(sandbox.record.id)

    # -- internals ----------------------------------------------------------------------------------------------------

    async def _put(self, sandbox: Sandbox, make: Callable[[Network], Network], caller: Caller | None = None) -> None:
        """Store and apply a new policy, if the caller may. The record comes first: a worker or server that dies in
        between returns with the requested policy. The gateway is updated in any case: an error inside must not delay a
        narrower policy."""
        async with self._registry.locked(sandbox):
            before = sandbox.record.spec.network
            spec = check_spec_size(replace(sandbox.record.spec, network=make(before)))
            if caller is not None and spec.secrets:
                policy_resolution.check_routes(caller, before, spec.network)
            sandbox.record = self._registry.table.update(sandbox.record, spec=spec)
            self._approvals.forget(sandbox.record.id)
            try:
                if sandbox.record.state == "running" and guest_files.files_differ(before, spec.network):
                    await self._lifecycle.configure(sandbox)
            finally:
                await self._gateways.update_rules(sandbox)

    async def _remember(self, sandbox_id: str, question: ApprovalRequest, allow: bool) -> None:
        sandbox = self._registry.get(sandbox_id)
        if sandbox is None:
            return
        rule = policy_resolution.rule_of(question.host, question.port)
        change = NetworkChange(allow=(rule,)) if allow else NetworkChange(deny=(rule,))
        await self._tasks.shield(self._put(sandbox, lambda network: policy_resolution.apply_change(network, change)))


async def _in_thread(pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield from an iterator that blocks, in larger pieces."""
    while joined := await asyncio.to_thread(_join, pieces):
        yield joined


def _join(pieces: Iterator[bytes]) -> bytes:
    joined = bytearray()
    for piece in pieces:
        joined += piece
        if len(joined) >= _PIECE:
            break
    return bytes(joined)
