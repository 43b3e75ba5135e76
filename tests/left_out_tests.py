"""``--left-out``: only the tests of CI, and those that the last whole run has skipped.

Most of these want a package that was not there. Once it is installed, they need not be
run together with all the others again. Hooks of pytest, imported by ``conftest``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_KEY = "alf_lite/skipped"
_skipped: set[str] = set()  # tests and, where nothing could be collected, files


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--left-out",
        action="store_true",
        help="run only the tests marked ci, and those that the last run without this "
        "option skipped; with -m 'not slow and not gpu'",
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _skipped.add(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    is_worker = hasattr(config, "workerinput")
    is_part = config.getoption("--left-out") or config.getoption("lf", False)
    if not (is_worker or is_part) and getattr(config, "cache", None) is not None:
        config.cache.set(_KEY, sorted(_skipped))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spares the import of files without any of these."""
    is_file = collection_path.match("test_*.py")
    if not (is_file and config.getoption("--left-out")) or config.cache is None:
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    files = {test.split("::")[0] for test in config.cache.get(_KEY, [])}
    is_left_out = name in files or "mark.ci" in collection_path.read_text()
    return None if is_left_out else True


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if not config.getoption("--left-out") or config.cache is None:
        return
    wanted = set(config.cache.get(_KEY, []))
    chosen, others = [], []
    for item in items:
        is_wanted = (
            item.get_closest_marker("ci") is not None
            or item.nodeid in wanted
            or item.nodeid.split("::")[0] in wanted
        )
        (chosen if is_wanted else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen
