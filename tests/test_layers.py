"""Who may import whom: parsed from the sources, so that it holds for code that no test runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fastdata

PACKAGE = Path(fastdata.__file__).parent

LAYERS: dict[str, float] = {
    "registry": 0,
    "errors": 0,
    "types": 0,
    "seeding": 1,
    "arrays": 1,
    "compression": 1,
    "distributed": 1,
    "pictures": 1,
    "codecs": 2,
    "stores": 2,
    "sources": 2,
    "manifest": 3,
    "packing": 4,
    "summary": 4,
    "samplers": 4,
    # The way of a batch, inside the layer: crops are drawn, a dataset decodes them, its batches are collated.
    "images": 4.0,
    "dataset": 4.1,
    "collate": 4.2,
    "loader": 5.0,
    "measure": 5.1,
    "cli": 6,
}
INSIDE_L0 = {"registry": 0.1, "types": 0.1}
"""The registry refuses with an error; everything else of the layer stands alone."""

COMPOSERS = {"packing", "loader", "samplers", "packing.columns", "packing.verify"}
"""What is made of the files beside it; `columns` come out of the journal, and `verify` runs its checks in the workers of a pack."""

HEAVY = {"torch", "h5py", "lmdb", "cv2", "webdataset", "PIL", "simplejpeg", "turbojpeg", "zstandard"}
NO_TORCH = ("packing", "stores", "codecs", "sources")


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name below `fastdata`; of a folder, the folder's."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return found


MODULES = modules()


def is_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def nodes(tree: ast.AST, *, checking: bool, functions: bool) -> Iterator[ast.AST]:
    """Walk a module, with or without what only type checkers see and what runs when a function does."""
    for child in ast.iter_child_nodes(tree):
        if (not checking and is_checking(child)) or (not functions and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))):
            continue
        yield child
        yield from nodes(child, checking=checking, functions=functions)


def imports(tree: ast.Module, *, checking: bool = True, functions: bool = True) -> set[str]:
    """The modules that are imported, in full."""
    found: set[str] = set()
    for node in nodes(tree, checking=checking, functions=functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not used"
            module = node.module or ""
            for alias in node.names:
                below = f"{module}.{alias.name}".removeprefix("fastdata.")
                found.add(f"fastdata.{below}" if below in MODULES else module)
    return found


def own(tree: ast.Module) -> set[str]:
    """Modules of the package that are imported, by their names below it."""
    return {name.removeprefix("fastdata.") for name in imports(tree) if name.startswith("fastdata.")}


def rank(name: str) -> float:
    top = name.partition(".")[0]
    return LAYERS[top] + INSIDE_L0.get(top, 0)


def test_every_module_has_a_layer() -> None:
    assert {name.partition(".")[0] for name in MODULES if name} == LAYERS.keys()


def test_no_module_imports_upward_or_sideways() -> None:
    wrong = []
    for name, tree in MODULES.items():
        for other in own(tree) if name else ():
            folder, beside = name.partition(".")[0], other.partition(".")[0]
            inside = other == f"{folder}.base" or name in COMPOSERS
            if not (inside if folder == beside else rank(other) < rank(name)):
                wrong.append(f"fastdata.{name} imports fastdata.{other}")
    assert wrong == []


def test_a_folder_is_entered_by_its_base_its_own_functions_or_whole() -> None:
    """Nobody outside of a folder imports one store, codec, source or sampler by name: they are found by the registry."""
    wrong = []
    for name, tree in MODULES.items():
        for other in own(tree):
            folder, _, file = other.partition(".")
            if folder in ("stores", "codecs", "sources") and file not in ("", "base") and name.partition(".")[0] != folder:
                wrong.append(f"fastdata.{name} imports fastdata.{other}")
    assert wrong == []


def test_packing_imports_no_torch() -> None:
    wrong = [
        name
        for name, tree in MODULES.items()
        if name.startswith(NO_TORCH) and any(module.partition(".")[0] in ("torch", "torchvision") for module in imports(tree))
    ]
    assert wrong == []


def test_modules_below_the_dataset_import_nothing_heavy_before_it_is_used() -> None:
    wrong = [
        f"fastdata.{name} imports {module}"
        for name, tree in MODULES.items()
        if name.startswith(
            (*NO_TORCH, "manifest", "summary", "cli", "registry", "errors", "types", "seeding", "arrays", "compression", "distributed")
        )
        for module in imports(tree, checking=False, functions=False)
        if module.partition(".")[0] in HEAVY
    ]
    assert wrong == []


def test_only_the_command_line_prints_or_exits() -> None:
    wrong = [
        f"fastdata.{name}:{node.lineno}"
        for name, tree in MODULES.items()
        if name != "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit", "exit", "quit")
    ]
    assert wrong == []


def test_no_pickle_is_read_from_disk() -> None:
    wrong = [
        f"fastdata.{name}:{node.lineno}"
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False"
    ]
    assert wrong == []


def test_type_checkers_see_the_names_that_load_on_first_use() -> None:
    tree = MODULES[""]
    block = next(node for node in tree.body if is_checking(node))
    seen = {
        alias.name: node.module for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names if not alias.asname
    }
    assert seen == fastdata._LAZY


def test_every_public_name_loads() -> None:
    assert sorted(fastdata.__all__) == sorted(fastdata._LAZY)
    assert all(getattr(fastdata, name) is not None for name in fastdata.__all__)
    assert set(fastdata.__all__) <= set(dir(fastdata))
