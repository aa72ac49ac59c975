"""Plug-ins by entry points: listed without importing, refused by one sentence."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tests.plugin_packages import SYSTEM, write_package

from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.plugins import SYSTEMS, TASKS, plugins
from lmlab.core.registry import (
    catalogue,
    find_system,
    imported_card,
    search_systems,
    system_module,
    system_problems,
)
from lmlab.core.search import search
from lmlab.data.builtin_corpora import builtin_descriptions
from lmlab.data.corpus import open_corpus
from lmlab.interop.hf.family import families
from lmlab.tasks.task_registry import find_task

EXPLODES = 'raise RuntimeError("imported")\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install_system(site: Path, package: str, target: str, content: str, name: str = "toy") -> None:
    path = target.replace(".", "/") + ".py"
    write_package(site, package, "1.2", {SYSTEMS: {name: target}}, {path: content})


def test_system_of_package_is_listed_found_and_built(site: Path):
    install_system(site, "toy-lm", "toy_lm_a.inner.model", SYSTEM)
    card = find_system("toy")
    assert (card.name, card.package, card.kind) == ("toy", "toy-lm 1.2", "exact")
    assert card.summary == "Bigram of a test: the last word decides the next."
    assert [card.name for card in search_systems("bigram test")] == ["toy"]
    hit = search("toy")[0]
    assert (hit.kind, hit.name, hit.where) == ("system", "toy", "toy-lm 1.2: model.py")
    assert system_module("toy").SIZES["tiny"].width == 4
    assert imported_card("toy") == card
    assert system_problems() == {}


def test_listing_imports_neither_the_module_nor_its_package(site: Path):
    install_system(site, "toy-lm", "toy_lm_b.model", SYSTEM + EXPLODES)
    (site / "toy_lm_b" / "__init__.py").write_text(EXPLODES)
    assert find_system("toy").package == "toy-lm 1.2"
    assert "toy_lm_b" not in sys.modules
    with pytest.raises(UserError, match=r"toy-lm 1\.2, .*can't be imported \(RuntimeError: imp"):
        system_module("toy")


def test_packages_disappear_with_their_folder(site: Path, monkeypatch: pytest.MonkeyPatch):
    install_system(site, "toy-lm", "toy_lm_c", SYSTEM)
    assert "toy" in catalogue()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    assert "toy" not in catalogue()
    with pytest.raises(UserError, match="there is no system called 'toy'"):
        find_system("toy")


@pytest.mark.parametrize(
    ("target", "content", "message"),
    [
        ("toy_lm_d", "x = 1\n", "declares no CARD"),
        ("toy_lm_d", "def (:\n", "line 1: invalid syntax"),
        ("toy_lm_d", SYSTEM.replace('"exact"', '"true"'), "kind of CARD must be one of"),
        ("toy_lm_d:thing", SYSTEM, "the entry point of the system toy must be a module"),
        ("toy lm;d", SYSTEM, "the entry point of the system toy must be|can't be found"),
        ("absent.module", None, "the source of absent.module can't be found"),
    ],
)
def test_broken_package_breaks_nothing_else(
    site: Path, target: str, content: str | None, message: str
):
    files = {} if content is None else {"toy_lm_d.py": content}
    write_package(site, "toy-lm", "1.2", {SYSTEMS: {"toy": target}}, files)
    assert find_system("lstm").package == ""
    with pytest.raises(UserError, match=rf"package toy-lm 1\.2, .*({message}).*; fix or uninstall"):
        find_system("toy")
    assert "toy" not in catalogue()
    from lmlab import systems

    with pytest.warns(LmlabWarning, match=r"toy-lm 1\.2"):
        assert "lstm" in [card.name for card in systems()]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("class Config", "class Settings"), "declares no Config"),
        (("@dataclass(frozen=True, kw_only=True)", ""), "Config that is no dataclass"),
        (('"base": Config()', '"huge": Config()'), "must declare SIZES with tiny, small, base"),
        (('"base": Config()', '"base": 3'), "SIZES with 'base', which is no Config"),
        (("def build(config, vocabulary)", "def build(config)"), "build\\(config, vocabulary\\)"),
        (('"Step")', '"Fly")'), "the protocol 'Fly', which does not exist"),
    ],
)
def test_module_that_lacks_something_is_reported(
    site: Path, changed: tuple[str, str], message: str
):
    content = SYSTEM.replace(*changed)
    if changed[0].startswith("class"):
        content = content.replace(" Config()", " Settings()")
    if changed[1] == "":
        content = content.replace(
            'width: int = field(default=4, metadata={"at_least": 1})', "width: int = 4"
        )
    name = f"toy_lm_e{abs(hash(changed))}"
    install_system(site, "toy-lm", name, content)
    with pytest.raises(UserError, match=rf"{name}\.py .*{message}.*; see docs/add-a-system"):
        system_module("toy")


@pytest.mark.parametrize("name", ["lstm", "LSTM", "DLM12"])
def test_name_of_lmlab_itself_is_refused_and_keeps_working(site: Path, name: str):
    install_system(site, "toy-lm", "toy_lm_f", SYSTEM, name=name)
    with pytest.warns(LmlabWarning, match=r"is a system of lmlab itself, .* the package toy-lm 1"):
        card = find_system(name)
    assert (card.name, card.package) == ("lstm", "")
    assert [sentence for sentence in system_problems().values() if "toy-lm 1.2" in sentence]


def test_name_of_two_packages_is_refused(site: Path):
    install_system(site, "toy-lm", "toy_lm_g", SYSTEM)
    install_system(site, "other-lm", "other_lm_g", SYSTEM)
    with pytest.raises(
        UserError, match=r"other-lm 1\.2 and toy-lm 1\.2 each have a system .*'toy'"
    ):
        find_system("toy")
    assert "toy" not in catalogue() and "lstm" in catalogue()


def test_alias_of_another_package_is_refused(site: Path):
    alias = SYSTEM.replace('paper="none"', 'paper="none", aliases=("Plaything",)')
    install_system(site, "toy-lm", "toy_lm_h", alias)
    install_system(site, "other-lm", "other_lm_h", SYSTEM, name="plaything")
    with pytest.raises(UserError, match="each have a system called 'plaything'"):
        find_system("plaything")


def test_first_installed_of_two_versions_counts(site: Path, tmp_path: Path, monkeypatch):
    install_system(site, "toy-lm", "toy_lm_i", SYSTEM)
    older = tmp_path / "older"
    write_package(older, "Toy_LM", "0.9", {SYSTEMS: {"toy": "toy_lm_i"}}, {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(older)])
    assert [plugin.version for plugin in plugins(SYSTEMS) if plugin.name == "toy"] == ["1.2"]


def test_unreadable_metadata_is_a_warning(site: Path):
    write_package(site, "toy-lm", "1.2", {SYSTEMS: {"toy": "toy"}}, {})
    (site / "toy_lm-1.2.dist-info" / "entry_points.txt").write_bytes(b"[lmlab.systems]\n\xff\n")
    with pytest.warns(LmlabWarning, match="entry points of a package can't be read"):
        assert "lstm" in catalogue()


CORPUS = """
from lmlab.data.corpus import Corpus, Split

