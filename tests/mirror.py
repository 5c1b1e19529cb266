"""Which test modules test which module: those of its name, or else those that import it, at first or second hand.

`python -m tests.mirror` prints the test modules of what git says has changed since the last commit.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from typing import TYPE_CHECKING

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = ROOT / "django_singlejob"
TESTS = ROOT / "tests"


def modules() -> set[str]:
    """The package's modules, by path."""
    paths = {path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")}
    return {str(path) for path in paths if path.name != "__init__" and path.parts[0] != "migrations"}


def tests_of(module: str, *passed: str) -> set[str]:
    """The test modules of its name, or else those that import it, or else those of the modules that import it."""
    folder, _, name = f"/{module}".replace("/", ".").rpartition(".")
    names = {f"test_{name}.py", f"test{folder.replace('.', '_')}_{name}.py"}
    tests = {path.relative_to(ROOT).as_posix() for path in TESTS.rglob("test_*.py") if path.name in names}
    if found := tests or {path for path in importers(module) if path.startswith("tests/")}:
        return found
    above = {path.removeprefix("django_singlejob/").removesuffix(".py") for path in importers(module)} - {*passed}
    return {test for each in above & modules() for test in tests_of(each, module, *passed)}


@cache
def importers(module: str) -> set[str]:
    """The test modules and the files of the package that import it."""
    folder, _, name = f"/{module}".replace("/", ".").rpartition(".")
    package = re.escape(f"django_singlejob{folder}")
    imports = re.compile(
        rf"^ *(?:from {package} import (?:\([^)]*|.*)|(?:from|import) {package}\.)\b{name}\b", re.MULTILINE
    )
    paths = [*TESTS.rglob("test_*.py"), *PACKAGE.rglob("*.py")]
    return {path.relative_to(ROOT).as_posix() for path in paths if imports.search(path.read_text())}


def mirrors_of(changed: Iterable[str]) -> set[str]:
    """The test modules of these files, and those that are among them. Browsers and clusters are left out: they take
    minutes."""
    found = set()
    for file in changed:
        folder, _, rest = file.partition("/")
        module = rest.removesuffix(".py")
        if folder == "django_singlejob" and module in modules():
            found |= tests_of(module)
        elif folder == "tests" and rest.rpartition("/")[2].startswith("test_") and (ROOT / file).is_file():
            found.add(file)
    return {test for test in found if not test.startswith(("tests/browser/", "tests/clusters/"))}


def changed_files() -> list[str]:
    """What differs from the last commit, and what git does not know yet."""
    commands = ["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"]
    told = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for command in commands
    ]
    return "".join(told).splitlines()


if __name__ == "__main__":
    print(*sorted(mirrors_of(changed_files())), sep="\n")
