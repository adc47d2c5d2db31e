"""
Edits of a function's syntax tree: what `mutants.py` breaks the code with.

An edit finds its place by *marks*, never by lines of text. A mark is the name of a call, an attribute, a keyword or a
global, or a constant. The place is the innermost one of the edit's kind that has all marks in it. There must be exactly
one, else the edit raises `ValueError`: its code has changed. Where there are three, a last mark "2/3" takes the second.
Local variables are no marks and stand in no piece of code, so you can rename them freely.

A piece of code refers to what stands there now: `_` is the place itself, and `_0`, `_1` … are its operands. Those of a
call, and of a keyword's value, are the call's positional arguments, and `_self` is what the method is called on. `_p0`,
`_p1` … are the function's parameters.
"""

import ast
import builtins
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import NamedTuple

Mark = str | bytes | int | float | None


class Slot(NamedTuple):
    """A node of the tree, and where it hangs: below which node, in which field, and at which position of a list."""

    node: ast.AST
    parent: ast.AST
    field: str
    at: int | None

    def children(self) -> "Iterator[Slot]":
        """Yield those right below this one, in the order of the text."""
        for field, value in ast.iter_fields(self.node):
            for at, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST):
                    yield Slot(node, self.node, field, at)

    def below(self) -> "Iterator[Slot]":
        """Yield this one and all below it, in the order of the text."""
        yield self
        for slot in self.children():
            yield from slot.below()

    def put(self, *nodes: ast.AST) -> None:
        """Put *nodes* in the place of this one: more than one, or none, only in a list."""
        if self.at is None:
            setattr(self.parent, self.field, *nodes)
        else:
            getattr(self.parent, self.field)[self.at : self.at + 1] = nodes


class Scope(NamedTuple):
    """The function, or the assignment to a global, within which an edit looks for its place."""

    root: Slot
    module: ast.Module

    @property
    def lines(self) -> slice:
        """Where its lines are among those of the module."""
        node = self.root.node
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))  # type: ignore[attr-defined]
        return slice(first - 1, node.end_lineno)  # type: ignore[attr-defined]

    def text(self) -> list[str]:
        """Return the lines of its text, indented as it stands in the module."""
        node = self.root.node
        depth = node.col_offset // 4  # type: ignore[attr-defined]
        for _ in range(depth):
            node = ast.If(ast.Constant(True), [node], [])
        return ast.unparse(node).splitlines()[depth:]

    def slots(self) -> Iterator[Slot]:
        """Yield all that is in the body."""
        node = self.root.node
        for at, statement in enumerate(getattr(node, "body", ())):
            yield from Slot(statement, node, "body", at).below()
        if not hasattr(node, "body"):
            yield from self.root.below()

    def local_names(self) -> set[str]:
        """Return the names of the function's parameters and variables."""
        nodes = list(ast.walk(self.root.node))
        stored = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        return (stored | {each.arg for each in nodes if isinstance(each, ast.arg)}) - {"self", "cls"}

    def global_names(self) -> set[str]:
        """Return the names that a piece of code may have."""
        names = {"self", "cls", *dir(builtins)}
        for statement in self.module.body:
            if hasattr(statement, "body"):
                names.add(getattr(statement, "name", ""))
                continue
            for node in ast.walk(statement):
                match node:
                    case ast.Name(id=name) | ast.alias(name=name, asname=None) | ast.alias(asname=str(name)):
                        names.add(name)
        return names


Edit = Callable[[Scope], None]


def _own(node: ast.AST | None, local: set[str]) -> list[Mark]:
    """Return the mark that *node* itself is, if it is one."""
    match node:
        case ast.Attribute(attr=mark) | ast.keyword(arg=mark) | ast.Constant(value=mark):
            return [mark]
        case ast.Name(id=mark) if mark not in local:
            return [mark]
    return []


def _marks_in(node: ast.AST, local: set[str]) -> list[Mark]:
    """Return all marks in *node*."""
    return [mark for each in ast.walk(node) for mark in _own(each, local)]


def _names_of(slot: Slot, local: set[str]) -> list[Mark]:
    """Return the marks that *slot* is called by: its keyword, and its own name, which of a call is the callee's."""
    node = slot.node.func if isinstance(slot.node, ast.Call) else slot.node
    keyword = _own(slot.parent, local) if isinstance(slot.parent, ast.keyword) else []
    return keyword + (_own(node, local) if slot.field != "func" else [])


def _has(marks: list[Mark], mark: Mark) -> bool:
    return any(type(each) is type(mark) and each == mark for each in marks)


def _find(scope: Scope, is_kind: Callable[[Slot], bool], marks: tuple[Mark, ...], *, by_name: bool = False) -> Slot:
    """Return the one place of a kind that has all *marks*, or *by_name* the one that is called by them."""
    wanted, nth, count = list(marks), 1, 1
    if marks and re.fullmatch(r"\d+/\d+", str(marks[-1])):
        nth, count = map(int, str(wanted.pop()).split("/"))
    local = scope.local_names()
    found = []
    for slot in filter(is_kind, scope.slots()):
        # The value of a statement is told from others by what it is assigned to, too.
        marked = slot.parent if isinstance(slot.parent, ast.stmt) and slot.field == "value" else slot.node
        if by_name:
            is_it = _has(_names_of(slot, local), wanted[0])
        else:
            is_it = all(_has(_marks_in(marked, local), mark) for mark in wanted)
        if is_it:
            found.append(slot)
    if not by_name and wanted:
        outer = {id(slot.node) for slot in found for each in found if _is_below(each, slot)}
        found = [slot for slot in found if id(slot.node) not in outer]
    if len(found) != count:
        raise ValueError(f"{len(found)} places have {wanted}, not {count}")
    return found[nth - 1]


