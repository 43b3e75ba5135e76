"""An unroll worker in a child process.

Trainer and worker say short messages on one pipe, of which the first byte says what
they are. The data lies in shared memory.
"""

from __future__ import annotations

import struct
from multiprocessing import reduction
from typing import NoReturn

from alf_lite.processes.child_main import Parent, StopRequested
from alf_lite.unrollers.unroll_worker import UnrollWorker, WorkerSettings
from alf_lite.unrollers.worker_memory import (
    ParameterStore,
    control_memory,
)
from alf_lite.utils.threads import set_num_threads

# To the worker
ATTACH = b"a"  # the descriptor of the slots' memory follows
UNROLL = b"u"  # and the slot, as one int32
# From the worker, beside its last words
READY = b"r"  # and a pickled WorkerDescription
DONE = b"d"  # and an UnrollReport
SLOT = struct.Struct("=i")


def serve(settings: WorkerSettings, trainer: Parent) -> NoReturn:
    """Unrolls until the trainer asks it to stop or is gone.

    Args:
        settings: what to do.
        trainer: first sends the descriptors of the control memory and of the parameter
            store.
    """
    set_num_threads(1)
    options, index = settings.options, settings.worker_index
    control = control_memory(options.num_workers)
    trainer.attach(control)
    stop, heartbeats = control.arrays()
    store = ParameterStore(list(settings.tensor_specs.values()))
    trainer.attach(store)
    worker = UnrollWorker(settings, store.read, heartbeats[index : index + 1], stop)
    try:
        _serve(worker, settings, trainer)
    except StopRequested:
        worker.close()
        raise


def _serve(worker: UnrollWorker, settings: WorkerSettings, trainer: Parent) -> NoReturn:
    """Describes the worker, and answers requests until the connection ends."""
    description = worker.begin_episodes()
    trainer.send(READY + bytes(reduction.ForkingPickler.dumps(description)))
    options = settings.options
    slots = options.make_slots(description.rows, options.slots_per_worker)
    while True:
        message = trainer.receive()
        if message[:1] == ATTACH:
            trainer.attach(slots)
            continue
        assert message[:1] == UNROLL, message
        slot = SLOT.unpack(message[1:])[0]
        trainer.send(DONE + worker.unroll(slot, slots.rows(slot)).pack())
