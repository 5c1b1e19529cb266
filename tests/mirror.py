"""Which test module tests which module: `tests/` mirrors the package.

`python -m tests.mirror` prints the test modules of what git says has changed since the last commit.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = ROOT / "django_singlejob"
TESTS = ROOT / "tests"
#: The modules without a test module of their own, and where they are tested.
TESTED_BY = {
    "admin/failures": "admin/test_admin_runs",
    "admin/gantt": "admin/test_admin_overview",
    "admin/one_off_form": "admin/test_admin_one_offs",
    "admin/pause_form": "admin/test_admin_jobs",
    "admin/reading": "admin/test_admin_queries",
    "admin/recent": "admin/test_admin_overview",
    "admin/states": "admin/test_admin_jobs",
    "admin/values": "admin/test_admin_one_offs",
    "apps": "monitoring/test_checks",
    "exceptions": "jobs/test_registry",
    "integrations/bearer": "integrations/test_health_page",
    "integrations/health": "integrations/test_health_page",
    "integrations/outbox": "integrations/test_pings",
    "locking/lease_state": "contract/test_stop",
    "locking/recording": "contract/test_record",
    "management/arguments": "management/test_call_command",
    "management/own_tables": "processes/test_migrate",
    "management/reload": "processes/test_worker",
    "management/run_arguments": "management/commands/test_run_singleton",
    "management/supervising": "processes/test_supervisor",
    "management/unfinished": "management/commands/test_singleton_migrate",
    "models/attempts": "models/test_runs",
    "models/one_offs": "models/test_plans",
    "models/passes": "models/test_worker_passes",
    "process/alive": "processes/test_alive",
    "process/code": "processes/test_worker",
    "process/leaving": "processes/test_supervisor",
    "process/program": "life/test_life",
    "running/command": "processes/test_left_behind",
    "running/current_run": "running/test_runner",
    "running/django_tasks": "contract/test_tasks",
    "running/executor": "life/test_life",
    "running/guarded": "processes/test_supervisor",
    "running/in_child": "processes/test_supervisor",
    "running/leftovers": "life/test_life",
    "running/order": "life/test_life",
    "running/output": "processes/test_what_it_prints",
    "running/process": "processes/test_supervisor",
    "running/serving": "life/test_life",
    "running/shared": "processes/test_supervisor",
    "running/supervisor": "processes/test_supervisor",
    "running/waker": "processes/test_worker",
    "running/watch": "processes/test_supervisor",
    "urls": "integrations/test_health_page",
    "worker/due_run": "contract/test_one_offs",
    "worker/left_out": "worker/test_passed_over",
    "worker/lock": "worker/test_worker_lock",
    "worker/processes": "processes/test_worker",
    "worker/starts": "processes/test_not_begun",
    "worker/task_process": "processes/test_worker",
    "worker/tasks": "worker/test_ahead",
}


def modules() -> set[str]:
    """The package's modules, by path."""
    paths = {path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")}
    return {str(path) for path in paths if path.name != "__init__" and path.parts[0] != "migrations"}


def mirrored(module: str) -> set[str]:
    """The possible names of a module's test module. The admin's pages have the same names as the rows they show."""
    folder, _, name = f"/{module}".rpartition("/")
    names = [f"test_{name}", *([f"test_admin_{name}"] if folder == "/admin" else [])]
    return {f"{folder}/{each}".lstrip("/") for each in names}


def has_test(module: str) -> bool:
    return any(path_of(test) for test in mirrored(module))


def path_of(test: str) -> str:
    """The path of this test module; empty if there is none."""
    return f"tests/{test}.py" if (TESTS / f"{test}.py").is_file() else ""


def mirrors_of(changed: Iterable[str]) -> set[str]:
    """The test modules of these files: those that mirror them, and those that are among them. Browsers and clusters
    are left out: they take minutes."""
    found = set()
    for file in changed:
        folder, _, rest = file.partition("/")
        module = rest.removesuffix(".py")
        if folder == "django_singlejob" and module in modules():
            found |= {path_of(test) for test in {*mirrored(module), TESTED_BY.get(module, "")}}
        elif folder == "tests" and rest.rpartition("/")[2].startswith("test_"):
            found.add(path_of(module))
    return {test for test in found if test and not test.startswith(("tests/browser/", "tests/clusters/"))}


def changed_files() -> list[str]:
    """What differs from the last commit, and what git does not know yet."""
    commands = ["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"]
    told = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for command in commands
    ]
    return "".join(told).splitlines()


if __name__ == "__main__":
    print(*sorted(mirrors_of(changed_files())), sep="\n")
