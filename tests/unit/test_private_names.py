"""
No module but `broker/internals.py` touches a private name of another library, or of another module of ours.

A name is private if it begins with one underscore. It is a module's own if a class of that module defines it.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

ROOTS = [Path(__file__).parents[2] / "app", Path(__file__).parents[2] / "oscillator"]
ALLOWED = ("kafka_timers.broker.internals",)
PACKAGES = ("kafka_timers", "kafka_timers_oscillator")
MODULES = {
    ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
    for root in ROOTS
    for path in sorted(root.rglob("*.py"))
    # Generated; and modules that run the program as soon as they are imported.
    if path.parent.name != "v1" and path.name != "__main__.py"
}

# Named tuples have their methods in public under such names, so that no field can have one of them.
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller", "vars"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def is_own_object(node: ast.expr) -> bool:
    """Tell whether *node* is the object whose method is being written."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def defined_by(owner: ast.ClassDef) -> set[str]:
    """Return the private names that class *owner* defines: of methods, of fields, and of attributes set on `self`."""
    names = {node.name for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for line in owner.body:
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own_object(node.value):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def classes_of(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def foreign_names(tree: ast.Module) -> list[str]:
    """Return the places in *tree* that touch a private name that none of its classes defines, each with its line."""
    own = {name for each in classes_of(tree) for name in defined_by(each)}
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(attr=name):
                names = [name]
            case ast.ImportFrom(module=module, names=imported):
                names = [*(module or "").split("."), *(each.name for each in imported)]
            case ast.Import(names=imported):
                names = [part for each in imported for part in each.name.split(".")]
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args) if called in BY_NAME:
                texts = [below for arg in args for below in ast.walk(arg) if isinstance(below, ast.Constant)]
                names = [each.value for each in texts if isinstance(each.value, str)]
            case ast.Subscript(value=ast.Attribute(attr="__dict__") | ast.Call(func=ast.Name(id="vars"))):
                names = [str(each.value) for each in ast.walk(node.slice) if isinstance(each, ast.Constant)]
        found += [(node.lineno, name) for name in names if is_private(name) and name not in own]  # type: ignore[attr-defined]
    return [f"line {line}: {name}" for line, name in sorted(found)]


@cache
def private_names_of(kind: type) -> set[str]:
    """Return the private names that *kind*, a class of another library, has or sets."""
    names = {*vars(kind), *getattr(kind, "__annotations__", {})}
    # A class written in C has no source, and sets nothing that could be set from outside.
    with suppress(OSError, TypeError, StopIteration):
        names |= defined_by(next(classes_of(ast.parse(textwrap.dedent(inspect.getsource(kind))))))
    return {name for name in names if is_private(name)}


def overridden(module: str) -> list[str]:
    """Return the private names that classes of *module* define, and libraries that they inherit from as well."""
    found = []
    tree = ast.parse(MODULES[module].read_text())
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in getattr(importlib.import_module(module), node.name).__mro__[1:]:
            if base.__module__.partition(".")[0] not in PACKAGES:
                found += [f"{node.name}.{name} of {base}" for name in defined_by(node) & private_names_of(base)]
    return found


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ALLOWED])
def test_no_other_module_touches_private_names(module: str) -> None:
    assert foreign_names(ast.parse(MODULES[module].read_text())) == []
    assert overridden(module) == []


@pytest.mark.parametrize("module", ALLOWED)
def test_the_modules_that_may_are_there(module: str) -> None:
    assert foreign_names(ast.parse(MODULES[module].read_text()))


@pytest.mark.parametrize(
    "line",
    [
        "producer._txn_manager",
        "self.producer._txn_manager",
        "self._producer._txn_manager",
        "consumer.thread._fetcher.wait = 1",
        "consumer._wait = 1",
        "self._inherited()",
        "super()._inherited()",
        "getattr(client, '_sasl')",
        "getattr(client, f'_{name}')",
        "getattr(client, '_' + name)",
        "setattr(client, '_sasl', 1)",
        "operator.attrgetter('_sasl')(client)",
        "client.__dict__['_sasl']",
        "vars(client)['_sasl']",
        "from library import _name",
        "from library._module import name",
        "import library._module",
    ],
)
def test_a_foreign_private_name_is_found(line: str) -> None:
    code = f"class Own:\n    def own(self):\n        self._producer = 1\n        {line}\n"
    assert len(foreign_names(ast.parse(code))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "self._producer",
        "other._producer",
        "self._field",
        "self._method()",
        "cls._method",
        "row._replace(a=1)",
        "Row._fields",
        "self.__dict__",
        "from __future__ import annotations",
        "from library import name as _name",
        "getattr(client, 'sasl')",
        "_name = 1",
    ],
)
def test_an_own_private_name_is_not(line: str) -> None:
    code = (
        "class Own:\n    _field: int = 0\n\n    def _method(self):\n        self._producer = 1\n\n"
        f"    def other(self, other, cls):\n        {line}\n"
    )
    assert foreign_names(ast.parse(code)) == []


def test_a_private_name_that_a_library_has_too_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A class that sets one of its parent has changed the parent, without a look at it."""
    code = (
        "from faust.assignor import PartitionAssignor\n\n\n"
        "class Assignor(PartitionAssignor):\n    def _perform_assignment(self):\n        self._member_urls = {}\n"
    )
    path = tmp_path / "assigning.py"
    path.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MODULES, "assigning", path)
    assert foreign_names(ast.parse(code)) == []
    assert {each.partition(" ")[0] for each in overridden("assigning")} == {
        "Assignor._perform_assignment",
        "Assignor._member_urls",
    }
