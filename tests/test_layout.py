"""The import rules: the parts of the core have an order, and layers import only the layers below them.

Tests use private names of the sources only through `tests/support/internals.py`.
"""

import ast
import functools
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

import rlds2reverb

CORE = Path(rlds2reverb.__file__).parent
ROOT = Path(__file__).parent.parent
#: Parts of the core, each importing only those before it. The parts of `reverb` are ordered as well.
PARTS = [
    "errors",
    "reverb.process",
    "system",
    "types",
    "libraries",
    "adders",
    "policies",
    "replay",
    "reverb.wire",
    "datasets",
    "reverb.client",
    "reverb.server",
    "reverb.writing",
    "reverb.sampling",
    "entry points",
    "beam",
]
ENTRY_POINTS = {"data_loader", "ingestion", "rlds_to_reverb"}
#: The modules that import dm-reverb: those that run in servers' processes, and the client of TF-Agents' observers.
REVERB_USERS = {
    "rlds2reverb.libraries.reverb_client",
    "rlds2reverb.reverb.process.batch_service",
    "rlds2reverb.reverb.process.reverb_tables",
    "rlds2reverb.reverb.process.server",
    "rlds2reverb.reverb.process.writer",
}
#: The layers above the core, with those that each of them may import.
LAYERS_BELOW = {
    "learners": set(),
    "envs": set(),
    "training": {"learners", "envs"},
    "cli": {"learners", "envs", "training"},
}
LAYERS = set(LAYERS_BELOW)
TESTS = Path(__file__).parent
INTERNALS = TESTS / "support" / "internals.py"
#: The number of private names that `internals.py` lists.
MAX_INTERNALS = 29
#: Names with an underscore that are public: of IPython and of named tuples.
PUBLIC = {"_repr_html_", "_repr_png_", "_asdict", "_fields", "_replace"}


@functools.cache
def parse(path):
    return ast.parse(path.read_text())


@functools.cache
def find_imports(path):
    """Returns the import statements of a file, and those of them that are for type checking only."""
    nodes = list(ast.walk(parse(path)))
    typing_only = {
        node
        for block in nodes
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)], typing_only


