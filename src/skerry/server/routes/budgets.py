"""/v1/budgets: budgets of labels and owners, and those of sandboxes."""

from __future__ import annotations

from skerry.server.http.call import Call, Empty
from skerry.types import BudgetInfo, BudgetList, BudgetRequest, Value


class BudgetQuery(Value, frozen=True, kw_only=True):
    """`sandbox`: an ID or a name; only the budgets that its usage counts to."""

    sandbox: str | None = None


async def list_(call: Call[BudgetQuery, Empty]) -> BudgetList:
    return BudgetList(budgets=await call.engine.budgets.list(call.caller, call.query.sandbox))


async def set_(call: Call[Empty, BudgetRequest]) -> BudgetInfo:
    return await call.engine.budgets.set(call.caller, call.body)


async def remove(call: Call[Empty, Empty]) -> None:
    call.engine.budgets.remove(call.caller, call.parameters["budget"])
