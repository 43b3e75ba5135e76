"""How much memory a program may still use."""

from __future__ import annotations

from pathlib import Path


def free_ram() -> int | None:
    """Bytes that the system and the container still give; None where nobody says."""
    limits = [_available_ram(), _free_in_control_group()]
    return min((limit for limit in limits if limit is not None), default=None)


def _available_ram() -> int | None:
    """Free memory and what the system can free at once, such as file caches."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _free_in_control_group() -> int | None:
    """What the container may still use; its file caches count as free."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        statistics = dict(
            line.split() for line in (group / "memory.stat").read_text().splitlines()
        )
        return int(limit) - used + int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