DESCRIPTION = "two words"


def corpus(seed=0):
    splits = {
        name: Split.from_list(["a b"] * (20 + seed), identity=f"toy {seed}", name=name)
        for name in ("train", "validation", "test")
    }
    return Corpus(name="toy-words", splits=splits)
"""


def test_corpus_of_package(site: Path):
    write_package(
        site,
        "toy-lm",
        "1.2",
        {"lmlab.corpora": {"toy-words": "toy_words"}},
        {"toy_words.py": CORPUS},
    )
    assert builtin_descriptions()["toy-words"] == "two words"
    assert "toy_words" not in sys.modules
    corpus = open_corpus("toy-words", seed=3)
    assert len(list(corpus.splits["train"])) == 23


def test_broken_corpus_is_a_warning(site: Path):
    entries = {"toy-words": "toy_words_b", "grammar": "toy_words_c"}
    files = {"toy_words_b.py": "x = 1\n", "toy_words_c.py": CORPUS}
    write_package(site, "toy-lm", "1.2", {"lmlab.corpora": entries}, files)
    with pytest.warns(LmlabWarning) as caught:
        assert "toy-words" not in builtin_descriptions()
    sentences = [str(warning.message) for warning in caught]
    assert any("must declare DESCRIPTION and corpus()" in sentence for sentence in sentences)
    assert any("'grammar' is a corpus of lmlab itself" in sentence for sentence in sentences)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once per process
        assert "toy-words" not in builtin_descriptions()


TASK = """
from lmlab.tasks.classification import Classification


