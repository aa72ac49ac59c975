"""`lmlab sample --method gibbs|metropolis`, its figure, and the Python API."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

import lmlab
from lmlab.cli.main import main
from lmlab.core.errors import UserError


@pytest.fixture(scope="module")
def bert_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("chains") / "bert"
    code = main(
        ["train", "bert", "--data", "grammar", "--size", "tiny", "--steps", "5", "--out", str(out)]
    )
    assert code == 0
    return out


@pytest.fixture
def sample(bert_run, capfd):
    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["sample", str(bert_run), *map(str, arguments)])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
def test_one_text_per_line_with_diagnostics(sample, method):
    arguments = ("--method", method, "-n", 3, "--template", "the <mask> sees <mask>", "--steps", 40)
    code, out, err = sample(*arguments)
    assert code == 0
    assert len(out.splitlines()) == 3
    assert all(line.startswith("the ") for line in out.splitlines())
    assert "accepted" in err and "R-hat" in err
    assert sample(*arguments)[1] == out


def test_too_few_steps_for_diagnostics_are_reported(sample):
    code, _, err = sample(
        "--method", "gibbs", "--steps", 10, "--chains", 2, "--length", 10, "-n", 2
    )
    assert code == 0 and "nan" not in err
    assert "too few recorded states to diagnose whether the chains have mixed" in err


def test_json_holds_the_complete_record(sample):
    code, out, _ = sample(
        *("--method", "metropolis", "-n", 2, "--chains", 2, "--length", 3, "--steps", 10),
        *("--burn-in", 4, "--thin", 2, "--masks", 2, "--order", "sequential", "--anneal", 2),
        *("--energy", "norm", "--start", "random", "--temperature", 0.9, "--json"),
    )
    record = json.loads(out)
    assert code == 0
    assert record["target_distribution"].startswith("p(x) ∝ exp(-E(x) / 0.9)")
    settings = ("steps", "burn_in", "thin", "masks", "order", "anneal", "energy", "start")
    assert [record[name] for name in settings] == [10, 4, 2, 2, "sequential", 2.0, "norm", "random"]
    assert len(record["trace"]["energies"]) == 2 and len(record["trace"]["energies"][0]) == 11


@pytest.mark.parametrize("form", ["svg", "png"])
def test_chain_figure_is_written(sample, tmp_path, form):
    figure = tmp_path / "folder" / f"chains.{form}"
    code, _, _ = sample("--method", "gibbs", "--length", 3, "--steps", 30, "--draw", figure)
    assert code == 0
    if form == "png":
        assert figure.read_bytes().startswith(b"\x89PNG")
        return
    words = "".join(ElementTree.parse(figure).getroot().itertext())
    assert all(word in words for word in ("energy", "autocorrelation", "accepted", "R-hat"))


def test_interrupt_prints_the_samples_so_far(bert_run, capfd, monkeypatch):
    from lmlab.sampling.mcmc import sampler

    before = sampler.ChainMonitor.count
    calls = []

    def count(self, *arguments, **words):
        before(self, *arguments, **words)
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(sampler.ChainMonitor, "count", count)
    code = main(["sample", str(bert_run), "--method", "gibbs", "-n", "4", "--length", "3"])
    captured = capfd.readouterr()
    assert code == 130
    assert len(captured.out.splitlines()) == 4
    assert "stopped by Ctrl-C" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "gibbs", "--top-k", 3), "--top-k does not apply to --method gibbs"),
        (("--method", "gibbs", "--max-length", 3), "--max-length does not apply"),
        (("--steps", 3), "--steps does not apply to --method ancestral"),
        (("--method", "gibbs", "--positions", "a-b", "--text", "the dog"), "such as 1,3-5"),
        (("--method", "metropolis", "--lengths", "5"), "such as 5-12"),
        (("--method", "gibs"), "did you mean 'gibbs'"),
        (("--method", "gibbs", "--draw", "a.jpg"), "must end in .svg or "),
        (("--method", "gibbs", "--template", "the dog"), "has none"),
        (
            ("--method", "gibbs", "--text", "the dog", "--positions", "2-4"),
            "positions must be from 1 to 2, the tokens of the text, got 3",
        ),
        (
            ("--method", "gibbs", "--text", "the dog", "--positions", "2-1"),
            "must be ascending, as 1-2",
        ),
        (("--method", "metropolis", "--token-cost", "1"), "give --lengths"),
        (("--method", "gibbs", "--anneal", "0.5"), "give a higher one"),
        (("--method", "gibbs", "--proposal", "uniform"), "or give --method metropolis"),
        (("--method", "gibbs", "--lm", "nowhere"), "give --start lm with it"),
    ],
)
def test_invalid_options_are_reported_in_one_line(sample, arguments, message):
    code, out, err = sample(*arguments)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1


def test_python_api_returns_the_record(bert_run):
    model = lmlab.load(bert_run)
    record = model.chains(
        2, method="metropolis", text="the dog sees a cat", positions=(2,), steps=9
    )
    assert [sampled_text.text.split()[0] for sampled_text in record.texts] == ["the", "the"]
    assert record.as_dict()["diagnostics"]["recorded"] == 4 * 6
    unigram = model.chains(1, method="metropolis", proposal="unigram", length=3, steps=5)
    assert unigram.proposal == "unigram"
    with pytest.raises(UserError, match="call chains"):
        model.sample(1, method="gibbs")
