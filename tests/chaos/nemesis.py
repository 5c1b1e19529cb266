"""What goes wrong: each kind of fault begins, lasts for a while, and ends."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from tests.chaos import LEASE
from tests.chaos.conditions import set_condition

if TYPE_CHECKING:
    import subprocess

    from tests.chaos.stage import Stage
    from tests.proxy import Proxy

SECONDS = LEASE.total_seconds()
# The database's clock may jump by hours, by mistake; clocks of servers are wrong by less than a lease.
JUMPS = (SECONDS / 2, 2 * SECONDS, 3600.0)
SKEW = SECONDS / 3


class Fault:
    """Something that is done to a server, its `victim`; or to all servers, if that is `None`."""

    name: ClassVar[str]
    is_common: ClassVar[bool] = False

    def __init__(self, stage: Stage, victim: int | None) -> None:
        self.stage = stage
        self.victim = None if self.is_common else victim

    @classmethod
    def is_possible(cls, stage: Stage) -> bool:
        return True

    @classmethod
    def victims(cls, stage: Stage) -> list[int]:
        return [*stage.servers]

    @property
    def number(self) -> int:
        assert self.victim is not None
        return self.victim

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Undo it."""

    @property
    def has_happened(self) -> bool:
        """Whether the fault took effect. Ask only after its end."""
        return True


# --- processes


class Kill(Fault):
    name = "killed"

    def begin(self) -> None:
        self.stage.kill(self.number)

    def end(self) -> None:
        self.stage.start(self.number)


class Terminate(Fault):
    name = "terminated"

    def begin(self) -> None:
        self.stage.tell_to_end(self.number)


class Stop(Fault):
    name = "stopped"
    process: subprocess.Popen[bytes]

    def begin(self) -> None:
        self.process = self.stage.stop(self.number)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class KillExecutor(Fault):
    name = "executor killed"
    signum = signal.SIGKILL
    is_of_guard = False
    process: int | None

    @classmethod
    def victims(cls, stage: Stage) -> list[int]:
        return stage.commands

    def begin(self) -> None:
        self.process = self.stage.child(self.number, is_guard=self.is_of_guard)
        self.send(self.signum)

    def send(self, signum: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.process, signum)

    def end(self) -> None:
        if self.process is not None:
            os.close(self.process)

    @property
    def has_happened(self) -> bool:
        return self.process is not None


class StopExecutor(KillExecutor):
    name = "executor stopped"
    signum = signal.SIGSTOP

    def end(self) -> None:
        self.send(signal.SIGCONT)
        super().end()


class KillGuard(KillExecutor):
    name = "guard killed"
    is_of_guard = True


class StopGuard(StopExecutor):
    name = "guard stopped"
    is_of_guard = True


class Order(Fault):
    """Something that a server itself does, as soon as it can."""

    order: ClassVar[str]

    def begin(self) -> None:
        self.stage.order(self.number, self.order)

    def end(self) -> None:
        self.is_left = self.stage.take_back_order(self.number)

    @property
    def has_happened(self) -> bool:
        return not self.is_left


class Block(Order):
    """Lasts as long as the fault."""

    name = "long fenced block"
    order = "block"


class Hog(Order):
    name = "GIL held"
    order = "hog"


class Clear(Order):
    name = "stale locks cleared"
    order = "clear_stale_locks"

    @classmethod
    def victims(cls, stage: Stage) -> list[int]:
        return stage.callers


class Prune(Clear):
    name = "history pruned"
    order = "prune_singletons"


# --- networks


class Network(Fault):
    """What happens between one server and the database."""

    @classmethod
    def is_possible(cls, stage: Stage) -> bool:
        return bool(stage.proxies)

    @property
    def proxy(self) -> Proxy:
        return self.stage.proxies[self.number]

    def begin(self) -> None:
        self.victim = self.stage.borrow_proxy(self.number)
        self.fail()

    def fail(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.proxy.come_back()
        self.stage.release_proxy(self.number)


class Outage(Network):
    name = "connections refused"

    def fail(self) -> None:
        self.proxy.go_down()


class BlackHole(Network):
    name = "bytes held back"

    def fail(self) -> None:
        self.proxy.black_hole()


class Loss(Network):
    name = "bytes lost"

    def fail(self) -> None:
        self.proxy.lose()


class LossOfRequests(Network):
    name = "requests lost"

    def fail(self) -> None:
        self.proxy.lose("requests")


class LossOfAnswers(Network):
    name = "answers lost"

    def fail(self) -> None:
        self.proxy.lose("answers")


class EndedSessions(Network):
    name = "sessions ended"

    def fail(self) -> None:
        self.stage.database.end_sessions(self.proxy.server_ports)


class EndedInPartition(Network):
    name = "sessions ended in a partition"

    def fail(self) -> None:
        self.proxy.lose()
        self.stage.database.end_sessions(self.proxy.server_ports)


class CutBeforeCommit(Network):
    name = "cut before COMMIT"

    def fail(self) -> None:
        self.proxy.cut_request(b"COMMIT")

    def end(self) -> None:
        self.proxy.spare()
        super().end()

    @property
    def has_happened(self) -> bool:
        return self.proxy.request_cut.is_set()


class CutAfterCommit(CutBeforeCommit):
    name = "cut after COMMIT"

    def fail(self) -> None:
        self.proxy.cut_answer_to(b"COMMIT")

    @property
    def has_happened(self) -> bool:
        return self.proxy.answer_cut.is_set()


# --- the database


class DatabaseAway(Network):
    name = "database away"
    is_common = True

    def begin(self) -> None:
        for proxy in self.stage.proxies:
            proxy.go_down()

    def end(self) -> None:
        for proxy in self.stage.proxies:
            proxy.come_back()


class ClockForward(Fault):
    name = "database clock forward"
    is_common = True
    sign = 1

    def begin(self) -> None:
        self.stage.database.set_clock(self.sign * random.choice(JUMPS))

    def end(self) -> None:
        self.stage.database.set_clock(0)


class ClockBack(ClockForward):
    name = "database clock back"
    sign = -1


class Limits(Fault):
    """These limits hold for new sessions only, so the existing ones are ended, as an administrator would do."""

    name = "short time-outs"
    is_common = True

    def begin(self) -> None:
        self.stage.database.set_limits()
        self.end_sessions()

    def end(self) -> None:
        self.stage.database.lift_limits()
        self.end_sessions()

    def end_sessions(self) -> None:
        self.stage.database.end_sessions({port for proxy in self.stage.proxies for port in proxy.server_ports})


# --- clocks of servers


class Skew(Fault):
    name = "server clock off"

    def begin(self) -> None:
        set_condition(self.stage.folder, f"skew-{self.number}", random.choice([SKEW, -SKEW]))

    def end(self) -> None:
        set_condition(self.stage.folder, f"skew-{self.number}", "")


FAULTS: tuple[type[Fault], ...] = (
    Kill,
    Terminate,
    Stop,
    KillExecutor,
    StopExecutor,
    KillGuard,
    StopGuard,
    Block,
    Hog,
    Clear,
    Prune,
    Outage,
    BlackHole,
    Loss,
    LossOfRequests,
    LossOfAnswers,
    EndedSessions,
    EndedInPartition,
    CutBeforeCommit,
    CutAfterCommit,
    DatabaseAway,
    ClockForward,
    ClockBack,
    Limits,
    Skew,
)