class Topic(Classification):
    name = "topic"
"""


def test_task_of_package(site: Path):
    entries = {"topic": "toy_task:Topic", "subject": "toy_task:Topic", "classify": "toy_task:Topic"}
    write_package(site, "toy-lm", "1.2", {TASKS: entries}, {"toy_task.py": TASK})
    assert find_task("topic").name == "topic"
    with pytest.raises(UserError, match="toy_task:Topic must have the name 'subject'"):
        find_task("subject")
    assert find_task("classify").__module__.startswith("lmlab.")


FAMILY = """
from lmlab.interop.hf.families.gpt2 import Gpt2


class Toy(Gpt2):
    model_type = "toy"
    systems = ("gpt",)


FAMILY = Toy()
"""


def test_hf_family_of_package(site: Path):
    entries = {"toy": "toy_family", "other": "toy_family"}
    write_package(site, "toy-lm", "1.2", {"lmlab.hf_families": entries}, {"toy_family.py": FAMILY})
    with pytest.warns(LmlabWarning, match="FAMILY, a CheckpointFamily with the model_type 'other'"):
        assert families()["toy"].model_type == "toy"
    assert "other" not in families() and "gpt2" in families()


LISTING = """
import sys
import lmlab
names = [card.name for card in lmlab.core.registry.catalogue().values() if card.package]
print(names, sorted({"torch", "numpy", "toy_lm_j"} & sys.modules.keys()))
"""


def test_listing_plugins_imports_no_torch(site: Path):
    install_system(site, "toy-lm", "toy_lm_j", SYSTEM)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import lmlab.core.registry\n{LISTING}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['toy'] []"


VERB = '''
from typing import Annotated

from lmlab.core.options import Argument


def count_letters(text: Annotated[str, Argument("A text.")]) -> int:
    """Count the letters of a text."""
    return len(text)
'''


def test_verb_of_package(site: Path, capsys: pytest.CaptureFixture[str]):
    import lmlab
    from lmlab.cli.main import main

    entries = {"count-letters": "toy_verbs:count_letters", "score": "toy_verbs:count_letters"}
    write_package(site, "toy-lm", "1.2", {"lmlab.verbs": entries}, {"toy_verbs.py": VERB})
    with pytest.warns(LmlabWarning, match="'score' is a verb of lmlab itself"):
        assert main(["--help"]) == 0
    assert "Count the letters of a text. (toy-lm 1.2)" in capsys.readouterr().out
    assert "toy_verbs" not in sys.modules
    assert main(["count-letters", "abc"]) == 0
    assert capsys.readouterr().out == "3\n"
    assert lmlab.count_letters("abcd") == 4
    with pytest.warns(LmlabWarning, match="'score' is a verb of lmlab itself"):
        assert main(["score", "--help"]) == 0
    assert "log-prob" in capsys.readouterr().out.lower()
    with pytest.raises(AttributeError, match="no attribute 'count_words'"):
        _ = lmlab.count_words


def test_broken_verb_is_one_sentence(site: Path, capsys: pytest.CaptureFixture[str]):
    from lmlab.cli.main import main

    entries = {"lmlab.verbs": {"explode": "toy_verbs_b:explode"}}
    write_package(site, "toy-lm", "1.2", entries, {"toy_verbs_b.py": EXPLODES})
    assert main(["--help"]) == 0
    assert main(["explode"]) == 2
    sentence = capsys.readouterr().err
    assert "in the package toy-lm 1.2, toy_verbs_b:explode can't be imported" in sentence
