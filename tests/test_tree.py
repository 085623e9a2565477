"""The shape of the source tree: import direction, directory sizes, wiring of the engine, one noun in every layer.

`python tests/test_tree.py` prints every metric with its offenders; `python tests/test_tree.py engine` prints only the
offenders below src/skerry/engine.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "skerry"

# -- limits -----------------------------------------------------------------------------------------------------------

MAX_MODULES = 20  # per directory, with `__init__`
UNLIMITED = ("routes", "commands")  # directories with one file per noun: no limit, and a single importer is normal
LONG = 800  # lines
LONG_MODULES: dict[str, str] = {}  # reviewed modules above LONG lines, each with the reason that it is not split
MAX_CALLBACKS = 10
MAX_TWO_PHASE = 0
MAX_SLOTS = 0
MAX_DUPLICATE_CLASSES = 15
MAX_SINGLE_IMPORTERS = 80
MAX_SPLIT_CLASSES = 0

# -- import direction -------------------------------------------------------------------------------------------------

BELOW = {"types", "errors", "codecs", "extras", "telemetry", "_version"}
KERNEL = {"linux"}  # system calls, for the packages that work on this host
PARTS = {"keeper", "storage", "images", "network", "review", "runtimes", "code"}
MAY_IMPORT = {
    "errors": {"types"},  # for the type checker only: CommandFailed carries a Result
    "types": {"errors", "codecs"},
    "codecs": {"types", "errors"},
    "config": BELOW,
    "extras": {"errors"},
    "telemetry": {"errors", "extras", "_version"},
    "linux": set(),
    **{part: BELOW | KERNEL | {"config"} for part in PARTS},
    "images": BELOW | KERNEL | {"config", "storage"},
    "engine": BELOW | KERNEL | {"config"} | PARTS,
    "server": BELOW | {"config", "engine", "mcp"} | PARTS,  # mcp: one module, imported when /mcp gets its first client
    "client": BELOW | {"config"},
    "results": {"types", "client"},  # the public names of result types
    "cli": BELOW | {"config", "client", "server", "engine", "network", "mcp"},  # network: a policy as a patch
    "mcp": BELOW | {"client"},
    "integrations": BELOW | {"client", "mcp"},  # mcp: how text is shortened for models
}

# -- one noun, every layer --------------------------------------------------------------------------------------------

NOUNS = {
    "sandboxes": "sandbox",
    "processes": "process",
    "files": "file",
    "network": "network",
    "review": "review",
    "code": "code",
    "images": "image",
    "snapshots": "snapshot",
    "volumes": "volume",
}
LAYERS = {  # {}: the noun, or its singular
    "engine": ["src/skerry/engine/{}/__init__.py"],
    "routes": ["src/skerry/server/routes/{}.py"],
    "sdk": ["src/skerry/client/_async/{}.py", "src/skerry/client/_async/{}/__init__.py"],
    "cli": ["src/skerry/cli/commands/{}.py", "src/skerry/cli/options/{}.py"],
    "mcp": ["src/skerry/mcp/tools/{}.py"],
    "tests": ["tests/engine/{}", "tests/{}", "tests/*/test_{}.py"],
    "docs": ["docs/guides/{}.md", "docs/concepts/{}.md"],
}
NO_LAYER = {  # operators and people manage these: a model's tools use what the sandbox was created with
    ("images", "mcp"),
    ("volumes", "mcp"),
    ("snapshots", "mcp"),  # snapshot, fork and rollback are verbs of a sandbox there: mcp/tools/sandboxes.py
}

# -- the parsed tree --------------------------------------------------------------------------------------------------


def part_of(name: str) -> str:
    """Return "engine" for skerry.engine.pool, "config" for skerry.config, "" for skerry."""
    return [*name.split("."), ""][1]


@dataclass(eq=False)
class Module:
    name: str  # skerry.engine.pool
    path: Path
    package: bool
    tree: ast.Module
    lines: int
    names: dict[str, str] = field(default_factory=dict)  # names bound by imports and definitions, to their full names

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def part(self) -> str:
        return part_of(self.name)

    @property
    def where(self) -> str:
        return str(self.path.relative_to(SOURCE))


@dataclass(eq=False)
class Class:
    name: str  # skerry.engine.pool.Pool
    module: Module
    node: ast.ClassDef
    bases: list[str]

    @property
    def where(self) -> str:
        return f"{self.module.where}:{self.node.lineno}"

    @property
    def record(self) -> bool:
        """A class of values: a dataclass, a NamedTuple, a msgspec.Struct, an enum."""
        decorators = [dotted(d.func if isinstance(d, ast.Call) else d) or "" for d in self.node.decorator_list]
        if any(name.split(".")[-1] == "dataclass" for name in decorators):
            return True
        return any(
            b.split(".")[-1] in ("Struct", "NamedTuple", "TypedDict", "Enum", "Value", "Answer") for b in self.bases
        )

    def methods(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.node.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def dotted(node: ast.AST | None) -> str | None:
    """Return `a.b.c` for such an expression, None for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)) is not None:
        return f"{left}.{node.attr}"
    return None


