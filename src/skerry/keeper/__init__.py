"""The host side of the keeper protocol (`docs/design/keeper-protocol.md`).

keeper: PID 1 of a sandbox and the only agent inside. The host does not trust it: this package bounds and checks every
byte, and `KeeperProtocolError` or `KeeperTimeout` fails that sandbox only. process: a command in a sandbox. The
`ProcessStream` of a run yields output, then has an `ExitStatus`. A spawned process runs in the background; an
`OutputStream` reads its journal from any byte, with a `JournalGap` where bytes were dropped. channel: fd 3 of a
program. An `Exchange` sends bytes to it and yields the program's output and messages until it ends. frame: the unit of
a process's stream.
"""

from skerry.keeper.binary import binary, build_id
from skerry.keeper.client import Keeper
from skerry.keeper.errors import HostResourceError, KeeperProtocolError, KeeperTimeout
from skerry.keeper.events import EventStream
from skerry.keeper.exchange import Exchange
from skerry.keeper.files import FileContent
from skerry.keeper.output import OutputStream
from skerry.keeper.process import ProcessStream
from skerry.keeper.values import (
    EventsHello,
    ExchangeUsage,
    ExitStatus,
    JournalGap,
    KeeperHello,
    Process,
    ProcessEvent,
    ProcessSpec,
    Size,
    UserAccount,
)

__all__ = [
    "EventStream",
    "EventsHello",
    "Exchange",
    "ExchangeUsage",
    "ExitStatus",
    "FileContent",
    "HostResourceError",
    "JournalGap",
    "Keeper",
    "KeeperHello",
    "KeeperProtocolError",
    "KeeperTimeout",
    "OutputStream",
    "Process",
    "ProcessEvent",
    "ProcessSpec",
    "ProcessStream",
    "Size",
    "UserAccount",
    "binary",
    "build_id",
]
