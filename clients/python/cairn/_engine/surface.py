"""Compares an engine's source with the parts of it that an adapter uses.

An adapter says in its module `compat` which names it uses (`Surface`). This module reads the
engine's files as text: it imports nothing of the engine, so that it can say what changed in a
version with which an import would fail. `tests/data/engines` has what it read of known versions.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Union

__all__ = ["Implements", "Record", "Surface", "changes", "files_of", "installed", "record"]

Files = Callable[[str], Union[str, None]]
"""The text of a module, or None if there is no such module."""

Record = dict[str, dict[str, Union[str, dict[str, str]]]]
"""Module, name in it, and its form. The form of a class is that of its members by name.

A form is "field", "value", "property" or, with names of parameters, "method(a, b=, *, c=)". "="
follows parameters with a default. Members without a body of their own begin with "abstract"."""


class Implements(NamedTuple):
    """A class of an adapter whose methods the engine calls."""

    module: str
    engine_class: str
    own_module: str
    own_class: str
    only_some: Sequence[str] = ()
    """Methods that not every version of the engine has."""
    made_here: bool = False
    """The adapter makes it, so that its constructor is its own."""


@dataclass(frozen=True)
class Surface:
    """The names of an engine that an adapter uses."""

    package: str
    uses: Mapping[str, Mapping[str, Union[str, Sequence[str], None]]]
    """By module and name: the arguments of a call ("a, b, c=", with "=" for those that are given by
    name), or the members of a class that are used ("name", or "name(a, b, c=)" for a call), or None
    for any other use."""
    implements: Sequence[Implements] = field(default=())


def files_of(folder: pathlib.Path) -> Files:
    """The modules below a folder with packages, as that of an unpacked wheel."""

    def text(module: str) -> str | None:
        path = folder.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.read_text(encoding="utf-8")
        return None

    return text


def installed(package: str) -> Files:
    """The modules of a package that can be imported. Imports nothing."""
    spec = importlib.util.find_spec(package)
    [folder] = (spec and spec.submodule_search_locations) or [""]
    return files_of(pathlib.Path(folder).parent)


def record(files: Files, surface: Surface) -> Record:
    """The names of a surface that are there. Names that are gone are left out."""
    wanted: dict[str, dict[str, Sequence[str]]] = {}
    for module, names in surface.uses.items():
        for name, use in names.items():
            members = [_member(text)[0] for text in use or ()] if not isinstance(use, str) else []
            wanted.setdefault(module, {})[name] = ["__init__", *members] if use else []
    hooks = {(one.module, one.engine_class) for one in surface.implements}
    for module, name in hooks:
        wanted.setdefault(module, {}).setdefault(name, [])
    sources = _Sources(files)
    found: Record = {}
    for module, names_wanted in wanted.items():
        there = found.setdefault(module, {})
        for name, some in names_wanted.items():
            form = sources.form(module, name)
            if isinstance(form, dict):
                every = (module, name) in hooks
                form = {
                    member: text
                    for member, text in form.items()
                    if member in some or (every and (member[0] != "_" or member == "__init__"))
                }
            if form is not None:
                there[name] = form
    return found


def changes(there: Record, surface: Surface, own: Files | None = None) -> list[str]:
    """The names of a record that an adapter cannot use as it does, with what is different."""
    found = []
    for module, names in surface.uses.items():
        for name, use in names.items():
            full, form = f"{module}.{name}", there.get(module, {}).get(name)
            if form is None:
                found.append(f"{full} is gone")
            elif isinstance(use, str):
                made = form.get("__init__", "()") if isinstance(form, dict) else form
                found += _call_changes(full, made, use)
            elif isinstance(use, tuple):
                members = form if isinstance(form, dict) else {}
                for text in use:
                    member, arguments = _member(text)
                    if member not in members:
                        found.append(f"{full}.{member} is gone")
                    elif arguments is not None:
                        found += _call_changes(f"{full}.{member}", members[member], arguments)
    sources = _own_sources() if own is None else _Sources(own)
    for one in surface.implements:
        found += _method_changes(one, there, sources)
    return found


def _member(text: str) -> tuple[str, str | None]:
    """A member's name, and the arguments of a call of it."""
    name, call, rest = text.partition("(")
    return name, rest.removesuffix(")") if call else None