def _is_below(slot: Slot, other: Slot) -> bool:
    return slot.node is not other.node and any(each is slot.node for each in ast.walk(other.node))


class _Filled(ast.NodeTransformer):
    """A piece of code with what its placeholders stand for."""

    def __init__(self, places: dict[str, ast.AST]) -> None:
        self._places = places

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self._places.get(node.id, node))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        filled = self.generic_visit(node)
        # A statement stands alone; an expression that stands for one does not.
        return filled.value if isinstance(filled, ast.Expr) and isinstance(filled.value, ast.stmt) else filled


def _filled(code: str, slot: Slot, scope: Scope) -> list[ast.stmt]:
    """Return the statements of *code* for the place *slot*."""
    node = slot.node
    while isinstance(node, ast.Expr | ast.Return | ast.Await) and node.value:
        node = node.value
    if isinstance(node, ast.Name):
        node = next((each for each in ast.walk(scope.root.node) if slot.parent in getattr(each, "keywords", ())), node)
    operands = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    places = {f"_{at}": each for at, each in enumerate(each for each in operands if isinstance(each, ast.expr))}
    places["_"] = slot.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        places["_self"] = node.func.value
    if isinstance(arguments := getattr(scope.root.node, "args", None), ast.arguments):
        parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        places |= {f"_p{at}": ast.Name(each.arg) for at, each in enumerate(parameters)}
    tree = ast.parse(code)
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    known = scope.global_names() | places.keys() | {each.id for each in names if isinstance(each.ctx, ast.Store)}
    if unknown := sorted({each.id for each in names} - known):
        raise ValueError(f"there is no {', '.join(unknown)} for {code!r}")
    return _Filled(places).visit(tree).body


def _put(code: str, *marks: Mark, is_kind: Callable[[Slot], bool], by_name: bool = False) -> Edit:
    def edit(scope: Scope) -> None:
        slot = _find(scope, is_kind, marks, by_name=by_name)
        if isinstance(slot.node, ast.stmt):
            slot.put(*_filled(code, slot, scope))
            return
        # An answer is awaited with its question.
        held = [each for each in scope.slots() if each.node is slot.parent and isinstance(each.node, ast.Await)]
        slot = held[0] if held else slot
        (statement,) = _filled(code, slot, scope)
        slot.put(statement.value if isinstance(statement, ast.Expr) else statement)

    return edit


def _kind(*types: type[ast.AST]) -> Callable[[Slot], bool]:
    return lambda slot: isinstance(slot.node, types)


def _is_test(slot: Slot) -> bool:
    return slot.field in ("test", "ifs") and not isinstance(slot.node, ast.Constant)


# An expression that is called by a name: a call, an attribute, a keyword's value, a global; or a constant.
put = partial(_put, is_kind=_kind(ast.expr), by_name=True)
# The innermost expression of a kind that has the marks.
binary = partial(_put, is_kind=_kind(ast.BinOp))
boolean = partial(_put, is_kind=_kind(ast.BoolOp))
compare = partial(_put, is_kind=_kind(ast.Compare))
either = partial(_put, is_kind=_kind(ast.IfExp))
listed = partial(_put, is_kind=_kind(ast.Tuple, ast.List, ast.Set))
# The condition of an if, a while or a comprehension.
test = partial(_put, is_kind=_is_test)
always, never = partial(test, "True"), partial(test, "False")
# What a statement assigns or returns, or the call that it is.
value = partial(_put, is_kind=lambda slot: slot.field == "value" and isinstance(slot.parent, ast.stmt))
# A statement.
restate = partial(_put, is_kind=_kind(ast.stmt))
drop = partial(restate, "pass")


def without(*marks: Mark) -> Edit:
    """Leave out one operand of an `and` or an `or`, or one item of a tuple, a list or a set."""
    holders = (ast.BoolOp, ast.Tuple, ast.List, ast.Set)

    def edit(scope: Scope) -> None:
        slot = _find(scope, lambda slot: slot.at is not None and isinstance(slot.parent, holders), marks)
        slot.put()
        if isinstance(slot.parent, ast.BoolOp) and len(slot.parent.values) == 1:
            holder = next(each for each in scope.slots() if each.node is slot.parent)
            holder.put(*slot.parent.values)

    return edit


def move(*marks: Mark, before: Mark) -> Edit:
    """Move the statement that has *marks* to before the one that has the mark *before*, in the same block."""

    def edit(scope: Scope) -> None:
        moved, other = (_find(scope, _kind(ast.stmt), each) for each in (marks, (before,)))
        block = getattr(other.parent, other.field)
        block.remove(moved.node)
        block.insert(block.index(other.node), moved.node)

    return edit


def unwrap(*marks: Mark) -> Edit:
    """Put the body of a `with` in its place."""

    def edit(scope: Scope) -> None:
        slot = _find(scope, _kind(ast.With, ast.AsyncWith), marks)
        slot.put(*slot.node.body)  # type: ignore[attr-defined]

    return edit
