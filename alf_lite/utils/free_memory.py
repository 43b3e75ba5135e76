"""How much memory a program may still use."""

from __future__ import annotations

from pathlib import Path

from alf_lite.errors import ConfigError


def free_ram() -> int | None:
    """Bytes that the system and the container still give; None where nobody says."""
    limits = [_available_ram(), _free_in_control_group()]
    return min((limit for limit in limits if limit is not None), default=None)


def check_ram(num_bytes: int, what: str, advice: str) -> None:
    """Refuses what does not fit, before any of it is taken.

    Args:
        num_bytes: that are needed.
        what: needs them.
        advice: what to do about it.

    Raises:
        ConfigError: if so much memory is not free.
    """
    free = free_ram()
    if free is not None and num_bytes > free:
        raise ConfigError(
            f"{what} needs {num_bytes / 1e9:,.1f} GB of memory, {free / 1e9:,.1f} GB "
            f"are free. {advice}"
        )


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
