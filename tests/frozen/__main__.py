"""See :mod:`tests.frozen.frozen`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frozen")
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("names", nargs="*", help="all that begin so; none: all")
    parser.add_argument("--file", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    from tests.frozen import frozen

    path = arguments.file or frozen.FILE
    prefixes = tuple(arguments.names) or ("",)
    names = [name for name in frozen.names() if name.startswith(prefixes)]
    content = frozen.read(path) if path.exists() else {}
    kept = content.get("outcomes", {})
    here = frozen.machine()
    # That of all which do not name another
    machine = content.get("machine", here) if arguments.names else here
    if arguments.command == "compare" and content["machine"] != here:
        say(f"Written on {content['machine']}, this is {here}.")
    changed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context) as executor:
        for future in as_completed(
            [executor.submit(frozen.named_outcome, n) for n in names]
        ):
            name, found = future.result()
            differences = frozen.differences(kept.get(name, {}), found)
            changed += bool(differences)
            for difference in differences:
                say(f"{name}: {difference}")
            is_of_here = machine != here and frozen.has_bits(name)
            kept[name] = {"machine": here, **found} if is_of_here else found
    say(f"{len(names)} compared, {changed} changed.")
    if arguments.command == "compare":
        return int(changed > 0)
    outcomes = {name: kept[name] for name in sorted(kept, key=_in_order)}
    lines = ",\n".join(f" {json.dumps(n)}: {json.dumps(outcomes[n])}" for n in outcomes)
    path.write_text(
        f'{{"machine": {json.dumps(machine)},\n"outcomes": {{\n{lines}\n}}}}\n'
    )
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _in_order(name: str) -> tuple[str, int, str]:
    kind, _, which = name.partition("/")
    return kind, int(which) if which.isdigit() else 0, which


if __name__ == "__main__":
    sys.exit(main())
