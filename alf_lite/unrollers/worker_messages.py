"""What trainer and unroll worker say to each other, in short messages on one pipe.

The first byte says what a message is. The data lies in shared memory.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# To the worker
ATTACH = b"a"  # the descriptor of the slots' memory follows
UNROLL = b"u"  # and the slot, as one int32

# From the worker
READY = b"r"  # and a pickled WorkerDescription
DONE = b"d"  # and an UnrollReport
# It ends, because of
BAD_CONFIG = b"c"  # what it was given: the message
ENV_FAILED = b"e"  # an environment: the message
RAISED = b"x"  # anything else: the traceback

_SLOT = struct.Struct("=i")
_REPORT = struct.Struct("=iqidd")


class UnrollReport(NamedTuple):
    """Says that there is a complete unroll in a slot."""

    slot: int
    version: int  # of the parameters that acted
    is_first: bool  # it begins with a reset
    env_step_seconds: float
    seconds: float  # for the whole unroll

    def pack(self) -> bytes:
        return DONE + _REPORT.pack(*self)

    @classmethod
    def unpack(cls, content: bytes) -> UnrollReport:
        slot, version, is_first, env_step_seconds, seconds = _REPORT.unpack(content)
        return cls(slot, version, bool(is_first), env_step_seconds, seconds)


def unroll_request(slot: int) -> bytes:
    """Asks for an unroll in ``slot``."""
    return UNROLL + _SLOT.pack(slot)


def requested_slot(content: bytes) -> int:
    """The slot of an ``unroll_request``, without its first byte."""
    return _SLOT.unpack(content)[0]