# ---- comparing ----


class _Parameter(NamedTuple):
    name: str
    has_default: bool
    by_name_only: bool


def _parameters(form: str) -> tuple[list[_Parameter], bool, bool]:
    """The parameters, and whether it takes any others by position, and by name."""
    inside = re.search(r"\((.*)\)", form)
    found, any_position, any_name, by_name = [], False, False, False
    for text in filter(None, (inside[1] if inside else "").split(", ")):
        if text.startswith("**"):
            any_name = True
        elif text.startswith("*"):
            any_position, by_name = any_position or text != "*", True
        else:
            found.append(_Parameter(text.rstrip("="), text.endswith("="), by_name))
    return found, any_position, any_name


def _call_changes(full: str, form: str, use: str) -> Iterator[str]:
    """`use`: as in `Surface.uses`."""
    parameters, any_position, any_name = _parameters(form)
    names = [p.name for p in parameters]
    given = [text for text in use.split(", ") if text]
    fits = True
    for i, text in enumerate(given):
        if text.endswith("="):
            fits &= text[:-1] in names or any_name
        else:
            fits &= (i < len(names) and names[i] == text) or (i >= len(names) and any_position)
    given_names = {text.rstrip("=") for text in given}
    fits &= all(p.has_default or p.name in given_names for p in parameters)
    if not fits:
        yield f"{full} takes ({', '.join(_shown(form))}), and is called with ({use})"


def _shown(form: str) -> list[str]:
    return [p.name + ("=" if p.has_default else "") for p in _parameters(form)[0]]


def _method_changes(one: Implements, there: Record, own: _Sources) -> Iterator[str]:
    full = f"{one.module}.{one.engine_class}"
    theirs = there.get(one.module, {}).get(one.engine_class)
    ours = own.form(one.own_module, one.own_class, inherited=False)
    assert isinstance(ours, dict), f"{one.own_module} has no class {one.own_class}"
    if not isinstance(theirs, dict):
        yield f"{full} is gone"
        return
    for name, form in theirs.items():
        if form.startswith("abstract") and name not in ours:
            yield f"{full}.{name} is new, and has to be implemented"
    for name, form in ours.items():
        if name.startswith("_") and (name != "__init__" or one.made_here):
            continue
        if name not in theirs:
            if name not in one.only_some and name != "__init__":
                yield f"{full}.{name} is gone"
        elif _kind(theirs[name]) != _kind(form):
            yield f"{full}.{name} is a {_kind(theirs[name])}, and was a {_kind(form)}"
        elif not _accepts(form, theirs[name]):
            yield (
                f"{full}.{name} takes ({', '.join(_shown(theirs[name]))}), "
                f"and took ({', '.join(_shown(form))})"
            )


def _kind(form: str) -> str:
    kind = form.removeprefix("abstract ").partition("(")[0]
    # A thing that is read like a field may be one.
    return "property" if kind in ("field", "value") else kind


def _accepts(ours: str, theirs: str) -> bool:
    """Whether a method of ours takes all arguments that the engine's own takes."""
    parameters, any_position, any_name = _parameters(ours)
    names = [p.name for p in parameters if not p.by_name_only]
    by_name = {p.name for p in parameters}
    wanted, _, _ = _parameters(theirs)
    for i, parameter in enumerate(wanted):
        if parameter.by_name_only:
            fits = parameter.name in by_name or any_name
        elif i < len(names):
            fits = names[i] == parameter.name
        else:
            fits = any_position
        if not fits:
            return False
    told = {p.name for p in wanted}
    return all(p.has_default or p.name in told for p in parameters)


# ---- reading ----

_DEPTH = 8  # Names that are imported from where they are imported from, and so on.


