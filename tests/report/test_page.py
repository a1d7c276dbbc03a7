"""The page: complete, self-contained, and its numbers are the run's, counted here a second time."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from scipy.stats import binomtest

from ptxgym.errors import UsageError
from ptxgym.report import extra, write_report
from ptxgym.report.facts import differences, facts
from ptxgym.report.page import render
from ptxgym.report.runs import as_runs
from ptxgym.store.reader import StoredRun, read_run
from ptxgym.store.records import TurnRecord, Usage
from tests.report.fixture import CANARY, ENVS, PLANS
from tests.report.reading import Page


@pytest.fixture(scope="session")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="session")
def stored(run_folder: Path) -> StoredRun:
    return read_run(run_folder)


def solved(stored: StoredRun, agent: str, arm: str, env: str, turns: int, target: bool) -> tuple[int, int]:
    """Successes and trajectories, counted from the lines of the run alone."""
    ended = [e for e in stored.episodes if e.status != "infra" and (e.agent, e.env) == (agent, env)]
    ended = [e for e in ended if e.arm == arm]
    wins = 0
    for episode in ended:
        kernels = [t for t in stored.turns if t.episode == episode.id and t.turn <= turns]
        good = [t for t in kernels if t.verdict.status == "ok"]
        wins += any(not target or (t.verdict.evidence is not None and t.verdict.evidence.target_ok) for t in good)
    return wins, len(ended)


def cell(wins: int, total: int) -> str:
    low, high = binomtest(wins, total).proportion_ci(0.95, method="wilson")
    return f"{wins / total:.0%}".replace("%", " %") + f" {wins}/{total} · {low * 100:.0f}–{high * 100:.0f}"


def test_rates_and_intervals_by_environment_are_those_of_the_run(page: Page, stored: StoredRun) -> None:
    parts = page.parts("by-task")
    assert set(parts) == {pinned for pinned, _, _ in ENVS.values()}
    compared = 0
    for env, rows in parts.items():
        assert [row[0] for row in rows[:2]] == ["oracle anchor", "naive anchor"]
        for row in rows:
            agent, arm = row[0].removesuffix(" anchor"), row[1] if row[1] != "–" else "parameters"
            wanted = [
                cell(*solved(stored, agent, arm, env, turns, target)) for target in (False, True) for turns in (1, 4)
            ]
            assert row[2:6] == wanted, (env, agent, arm)
            assert len(row) == (7 if "B200" in env else 9)
            compared += 1
    assert compared == 3 * (2 + 4 * 2)


def test_emulated_and_measured_stand_in_columns_of_their_own(page: Page) -> None:
    """Where a part holds both, side by side; else in tables of one kind each."""
    assert {name for name in page.tables if name.startswith("by-task")} == {"by-task-measured", "by-task-emulated"}
    assert page.tables["by-task-emulated"][0] == ["agent", "arm", "emulated"]
    assert page.tables["by-task-measured"][0] == ["agent", "arm", "measured"]
    assert set(page.tables["by-task-emulated"][1]) >= {"right within", "tokens per solved task"}
    assert page.tables["by-turns"][0] == ["agent", "arm", "emulated", "measured"]
    assert page.tables["versus"][0] == ["model", "against", "emulated", "measured"]


def test_the_same_environment_emulated_and_measured_has_a_group_of_columns_for_each(
    run_folder: Path, stored: StoredRun, tmp_path: Path
) -> None:
    env = ENVS["PTX-Gemm-H100"][0]

    def emulated(turn: TurnRecord) -> TurnRecord:
        origin = turn.verdict.provenance
        device = None if origin.device is None else "emulator"
        judged = origin.model_copy(update={"tier": None, "device": device})
        return turn.model_copy(update={"verdict": turn.verdict.model_copy(update={"provenance": judged})})

    record = stored.record.model_copy(
        update={"device": "emulator", "devices": {"h100": "emulator"}, "created_at": "2026-11-29T07:00:00+00:00"}
    )
    kept = tuple(e for e in stored.episodes if e.env == env)
    turns = tuple(emulated(turn) for turn in stored.turns if turn.episode.startswith(env))
    text = render([stored, StoredRun(tmp_path, record, kept, turns, ())])
    page = Page(text)
    assert [row for row in page.tables["by-task-emulated-measured"] if len(row) == 1] == [[env]]
    rows = page.parts("by-arch")["Hopper (h100)"]
    assert page.tables["by-arch-emulated-measured"][0] == ["agent", "run", "arm", "emulated", "measured"]
    (first, second) = (row for row in rows if row[0] == "swift" and row[2] == "contract")
    wins = solved(stored, "swift", "contract", env, 4, True)
    assert {row[6] for row in (first, second)} == {"–", cell(*wins)}, "emulated: of the second run alone"
    for name in ("progress", "failures"):
        figure = text[text.index(f'id="chart-{name}"') :].partition("</figure>")[0]
        assert "contract · emulated" in figure and "contract · measured" in figure


def test_an_agent_with_fewer_turns_has_dashes_and_is_compared_within_them(stored: StoredRun) -> None:
    sweep = json.loads(json.dumps(stored.record.sweep))
    next(each for each in sweep["recipe"]["agents"] if each["label"] == "swift")["turns"] = 2
    record = stored.record.model_copy(update={"sweep": sweep})
    turns = tuple(turn for turn in stored.turns if "/swift/" not in turn.episode or turn.turn <= 2)
    run = StoredRun(stored.folder, record, stored.episodes, turns, stored.remeasured)
    page = Page(render([run]))
    env = "ptxgym/Gemm-B200-v1"
    rows = {(row[0], row[1]): row for row in page.parts("by-task")[env]}
    right, target = (cell(*solved(run, "swift", "contract", env, 1, target)) for target in (False, True))
    assert rows["swift", "contract"][2:6] == [right, "–", target, "–"]
    assert "–" not in rows["patient", "contract"][2:6] and "–" not in rows["oracle anchor", "–"][2:6]
    compared = {(row[0], row[1]): row for row in page.tables["versus"][2:]}
    for pair, within in (
        (("patient · contract", "swift · contract"), 2),
        (("patient · contract", "frugal · contract"), 4),  # the control
    ):
        rates = [solved(run, each.partition(" ")[0], "contract", env, within, True) for each in pair]
        difference = rates[0][0] / rates[0][1] - rates[1][0] / rates[1][1]
        assert compared[pair][2:5] == ["1", str(within), f"{difference:+.0%}"], pair


def test_rates_by_generation_are_sums_over_environments(page: Page, stored: StoredRun) -> None:
    rows = page.parts("by-arch")["Hopper (h100)"]
    row = next(row for row in rows if row[:2] == ["swift", "contract"])
    counts = [solved(stored, "swift", "contract", env, 4, True) for env, _, arch in ENVS.values() if arch == "h100"]
    assert row[5] == cell(sum(wins for wins, _ in counts), sum(total for _, total in counts))


def test_turns_and_failures_are_counted_apart(page: Page, stored: StoredRun) -> None:
    row = next(row for row in page.tables["by-turns"][2:] if row[:2] == ["frugal", "contract"])
    every = [turn for turn in stored.turns if turn.episode.split("/")[3:5] == ["frugal", "contract"]]
    for kind, arch, at in (("emulated", "b200", 2), ("measured", "h100", 5)):
        turns = [turn for turn in every if turn.verdict.provenance.arch == arch]
        assert row[at] == str(len(turns))
        right = sum(turn.verdict.status == "ok" for turn in turns)
        assert row[at + 1].startswith(f"{right / len(turns):.0%}".replace("%", " %"))
        table = page.tables[f"failed-turns-{kind}"]
        failed = next(found for found in table[2:] if found[:2] == ["frugal", "contract"])
        assert failed[2] == str(len(turns))
        what = [turn.tags["what"] for turn in turns]
        for reason, name in (("compile error", "compile"), ("truncated", "cut"), ("hang", "hang")):
            if reason in table[1]:
                assert failed[2 + table[1].index(reason)] == (str(what.count(name)) if name in what else "–"), reason
            else:
                assert name not in what


def test_tokens_and_cost_per_solved_task(page: Page, stored: StoredRun) -> None:
    env = "ptxgym/Gemm-B200-v1"
    row = next(row for row in page.parts("by-task")[env] if row[:2] == ["patient", "parameters"])
    episodes = [e for e in stored.episodes if (e.agent, e.arm, e.env) == ("patient", "parameters", env)]
    wins, _ = solved(stored, "patient", "parameters", env, 4, True)
    assert wins
    tokens = sum(e.usage.prompt_tokens + e.usage.completion_tokens for e in episodes) / wins
    cost = sum(e.usage.cost_usd or 0.0 for e in episodes) / wins
    assert row[-1] == f"{tokens:,.0f} ${cost:.2f}"


def test_best_speed_up_is_of_the_second_measurement(page: Page, stored: StoredRun) -> None:
    env = "ptxgym/Gemm-H100-v1"
    row = next(row for row in page.parts("by-task")[env] if row[:2] == ["swift", "contract"])
    again = {found.episode: found.verdict.measured.timing for found in stored.remeasured}
    first: dict[str, float] = {}
    for episode in (e.id for e in stored.episodes if (e.agent, e.arm, e.env) == ("swift", "contract", env)):
        for turn in stored.turns_of(episode):
            timing = turn.verdict.measured.timing
            if timing and turn.verdict.evidence and turn.verdict.evidence.target_ok:
                first[episode] = max(first.get(episode, 0.0), timing.speedup)
    best = max(first, key=lambda episode: first[episode])
    timing = again[best]
    assert timing is not None
    assert row[-2].startswith(f"{timing.speedup:.3f} (best of 3)")


def test_refusals_truncations_and_infra_stand_apart(page: Page, stored: StoredRun) -> None:
    rows = {row[0]: [int(value) for value in row[1:]] for row in page.tables["left-out"][1:]}
    assert set(rows) == {"oracle", "naive", *PLANS}
    # episodes, infra, not ended, refused wholly, turns, refused, cut off, no code, calls repeated
    assert rows["patient"][1] == 1 and sum(row[1] for row in rows.values()) == 1
    assert rows["swift"][2] == 1 and sum(row[2] for row in rows.values()) == 1
    what = [(turn.episode.split("/")[3], turn.tags["what"]) for turn in stored.turns]
    assert rows["stubborn"][5] == what.count(("stubborn", "refused")) > 0
    assert rows["frugal"][6] == what.count(("frugal", "cut")) > 0
    assert rows["stubborn"][7] == what.count(("stubborn", "none")) > 0
    assert rows["swift"][4] == sum(agent == "swift" for agent, _ in what)


def test_front_matter_checks_hash_and_canary(html: str, stored: StoredRun) -> None:
    assert stored.record.sweep_sha256 in html and CANARY in html
    assert "recipe on record has this hash" in html and "fixed before the first turn" in html
    assert f"in {len(stored.episodes)} of {len(stored.episodes)} first messages" in html
    assert html.count(f"{len(stored.episodes)} of {len(stored.episodes)} first messages have their hash") == 1
    assert "models.example" in html and "max_completion_tokens = 65536" in html and "580.95.05" in html
    for digest in stored.record.prompts_sha256.values():
        assert digest in html


def test_a_changed_recipe_a_late_hash_and_a_missing_canary_are_told(stored: StoredRun) -> None:
    sweep = json.loads(json.dumps(stored.record.sweep))
    sweep["recipe"]["seed"] = 99
    changed = stored.record.model_copy(
        update={"sweep": sweep, "created_at": "2026-11-29T09:30:00+00:00", "canary": "ptxgym-canary-other"}
    )
    (run,) = as_runs([StoredRun(stored.folder, changed, stored.episodes, stored.turns, stored.remeasured)])
    found = facts(run)
    assert not found.sweep_holds and not found.fixed_first and found.canary_in == found.prompts_kept == 0
    (control,) = as_runs([stored])
    good = facts(control)
    assert good.sweep_holds and good.fixed_first and good.canary_in == good.first_messages > 0
    assert good.prompts_kept == good.first_messages
    others = dict.fromkeys(stored.record.prompts_sha256, "0" * 64)
    other = stored.record.model_copy(update={"prompts_sha256": others})
    (run,) = as_runs([StoredRun(stored.folder, other, stored.episodes, stored.turns, stored.remeasured)])
    assert facts(run).prompts_kept == 0


def test_page_is_one_file_that_loads_nothing(html: str, page: Page) -> None:
    policy = next(found["content"] for tag, found in page.tags if found.get("http-equiv"))
    assert policy is not None and "default-src 'none'" in policy and "unsafe-eval" not in policy
    (script,) = [text for found, text in page.scripts if not found.get("type")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    for tag, found in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base"), tag
        assert "src" not in found and not any(name.startswith("on") for name in found), (tag, found)
        assert not (found.get("href") or "#").strip("#").startswith(("http", "//", "javascript")), found
    assert "@import" not in html and not re.search(r"url\((?!#)", html)


def test_every_episode_that_ended_is_in_the_viewer_whole(page: Page, stored: StoredRun) -> None:
    (entries,) = [json.loads(text) for found, text in page.scripts if found.get("id") == "entries"]
    chunks = [text for found, text in page.scripts if (found.get("id") or "").startswith("chunk-")]
    played = [episode for episode in stored.episodes if episode.turns]
    ids = [entry["id"] for entry in entries]
    assert sorted(ids) == sorted(episode.id for episode in played)
    agents = [entry["agent"] for entry in entries if entry["task"] == entries[0]["task"]]
    assert list(dict.fromkeys(agents)) == ["oracle", "naive", *PLANS], "as in the recipe"
    assert len(chunks) == len(played)
    for identifier, chunk in zip(ids, chunks, strict=True):
        whole = json.loads(gzip.decompress(base64.b64decode(chunk)))
        turns = stored.turns_of(identifier)
        assert len(whole["turns"]) == len(turns)
        for shown, turn in zip(whole["turns"], turns, strict=True):
            after = "\n".join(whole["lines"][number] for sign, number in shown["rows"] if sign != "-")
            before = "\n".join(whole["lines"][number] for sign, number in shown["rows"] if sign != "+")
            assert after == turn.source, turn.solution
            if turn.parent_turn is not None:
                assert before == turns[turn.parent_turn - 1].source
            assert whole["texts"][shown["feedback"]] == turn.feedback
            assert [whole["texts"][number] for _, number in shown["messages"]] == [m.content for m in turn.messages]


def test_charts_are_drawn_in_the_page_s_own_colours(html: str) -> None:
    for name in ("progress", "failures", "speeds", "cost"):
        figure = html[html.index(f'id="chart-{name}"') :].partition("</figure>")[0]
        assert figure.count('aria-roledescription="') > 5 and "var(--" in figure


def test_two_runs_stand_side_by_side_and_their_differences_are_named(
    run_folder: Path, stored: StoredRun, tmp_path: Path
) -> None:
    from tests.report.fixture import write_run

    other = write_run(tmp_path / "autumn", seed=8)
    record = json.loads((other / "run.json").read_text())
    record["versions"]["judge"] = "6"
    (other / "run.json").write_text(json.dumps(record))
    text = write_report([run_folder, other], tmp_path / "both.html").read_text()
    assert "versions of judge: 5, 6" in text
    rows = Page(text).parts("by-task")["ptxgym/Gemm-H100-v1"]
    names = [(row[0], row[1], row[2]) for row in rows]
    assert ("swift", "spring-sweep (spring)", "contract") in names
    assert ("swift", "spring-sweep (autumn)", "contract") in names
    assert differences(as_runs([stored])) == ()


def test_a_run_that_is_there_twice_is_refused(run_folder: Path, tmp_path: Path) -> None:
    again = run_folder.parent / ".." / run_folder.parent.name / run_folder.name
    with pytest.raises(UsageError, match=r"hold the same run, begun .*would count twice; name it once"):
        write_report([run_folder, again], tmp_path / "page.html")
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    with pytest.raises(UsageError, match=f"spring and {copy} hold the same run"):
        write_report([run_folder, copy], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_no_line_of_an_oracle_is_on_the_page(page: Page, stored: StoredRun) -> None:
    chunks = [text for found, text in page.scripts if (found.get("id") or "").startswith("chunk-")]
    (entries,) = [json.loads(text) for found, text in page.scripts if found.get("id") == "entries"]
    shown = 0
    for entry, chunk in zip(entries, chunks, strict=True):
        if entry["agent"] in ("oracle", "naive"):
            whole = json.loads(gzip.decompress(base64.b64decode(chunk)))
            (turn,) = whole["turns"]
            assert turn["rows"] == [] and whole["lines"] == [] and turn["solution"].endswith(f"{entry['agent']}.cu")
            assert not [text for text in whole["texts"] if "__global__" in text]
            shown += 1
    assert shown == 2 * len(ENVS)


def test_an_emulated_run_says_that_nothing_was_measured(stored: StoredRun, tmp_path: Path) -> None:
    env = ENVS["PTX-Gemm-B200"][0]
    kept = [episode for episode in stored.episodes if episode.env == env]
    turns = tuple(turn for turn in stored.turns if turn.episode.startswith(env))
    text = render([StoredRun(stored.folder, stored.record, tuple(kept), turns, ())])
    assert "the emulator takes no times" in text and 'id="chart-speeds"' not in text
    page = Page(text)
    assert all(len(row) == 7 for row in page.parts("by-task")[env])
    assert not [name for name in page.tables if name.endswith("measured")]
    assert page.tables["by-turns"][0] == ["agent", "arm", "emulated"]


def test_what_no_endpoint_tells_is_no_cost_of_0(stored: StoredRun) -> None:
    silent = tuple(
        episode if episode.agent in ("oracle", "naive") else episode.model_copy(update={"usage": Usage()})
        for episode in stored.episodes
    )
    text = render([StoredRun(stored.folder, stored.record, silent, stored.turns, ())])
    assert 'id="chart-cost"' not in text and 'id="chart-progress"' in text
    page = Page(text)
    row = next(row for row in page.parts("by-task")["ptxgym/Gemm-B200-v1"] if row[:2] == ["patient", "parameters"])
    assert row[-1] == "–"


def test_anchors_alone_and_models_alone_make_a_page(stored: StoredRun) -> None:
    anchors = tuple(episode for episode in stored.episodes if episode.agent in ("oracle", "naive"))
    others = tuple(episode for episode in stored.episodes if episode.agent not in ("oracle", "naive"))
    alone = render([StoredRun(stored.folder, stored.record, anchors, stored.turns, ())])
    assert "not played" not in alone and "No model has a right kernel" in alone
    text = render([StoredRun(stored.folder, stored.record, others, stored.turns, ())])
    assert text.count("not played: oracle, naive") == 2 + 3, "once for every generation and environment"


def test_a_run_without_an_ended_episode_and_no_run_at_all_are_errors(
    run_folder: Path, stored: StoredRun, tmp_path: Path
) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text((run_folder / "run.json").read_text())
    with pytest.raises(UsageError, match="no episode has ended"):
        write_report([tmp_path / "begun"], tmp_path / "page.html")
    with pytest.raises(UsageError, match="holds no run"):
        write_report([tmp_path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"needs the package vl-convert-python: pip install 'ptxgym\[report\]'"):
        write_report([tmp_path], tmp_path / "page.html")
    monkeypatch.undo()
    extra.check()
