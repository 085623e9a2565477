"""/v1/webhooks: receivers of events, and deliveries that failed for good. All routes need the scope `admin`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skerry.engine.webhooks.service import MAX_LISTED
from skerry.server.http.call import Call, Empty
from skerry.types import Value, WebhookDeliveryList, WebhookList, WebhookRetry, WebhookTest


class DeadQuery(Value, frozen=True, kw_only=True):
    webhook: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 100


class RetryRequest(Value, frozen=True, kw_only=True):
    """`ids`: deliveries; none: all dead deliveries of the webhook."""

    ids: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=MAX_LISTED)] = ()


async def list_(call: Call[Empty, Empty]) -> WebhookList:
    return WebhookList(webhooks=tuple(call.engine.webhooks.list()))


async def test(call: Call[Empty, Empty]) -> WebhookTest:
    return await call.engine.webhooks.test(call.parameters["webhook"])


async def dead(call: Call[DeadQuery, Empty]) -> WebhookDeliveryList:
    return WebhookDeliveryList(deliveries=tuple(call.engine.webhooks.dead(call.query.webhook, call.query.limit)))


async def retry(call: Call[Empty, RetryRequest]) -> WebhookRetry:
    return WebhookRetry(retried=call.engine.webhooks.retry(call.parameters["webhook"], call.body.ids))
