"""Runs of plug-ins and of given files: what is recorded, and what loading refuses."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.plugin_packages import SYSTEM, write_package

import lmlab
from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.manifest import MANIFEST, verification
from lmlab.core.plugins import SYSTEMS
from lmlab.core.registry import remove_system
from lmlab.core.system_origin import FileOrigin, PackageOrigin, parse_origin
from lmlab.training.run_folder import RunFolder

TEXTS = "a b\nb a\na a b\n" * 10
SECOND = SYSTEM.replace("field(default=4", "field(default=5")


@pytest.fixture(autouse=True)
def forget_given_systems():
    yield
    for name in ("toy", "mine"):
        remove_system(name)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text(TEXTS)
    return path


def write_system(tmp_path: Path, content: str = SYSTEM, name: str = "mine.py") -> Path:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def train(system: Any, corpus: Path, out: Path, **options: Any) -> None:
    options = {"size": "tiny", "steps": 2, "quiet": True} | options
    lmlab.train(system, data=corpus, out=out, **options)


def recorded(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())


def rewrite(run: Path, **changes: Any) -> None:
    """Change config.json as somebody would who wants it to verify."""
    path = run / "config.json"
    path.write_text(json.dumps(recorded(run) | changes))
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["files"]["config.json"] = [hashlib.sha256(path.read_bytes()).hexdigest()]
    (run / MANIFEST).write_text(json.dumps(manifest))


def test_run_records_the_hash_of_a_file_and_needs_it_again(tmp_path: Path, corpus: Path):
    path, run = write_system(tmp_path), tmp_path / "run"
    train(str(path), corpus, run)
    digest = hashlib.sha256(SYSTEM.encode()).hexdigest()
    assert recorded(run)["plugin"] == {"file": "mine.py", "sha256": digest}
    total = lmlab.load(run).score(["a b"])[0].total
    remove_system("mine")
    with pytest.raises(
        UserError, match=r"run was trained with the system mine of the file mine\.py"
    ):
        lmlab.load(run)
    with pytest.raises(
        UserError, match=r"give it by --system-file mine\.py, in Python by lmlab\.r"
    ):
        lmlab.doctor(run)
    assert lmlab.load(run, system=path).score(["a b"])[0].total == total
    elsewhere = write_system(tmp_path / "other")
    remove_system("mine")
    assert lmlab.load(run, system=str(elsewhere)).score(["a b"])[0].total == total


def test_changed_file_is_refused_unless_insisted(tmp_path: Path, corpus: Path):
    path, run = write_system(tmp_path), tmp_path / "run"
    train(path, corpus, run)
    path.write_text(SYSTEM + "# changed\n")
    with pytest.raises(UserError, match=r"mine\.py differs from it; give the original, or insist"):
        lmlab.load(run, system=path)
    with pytest.raises(UserError, match="differs from it"):
        train(path, corpus, run, resume=True, steps=4)
    with pytest.warns(LmlabWarning, match="differs from it; results may differ"):
        assert lmlab.load(run, system=path, verify=False).card.name == "mine"


def test_later_version_of_a_file_replaces_the_earlier(tmp_path: Path, corpus: Path):
    path = write_system(tmp_path)
    train(path, corpus, tmp_path / "first")
    path.write_text(SECOND)
    train(path, corpus, tmp_path / "second")
    configs = [recorded(tmp_path / name) for name in ("first", "second")]
    assert [config["system_config"]["width"] for config in configs] == [4, 5]
    assert configs[0]["plugin"]["sha256"] != configs[1]["plugin"]["sha256"]


def test_training_resumes_with_the_same_file(tmp_path: Path, corpus: Path):
    path = write_system(tmp_path)
    train(path, corpus, tmp_path / "whole", steps=6)
    train(path, corpus, tmp_path / "parts", steps=3)
    remove_system("mine")
    train(path, corpus, tmp_path / "parts", steps=6, resume=True)
    losses = [lmlab.load(tmp_path / run).score(["a b"])[0].total for run in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_module_is_trained_and_recorded(tmp_path: Path, corpus: Path, monkeypatch):
    write_system(tmp_path, name="toy_module_of_test.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    import toy_module_of_test as module  # type: ignore[import-not-found]

    train(module, corpus, tmp_path / "run")
    assert recorded(tmp_path / "run")["system"] == "toy-module-of-test"
    assert recorded(tmp_path / "run")["plugin"]["file"] == "toy_module_of_test.py"
    remove_system("toy-module-of-test")
    assert lmlab.load(tmp_path / "run", system=module).card.package == "toy_module_of_test.py"
    remove_system("toy-module-of-test")


def test_module_of_the_zoo_is_its_system(tmp_path: Path, corpus: Path):
    import lmlab.zoo.ngram

    train(lmlab.zoo.ngram, corpus, tmp_path / "run")
    assert recorded(tmp_path / "run")["system"] == "ngram"
    assert "plugin" not in recorded(tmp_path / "run")


def test_module_without_file_is_refused(tmp_path: Path, corpus: Path):
    with pytest.raises(UserError, match="the module nowhere has no Python file"):
        train(ModuleType("nowhere"), corpus, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.py", None, "there is no file"),
        ("folder/", None, "is a folder; a system is a name or a Python file"),
        ("mine.txt", SYSTEM, "is not a Python file"),
        ("mine.py", "def (:\n", "is not the file of a system .line 1: invalid syntax"),
        ("mine.py", "\x00", "is not the file of a system"),
        ("mine.py", b"x = '\xff'\n", "is not the file of a system"),
        ("mine.py", "x = 1\n", "it declares no CARD"),
        ("mine.py", SYSTEM.replace("def build", "def make"), "declares no build"),
        ("mine.py", SYSTEM.replace('"exact"', '"true"'), "kind of CARD must be one of"),
        ("mine.py", SYSTEM + "import helpers_that_are_not\n", "import installed packages only"),
        ("mine.py", SYSTEM + "raise SystemExit(3)\n", "SystemExit: 3.; correct the file"),
        ("lstm.py", SYSTEM, "has the name 'lstm' of a system of lmlab itself; rename"),
        ("my system!.py", SYSTEM, "rename it to letters, digits and _"),
    ],
)
def test_wrong_file_is_one_sentence(
    tmp_path: Path, corpus: Path, name: str, content: str | bytes | None, message: str
):
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        train(path, corpus, tmp_path / "run")
    assert path.name in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "config.json").exists()


def install(site: Path, version: str, package: str = "toy-lm", name: str = "toy") -> None:
    module = f"{package.replace('-', '_')}_recorded"
    write_package(site, package, version, {SYSTEMS: {name: module}}, {f"{module}.py": SYSTEM})


def test_run_of_a_package(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch):
    usual, run = list(sys.path), tmp_path / "run"

    def visit(folder: str, *installed: tuple[str, ...]) -> None:
        for version, *more in installed:
            install(tmp_path / folder, version, *more)
        monkeypatch.setattr(sys, "path", [str(tmp_path / folder), *usual])

    visit("site", ("1.2",))
    train("toy", corpus, run)
    assert recorded(run)["plugin"] == {"package": "toy-lm", "version": "1.2"}
    total = lmlab.load(run).score(["a b"])[0].total
    visit("none")
    sentence = "with the system toy of the package toy-lm 1.2, which is not installed; pip install "
    with pytest.raises(UserError, match=f"{sentence}toy-lm"):
        lmlab.load(run)
    visit("newer", ("1.3",))
    with pytest.warns(LmlabWarning, match=r"the package toy-lm 1\.2, and 1\.3 is installed"):
        assert lmlab.load(run).score(["a b"])[0].total == total
    visit("others", ("1.2", "other-lm"))
    with pytest.raises(UserError, match=r"and here toy is a system of the package other-lm 1\.2"):
        lmlab.load(run)
    visit("both", ("1.2",), ("1.2", "other-lm"))
    with pytest.raises(UserError, match=r"which can't be used: .* each have a system"):
        lmlab.load(run)
    visit("file")
    with pytest.raises(UserError, match=r"here toy is a system of the file toy\.py"):
        lmlab.load(run, system=write_system(tmp_path, name="toy.py"))


def test_base_of_a_package_is_checked_too(tmp_path: Path, corpus: Path):
    run = tmp_path / "run"
    train("ngram", corpus, tmp_path / "ngram")
    train("residual-ebm", corpus, run, base=tmp_path / "ngram")
    config = recorded(run)
    rewrite(run, base=config["base"] | {"plugin": {"package": "gone", "version": "1"}})
    with pytest.raises(UserError, match="ngram of the package gone 1, and here ngram is a system"):
        lmlab.load(run)


EVIL = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n" + SYSTEM
DIGEST = hashlib.sha256(EVIL.encode()).hexdigest()
NAMES = ("evil", "evil.py", "./evil.py", "../run/evil", "../../evil", "run.evil", "evil:CARD")
OTHERS = ("os", "lmlab.zoo._transformer", "_transformer", "lmlab.zoo.lstm", "", ".", "__main__")


@pytest.mark.parametrize("name", [*NAMES, *OTHERS, "ABSOLUTE"])
@pytest.mark.parametrize(
    "plugin",
    [None, {"file": "evil.py", "sha256": DIGEST}, {"package": "evil", "version": "1.0"}],
    ids=["none", "file", "package"],
)
def test_loading_never_executes_what_a_run_names(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, name: str, plugin: Any
):
    run = tmp_path / "run"
    train("ngram", corpus, run)
    for folder in (run, run / "evil", tmp_path, run / "site"):
        folder.mkdir(exist_ok=True)
        (folder / "evil.py").write_text(EVIL)
        (folder / "__init__.py").write_text(EVIL)
    entries = {SYSTEMS: {"evil": "evil", "os": "evil", "ngram": "evil"}}
    write_package(run, "evil", "1.0", entries, {})
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "path", ["", str(run), *sys.path])  # as `python -m lmlab` has it
    system = str(run / "evil.py") if name == "ABSOLUTE" else name
    changes = {"system": system} | ({} if plugin is None else {"plugin": plugin})
    rewrite(run, **changes)
    before = set(sys.modules)
    for use in (lmlab.load, lmlab.doctor, lambda path: lmlab.compare([path])):
        for verify in (True, False):
            with pytest.raises(UserError), verification(verify):
                use(run)
    assert list(tmp_path.rglob("executed")) == []
    assert not {module for module in set(sys.modules) - before if "evil" in module}


@pytest.mark.parametrize(
    "value",
    [
        3,
        [],
        {"file": "evil.py"},
        {"package": "x; rm -rf", "version": "1"},
        {"package": "x", "version": "1 || reboot"},
        {"file": "../evil.py", "sha256": "0" * 64},
        {"file": "evil.py", "sha256": "0"},
        {"package": "x", "version": "1", "file": "evil.py", "sha256": "0" * 64},
        {"module": "os"},
    ],
)
def test_invalid_origin_is_refused(tmp_path: Path, corpus: Path, value: Any):
    with pytest.raises(ValueError):
        parse_origin(value)
    train("ngram", corpus, tmp_path / "run")
    rewrite(tmp_path / "run", plugin=value)
    with pytest.raises(UserError, match=r"config\.json is damaged \(plugin"):
        RunFolder(tmp_path / "run").read_config()


def test_origin_round_trip():
    origins = [
        PackageOrigin(package="a.b-c", version="1!2.0+x"),
        FileOrigin(file="x y.py", sha256="0" * 64),
    ]
    assert [parse_origin(vars(origin)) for origin in origins] == origins
    assert parse_origin(None) is None


def test_ablation_of_a_file_in_parallel(tmp_path: Path, corpus: Path):
    content = SYSTEM.replace('paper="none"', 'paper="none", switches=("half", "other")').replace(
        '"""Numbers in an embedding."""',
        '"""Numbers in an embedding."""\n    off: tuple[int, ...] = ()\n    """Switches off."""',
    )
    path = write_system(tmp_path, content)
    ablation = lmlab.ablate(
        path,
        data=corpus,
        out=tmp_path / "ablation",
        seeds=1,
        epochs=1,
        size="tiny",
        jobs=2,
        quiet=True,
    )
    assert ablation.finished and len(ablation.rows) == 3
    config = recorded(tmp_path / "ablation" / "runs" / "intact-seed0")
    assert config["plugin"]["file"] == "mine.py"
