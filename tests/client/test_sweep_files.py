"""Sweep files: axes over any job field, in a fixed order; every slip of the pen is named."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from client.errors import SweepInputError
from client.sweep_files import SweepPlan, read_sweep_file
from queue_schemas.runs import Priority


def plan(folder: Path, text: str, *, name: str = "sweep.yaml", **fields: Any) -> SweepPlan:
    (folder / name).write_text(text, encoding="utf-8")
    return read_sweep_file(folder / name, fields=fields)


def test_prompts_then_axes_as_written_then_seeds(tmp_path: Path) -> None:
    found = plan(
        tmp_path,
        "prompts: [a fox, a wave]\nseeds: [7, 8]\nwidth: 192\n"
        "axes:\n  steps: [8, 4]\n  attention: [auto, sdpa]\n",
    )

    assert found.counted == "16 runs: 2 prompts x 2 steps x 2 attentions x 2 seeds"
    assert [label for label, _ in found.runs[:5]] == [
        "prompt 1: a fox, steps 8, attention auto, seed 7",
        "prompt 1: a fox, steps 8, attention auto, seed 8",
        "prompt 1: a fox, steps 8, attention sdpa, seed 7",
        "prompt 1: a fox, steps 8, attention sdpa, seed 8",
        "prompt 1: a fox, steps 4, attention auto, seed 7",
    ]
    assert found.runs[-1][1] == {
        "width": 192,
        "steps": 4,
        "attention": "sdpa",
        "prompt": "a wave",
        "seed": 8,
    }


def test_the_same_file_gives_the_same_runs_also_with_drawn_seeds(tmp_path: Path) -> None:
    text = "prompts: [a fox]\nseeds: 4\n"

    first, second = plan(tmp_path, text), plan(tmp_path, text)

    assert first == second
    assert len({fields["seed"] for _, fields in first.runs}) == 4
    assert plan(tmp_path, "prompts: [a fox]\nseeds: 2\n").runs == first.runs[:2]
    assert plan(tmp_path, text + "seed: 5\n").runs[0][1]["seed"] == 5


def test_prompts_come_from_a_file_beside_the_sweep_file(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("# two\na fox\n\na wave\n")

    found = plan(tmp_path, "prompts: p.txt\n")

    assert [label for label, _ in found.runs] == ["line 2: a fox, seed 0", "line 4: a wave, seed 0"]


def test_json_says_the_same_as_yaml(tmp_path: Path) -> None:
    document = {
        "prompts": ["a fox"],
        "seeds": [1],
        "axes": {"steps": [1, 2]},
        "priority": "high",
        "node": "n",
    }

    found = plan(tmp_path, json.dumps(document), name="sweep.json")

    assert found == plan(tmp_path, json.dumps(document))  # YAML reads JSON
    assert (found.priority, found.node, len(found.runs)) == (Priority.HIGH, "n", 2)


def test_a_job_field_with_a_list_is_an_axis_and_seconds_become_frames(tmp_path: Path) -> None:
    found = plan(tmp_path, "prompt: a fox\nseconds: [1, 5]\nseed: [3, 4]\n")

    assert [fields["frames"] for _, fields in found.runs] == [39, 39, 124, 124]
    assert [fields["seed"] for _, fields in found.runs] == [3, 4, 3, 4]


def test_options_win_over_what_holds_for_all_but_not_over_an_axis(tmp_path: Path) -> None:
    text = "prompts: [a fox]\nwidth: 192\nsteps: [1, 2]\n"

    assert plan(tmp_path, text, width=64).runs[0][1]["width"] == 64
    with pytest.raises(SweepInputError, match="steps is an axis of the file and an option"):
        plan(tmp_path, text, steps=4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("promps: [a]\n", r"unknown field 'promps' \(did you mean 'prompts'\?\)"),
        ("prompts: [a]\naxes: {step: [1]}\n", r"unknown field 'step' \(did you mean 'steps'\?\)"),
        ("prompts: [a]\nzzz: 1\n", "unknown field 'zzz'; there are prompts, seeds, axes"),
        ("prompts: [a]\nsteps: 1\nsteps: 2\n", "line 3: 'steps' stands twice"),
        ("prompts: [a]\n<<: {steps: 4}\n", "line 2: merge keys"),
        ("prompts: [a]\nlabels: {x: &x [y], z: *x}\n", "line 2: aliases"),
        ("prompts: [a]\n? [a]\n: 3\n", 'in "sweep.yaml", line 2'),
        ("prompts: [a]\naxes: {steps: 4}\n", "steps needs a list of values"),
        ("prompts: [a]\naxes: {steps: []}\n", "steps needs a list of values"),
        ("prompts: [a]\naxes: {steps: [4, 4]}\n", "the same value twice"),
        ("prompts: [a]\nsteps: 2\naxes: {steps: [4]}\n", "both at the top and under axes"),
        ("prompts: [a]\naxes: [steps]\n", "expected job fields"),
        ("prompts: [true]\n", "prompt 1 is no text but True"),
        ("prompts: []\n", "the list is empty"),
        ("seeds: 4\n", "no prompts"),
        ("prompts: [a]\nprompt: b\n", "prompts in one place"),
        ("prompts: missing.txt\n", r"cannot read the prompts file .*missing\.txt"),
        ("prompts: [a]\nseeds: x\n", "give a count such as 4"),
        ("prompts: [a]\nseeds: [1, 1]\n", "the same seed twice"),
        ("prompts: [a]\nseeds: [-1]\n", "whole numbers from 0"),
        ("prompts: [a]\nseeds: 0\n", "0 seeds; a sweep has 1 to 100,000"),
        ("prompts: [a]\nseeds: [1]\nseed: 2\n", "a base seed has no meaning"),
        ("prompts: [a]\nseeds: 2\naxes: {seed: [1]}\n", "say the same"),
        ("prompts: [a]\nseconds: 5\nframes: 124\n", "frames and seconds say the same"),
        ("prompts: [a]\nseconds: 99\n", "a film lasts up to 15.08 seconds"),
        ("prompts: [a]\nseconds: x\n", "seconds is 'x'"),
        ("prompts: [a]\npriority: urgent\n", "high, normal, low"),
        ("prompts: [a]\nlabels: x\n", "labels: expected names"),
        ("prompts: [a]\nforce: 1\n", "force is 1; write true or false"),
        ('prompts: [a]\nforce: "off"\n', "force is 'off'; write true or false"),
        ("prompts: [a]\nseeds: [7.0]\n", "whole numbers from 0"),
        ("prompts: [a]\nseed: 7.0\n", "seed is 7.0"),
        ("- a\n", "expected names and values, found list"),
        ("prompts: [a\n", "not valid YAML"),
        ("prompts: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("prompts: [a, b]\nseeds: 50001\n", "100,002 runs are more than the 100,000"),
    ],
)
def test_a_slip_of_the_pen_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SweepInputError, match=said) as caught:
        plan(tmp_path, text)

    assert "sweep.yaml" in str(caught.value) or "missing.txt" in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"prompts": NaN}', '{"prompts": ["a"], "prompts": ["b"]}', "[]"])
def test_bad_json_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(SweepInputError, match=r"sweep\.json"):
        plan(tmp_path, text, name="sweep.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SweepInputError, match=r"cannot read the sweep file .*none\.yaml: No such file"):
        read_sweep_file(tmp_path / "none.yaml", fields={})


@pytest.mark.parametrize("where", ["labels: {x: ", "axes: {loras: ", "prompts: ["])
def test_aliases_that_multiply_are_refused_at_once(tmp_path: Path, where: str) -> None:
    names = [f"n{number}" for number in range(40)]
    layers = "".join(f", &{n} [*{m}, *{m}]" for m, n in pairwise(names))

    with pytest.raises(SweepInputError, match="aliases"):
        plan(tmp_path, f"{where}[&n0 [x, x]{layers}]" + ("]" if where.endswith("[") else "}"))
