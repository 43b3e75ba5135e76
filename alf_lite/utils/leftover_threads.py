"""Says which threads keep a program that is at its end from ending."""

from __future__ import annotations

import logging
import threading
import time

_logger = logging.getLogger(__name__)

_SECONDS = 2.0  # for those that end by themselves, such as idle ones of a pool
_has_begun = False


def watch_end_of_program() -> None:
    """Python waits for threads that are no daemons, without a word.

    Nothing is begun where there are none. Those that there are may end in time: what is
    said is said when the program has come to its end and still waits.
    """
    global _has_begun
    if _left() and not _has_begun:
        _has_begun = True
        threading.Thread(target=_tell, name="alf_lite-end", daemon=True).start()


def _tell() -> None:
    threading.main_thread().join()
    time.sleep(_SECONDS)
    names = [thread.name for thread in _left()]
    if names:
        _logger.warning(
            "The program waits for threads that were started and not ended, as by an "
            "environment whose close() forgets them: %s. Start them with daemon=True, "
            "or end them there.",
            ", ".join(names),
        )


def _left() -> list[threading.Thread]:
    main = threading.main_thread()
    return [t for t in threading.enumerate() if t is not main and not t.daemon]
