"""The small faults that can be made in a source: each one names a function, an operation and a number.

    rlds2reverb/adders/n_step.py:NStep.count sign 0

is the first sign of that method, reversed. Edits of other lines do not change these names.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
#: Functions whose arguments can be exchanged.
_SYMMETRIC = {"max", "min", "maximum", "minimum", "array_equal", "logical_and", "logical_or", "union1d", "isclose"}
_SYMMETRIC |= {"equal", "not_equal"}
#: Options that guard against mistakes of programmers, change only what Python prints of an object, or only speed.
_UNSEEN = {"strict", "frozen", "repr", "copy", "flush", "maxsize", "parallel_iterations", "autograph", "jit_compile",
           "reduce_retracing", "kw_only"}  # fmt: skip
#: Options of Matplotlib for the looks of a figure.
_UNSEEN |= {"linewidth", "linewidths", "markersize", "frameon", "bbox_to_anchor", "height_ratios", "dpi"}
_CLOCKS = {"monotonic", "perf_counter", "time", "sleep"}
#: Ends of the names of constants that limit sizes and durations.
_LIMITS = ("BYTES", "SECS")
_Edit = tuple[ast.AST, str]


@dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
      file: path of the source in the project.
      function: qualified name of the function; 'Class' for attributes of a class, '' for those of a module.
      operation: a key of `OPERATIONS`.
      number: its number among those of the same operation in the function.
      source: the whole source with the fault.
      places: the first and last line of the changed expression, of its function, of all that contain this one, and of
        the module.
    """

    file: str
    function: str
    operation: str
    number: int
    source: str
    places: Sequence[tuple[int, int]]

    @property
    def name(self) -> str:
        """The name, which is unique."""
        return f"{self.file}:{self.function} {self.operation} {self.number}"


def _find_comparison(node: ast.AST) -> Iterator[_Edit]:
    """Replaces comparisons: `a < b` becomes `a <= b`, `a == b` becomes `a != b`, `a in b` becomes `a not in b`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and not any(map(_reads_clock, ast.walk(node))):
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield node, f"({left} {_COMPARISONS[type(node.ops[0])]} {right})"


def _reads_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CLOCKS


def _is_limit(comparison: ast.AST) -> bool:
    """Returns whether a comparison by size has a constant of `_LIMITS` as a side."""
    if not isinstance(comparison.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return False
    sides = (ast.unparse(side).rsplit(".", 1)[-1] for side in (comparison.left, comparison.comparators[0]))
    return any(side.isupper() and side.endswith(_LIMITS) for side in sides)


def _find_constant(node: ast.AST) -> Iterator[_Edit]:
    """Numbers are increased by 1, and booleans negated."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield node, repr(not node.value if isinstance(node.value, bool) else node.value + 1)


def _find_sign(node: ast.AST) -> Iterator[_Edit]:
    """Replaces signs: `a + b` becomes `a - b`, and `-a` becomes `a`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        yield node, f"({ast.unparse(node.left)} {sign} ({ast.unparse(node.right)}))"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node, f"({ast.unparse(node.operand)})"


def _find_default(node: ast.AST) -> Iterator[_Edit]:
    """Defaults of arguments and fields change as constants do."""
    values: list[ast.AST | None] = []
    if isinstance(node, ast.arguments):
        values = [*node.defaults, *node.kw_defaults]
    elif isinstance(node, ast.AnnAssign):
        values = [node.value]
    for value in values:
        if value is not None:
            yield from _find_constant(value)


def _find_arguments(node: ast.AST) -> Iterator[_Edit]:
    """Exchanges the first two arguments of a call."""
    if isinstance(node, ast.Call) and len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
        first, second = map(ast.unparse, node.args[:2])
        name = ast.unparse(node.func).rsplit(".", 1)[-1]
        if first != second and name not in _SYMMETRIC:
            others = [ast.unparse(part) for part in (*node.args[2:], *node.keywords)]
            yield node, f"{ast.unparse(node.func)}({', '.join([second, first, *others])})"


def _find_condition(node: ast.AST) -> Iterator[_Edit]:
    """`a and b` becomes `a`, then `b`; `a or b` likewise; `not a` becomes `a`; and an `if` is never taken."""
    if isinstance(node, ast.BoolOp):
        joint = " and " if isinstance(node.op, ast.And) else " or "
        for left_out in reversed(range(len(node.values))):
            kept = [f"({ast.unparse(part)})" for number, part in enumerate(node.values) if number != left_out]
            yield node, f"({joint.join(kept)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.If) and not isinstance(node.test, (ast.NamedExpr, ast.Constant)):
        yield node.test, "False"


def _find_call(node: ast.AST) -> Iterator[_Edit]:
    """Leaves out a call whose result is not used."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"


OPERATIONS: dict[str, Callable[[ast.AST], Iterator[_Edit]]] = {
    "comparison": _find_comparison,
    "constant": _find_constant,
    "sign": _find_sign,
    "default": _find_default,
    "arguments": _find_arguments,
    "condition": _find_condition,
    "call": _find_call,
}


def list_mutations(root: Path, file: str) -> Iterator[Mutation]:
    """Yields all mutations of a source that can still be compiled, and that a test could fairly notice.

    Left out are type annotations, the text of messages, the options `_UNSEEN`, how long a program sleeps, and what
    happens at the very moment of a deadline, or at the very byte of a limit: comparisons with a clock or with `_LIMITS`.
    """
    source = (root / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    numbers = Counter[tuple[str, str]]()
    for scopes, node, is_default in _walk(ast.parse(source)):
        function = ".".join(scope.name for scope in scopes)
        for operation, find in OPERATIONS.items():
            if operation == "constant" and is_default:
                continue
            for place, text in find(node):
                number = numbers[function, operation]
                numbers[function, operation] += 1
                if operation == "comparison" and _is_limit(place):
                    continue
                first = starts[place.lineno - 1] + place.col_offset
                last = starts[place.end_lineno - 1] + place.end_col_offset
                changed = (source[:first] + text.encode() + source[last:]).decode()
                places = [(part.lineno, part.end_lineno) for part in (place, *reversed(scopes))] + [(1, len(starts))]
                yield Mutation(file, function, operation, number, changed, places)


def _walk(
    tree: ast.AST, scopes: tuple[ast.FunctionDef | ast.ClassDef, ...] = (), is_default: bool = False
) -> Iterator[tuple[tuple[ast.FunctionDef | ast.ClassDef, ...], ast.AST, bool]]:
    """Yields the nodes with the functions and classes around them, and whether they are the value of a default."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "type_comment") or isinstance(tree, (ast.JoinedStr, ast.Raise)):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or (isinstance(node, ast.keyword) and node.arg in _UNSEEN):
                continue
            if isinstance(node, ast.Expr) and _reads_clock(node.value):
                continue
            inner = (*scopes, node) if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else scopes
            is_value = name in ("defaults", "kw_defaults") or (name == "value" and isinstance(tree, ast.AnnAssign))
            yield inner, node, is_value
            yield from _walk(node, inner, is_value)
