"""Groups with budgets of their own, and users, on the command line."""

import json

import pytest

GROUPS = ("--group", "strict:1.0:0.34", "--group", "medium:2.0:0.43", "--group", "loose:3.0:0.23")
PLAN = (
    "plan",
    "--delta",
    "1e-5",
    "--steps",
    "30",
    "--sample-rate",
    "0.1",
    "--recipe",
    "abadi",
    "--unit",
    "record",
    "--population",
    "5000",
)
TRAIN = (
    "train",
    "--data",
    "digits",
    "--recipe",
    "abadi",
    "--delta",
    "1e-5",
    "--steps",
    "6",
    "--population",
    "1437",
    "--json",
)


@pytest.mark.parametrize("people", ["sample", "scale", "uniform"])
def test_a_plan_says_what_each_group_gets_and_pays(apportion, people):
    code, out, _ = apportion(*PLAN, "--people", people, *GROUPS, "--json")
    assert code == 0
    groups = json.loads(out.splitlines()[-1])["groups"]
    assert [group["name"] for group in groups] == ["strict", "medium", "loose"]
    assert [group["share"] for group in groups] == [0.34, 0.43, 0.23]
    for group, budget in zip(groups, (1.0, 2.0, 3.0), strict=True):
        allowed = 1.0 if people == "uniform" else budget
        assert 0.99 * allowed <= group["epsilon"] <= allowed
        assert group["spent"][-1][1] == pytest.approx(group["epsilon"])
    rates, clips = [group["sample_rate"] for group in groups], [group["clip_scale"] for group in groups]
    assert (len(set(rates)), len(set(clips))) == {"sample": (3, 1), "scale": (1, 3), "uniform": (1, 1)}[people]


def test_groups_without_names_are_called_by_their_epsilon(apportion):
    code, out, _ = apportion(*PLAN, "--group", "1:0.5", "--group", "2.5:0.5", "--json")
    assert code == 0
    assert [group["name"] for group in json.loads(out.splitlines()[-1])["groups"]] == ["1", "2.5"]


def test_a_run_with_groups_keeps_every_budget(apportion, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(["strict", "medium", "loose"][number % 3] for number in range(1437)))
    out = tmp_path / "run"
    code, shown, said = apportion(
        *TRAIN, "--unit", "record", *GROUPS, "--people", "sample", "--group-labels", str(labels), "--out", str(out)
    )
    assert code == 0, said
    found = json.loads(shown.splitlines()[-1])["groups"]
    assert all(0.9 * group["budget"] < group["epsilon"] <= group["budget"] for group in found)
    assert "strict" in (out / "public" / "privacy.md").read_text()
    history = json.loads((out / "public" / "history.json").read_text())
    assert set(history[-1]["group_epsilon"]) == {"strict", "medium", "loose"}
    for path in (out / "public").iterdir():
        assert "labels.txt" not in path.read_bytes().decode(errors="replace")
    code, shown, _ = apportion("train", "--resume", str(out), "--json")
    assert code in (0, 2), "a run that has ended is not taken further"


def test_a_run_by_users(apportion, tmp_path):
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(str(number // 3) for number in range(1437)))
    arguments = (
        "--unit",
        "user",
        "--epsilon",
        "5",
        "--population",
        "479",
        "--user-ids",
        str(ids),
        "--k-max",
        "2",
        "--sample-rate",
        "0.05",
    )
    code, shown, said = apportion(*TRAIN, *arguments, "--out", str(tmp_path / "run"))
    assert code == 0, said
    assert json.loads(shown.splitlines()[-1])["unit"] == "user"
    assert "keyed hash" in (tmp_path / "run" / "public" / "privacy.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group", "1.0"), "EPSILON:SHARE"),
        (("--group", "0:0.5", "--group", "1:0.5"), "group.epsilon"),
        (("--group", "1:0", "--group", "2:1"), "group.share"),
        (("--group", "1:0.5", "--group", "2:0.2"), "add up to 0.7"),
        (("--group", "1:0.5", "--group", "2:0.5", "--epsilon", "3"), "the groups have their own"),
        (("--group", "1:0.5", "--group", "2:0.5", "--people", "half"), "people='half'"),
        (("--people", "sample", "--epsilon", "3"), "there are none"),
        (("--epsilon", "3", "--k-max", "4"), "the unit of privacy is the record"),
    ],
)
def test_bad_groups_are_one_line(apportion, arguments, message):
    code, _, said = apportion(*PLAN, *arguments)
    assert code == 2
    assert message in " ".join(said.split())
    assert len(said.strip().splitlines()) == 1


def test_groups_need_labels_and_users_need_ids(apportion, tmp_path):
    code, _, said = apportion(*TRAIN, "--unit", "record", *GROUPS, "--out", str(tmp_path / "run"))
    assert (code, "group-labels" in said) == (2, True)
    short = tmp_path / "labels.txt"
    short.write_text("strict\n")
    code, _, said = apportion(
        *TRAIN, "--unit", "record", *GROUPS, "--group-labels", str(short), "--out", str(tmp_path / "run")
    )
    assert (code, "one entry for each record" in said) == (2, True)
    code, _, said = apportion(*TRAIN, "--unit", "user", "--epsilon", "3", "--out", str(tmp_path / "run"))
    assert (code, "user-ids" in said) == (2, True)
    assert not (tmp_path / "run" / "secret").exists()
