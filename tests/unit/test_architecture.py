"""The plan of the house, held by tests: imports go one way, no room knows a system's name."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmlab.core.registry import catalogue
from lmlab.tasks.task_registry import TASKS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "lmlab"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("layers", "inference", "data"),
    ("backbones", "emissions", "objectives", "retrieval", "knowledge"),
    ("models",),
    ("zoo",),
    ("training", "scoring", "sampling", "tasks", "interop", "plotting"),
    ("inspection", "objective_figures", "diagnosis", "reports", "experiments"),
    ("cli", "api", "language_model", "__init__", "__main__"),
)
"""A room imports from its own floor and from those below it (written above it here)."""
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

ZOO_LINES = 300
"""Most lines of a zoo file; most have fewer than 80."""
NO_TENSOR_CODE = {("torch", "nn"), ("torch", "Tensor"), ("torch", "Generator")}
"""What a zoo file may import of torch: modules to assemble and types, no functions on tensors."""


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports anywhere, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_rooms(path: Path) -> set[str]:
    modules = imports(ast.parse(path.read_text(encoding="utf-8")))
    parts = (module.split(".") for module in modules)
    rooms = {part[1] for part in parts if part[0] == "lmlab" and len(part) > 1}
    return {room for room in rooms if room in FLOOR}


def room_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for path in files():
        graph.setdefault(room_of(path), set()).update(imported_rooms(path) - {room_of(path)})
    return graph


def test_every_room_has_a_floor():
    assert {room_of(path) for path in files()} <= FLOOR.keys()


def test_imports_go_one_way():
    upwards = [
        f"{named(path)} imports {room}"
        for path in files()
        for room in sorted(imported_rooms(path))
        if FLOOR[room] > FLOOR[room_of(path)]
    ]
    assert upwards == []


def test_rooms_of_one_floor_do_not_import_each_other_in_a_circle():
    graph = room_graph()

    def reaches(room: str, goal: str, seen: frozenset[str] = frozenset()) -> bool:
        onward = graph.get(room, set()) - seen
        return goal in onward or any(reaches(r, goal, seen | onward) for r in onward)

    circles = [room for room in graph if reaches(room, room)]
    assert circles == []


def test_the_check_of_imports_sees_an_import():
    """The graph is not empty by mistake: systems are built from parts, and parts from contracts."""
    graph = room_graph()
    assert {"backbones", "emissions", "objectives", "core"} <= graph["zoo"]
    assert graph["core"] == set()


def compared_constants(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings that code compares with: `==`, `in`, `case`, with their lines."""
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


def test_no_room_asks_for_a_system_by_name():
    names = {name for card in catalogue().values() for name in (card.name, *card.aliases)}
    asked = [
        f"{named(path)}:{line} compares with {text!r}"
        for path in files()
        for line, text in compared_constants(ast.parse(path.read_text(encoding="utf-8")))
        if text in names and path.stem.replace("_", "-") != text
    ]
    assert asked == []


def test_no_file_but_its_own_compares_with_the_name_of_a_task():
    """A task's file is the one of its class; multi-hop QA has a package of its own."""
    own = {name: Path(inspect.getfile(task)) for name, task in TASKS.items()}
    compared = [
        f"{named(path)}:{line} compares with {text!r}"
        for path in files()
        for line, text in compared_constants(ast.parse(path.read_text(encoding="utf-8")))
        if text in own and path != own[text]
    ]
    assert compared == []


def test_no_file_asks_for_the_class_of_a_task():
    """What differs from task to task is a method of the task, not a case of `isinstance`."""
    classes = {task.__name__ for task in TASKS.values()}
    asked = [
        f"{named(path)}:{node.lineno} {node.func.id} of {name}"
        for path in files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        for name in {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
        if name in classes
    ]
    assert asked == []


def private_imports(path: Path) -> Iterator[str]:
    """Private names that a file imports from another room."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("lmlab.")):
            continue
        parts = str(node.module).split(".")
        if parts[1] == room_of(path):
            continue
        for name in (*parts[2:], *(alias.name for alias in node.names)):
            if name.startswith("_") and not name.startswith("__"):
                yield f"{named(path)}:{node.lineno} imports {name} of {parts[1]}"


def test_no_room_imports_private_names_of_another():
    assert [found for path in files() for found in private_imports(path)] == []


@pytest.mark.parametrize(
    "code",
    ["if name == 'lstm': pass", "x = name in ('rnn', 'lstm')", "match n:\n  case 'lstm': pass"],
)
def test_the_check_of_names_finds_a_name(code: str):
    assert "lstm" in [text for _, text in compared_constants(ast.parse(code))]


def zoo_files() -> list[Path]:
    return [path for path in files() if room_of(path) == "zoo" and path.stem != "__init__"]


@pytest.mark.parametrize("path", zoo_files(), ids=lambda path: path.stem)
def test_a_zoo_file_is_small_and_has_no_tensor_code(path: Path):
    text = path.read_text(encoding="utf-8")
    is_system = not path.stem.startswith("_")
    assert len(text.splitlines()) <= ZOO_LINES or not is_system
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            # An array of numpy is what a fitter that counts is handed: its type may be named.
            assert {alias.name for alias in node.names} <= {"numpy"}
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
            assert {(node.module, alias.name) for alias in node.names} <= NO_TENSOR_CODE


LIGHT = """
import sys
import lmlab
from lmlab.core.registry import catalogue, find_system, search_systems
assert find_system("DLM12").name == "lstm" and search_systems("kneser") and catalogue()
print(sorted({"torch", "numpy", "matplotlib", "transformers"} & sys.modules.keys()))
"""


def test_the_catalogue_is_read_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_help_is_shown_without_torch():
    code = "import sys, lmlab.cli.main as m; m.main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip().endswith("False")
    assert "train" in done.stdout


def test_package_files_are_empty():
    """So that importing one module of a room imports no other; the facade's names come lazily."""
    full = [
        named(path)
        for path in files()
        if path.name == "__init__.py" and path.parent != SOURCE and path.read_text().strip()
    ]
    # A built-in corpus that is a package registers itself by what its package file declares.
    assert full in ([], ["data/wordnet/__init__.py"])


def test_the_glossary_has_the_words_of_the_contracts():
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
