"""The package of examples/plugin goes through all of it in an environment of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.plugin_packages import SYSTEM, write_package

pytest.importorskip("setuptools", reason="it builds a package: run make test-integration")
pytestmark = pytest.mark.xdist_group("plugin-example")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
PROGRAMS = "Scripts" if os.name == "nt" else "bin"


class Environment:
    """A virtual environment that sees this checkout and the packages of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.search_path = ""
        venv.create(folder / "venv")
        self.python = folder / "venv" / PROGRAMS / "python"
        [site] = (folder / "venv").rglob("site-packages")
        here = sysconfig.get_paths()["purelib"]
        (site / "outer.pth").write_text(f"{ROOT / 'src'}\n{here}\n")

    def run(self, *arguments: object, code: int = 0) -> str:
        """What a command of its Python prints, errors included."""
        unwanted = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        outer = {n: v for n, v in os.environ.items() if n not in unwanted and "PYTEST" not in n}
        outer["PYTHONPATH"] = self.search_path
        done = subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=self.folder,
            env={**outer, "OMP_NUM_THREADS": "1", "LMLAB_CACHE": str(self.folder / "cache")},
            capture_output=True,
            encoding="utf-8",
            timeout=200,
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, f"{arguments}\n{output[-4000:]}"
        return output

    def lmlab(self, line: str, code: int = 0) -> str:
        return self.run("-m", "lmlab", *line.split(), code=code)

    def install(self, folder: Path) -> None:
        options = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
        self.run("-m", "pip", "--disable-pip-version-check", "install", *options, folder)

    def uninstall(self, package: str) -> None:
        self.run("-m", "pip", "--disable-pip-version-check", "uninstall", "--yes", package)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One with the example installed from a copy, as building writes beside the sources."""
    folder = tmp_path_factory.mktemp("environment")
    sources = folder / "plugin"
    for path in EXAMPLE.rglob("*"):
        if path.suffix in (".py", ".toml", ".md"):
            target = sources / path.relative_to(EXAMPLE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    environment = Environment(folder)
    environment.install(sources)
    return environment


def test_example_goes_through_all_of_it(environment: Environment):
    lmlab = environment.lmlab
    listed = {card["name"]: card for card in json.loads(lmlab("systems --json"))}
    assert listed["traces"]["package"] == "lmlab-traces 1.2" and listed["lstm"]["package"] == ""
    table = lmlab("systems")
    assert re.search(r"traces +recurrent +exact +lmlab-traces 1\.2 +Traces: several", table)
    corpora = lmlab("data list")
    assert re.search(r"echoes +lmlab-traces 1\.2 +two words, a pause", corpora)
    shown = " ".join(lmlab("--help").replace("│", " ").split())
    assert "repeats Share of words in sampled texts that occur earlier" in shown
    assert "in the same text. (lmlab-traces 1.2)" in shown

    lmlab("train traces --data echoes --out runs/traces --size tiny --steps 150")
    lmlab("train ngram --data echoes --out runs/ngram")
    config = json.loads((environment.folder / "runs/traces/config.json").read_text())
    assert config["plugin"] == {"package": "lmlab-traces", "version": "1.2"}
    assert config["corpus"]["spec"] == "echoes"
    score = "score runs/traces --text north --json"
    total = json.loads(lmlab(score))[0]["total"]
    lmlab("compare runs/traces runs/ngram --out comparison.json")
    comparison = json.loads((environment.folder / "comparison.json").read_text())
    rows = {row["name"]: row for row in comparison["rows"]}
    # The last two words of a text follow from the first two, as an n-gram can't see.
    assert 0 < rows["ngram"]["sure_tokens"] < 0.8
    assert "surprisal" in lmlab("inspect runs/traces --out figures")
    printed = lmlab("repeats runs/traces --texts 5")
    assert re.search(r"texts: 5\nwords: \d+\nrepeated: 0\.\d+", printed)
    code = "import lmlab; print(lmlab.repeats(lmlab.load('runs/traces'), texts=5))"
    assert re.search(r"Repeats\(texts=5, words=\d+, repeated=0\.\d+\)", environment.run("-c", code))
    lmlab("settings --task topic")
    assert "model type traces" in lmlab("export-hf runs/traces hub")
    lmlab("import-hf hub --out runs/imported")
    imported = json.loads(lmlab("score runs/imported --text north --json"))
    assert imported[0]["total"] == total

    environment.uninstall("lmlab-traces")
    sentence = (
        "lmlab: runs/traces was trained with the system traces of the package lmlab-traces 1.2, "
        "which is not installed; pip install lmlab-traces."
    )
    for command in (score, "inspect runs/traces", "compare runs/traces"):
        assert lmlab(command, code=2).splitlines() == [sentence]

    assert "there is no verb called 'repeats'" in lmlab("repeats runs/traces", code=2)

    environment.install(environment.folder / "plugin")
    assert json.loads(lmlab(score))[0]["total"] == total
    rival = environment.folder / "rival"
    entries = {"lmlab.systems": {"traces": "rival_lm", "lstm": "rival_lm"}}
    write_package(rival, "rival-lm", "0.1", entries, {"rival_lm.py": SYSTEM})
    environment.search_path = str(rival)
    both = "the packages lmlab-traces 1.2 and rival-lm 0.1 each have a system called 'traces'"
    assert both in lmlab("train traces --data echoes --out runs/other", code=2)
    assert both in lmlab(score, code=2)
    warnings = lmlab("systems")
    assert both in warnings and "'lstm' is a system of lmlab itself" in warnings
    assert "lmlab itself, which is used" in lmlab("find lstm")
    environment.search_path = ""


def test_example_passes_conformance_and_its_own_tests(environment: Environment):
    [report] = json.loads(environment.lmlab("conformance traces --json"))
    assert report["passed"]
    passed_checks = {r["check"] for r in report["results"] if r["outcome"] == "passed"}
    checked = passed_checks - {"training"}  # which precedes them all and is no test of its own
    tests = environment.folder / "plugin" / "tests"
    output = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    [passed] = re.findall(r"(\d+) passed", output)
    # One test per property that applies, and the oracle.
    assert int(passed) == len(checked) + 1
