"""Architecture rules: imports go from higher to lower layers; no code depends on system names."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmlab.core.registry import catalogue
from lmlab.tasks.task_registry import TASKS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "lmlab"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("layers", "inference", "data"),
    ("backbones", "emissions", "objectives", "retrieval", "knowledge"),
    ("models",),
    ("zoo",),
    ("training", "scoring", "sampling", "tasks", "interop", "plotting"),
    ("inspection", "objective_figures", "diagnosis", "reports", "experiments", "run_store"),
    ("conformance",),
    ("verbs",),
    ("serve",),
    ("cli",),
    ("__init__", "__main__"),
)
"""A package imports from its own layer and from lower layers (listed before it)."""
LAYER = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}

ZOO_LINES = 300
"""Maximum number of lines of a zoo file; most have fewer than 80."""
NO_TENSOR_CODE = {("torch", "nn"), ("torch", "Tensor"), ("torch", "Generator")}
"""What a zoo file may import from torch: modules and types, no functions on tensors."""


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports, including imports inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_packages(path: Path) -> set[str]:
    modules = imports(ast.parse(path.read_text(encoding="utf-8")))
    parts = (module.split(".") for module in modules)
    packages = {part[1] for part in parts if part[0] == "lmlab" and len(part) > 1}
    return {package for package in packages if package in LAYER}


def package_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for path in files():
        graph.setdefault(package_of(path), set()).update(
            imported_packages(path) - {package_of(path)}
        )
    return graph


def test_every_package_has_a_layer():
    assert {package_of(path) for path in files()} <= LAYER.keys()


def test_imports_never_go_to_a_higher_layer():
    upwards = [
        f"{named(path)} imports {package}"
        for path in files()
        for package in sorted(imported_packages(path))
        if LAYER[package] > LAYER[package_of(path)]
    ]
    assert upwards == []


def test_packages_have_no_import_cycles():
    graph = package_graph()

    def reaches(package: str, goal: str, seen: frozenset[str] = frozenset()) -> bool:
        reachable = graph.get(package, set()) - seen
        return goal in reachable or any(reaches(r, goal, seen | reachable) for r in reachable)

    cycles = [package for package in graph if reaches(package, package)]
    assert cycles == []


def test_import_graph_finds_known_imports():
    """The graph is not empty by mistake: the zoo imports components and core; core imports none."""
    graph = package_graph()
    assert {"backbones", "emissions", "objectives", "core"} <= graph["zoo"]
    assert graph["core"] == set()


def compared_constants(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings that code compares with (`==`, `in`, `case`), with their line numbers."""
    for node in ast.walk(tree):
        compared: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            compared = node.args if node.func.attr in ("startswith", "endswith") else []
        for side in compared:
            for inner in ast.walk(side):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.lineno, inner.value


def test_no_code_compares_with_a_system_name():
    names = {name for card in catalogue().values() for name in (card.name, *card.aliases)}
    offending = [
        f"{named(path)}:{line} compares with {text!r}"
        for path in files()
        for line, text in compared_constants(ast.parse(path.read_text(encoding="utf-8")))
        if text in names and path.stem.replace("_", "-") != text
    ]
    assert offending == []


def test_only_a_tasks_own_file_compares_with_its_name():
    """The own file of a task is the one that defines its class."""
    own = {name: Path(inspect.getfile(task)) for name, task in TASKS.items()}
    compared = [
        f"{named(path)}:{line} compares with {text!r}"
        for path in files()
        for line, text in compared_constants(ast.parse(path.read_text(encoding="utf-8")))
        if text in own and path != own[text]
    ]
    assert compared == []


