"""Templates: what they may say, what is said where they are wrong, and what comes of a choice."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.knobs import Knob, KnobTemplate, load_template, template_names

HEAD = 'summary = "for tests"\nenv = "PTX-Gemm-H100"\n'
TEXT = "#include <cuda.h>\n// ptxgym: knobs\nint all = kTile + kSwizzle + kFast;\n"
KNOBS = """
[[knobs]]
name = "kTile"
choices = [64, -128]
[[knobs]]
name = "kSwizzle"
choices = ["CU_TENSOR_MAP_SWIZZLE_NONE", "CU_TENSOR_MAP_SWIZZLE_128B", "1 + 2"]
[[knobs]]
name = "kFast"
choices = [false, true]
"""


def written(folder: Path, toml: str = HEAD + KNOBS, text: str | None = TEXT) -> str:
    (folder / "mine.toml").write_text(toml)
    if text is not None:
        (folder / "mine.cu.in").write_text(text)
    return str(folder / "mine.toml")


def test_a_choice_is_rendered_where_the_text_says(tmp_path: Path) -> None:
    template = load_template(written(tmp_path))
    assert (template.name, template.sizes, template.size) == ("mine", (2, 3, 2), 12)
    assert template.render((1, 1, 0)) == (
        "#include <cuda.h>\n"
        "constexpr int kTile = -128;\n"
        "constexpr auto kSwizzle = CU_TENSOR_MAP_SWIZZLE_128B;\n"
        "constexpr bool kFast = false;\n"
        "int all = kTile + kSwizzle + kFast;\n"
    )


def test_what_would_continue_the_line_is_no_expression(tmp_path: Path) -> None:
    toml = HEAD + "[[knobs]]\nname = 'kTile'\nchoices = ['2 +\\', '3']\n"
    with pytest.raises(ContentError, match=r"'2 \+\\\\' must be one C\+\+ expression"):
        load_template(written(tmp_path, toml))


@pytest.mark.parametrize(
    ("toml", "text", "said"),
    [
        (HEAD + KNOBS, None, r"mine\.cu\.in: the text of template mine\.toml is to lie beside it"),
        (HEAD + KNOBS, TEXT.replace("// ptxgym: knobs", ""), "one line `// ptxgym: knobs`, where they go; it has 0"),
        (HEAD + KNOBS, TEXT + "// ptxgym: knobs\n", "where they go; it has 2"),
        (HEAD + KNOBS, TEXT.replace("kFast", "kSlow"), "knob 'kFast' stands nowhere in the text"),
        (HEAD + KNOBS, TEXT.replace("kFast", "kFaster"), "knob 'kFast' stands nowhere in the text"),
        (HEAD + KNOBS.replace("kFast", "kTile"), TEXT, "two knobs are named 'kTile'"),
        (HEAD + KNOBS.replace("[64, -128]", "[]"), TEXT, r"knobs\.0\.choices"),
        (HEAD + KNOBS.replace("[64, -128]", "[64, 64]"), TEXT, "a choice is there twice"),
        (HEAD + KNOBS.replace("[64, -128]", "[0, true]"), TEXT, "all truth values, all numbers, or all texts"),
        (HEAD + KNOBS.replace("[64, -128]", "[64, 4294967296]"), TEXT, "4294967296 does not fit into an int"),
        (HEAD + KNOBS.replace("[64, -128]", "[1.5, 2.5]"), TEXT, r"knobs\.0\.choices"),
        (HEAD + KNOBS.replace('"1 + 2"', '"1; evil()"'), TEXT, r"'1; evil\(\)' must be one C\+\+ expression"),
        (HEAD + KNOBS.replace("kTile", "k Tile"), TEXT, r"knobs\.0\.name"),
        (HEAD + 'envs = "x"\n' + KNOBS, TEXT, "unknown key 'envs'; did you mean 'env'"),
        (HEAD + "knobs = []\n", TEXT, "knobs"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_template_is_said_with_its_file(
    tmp_path: Path, toml: str, text: str | None, said: str
) -> None:
    with pytest.raises(ContentError, match=said) as raised:
        load_template(written(tmp_path, toml, text))
    assert "mine." in str(raised.value)


def test_unknown_templates_are_told_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gemm/h100/ring'"):
        load_template("gemm/h100/rings")
    with pytest.raises(ContentError, match="no such template; known: gemm/h100/ring"):
        load_template(str(tmp_path / "none.toml"))


def test_choices_and_values_are_told_apart(tmp_path: Path) -> None:
    template = load_template(written(tmp_path))
    assert template.choose({"kTile": 64, "kSwizzle": "1 + 2", "kFast": True}) == (0, 2, 1)
    for action, said in [((0, 0), "3 knobs, the action 2"), ((0, 3, 0), "kSwizzle has choices 0 to 2, not 3")]:
        with pytest.raises(UsageError, match=said):
            template.render(action)
    with pytest.raises(UsageError, match="not -1"):
        template.render((-1, 0, 0))
    for setting, said in [
        ({"kTile": 64}, "'kSwizzle' no value"),
        ({"kTiles": 64}, "did you mean 'kTile'"),
        ({"kTile": 65, "kSwizzle": "1 + 2", "kFast": True}, "kTile = 65 is no choice"),
        ({"kTile": 64, "kSwizzle": "1 + 2", "kFast": 1}, "kFast = 1 is no choice"),
    ]:
        with pytest.raises(UsageError, match=said):
            template.choose(setting)
    with pytest.raises(UsageError, match="setting 12 is none of the 12"):
        template.action(12)


def test_what_is_kept_is_not_turned_and_texts_stay(tmp_path: Path) -> None:
    whole = load_template(written(tmp_path))
    kept = whole.keep({"kSwizzle": "1 + 2", "kFast": True})
    assert (kept.sizes, kept.size) == ((2, 1, 1), 2)
    assert kept.render((1, 0, 0)) == whole.render((1, 2, 1))
    assert whole.keep({}) == whole
    with pytest.raises(UsageError, match="did you mean 'kTile'"):
        whole.keep({"kTiles": 64})
    with pytest.raises(UsageError, match="kFast = 1 is no choice"):
        whole.keep({"kFast": 1})


def test_templates_in_a_users_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tasks" / "gemm" / "templates" / "h100"
    folder.mkdir(parents=True)
    written(folder)
    monkeypatch.setenv("PTXGYM_CONTENT", str(tmp_path))
    assert set(template_names()) == {"gemm/h100/mine", "gemm/h100/ring"}
    assert load_template("gemm/h100/mine").name == "gemm/h100/mine"


VALUES = st.one_of(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=5, unique=True),
    st.just([True, False]),
    st.lists(st.from_regex(r"\A[A-Za-z_][\w:<>(), +*]*[\w)]\Z"), min_size=2, max_size=4, unique=True),
)


@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_what_is_rendered_says_what_was_chosen(values: list[list[int | bool | str]], data: st.DataObject) -> None:
    knobs = tuple(Knob(name=f"k{at}", choices=tuple(choices)) for at, choices in enumerate(values))
    uses = " ".join(knob.name for knob in knobs)
    template = KnobTemplate(name="t", summary="", env="e", knobs=knobs, text=f"a\n// ptxgym: knobs\nb {uses}")
    assert template.size == math.prod(map(len, values))
    index = data.draw(st.integers(0, template.size - 1))
    action = template.action(index)
    assert template.choose(template.setting(action)) == action
    found = dict(re.findall(r"^constexpr (?:int|bool|auto) (\w+) = (.*);$", template.render(action), re.MULTILINE))
    wanted = template.setting(action)
    assert found == {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in wanted.items()
    }


@given(st.integers(2, 4), st.integers(2, 4))
def test_actions_count_all_settings_once(one: int, other: int) -> None:
    knobs = (Knob(name="a", choices=tuple(range(one))), Knob(name="b", choices=tuple(range(other))))
    template = KnobTemplate(name="t", summary="", env="e", knobs=knobs, text="// ptxgym: knobs\na b")
    actions = [template.action(index) for index in range(template.size)]
    assert actions == [(a, b) for a in range(one) for b in range(other)]


def test_a_template_does_not_change(tmp_path: Path) -> None:
    template = load_template(written(tmp_path))
    with pytest.raises(ValidationError, match="frozen"):
        template.text = ""  # type: ignore[misc]
