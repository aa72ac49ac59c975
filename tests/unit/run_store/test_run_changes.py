"""Tags, differences, ancestors and removal of runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder
from lmlab.run_store.remove_runs import removable_runs, remove_runs
from lmlab.run_store.run_details import diff_runs, run_details
from lmlab.run_store.run_tags import change_tags, read_tags


def test_tags_are_added_removed_and_kept_in_order(make_run):
    run = make_run("a")
    assert change_tags(run, ["good", "first"], []) == ("first", "good")
    assert change_tags(run, ["中文"], ["first", "absent"]) == ("good", "中文")
    with lock_folder(run):  # a run that is written can be tagged
        change_tags(run, ["live"], [])
    assert read_tags(run) == ("good", "live", "中文")
    assert not list(run.parent.glob(".lmlab*"))


def test_tags_added_at_the_same_time_are_all_kept(make_run):
    run = make_run("a")
    threads = [threading.Thread(target=change_tags, args=(run, [f"tag{n}"], [])) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_tags(run) == ("tag0", "tag1", "tag2", "tag3")


@pytest.mark.parametrize("tag", ["", "two words", "a\n", "x" * 101, "a\x1b[1m"])
def test_a_tag_is_one_word(make_run, tag: str):
    with pytest.raises(UserError, match="a tag must be one word"):
        change_tags(make_run("a"), [tag], [])


@pytest.mark.parametrize("content", ["", "[]", '{"tags": 3}', '{"tags": [1, "a"]}', "\x00"])
def test_damaged_tags_are_no_crash(make_run, content: str):
    run = make_run("a")
    (run / "tags.json").write_text(content)
    assert read_tags(run) == (("a",) if "1" in content else ())


def test_differences_have_a_section_and_a_value_for_each_run(make_run):
    first = make_run("a")
    second = make_run("b", width=32, data="capitals", losses=(1.5,))
    for run, torch in ((first, "2.5"), (second, "2.6")):
        (run / "environment.json").write_text(
            json.dumps({"packages": {"torch": torch}, "cores": 2})
        )
    rows = {(row.section, row.key): row.values for row in diff_runs([first, second]).rows}
    assert rows["settings", "width"] == (16, 32)
    assert rows["data", "corpus spec"] == ("grammar", "capitals")
    assert rows["environment", "torch"] == ("2.5", "2.6")
    assert rows["figures", "best"] == (2.5, 1.5)
    assert ("environment", "cores") not in rows
    with pytest.raises(UserError, match="two runs or more, got 1"):
        diff_runs([first])


def test_the_chain_of_runs_that_one_comes_from(make_run):
    def origin(path: str, **more: object) -> dict[str, object]:
        return {"path": path, "system": "gpt", "size": "tiny", "corpus": {"spec": path}, **more}

    first = origin("imported", imported="gpt2")
    chain = origin("second", continued_from=first)
    run = make_run("a", extra={"continued_from": chain, "encoder": origin("encoder")})
    ancestors = run_details(run).ancestors
    assert [(a.role, a.depth, a.path, a.imported) for a in ancestors] == [
        ("continued_from", 1, "second", None),
        ("continued_from", 2, "imported", "gpt2"),
        ("encoder", 1, "encoder", None),
    ]
    assert run_details(run).record.continued_from == "second"


def test_runs_are_removed_without_following_links(make_run, tmp_path: Path):
    run, other = make_run("a"), make_run("b")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    (run / "link").symlink_to(precious)
    remove_runs(removable_runs([run], make_run.root))
    assert sorted(make_run.root.iterdir()) == [other]
    assert (precious / "file").read_text() == "keep"


def test_a_run_that_is_written_is_refused_and_nothing_is_removed(make_run):
    first, second = make_run("a"), make_run("b")
    with lock_folder(second), pytest.raises(UserError, match="being written"):
        remove_runs(removable_runs([first, second], make_run.root))
    assert first.exists() and second.exists()
    assert not list(make_run.root.rglob(".lmlab*"))


def test_only_runs_inside_of_the_folder_can_be_removed(make_run, tmp_path: Path):
    run, outside = make_run("a"), make_run("../outside")
    link = make_run.root / "link"
    link.symlink_to(outside)
    (make_run.root / "up").symlink_to(tmp_path)
    plain = make_run.root / "plain"
    plain.mkdir()
    refusals = {
        outside: "not inside of",
        make_run.root / ".." / "outside": "not inside of",
        make_run.root / "up" / "outside": "not inside of",
        link: "symbolic link",
        plain: "is not a run",
        make_run.root: "is not a run",
        make_run.root / "nothing": "there is no run",
    }
    for path, message in refusals.items():
        with pytest.raises(UserError, match=message):
            removable_runs([path], make_run.root)
    with pytest.raises(UserError, match="not inside of"):
        removable_runs([run], run)
    make_run("a/inner")
    with pytest.raises(UserError, match="has another run in it"):
        removable_runs([run], make_run.root)
    remove_runs(removable_runs([run, run / "inner"], make_run.root))
    assert not run.exists() and outside.exists()