class Source:
    """Every module under src/skerry, parsed once. `client/_sync` is left out unless stated: it mirrors `_async`."""

    def __init__(self) -> None:
        self.all: dict[str, Module] = {}
        for path in sorted(SOURCE.rglob("*.py")):
            parts = ["skerry", *path.relative_to(SOURCE).with_suffix("").parts]
            package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if package else parts)
            text = path.read_text()
            self.all[name] = Module(name, path, package, ast.parse(text), text.count("\n"))
        self.modules = {name: m for name, m in self.all.items() if not name.startswith("skerry.client._sync")}
        for module in self.modules.values():
            self._bind(module)
        self.classes: dict[str, Class] = {}
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    bases = [self.resolve(module, base) or "" for base in node.bases]
                    self.classes[f"{module.name}.{node.name}"] = Class(
                        f"{module.name}.{node.name}", module, node, bases
                    )

    def _bind(self, module: Module) -> None:
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    module.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    module.names[alias.asname or first] = alias.name if alias.asname else first
        for node in module.tree.body:
            targets: list[ast.expr] = []
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                module.names[node.name] = f"{module.name}.{node.name}"
            elif isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    module.names[target.id] = f"{module.name}.{target.id}"

    def resolve(self, module: Module, node: ast.AST | None) -> str | None:
        """Return the full name of what an expression names, with re-exports followed: skerry.engine.pool.Pool."""
        if isinstance(node, ast.Subscript):
            node = node.value
        name = dotted(node)
        if name is None:
            return None
        first, _, rest = name.partition(".")
        full = module.names.get(first, first) + (f".{rest}" if rest else "")
        return self.follow(full)

    def follow(self, full: str) -> str:
        for _ in range(8):
            home, _, last = full.rpartition(".")
            module = self.modules.get(home)
            if module is None or full in self.modules or module.names.get(last, full) == full:
                return full
            full = module.names[last]
        return full

    @staticmethod
    def imports(module: Module, modules: dict[str, Module]) -> set[str]:
        """The modules of the tree that this one imports, wherever the statement is."""
        found = set()
        for node in module.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    above = module.name.split(".")[: len(module.name.split(".")) - node.level + module.package]
                    base = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base)
        return found & modules.keys() - {module.name}


@cache
def source() -> Source:
    return Source()


Offenders = dict[str, list[str]]  # from a title of an offender to lines about it


# -- measures ---------------------------------------------------------------------------------------------------------


@cache
def modules_per_directory() -> dict[str, int]:
    count: Counter[str] = Counter()
    for module in source().all.values():
        count[str(module.path.parent.relative_to(SOURCE))] += 1
    return {place: n for place, n in count.items() if Path(place).name not in UNLIMITED}


def long_modules() -> dict[str, int]:
    return {m.where: m.lines for m in source().all.values() if m.lines > LONG}