def test_no_isinstance_check_on_task_classes():
    """Differences between tasks are methods of the task, not `isinstance` checks."""
    classes = {task.__name__ for task in TASKS.values()}
    offending = [
        f"{named(path)}:{node.lineno} {node.func.id} of {name}"
        for path in files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        for name in {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
        if name in classes
    ]
    assert offending == []


def private_imports(path: Path) -> Iterator[str]:
    """Private names that a file imports from another package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("lmlab.")):
            continue
        parts = str(node.module).split(".")
        if parts[1] == package_of(path):
            continue
        for name in (*parts[2:], *(alias.name for alias in node.names)):
            if name.startswith("_") and not name.startswith("__"):
                yield f"{named(path)}:{node.lineno} imports {name} of {parts[1]}"


def test_no_package_imports_private_names_of_another():
    assert [found for path in files() for found in private_imports(path)] == []


TORCH_ATTRIBUTES = {"_modules", "_buffers"}
"""Private attributes of torch's own classes."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(value: ast.expr) -> bool:
    return ast.unparse(value) in ("self", "cls", "super()")


def private_attributes(tree: ast.AST) -> tuple[set[str], list[tuple[int, str]]]:
    """Private attributes that code defines, and those that it uses of other objects."""
    defined, used = set(), []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined.add(node.target.id)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if not is_own(node.value):
                used.append((node.lineno, node.attr))
            elif isinstance(node.ctx, ast.Store):
                defined.add(node.attr)
    return {name for name in defined if is_private(name)}, used


def test_no_package_uses_private_attributes_of_another():
    """An attribute that only another package defines is that package's own business."""
    found = {path: private_attributes(ast.parse(path.read_text("utf-8"))) for path in files()}
    packages: dict[str, set[str]] = {}
    for path, (defined, _) in found.items():
        for name in defined - TORCH_ATTRIBUTES:
            packages.setdefault(name, set()).add(package_of(path))
    offending = [
        f"{named(path)}:{line} uses {name} of {', '.join(sorted(packages[name]))}"
        for path, (_, used) in found.items()
        for line, name in used
        if name in packages and package_of(path) not in packages[name]
    ]
    assert offending == []


def test_private_attribute_check_finds_uses():
    code = "class A:\n  _x: int\n  def _f(self): self._y = self._f()\nother._z, other._x = 1, 2"
    defined, used = private_attributes(ast.parse(code))
    assert defined == {"_x", "_y", "_f"}
    assert sorted(name for _, name in used) == ["_x", "_z"]


PARTS = ("core", "layers", "backbones", "emissions", "objectives", "models", "zoo")
"""Packages of parts, where an object sets attributes of itself alone."""
BUILDERS = ("training/system_building.py", "interop/module_wrapper.py")
"""So do the files that build systems."""
PART_NAMES = {"system", "model", "base", "backbone", "objective", "emission", "stack", "network"}
"""Names of parts, whose attributes no file sets from outside."""
SET_FROM_OUTSIDE = {
    "core/evaluation_mode.py": "module.training: a mode for a while, without each module's train()",
    "core/options.py": "__name__ and the like: of a function that it just made",
    "core/system_files.py": "module.__file__: a Python module that it just made",
    "layers/kv_cache.py": "storage.filled: the storage belongs to the cache",
    "layers/per_example_rng.py": "torch's generators take no arguments",
    "inference/semirings.py": "ctx.shape: the context of an autograd function",
}
"""Files that may set attributes of other objects, with the reason."""


def assigned_attributes(tree: ast.AST) -> Iterator[tuple[int, ast.Attribute]]:
    """Attributes of anything that code sets: by `=`, `+=`, `for`, `with`, `del` or `setattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.lineno, node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            attribute = ast.Attribute(node.args[0], "…", ast.Store())
            yield node.lineno, attribute


def copies_of_self(tree: ast.AST) -> set[str]:
    """Names bound to `copy(self)` or `deepcopy(self)`: an object may set what its copy has."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in ("copy", "deepcopy")
        and ast.unparse(node.value.args[0]) == "self"
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def set_from_outside(tree: ast.AST, *, any_object: bool) -> list[tuple[int, str]]:
    """Assignments to attributes of parts, or of any object but self and cls."""
    own = {"self", "cls", *copies_of_self(tree)}
    outside = []
    for line, attribute in assigned_attributes(tree):
        names = re.split(r"\W+", ast.unparse(attribute.value))
        if (any_object and ast.unparse(attribute.value) not in own) or PART_NAMES & set(names):
            outside.append((line, ast.unparse(attribute)))
    return outside


def test_nothing_is_set_on_a_system_from_outside():
    """What a system is follows from its parts, and what a part is from its constructor."""
    offending = [
        f"{named(path)}:{line} sets {attribute}"
        for path in files()
        if named(path) not in SET_FROM_OUTSIDE
        for line, attribute in set_from_outside(
            ast.parse(path.read_text(encoding="utf-8")),
            any_object=package_of(path) in PARTS or named(path) in BUILDERS,
        )
    ]
    assert offending == []


@pytest.mark.parametrize(
    ("code", "any_object", "found"),
    [
        ("system.window = 5", False, ["system.window"]),
        ("system.window, rest = 5, 6", False, ["system.window"]),
        ("run.system.window += 1", False, ["run.system.window"]),
        ("self.objective.weight = 2", False, ["self.objective.weight"]),
        ("setattr(self.backbone, name, 2)", False, ["self.backbone.…"]),
        ("for system.window in (1, 2): pass", False, ["system.window"]),
        ("report.rows += 1", False, []),
        ("report.rows += 1", True, ["report.rows"]),
        ("other = copy(self)\nother.memory = 2\nself.x = cls.y = 3", True, []),
        ("other = copy(that)\nother.memory = 2", True, ["other.memory"]),
        ("x = system.window\nsystem = 3\ntable[system.window] = 2", True, []),
    ],
)
def test_outside_check_finds_assignments(code: str, any_object: bool, found: list[str]):
    assert [name for _, name in set_from_outside(ast.parse(code), any_object=any_object)] == found


@pytest.mark.parametrize(
    "code",
    ["if name == 'lstm': pass", "x = name in ('rnn', 'lstm')", "match n:\n  case 'lstm': pass"],
)
def test_comparison_check_finds_system_names(code: str):
    assert "lstm" in [text for _, text in compared_constants(ast.parse(code))]


NOTE_NUMBER = re.compile(r"\bDLM ?\d+\b|(?<![\w.,:/$-])00[0-4](?![\w.,]*\d)")
"""A reference to the private notes: a model's number, or the number of a note."""


def note_references(path: Path) -> list[str]:
    """Lines that refer to the private notes, except a card's aliases and source."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.keyword) and node.arg in ("aliases", "source"):
                lines[node.lineno - 1 : node.end_lineno] = [""] * (
                    (node.end_lineno or node.lineno) - node.lineno + 1
                )
    return [f"{path.name}: {line.strip()}" for line in lines if NOTE_NUMBER.search(line)]


def test_only_cards_and_notes_page_refer_to_the_notes():
    root = SOURCE.parents[1]
    docs = [path for path in (root / "docs").glob("*.md") if path.name != "notes.md"]
    checked = [*files(), *docs, *root.glob("*.md")]
    assert [line for path in checked for line in note_references(path)] == []


def test_note_reference_check_finds_references(tmp_path: Path):
    path = tmp_path / "x.py"
    path.write_text('"""As in DLM47."""\nCard(source="003", aliases=("DLM12",))\nx = 0.003\n')
    assert note_references(path) == ['x.py: """As in DLM47."""']


MAX_FILES, MAX_FILE_LINES = 830, 400


def test_number_of_files_and_their_length_are_bounded():
    assert len(files()) <= MAX_FILES
    long = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    assert {name: lines for name, lines in long.items() if lines > MAX_FILE_LINES} == {}


def zoo_files() -> list[Path]:
    return [path for path in files() if package_of(path) == "zoo" and path.stem != "__init__"]


@pytest.mark.parametrize("path", zoo_files(), ids=lambda path: path.stem)
def test_zoo_file_is_small_and_has_no_tensor_code(path: Path):
    text = path.read_text(encoding="utf-8")
    is_system = not path.stem.startswith("_")
    assert len(text.splitlines()) <= ZOO_LINES or not is_system
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            # Count-based fitters take numpy arrays, so the type may be named.
            assert {alias.name for alias in node.names} <= {"numpy"}
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
            assert {(node.module, alias.name) for alias in node.names} <= NO_TENSOR_CODE


CATALOGUE_CODE = """
import sys
import lmlab
from lmlab.core.registry import catalogue, find_system, search_systems
assert find_system("DLM12").name == "lstm" and search_systems("kneser") and catalogue()
print(sorted({"torch", "numpy", "matplotlib", "transformers"} & sys.modules.keys()))
"""


def test_catalogue_does_not_import_torch():
    done = subprocess.run(
        [sys.executable, "-c", CATALOGUE_CODE],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def test_help_does_not_import_torch():
    code = "import sys, lmlab.cli.main as m; m.main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip().endswith("False")
    assert "train" in done.stdout


def test_package_init_files_are_empty():
    """Importing one module of a package imports no other; the public API loads lazily."""
    full = [
        named(path)
        for path in files()
        if path.name == "__init__.py" and path.parent != SOURCE and path.read_text().strip()
    ]
    # A built-in corpus that is a package registers itself in its __init__.py; the conformance suite
    # can be called, as it has the name of a verb.
    assert full == ["conformance/__init__.py", "data/wordnet/__init__.py"]


def test_glossary_has_the_terms_of_the_protocols():
    from lmlab.core.protocols import PROTOCOLS
    from lmlab.core.score import SCORE_KINDS

    text = (SOURCE / "core" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    words = {row[1].strip(" `") for row in rows}
    assert {*SCORE_KINDS, *PROTOCOLS, *"BTWVHK"} <= words
    assert {"tokens", "hidden", "width", "heads", "layers", "log_probs", "view", "kind"} <= words
    visibilities = ast.parse((SOURCE / "core" / "attention_mask.py").read_text(encoding="utf-8"))
    for node in visibilities.body:
        if isinstance(node, ast.ClassDef) and node.name != "Visibility":
            assert f"`{node.name}`" in text