class _Sources:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._read: dict[str, dict[str, ast.AST]] = {}

    def form(self, module: str, name: str, inherited: bool = True) -> str | dict[str, str] | None:
        """As in `Record`. None: there is no such name."""
        found = self._find(module, name)
        if found is None:
            return None
        where, node = found
        if isinstance(node, ast.ClassDef):
            return self._members(where, node, inherited)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return f"function({_signature(node.args, 0)})"
        return "value"

    def _find(self, module: str, name: str, depth: int = _DEPTH) -> tuple[str, ast.AST] | None:
        node = self._names(module).get(name)
        if isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                source = ".".join([*package, *filter(None, [source])])
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            found = self._find(source, original, depth - 1) if depth else None
            # It belongs to another package: it is there, and that is all that is known.
            return found or ((module, node) if self._files(source) is None else None)
        return None if node is None else (module, node)

    def _names(self, module: str) -> dict[str, ast.AST]:
        if module not in self._read:
            text = self._files(module)
            self._read[module] = {} if text is None else dict(_named(ast.parse(text).body))
        return self._read[module]

    def _members(self, module: str, node: ast.ClassDef, inherited: bool) -> dict[str, str]:
        members: dict[str, str] = {}
        for base in reversed(node.bases) if inherited else ():
            plain = base.value if isinstance(base, ast.Subscript) else base
            found = self._find(module, plain.id) if isinstance(plain, ast.Name) else None
            if found is not None and isinstance(found[1], ast.ClassDef):
                members |= self._members(*found, inherited)  # type: ignore[arg-type]
        fields = []
        for name, child in _named(node.body):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                members[name] = _method(child)
                members |= {attribute: "field" for attribute in _set_on_self(child) - set(members)}
            elif isinstance(child, (ast.AnnAssign, ast.Assign)):
                members[name] = "field"
                if isinstance(child, ast.AnnAssign) and "ClassVar" not in ast.dump(
                    child.annotation
                ):
                    fields.append(name + ("" if child.value is None else "="))
        if fields and "__init__" not in dict(_named(node.body)):
            # A dataclass or the like; those of its bases come first.
            before = members.get("__init__", "method()").partition("(")[2].rstrip(")")
            members["__init__"] = f"method({', '.join([*filter(None, [before]), *fields])})"
        return members


@functools.lru_cache(maxsize=1)
def _own_sources() -> _Sources:
    return _Sources(installed("cairn"))


def _named(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """The names that statements of a module or a class make, those in conditions too."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _named(node.body)
            for handler in getattr(node, "handlers", ()):
                yield from _named(handler.body)
            yield from _named(node.orelse)


def _signature(arguments: ast.arguments, skip: int) -> str:
    """Without the first `skip` parameters."""
    plain = [*arguments.posonlyargs, *arguments.args]
    first_default = len(plain) - len(arguments.defaults)
    found = [a.arg + ("=" if i >= first_default else "") for i, a in enumerate(plain) if i >= skip]
    if arguments.vararg is not None:
        found.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        found.append("*")
    found += [
        a.arg + ("" if default is None else "=")
        for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults)
    ]
    if arguments.kwarg is not None:
        found.append("**" + arguments.kwarg.arg)
    return ", ".join(found)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = {
        mark.attr if isinstance(mark, ast.Attribute) else getattr(mark, "id", "")
        for mark in node.decorator_list
    }
    abstract = "abstract " if "abstractmethod" in marks else ""
    if marks & {"property", "cached_property", "setter"}:
        return abstract + "property"
    kind = "classmethod" if "classmethod" in marks else "method"
    return f"{abstract}{kind}({_signature(node.args, 0 if 'staticmethod' in marks else 1)})"


def _set_on_self(node: ast.AST) -> set[str]:
    targets: list[ast.expr] = []
    for child in ast.walk(node):
        if isinstance(child, ast.Assign):
            for target in child.targets:
                targets += target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(child, ast.AnnAssign):
            targets.append(child.target)
    return {
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }
