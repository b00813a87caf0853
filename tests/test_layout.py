"""The import rules of the house: rooms of the trunk in one order, branches apart, only the roof joins them."""

import ast
from pathlib import Path

import pytest

import rlds2reverb

TRUNK = Path(rlds2reverb.__file__).parent
ROOT = Path(__file__).parent.parent
#: Each room imports only rooms before it, and itself without a circle. "words" are the files at the top of the trunk.
ROOMS = ["words", "replay", "_internals", "sources", "_encoding", "_server", "_writing", "sampling", "doors"]
DOORS = {"ingestion", "rlds_to_reverb"}
BRANCHES = {"adders", "learners", "envs", "cli"}
#: The roof may import every branch.
ROOF = "cli"


def modules_imported(path, package):
    """The dotted name of every module that a file imports, wherever it stands in the file; typing-only ones aside.

    `from a import b, c` gives `a.b` and `a.c`, since each may be a module. Relative imports are resolved in `package`.
    """
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_of(path):
    parts = ["rlds2reverb", *path.relative_to(TRUNK).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in ROOMS:
        return parts[1]
    return "doors" if len(parts) > 1 and parts[1] in DOORS else "words"


FILES = {
    module_of(path): path
    for path in sorted(TRUNK.rglob("*.py"))
    if path.relative_to(TRUNK).parts[0] not in BRANCHES and path != TRUNK / "__init__.py"
}


def own_imports(module):
    """The modules of the trunk that a module of it imports."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for name in modules_imported(FILES[module], package):
        while name and name not in FILES:  # the last part may be a name in a module
            name = name.rpartition(".")[0]
        if name:
            yield name


@pytest.mark.parametrize("module", FILES)
def test_rooms_import_only_rooms_before_them(module):
    for imported in own_imports(module):
        assert ROOMS.index(room_of(imported)) <= ROOMS.index(room_of(module)), f"{module} imports {imported}"


@pytest.mark.parametrize("module", FILES)
def test_the_trunk_imports_no_branch_and_its_own_room_relatively(module):
    tree = ast.parse(FILES[module].read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("rlds2reverb."):
            continue
        assert node.module.split(".")[1] not in BRANCHES, f"{module} imports {node.module}"
        if room_of(module) not in ("words", "doors"):
            assert room_of(node.module) != room_of(module), f"{module} imports {node.module}, of its own room"
    for imported in modules_imported(FILES[module], module):
        assert imported.split(".")[0] not in BRANCHES, f"{module} imports {imported}, a bare branch"


def test_no_two_modules_import_each_other_in_a_circle():
    imports = {module: set(own_imports(module)) - {module} for module in FILES}
    packages = {module for module, path in FILES.items() if path.name == "__init__.py"}
    for module, found in imports.items():  # a module that runs is in its package, which need not have ended
        imports[module] = {name for name in found if name not in packages or not module.startswith(f"{name}.")}
    done = set()
    while left := [module for module in imports if module not in done]:
        ready = [module for module in left if imports[module] <= done]
        assert ready, f"these import each other in a circle: {left}"
        done.update(ready)


@pytest.mark.parametrize("branch", sorted(BRANCHES))
def test_no_branch_imports_another_and_none_is_imported_bare(branch):
    others = BRANCHES - {branch, ROOF} if branch == ROOF else BRANCHES - {branch}
    for folder in (ROOT / branch, TRUNK / branch):
        for path in folder.rglob("*.py"):
            for module in modules_imported(path, f"rlds2reverb.{branch}"):
                parts = module.split(".")
                assert parts[0] not in BRANCHES, f"{path} imports {module}, a bare branch"
                if branch != ROOF:
                    assert parts[0] != "rlds2reverb" or parts[1] not in others, f"{path} imports {module}"


def test_every_name_of_an_import_is_looked_at(tmp_path):
    (tmp_path / "x.py").write_text(
        "def f():\n    import adders\nfrom rlds2reverb import fields, cli\nfrom .a import b\nfrom . import c\n"
    )
    assert sorted(modules_imported(tmp_path / "x.py", "rlds2reverb.sources")) == [
        "adders",
        "rlds2reverb.cli",
        "rlds2reverb.fields",
        "rlds2reverb.sources.a.b",
        "rlds2reverb.sources.c",
    ]


def test_every_package_is_listed_in_setup_py():
    setup = ROOT / "setup.py"
    if not setup.is_file():
        pytest.skip("the sources are not here: an installed wheel is tested")
    listed = ast.literal_eval(setup.read_text().partition("packages=")[2].partition("],")[0] + "]")
    rooms = {module for module, path in FILES.items() if path.name == "__init__.py"}
    branches = {
        ".".join(["rlds2reverb", *path.parent.relative_to(ROOT).parts])
        for branch in BRANCHES
        for path in (ROOT / branch).rglob("__init__.py")
    }
    assert sorted(listed) == sorted({"rlds2reverb"} | rooms | branches)