@cache
def callbacks() -> Offenders:
    """Parameters of `__init__` and of two-phase methods, and fields of records, of classes in the engine, whose
    annotation is a Callable, an alias of one, a Protocol with `__call__`, or one of them with None."""
    tree, found = source(), defaultdict(list)
    late = {title.split()[0] for title in two_phase()}
    for cls in tree.classes.values():
        if cls.module.part != "engine":
            continue
        fields: list[tuple[str, ast.expr | None]] = []
        if cls.record:
            fields += [(dotted(n.target) or "", n.annotation) for n in cls.node.body if isinstance(n, ast.AnnAssign)]
        for method in cls.methods():
            if method.name == "__init__" or f"{cls.module.where}:{method.lineno}" in late:
                arguments = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
                fields += [(a.arg, a.annotation) for a in arguments]
        for name, annotation in fields:
            if is_callable(tree, cls.module, annotation):
                found[f"{cls.where} {cls.node.name}"].append(name)
    return found


def is_callable(tree: Source, module: Module, annotation: ast.AST | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        return is_callable(tree, module, annotation.left) or is_callable(tree, module, annotation.right)
    full = tree.resolve(module, annotation) or ""
    if full.split(".")[-1] == "Callable":
        return True
    if full in tree.classes:
        cls = tree.classes[full]
        return "typing.Protocol" in cls.bases and any(method.name == "__call__" for method in cls.methods())
    home, _, name = full.rpartition(".")
    if (other := tree.modules.get(home)) is None:
        return False
    values = [
        n.value
        for n in other.tree.body
        if (isinstance(n, ast.Assign) and any(dotted(t) == name for t in n.targets))
        or (isinstance(n, ast.AnnAssign) and dotted(n.target) == name)
    ]
    return any(isinstance(v, ast.Subscript) and is_callable(tree, other, v) for v in values)


class Types:
    """What class an expression has: enough inference for services, which have annotated parameters and are assigned in
    `__init__` from a call of their class or from a parameter."""

    def __init__(self, tree: Source) -> None:
        self.tree = tree
        self.attributes: dict[tuple[str, str], str] = {}  # (class, attribute) to class
        for cls in tree.classes.values():
            for node in cls.node.body:
                if isinstance(node, ast.AnnAssign) and (known := self.annotated(cls.module, node.annotation)):
                    self.attributes[cls.name, dotted(node.target) or ""] = known
            for method in cls.methods():
                property_ = any(dotted(d) == "property" for d in method.decorator_list)
                if property_ and (known := self.annotated(cls.module, method.returns)):
                    self.attributes[cls.name, method.name] = known
        engine = [cls for cls in tree.classes.values() if cls.module.part == "engine"]
        for _ in range(2):  # the second time with the results of the first
            for cls in engine:
                for method in cls.methods():
                    for target, value in pairs(method):
                        own = isinstance(target, ast.Attribute) and dotted(target.value) == "self"
                        if own and (known := self.of(cls.module, cls, method, value)):
                            self.attributes.setdefault((cls.name, target.attr), known)

    def annotated(self, module: Module, annotation: ast.AST | None) -> str | None:
        if isinstance(annotation, ast.BinOp):
            return self.annotated(module, annotation.left) or self.annotated(module, annotation.right)
        full = self.tree.resolve(module, annotation)
        return full if full in self.tree.classes else None

    def of(
        self,
        module: Module,
        cls: Class | None,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        node: ast.AST | None,
    ) -> str | None:
        if isinstance(node, ast.Await):
            node = node.value
        if isinstance(node, ast.Call):
            if cls is not None and dotted(node.func) == "cls":
                return cls.name
            full = self.tree.resolve(module, node.func)
            if full in self.tree.classes:
                return full
            owner = self.tree.follow((full or "").rpartition(".")[0])  # Host.open(...), a class method
            return owner if owner in self.tree.classes else None
        if isinstance(node, ast.Attribute):
            left = self.of(module, cls, function, node.value)
            while left is not None and (left, node.attr) not in self.attributes:
                left = next((b for b in self.tree.classes[left].bases if b in self.tree.classes), None)
            return self.attributes[left, node.attr] if left is not None else None
        if isinstance(node, ast.Name):
            if node.id in ("self", "cls"):
                return cls.name if cls is not None else None
            for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
                if argument.arg == node.id:
                    return self.annotated(module, argument.annotation)
            for target, value in pairs(function):
                if isinstance(target, ast.Name) and target.id == node.id and not names(value, node.id):
                    return self.of(module, cls, function, value)
        return None


def names(node: ast.AST | None, name: str) -> bool:
    return node is not None and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


@cache
def pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    """Return each target of an assignment below a node, with the value that it gets."""
    return list(_pairs(node))


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    for statement in ast.walk(node):
        if isinstance(statement, ast.AnnAssign):
            yield statement.target, statement.value
        elif isinstance(statement, ast.AugAssign):
            yield statement.target, None
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if not isinstance(target, ast.Tuple):
                    yield target, statement.value
                elif isinstance(statement.value, ast.Tuple) and len(statement.value.elts) == len(target.elts):
                    yield from zip(target.elts, statement.value.elts, strict=True)
                else:
                    for part in target.elts:
                        yield part, None


@cache
def types() -> Types:
    return Types(source())


@cache
def services() -> dict[str, Class]:
    """The services of the engine: `Engine`, and each class in the engine, not a record, that a method of `Engine`, or
    the `__init__` of a service, constructs."""
    tree = source()
    found = {
        name: cls
        for name, cls in tree.classes.items()
        if name.startswith("skerry.engine.") and cls.node.name == "Engine"
    }
    waiting = list(found.values())
    while waiting:
        cls = waiting.pop()
        for method in cls.methods():
            if cls.node.name != "Engine" and method.name != "__init__":
                continue
            for node in ast.walk(method):
                made = isinstance(node, ast.Call) and (tree.resolve(cls.module, node.func) or "")
                if not made:
                    continue
                for full in (made, tree.follow(made.rpartition(".")[0])):
                    other = tree.classes.get(full)
                    if other is not None and other.module.part == "engine" and not other.record and full not in found:
                        found[full] = other
                        waiting.append(other)
    return found


@cache
def two_phase() -> Offenders:
    """Methods of services that complete the construction. Such a method sets an attribute to which neither `__init__`
    nor the class body gives a value; or it replaces a None or a lambda of `__init__` with one of its parameters, which
    is a class or a callable; or it calls such a method of a service that it owns. Class methods do not count: they
    construct the object. Nor does `close`."""
    tree, found = source(), {}
    for cls in services().values():
        given = {dotted(n.target) for n in cls.node.body if isinstance(n, ast.AnnAssign) and n.value is not None}
        given |= {dotted(t) for n in cls.node.body if isinstance(n, ast.Assign) for t in n.targets}
        empty = set()
        for target, value in pairs(method_named(cls, "__init__")):
            if isinstance(target, ast.Attribute) and value is not None:
                given.add(target.attr)
                if isinstance(value, ast.Lambda) or (isinstance(value, ast.Constant) and value.value is None):
                    empty.add(target.attr)
        for method in cls.methods():
            constructs = any(dotted(d) == "classmethod" for d in method.decorator_list)
            if constructs or method.name in ("__init__", "close"):
                continue
            passed = {
                a.arg
                for a in [*method.args.args, *method.args.kwonlyargs]
                if is_callable(tree, cls.module, a.annotation) or tree.resolve(cls.module, a.annotation) in tree.classes
            }
            late = set()
            for target, value in pairs(method):
                if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                    filled = target.attr in empty and isinstance(value, ast.Name) and value.id in passed
                    late |= {target.attr} if target.attr not in given or filled else set()
            if late:
                found[cls.name, method.name] = sorted(late)
    for cls in services().values():
        for method in cls.methods():
            for node in ast.walk(method):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = types().of(cls.module, cls, method, node.func.value)
                    if owner is not None and (owner, node.func.attr) in found:
                        found.setdefault((cls.name, method.name), [f"calls {ast.unparse(node.func)}"])
    titles = {(c, m): method_named(tree.classes[c], m).lineno for c, m in found}
    return {
        f"{tree.classes[c].module.where}:{titles[c, m]} {tree.classes[c].node.name}.{m}": v
        for (c, m), v in found.items()
    }


def method_named(cls: Class, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    empty = ast.parse(f"def {name}(self): pass").body[0]
    assert isinstance(empty, ast.FunctionDef)
    return next((method for method in cls.methods() if method.name == name), empty)


@cache
def slots() -> Offenders:
    """Attributes of services that are assigned otherwise than as `self.attribute = …`."""
    tree, known, found = source(), types(), defaultdict(list)
    for module in tree.modules.values():
        if module.part != "engine":
            continue
        functions: list[tuple[Class | None, ast.FunctionDef | ast.AsyncFunctionDef]] = [
            (None, n) for n in module.tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        functions += [(cls, m) for cls in tree.classes.values() if cls.module is module for m in cls.methods()]
        for cls, function in functions:
            for target, _ in pairs(function):
                if not isinstance(target, ast.Attribute) or dotted(target.value) == "self":
                    continue
                owner = known.of(module, cls, function, target.value)
                if owner in services():
                    title = f"{services()[owner].where} {owner.rpartition('.')[2]}.{target.attr}"
                    found[title].append(f"{module.where}:{target.lineno} {ast.unparse(target)} = …")
    return found


@cache
def duplicate_classes() -> Offenders:
    """Names of classes, also of nested ones, that `src` defines more than once. `client/_sync`, and `backend_sync` with
    the names of `backend_async`, are not counted."""
    found = defaultdict(list)
    for module in source().modules.values():
        if module.name.endswith(".backend_sync"):
            continue
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{module.where}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


@cache
def single_importers() -> Offenders:
    """Modules that exactly one other module imports. Packages (`__init__`), entry points (`__main__`), `client/_sync`
    and the modules of UNLIMITED directories are not measured. A package that re-exports a module's names is an importer
    of it like any other; a module that imports the names from the package imports the package."""
    tree, importers = source(), defaultdict(set)
    for module in tree.modules.values():
        for other in tree.imports(module, tree.modules):
            importers[other].add(module.name)
    found = {}
    for name, users in importers.items():
        module = tree.modules[name]
        if len(users) == 1 and not module.package and module.path.parent.name not in UNLIMITED:
            found[module.where] = [f"only imported by {next(iter(users))}"]
    return found


@cache
def split_classes() -> Offenders:
    """Classes that are cut into several by inheritance: a class has exactly one subclass in `src`, in the same package
    (top-level) but another module, and nothing else names it: no call, no annotation, no isinstance. Protocols,
    abstract classes, exceptions and records are not measured. One offender is one class at the end of such a chain."""
    tree = source()
    subclasses: dict[str, list[Class]] = defaultdict(list)
    for cls in tree.classes.values():
        for base in cls.bases:
            subclasses[base].append(cls)
    used = set()
    for module in tree.modules.values():
        bases = {id(b) for n in module.nodes if isinstance(n, ast.ClassDef) for b in n.bases}
        for node in module.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in bases:
                used.add(tree.resolve(module, node))
    parents: dict[str, list[Class]] = defaultdict(list)
    for name, cls in tree.classes.items():
        below = subclasses[name]
        abstract = any(b.split(".")[-1] in ("Protocol", "ABC") or b.endswith(("Error", "Exception")) for b in cls.bases)
        if len(below) == 1 and name not in used and not cls.record and not abstract:
            child = below[0]
            if child.module.part == cls.module.part and child.module is not cls.module:
                parents[child.name].append(cls)
    found: Offenders = {}
    inner = {cls.name for group in parents.values() for cls in group}
    for name in parents:
        if name not in inner:
            chain, waiting = [], [name]
            while waiting:
                for cls in parents.get(waiting.pop(), []):
                    chain.append(f"{cls.where} {cls.node.name}")
                    waiting.append(cls.name)
            found[f"{tree.classes[name].where} {tree.classes[name].node.name}"] = chain
    return found


def missing_layers() -> set[tuple[str, str]]:
    missing = set()
    for noun, singular in NOUNS.items():
        for layer, patterns in LAYERS.items():
            if not any(any(ROOT.glob(p.format(name))) for p in patterns for name in (noun, singular)):
                missing.add((noun, layer))
    return missing


METRICS: dict[str, tuple[Callable[[], Offenders], int]] = {  # name: measure, limit
    "callback parameters in engine constructors": (callbacks, MAX_CALLBACKS),
    "two-phase initialisation in the engine": (two_phase, MAX_TWO_PHASE),
    "attributes of engine services assigned from outside": (slots, MAX_SLOTS),
    "class names defined more than once": (duplicate_classes, MAX_DUPLICATE_CLASSES),
    "modules imported by exactly one other": (single_importers, MAX_SINGLE_IMPORTERS),
    "classes split by inheritance": (split_classes, MAX_SPLIT_CLASSES),
}


def count(measure: Callable[[], Offenders]) -> int:
    found = measure()
    return sum(map(len, found.values())) if measure is callbacks else len(found)


def report(name: str, only: str = "") -> str:
    """Return a metric with its offenders, one per line."""
    measure, limit = METRICS[name]
    lines = [f"{name}: {count(measure)} (limit {limit})"]
    for offender, details in sorted(measure().items()):
        if only in offender or any(only in detail for detail in details):
            lines.append(f"  {offender}: {', '.join(details)}")
    return "\n".join(lines)


# -- tests ------------------------------------------------------------------------------------------------------------


def test_imports_point_one_way() -> None:
    wrong = []
    for module in source().all.values():
        part = module.part
        if part in ("", "__init__", "__main__", "_version"):
            continue
        others = {part_of(name) for name in Source.imports(module, source().all)} - {"", part}
        wrong += [f"{module.where} imports skerry.{other}" for other in sorted(others - MAY_IMPORT.get(part, set()))]
    assert wrong == []


def test_directory_has_at_most_20_modules() -> None:
    crowded = {place: n for place, n in modules_per_directory().items() if n > MAX_MODULES}
    assert crowded == {}, f"more modules than {MAX_MODULES}: split into packages by noun"


def test_module_above_800_lines_is_reviewed() -> None:
    assert long_modules().keys() == LONG_MODULES.keys(), f"split it, or list it with a reason: {long_modules()}"


@pytest.mark.parametrize("name", METRICS)
def test_metric_is_within_its_limit(name: str) -> None:
    measure, limit = METRICS[name]
    assert count(measure) <= limit, report(name)


def test_noun_exists_in_every_layer() -> None:
    assert missing_layers() == NO_LAYER, f"expected one of {LAYERS}, or an entry in NO_LAYER with its reason"


def test_documented_source_file_exists() -> None:
    files = [
        f"/{path.relative_to(ROOT)}"
        for top in ("src", "tests", "keeper", "scripts")
        for path in (ROOT / top).rglob("*.*")
    ]
    pages = [
        *(ROOT / "docs" / "design").glob("*.md"),
        *(ROOT / "docs" / "concepts").glob("*.md"),
        ROOT / "CONTRIBUTING.md",
    ]
    missing = [
        f"{page.name}: {name}"
        for page in pages
        for name in re.findall(r"`((?:[a-z_-]+/)+[a-z_-]+\.(?:py|go|bash|json))`", page.read_text())
        if not any(path.endswith(f"/{name}") for path in files)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("program", "later"),
    [
        ("skerry.server.serve", {"httpx2", "rich", "mcp", "pydantic"}),
        ("skerry.cli.app", {"httpx2", "rich", "asyncio", "mcp", "pydantic"}),
    ],
)
def test_program_start_imports_no_rarely_used_library(program: str, later: set[str]) -> None:
    script = f"import sys, {program}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert later.isdisjoint(loaded)


def main(only: str = "") -> None:
    print(f"modules per directory (limit {MAX_MODULES}; {len(source().modules)} modules without client/_sync)")
    for place, n in sorted(modules_per_directory().items(), key=lambda item: -item[1]):
        if n > MAX_MODULES and only in f"{place}/":
            print(f"  {place}: {n}")
    print(f"modules above {LONG} lines: {long_modules()}")
    for name in METRICS:
        print(report(name, only))
    print(f"missing (noun, layer): {sorted(missing_layers() - NO_LAYER)}")


if __name__ == "__main__":
    main(f"{sys.argv[1]}/" if len(sys.argv) > 1 else "")
