"""The import rules of the house: floors of the trunk, branches apart, only the roof joins them."""

import ast
from pathlib import Path

import pytest

import rlds2reverb

TRUNK = Path(rlds2reverb.__file__).parent
ROOT = Path(__file__).parent.parent
# Each floor imports only those before it (and, inside sources/ and replay/, its own folder).
FLOORS = [
    {"fields", "protobuf"},
    {"specs", "reading"},
    {"episodes", "trajectories", "tables", "scores", "calls", "locks", "signals", "sealed_json", "tfrecords"},
    {"sources", "rlds_pairs", "items", "wire", "packing", "service", "checkpoints", "memory"},
    {"keys", "pieces", "windows", "priorities", "transforms", "summaries", "importance"},
    {"batches"},
    {"connecting", "insert_streams"},
    {"bulk_writing", "public_writing", "serving", "authoring", "shards", "liveness", "priority_writing"},
    {"round_trip", "sampling"},
    {"fast_push", "sinks", "plans", "reports", "replay"},
    {"rlds_to_reverb", "runs"},
    {"ingestion"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
BRANCHES = {"adders", "learners", "envs", "cli"}


def imports(path):
    """(module, names) of every import of a file, wherever it stands in it; typing-only ones aside."""
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in typing_only:
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in typing_only:
            base = node.module or ""
            yield (f"{base}.{node.names[0].name}" if base == "rlds2reverb" else base), node.level


def floor_of(path):
    return path.relative_to(TRUNK).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(TRUNK.rglob("*.py")), ids=lambda path: str(path.relative_to(TRUNK)))
def test_the_trunk_imports_downwards_only(path):
    if path.relative_to(TRUNK).parts[0] in BRANCHES or (path.parent == TRUNK and path.name == "__init__.py"):
        return
    own = floor_of(path)
    assert own in LEVEL, f"{own} stands on no floor; put it on one in {__file__}"
    for module, level in imports(path):
        assert level == 0 or own in ("sources", "replay"), f"{path.name} imports {module} relatively"
        parts = module.split(".")
        assert parts[0] not in BRANCHES, f"{path.name} imports {module}, a bare branch"
        if parts[0] == "rlds2reverb" and len(parts) > 1 and parts[1] != own:
            assert parts[1] in LEVEL and LEVEL[parts[1]] < LEVEL[own], f"{path.name} imports {module}, not below it"


@pytest.mark.parametrize("branch", sorted(BRANCHES))
def test_no_branch_imports_another_and_none_is_imported_bare(branch):
    for folder in (ROOT / branch, TRUNK / branch):
        for path in folder.rglob("*.py"):
            for module, level in imports(path):
                others = {"cli"} & BRANCHES - {branch} if branch == "cli" else BRANCHES - {branch}
                assert level or module.split(".")[0] not in BRANCHES, f"{path} imports {module}, a bare branch"
                assert not (module.startswith("rlds2reverb.") and module.split(".")[1] in others), f"{path}: {module}"


def test_the_rules_catch_what_they_forbid(tmp_path):
    (tmp_path / "x.py").write_text("def f():\n    import adders\nfrom rlds2reverb.cli import main\nfrom .a import b\n")
    assert list(imports(tmp_path / "x.py")) == [("rlds2reverb.cli", 0), ("a", 1), ("adders", 0)]
