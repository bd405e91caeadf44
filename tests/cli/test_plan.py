"""`plan` on the command line gives what plan() gives."""

import json

import pytest

import optimum_neuron_torch as ont


@pytest.fixture
def sizes(tmp_path) -> str:
    path = tmp_path / "sizes.csv"
    path.write_text("batch,sequence\n1,5\n2,6\n4,60\n4,61\n1,120\n")
    return str(path)


def test_a_table(run_cli, sizes):
    outcome = run_cli("neuron", "plan", sizes, "--graphs", "4")
    assert outcome.code == 0 and outcome.out.strip() == str(ont.plan(sizes, graphs=4)).strip()
    assert [word for word in ("batch", "sequence", "powers of two", "bound") if word not in outcome.out] == []


def test_json_and_a_picture(run_cli, sizes, tmp_path):
    picture = tmp_path / "plan.png"
    outcome = run_cli("neuron", "plan", sizes, "--json", "--plot", str(picture))
    made = json.loads(outcome.out)
    assert ont.Buckets.from_dict(made["buckets"]) == ont.plan(sizes).buckets
    assert made["observations"] == 5 and made["graphs"] <= 6 and made["bound"] <= made["waste"]
    assert picture.stat().st_size > 5_000 and str(picture) in outcome.err


def test_limits_alone(run_cli):
    made = json.loads(run_cli("neuron", "plan", "--limits", "20", "100", "--batch-limits", "1", "4", "--json").out)
    assert (made["batches"], made["sizes"], made["waste"]) == ([1, 2, 4], [32, 64, 100], None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs observed sizes"),
        (["nowhere.json"], "nowhere.json"),
        (["--batch-limits", "1", "2"], "--limits"),
        (["--limits", "5", "2"], "smallest <= largest"),
        (["--limits", "5", "9", "--plot", "x.png"], "nothing to draw"),
    ],
)
def test_bad_input_is_a_message(run_cli, arguments, message):
    outcome = run_cli("neuron", "plan", *arguments)
    assert outcome.code == 1
    assert outcome.err.startswith("optimum-cli neuron plan: ") and message in outcome.err
