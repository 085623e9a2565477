"""The host's side of the keeper.

keeper: our PID 1 in a sandbox, and the only hand inside (`docs/design/keeper.md` has the protocol). It is not trusted:
every byte of it is bounded and checked here, and `KeeperLied` or `KeeperSilent` ends that sandbox and nothing else.
process: a command in a sandbox. A run's `ProcessStream` gives output as it comes, then its `ExitStatus`; a spawned one
goes on by itself, and an `OutputStream` reads its journal, from any byte on, with a `Gap` where bytes were dropped.
channel: a program's fd 3. A `Turn` hands it bytes and gives what the program prints and says until the turn is over.
frame: the unit of a process's stream.
"""

from skerry.keeper.binary import binary, build_id
from skerry.keeper.client import Keeper
from skerry.keeper.events import EventStream
from skerry.keeper.failures import HostShort, KeeperLied, KeeperSilent
from skerry.keeper.files import FileContent
from skerry.keeper.output import OutputStream
from skerry.keeper.process import ProcessStream
from skerry.keeper.turns import Turn
from skerry.keeper.values import (
    Account,
    EventsHello,
    ExitStatus,
    Gap,
    Hello,
    PortState,
    Process,
    ProcessEvent,
    ProcessSpec,
    Size,
    TurnUsage,
)

__all__ = [
    "Account",
    "EventStream",
    "EventsHello",
    "ExitStatus",
    "FileContent",
    "Gap",
    "Hello",
    "HostShort",
    "Keeper",
    "KeeperLied",
    "KeeperSilent",
    "OutputStream",
    "PortState",
    "Process",
    "ProcessEvent",
    "ProcessSpec",
    "ProcessStream",
    "Size",
    "Turn",
    "TurnUsage",
    "binary",
    "build_id",
]
