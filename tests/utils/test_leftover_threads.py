"""A program that does not end says for which threads it waits."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging, threading
from concurrent.futures import ThreadPoolExecutor
from alf_lite.utils import leftover_threads

leftover_threads._SECONDS = 0.2
pool = ThreadPoolExecutor(1)
pool.submit(int).result()  # whose thread ends by itself
is_told = threading.Event()

class Handler(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        is_told.set()

logging.getLogger("alf_lite").addHandler(Handler())

def serve_simulator():
    is_told.wait(60)

threading.Thread(target=serve_simulator).start()
for _ in range(2):  # runs
    leftover_threads.watch_end_of_program()
print("done")
"""


def test_threads_that_were_left_are_named():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "done\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("The program waits for threads")
    assert line.count("Thread-") == 1
    assert "(serve_simulator)" in line