@functools.cache
def modules_imported(path, package):
    """Returns the dotted name of every module that a file imports at any level, except for type checking only.

    `from a import b, c` imports `a.b` and `a.c`, since each may be a module. Relative imports are resolved in `package`.
    """
    imports, typing_only = find_imports(path)
    names = []
    for node in imports:
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def module_name(path):
    folder = CORE if path.is_relative_to(CORE) else ROOT
    parts = ["rlds2reverb", *path.relative_to(folder).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_name(module):
    """Returns the part that a module of the core belongs to: its folder, or that of `reverb`."""
    room, *rest = module.split(".")[1:]
    if room in ENTRY_POINTS:
        return "entry points"
    return f"reverb.{rest[0]}" if room == "reverb" and rest else room


FILES = {
    module_name(path): path
    for path in sorted([*CORE.rglob("*.py"), *(ROOT / "adders").rglob("*.py")])
    if path.relative_to(CORE if path.is_relative_to(CORE) else ROOT).parts[0] not in LAYERS
    and path not in (CORE / "__init__.py", CORE / "reverb" / "__init__.py")
}


def core_imports(module):
    """Yields the modules of the core that one of its modules imports."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for name in modules_imported(FILES[module], package):
        while name and name not in FILES:  # The last part may be a name in a module.
            name = name.rpartition(".")[0]
        if name:
            yield name


@pytest.mark.parametrize("module", FILES)
def test_parts_of_the_core_import_only_earlier_parts(module):
    for imported in core_imports(module):
        assert PARTS.index(part_name(imported)) <= PARTS.index(part_name(module)), f"{module} imports {imported}"


@pytest.mark.parametrize("module", FILES)
def test_core_imports_no_layer_and_siblings_relatively(module):
    for node in find_imports(FILES[module])[0]:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("rlds2reverb."):
            continue
        assert node.module.split(".")[1] not in LAYERS, f"{module} imports {node.module}"
        if part_name(module) not in ("errors", "entry points"):
            assert node.module.split(".")[1] != module.split(".")[1], (
                f"{module} imports {node.module} from its own part; use a relative import"
            )
    for imported in modules_imported(FILES[module], module):
        assert imported.split(".")[0] not in LAYERS, f"{module} imports {imported}, a layer by its bare name"


def test_only_servers_import_reverb():
    layers = {
        ".".join(["rlds2reverb", *path.relative_to(ROOT).with_suffix("").parts]): path
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
    }
    users = {
        module
        for module, path in {**FILES, **layers}.items()
        if any(name.partition(".")[0] == "reverb" for name in modules_imported(path, module.rpartition(".")[0]))
    }
    assert users == REVERB_USERS


def test_server_process_imports_only_what_its_environment_contains():
    allowed = {"google", "grpc", "numpy", "reverb", "rlds2reverb", "tensorflow", *sys.stdlib_module_names}
    for module, path in FILES.items():
        if part_name(module) == "reverb.process":
            for imported in modules_imported(path, "rlds2reverb.reverb.process"):
                assert imported.split(".")[0] in allowed, f"{module} imports {imported}"


def test_modules_do_not_import_each_other_in_a_circle():
    imports = {module: set(core_imports(module)) - {module} for module in FILES}
    packages = {module for module, path in FILES.items() if path.name == "__init__.py"}
    for module, imported in imports.items():  # A package may still be importing when its modules run.
        imports[module] = {name for name in imported if name not in packages or not module.startswith(f"{name}.")}
    done = set()
    while remaining := [module for module in imports if module not in done]:
        ready = [module for module in remaining if imports[module] <= done]
        assert ready, f"these modules import each other in a circle: {remaining}"
        done.update(ready)


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_layers_import_only_layers_below_them(layer):
    others = LAYERS - LAYERS_BELOW[layer] - {layer}
    for folder in (ROOT / layer, CORE / layer):
        for path in folder.rglob("*.py"):
            for module in modules_imported(path, f"rlds2reverb.{layer}"):
                parts = module.split(".")
                assert parts[0] not in LAYERS, f"{path} imports {module}, a layer by its bare name"
                assert parts[0] != "rlds2reverb" or parts[1] not in others, f"{path} imports {module}"


def test_modules_imported_finds_nested_and_relative_imports(tmp_path):
    (tmp_path / "x.py").write_text(
        "def f():\n    import adders\nfrom rlds2reverb import fields, cli\nfrom .a import b\nfrom . import c\n"
    )
    assert sorted(modules_imported(tmp_path / "x.py", "rlds2reverb.datasets")) == [
        "adders",
        "rlds2reverb.cli",
        "rlds2reverb.datasets.a.b",
        "rlds2reverb.datasets.c",
        "rlds2reverb.fields",
    ]


def test_no_two_files_have_one_name():
    folders = [CORE, *(ROOT / layer for layer in sorted({*LAYERS, "adders"}))]
    names = Counter(path.name for folder in folders for path in folder.rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} == {"__init__.py", "__main__.py"}


def test_setup_py_lists_every_package():
    setup = ROOT / "setup.py"
    if not setup.is_file():
        pytest.skip("the source tree is not available when an installed wheel is tested")
    listed = ast.literal_eval(setup.read_text().partition("packages=")[2].partition("],")[0] + "]")
    packages = {module for module, path in FILES.items() if path.name == "__init__.py"} | {"rlds2reverb.reverb"}
    layers = {
        ".".join(["rlds2reverb", *path.parent.relative_to(ROOT).parts])
        for layer in LAYERS
        for path in (ROOT / layer).rglob("__init__.py")
    }
    assert sorted(listed) == sorted({"rlds2reverb"} | packages | layers)


# --- Private names


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and len(name) > 2 and name not in PUBLIC


def find_definitions(tree, *, of_self_only=False):
    """Returns the names of functions, classes, variables and attributes that a module defines or assigns."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and (not of_self_only or ast.unparse(node.value) == "self")
        ):
            names.add(node.attr)
    return names


def find_uses(tree):
    """Yields the private names that a module uses as attributes, imports, or names or code in strings, with their lines.

    Attributes of `self` and `super()` are left out: subclasses override hooks. So are strings that are parts of names.
    """
    parts = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"))
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            names = [] if owner in ("self", "cls") or owner.startswith("super(") else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"\w\.(_\w+)", node.value)
            names += [node.value] if node.value.isidentifier() and node not in parts else []
        yield from ((name, node.lineno) for name in names if is_private(name))


@functools.cache
def find_private_names():
    folders = [CORE, *(ROOT / layer for layer in sorted({*LAYERS, "adders"}))]
    paths = (path for folder in folders for path in folder.rglob("*.py"))
    return set(filter(is_private, set().union(*(find_definitions(parse(path)) for path in paths))))


def test_tests_use_private_names_of_the_sources_only_through_internals():
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        if path == INTERNALS or find_private_names().isdisjoint(re.findall(r"\b_\w+", path.read_text())):
            continue  # Parsing takes longer.
        uses = [use for use in find_uses(parse(path)) if use[0] in find_private_names()]
        own = find_definitions(parse(path), of_self_only=True) if uses else set()
        found += [f"{path}:{line} {name}" for name, line in uses if name not in own]
    assert not found


def test_internals_are_few_and_exist():
    names = {name for name, _ in find_uses(parse(INTERNALS))}
    assert names - find_private_names() == {"_recv"}  # Of Python's `Connection`.
    assert len(names) <= MAX_INTERNALS


def test_find_uses_finds_attributes_imports_and_strings():
    code = """
from a import _imported
b._attribute = self._hook, super()._hook, c._replace
patch(d, "_named")
patch("e.f._dotted", f"{g}_suffix")
run("import h; h._encoded = 1")
i.endswith("_suffix")
"""
    names = [name for name, _ in find_uses(ast.parse(code))]
    assert sorted(names) == ["_attribute", "_dotted", "_encoded", "_imported", "_named"]
