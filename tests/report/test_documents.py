"""Documents about one run: everything in them is the run's, every promise is stated, and what is unknown says who must fill it in."""

import json
import re
import shutil
import subprocess

import pytest
import torch
from headless import CHROMIUM
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.accounting.run_filter import GaussianRuns
from apportion.errors import InvalidArgument
from apportion.reporting.documents import SUFFIXES, format_statement, write_statement
from apportion.reporting.run_facts import RunFacts, read_facts
from apportion.reporting.statement_page import make_statement_page
from apportion.reporting.statement_registry import FILL_IN

DATA = (torch.randn(40, 3), torch.randint(0, 2, (40,)))
RECORD = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())

# The names and nesting of opendp/deployments-registry-data, schemas/deployments-schema.yaml.
REGISTRY = {
    "basic": {
        *("name", "data_curators", "intended_use", "data_product_type", "data_product_region", "description"),
        *("publication_date", "data_product_sector"),
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        "privacy_unit",
        "privacy_unit_details",
        "privacy_parameters",
        "privacy_parameters_details",
    },
    "deployment_model": {
        *("model_name", "model_name_details", "actors", "release_type", "release_type_details"),
        *("data_source_type", "data_source_type_details", "access_type", "access_type_details"),
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"},
    "administrative": {"sources", "notes", "registry_authors"},
}
CHOICES = {
    "data_product_type": {"Summary statistics", "Machine learning model", "Dataset", "Synthetic data"},
    "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
    "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
    "release_type": {"One release", "Many releases"},
    "data_source_type": {"Static", "Dynamic"},
    "access_type": {"Interactive", "Non-interactive"},
}


def train(budget=RECORD, *, recipe="abadi", spare=1, storage=None, seed=None):
    plan = ap.plan(recipe, budget=budget, population=40, sample_rate=0.25, steps=3, spare=spare)
    model, public = torch.nn.Linear(3, 2), ap.Public((DATA[0][:10], DATA[1][:10]))
    return ap.train(model, cross_entropy, DATA, plan, lr=0.1, storage=storage, evaluate=public, seed=seed)


@pytest.fixture(scope="module")
def run():
    return train()


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    return run.save(tmp_path_factory.mktemp("kept") / "ward-7")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """The second of two runs on a data set with a ledger."""
    path = tmp_path_factory.mktemp("shared") / "patients.sqlite"
    limit = ap.Budget(epsilon=8.0, delta=1e-4, unit=ap.Record())
    ap.Ledger.create(path, name="patients & <co>", rule=GaussianRuns(limit)).close()
    train(storage=ap.Storage(ledger=path))
    return train(storage=ap.Storage(ledger=path))


@pytest.fixture(scope="module")
def grouped():
    groups = {"strict": (1.0, 0.5), "usual": (3.0, 0.5)}
    labels = ["strict", "usual"] * 20
    return train(ap.Budget.of_groups(groups, delta=1e-5, unit=ap.Record(), labels=labels), spare=0)


def answers(run):
    return json.loads(format_statement(run, "nist"))


def entry(run):
    return json.loads(format_statement(run, "registry"))["deployment"]


def test_every_document_states_the_whole_plan_and_not_the_steps_taken(run):
    said = run.statement()
    assert said["epsilon"] > said["epsilon_spent"]  # a spare step was declared
    assert answers(run)["guarantee"]["privacy_parameters"]["epsilon"] == said["epsilon"]
    assert entry(run)["privacy_loss"]["privacy_parameters"] == {"epsilon": said["epsilon"], "delta": 1e-5}
    assert [promise[1] for promise in read_facts(run).promises()] == [said["epsilon"]]
    shown = f"{said['epsilon']:.3f}"
    assert shown in format_statement(run, "html")
    assert shown in format_statement(run, "card")


def test_with_a_ledger_the_limit_of_all_runs_stands_beside_the_run(second):
    promises = list(read_facts(second).promises())
    assert [round(epsilon, 4) for _, epsilon, _ in promises] == [round(second.statement()["epsilon"], 4), 8.0]
    assert promises[1][2] == 1e-4
    for text in (
        answers(second)["guarantee"]["other_releases"]["answer"],
        entry(second)["accounting"]["composition"],
    ):
        assert "ε = 8, δ = 0.0001" in text
        assert "run 2 of 2" in text
    assert entry(second)["deployment_model"]["release_type"] == "Many releases"
    assert "this ε covers this run alone" not in format_statement(second, "html")


def test_without_a_ledger_nothing_is_said_about_other_runs(run):
    assert "covers this run alone" in answers(run)["guarantee"]["other_releases"]["answer"]
    assert entry(run)["deployment_model"]["release_type"] == "One release"


def test_groups_have_their_own_promises(grouped):
    said = {group["name"]: group["epsilon"] for group in grouped.statement()["groups"]}
    promises = answers(grouped)["guarantee"]["privacy_parameters"]["promises"]
    assert [one["for"] for one in promises] == [
        "this run, any record",
        "this run, group strict",
        "this run, group usual",
    ]
    assert [one["epsilon"] for one in promises[1:]] == [said["strict"], said["usual"]]
    assert promises[0]["epsilon"] >= max(said.values())


def test_under_a_filter_the_declared_epsilon_is_stated():
    found = train(recipe="dp-agd", spare=0)
    assert entry(found)["privacy_loss"]["privacy_parameters"]["epsilon"] == 3.0
    assert "private selections" in entry(found)["implementation"]["mechanisms"]


def test_users_are_protected_as_users():
    ids = [number // 4 for number in range(40)]
    found = train(ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.User(ids)))
    unit = answers(found)["guarantee"]["unit_of_privacy"]
    assert unit["unit"] == "user"
    assert unit["level"].startswith("user level")
    assert "clipped as one vector" in entry(found)["privacy_loss"]["privacy_unit_details"]


def test_a_seeded_run_promises_nothing():
    found = train(seed=1)
    assert answers(found)["guarantee_holds"] is False
    assert "Not private" in format_statement(found, "html")
    assert "not private" in format_statement(found, "card")
    assert '"guarantee_holds": false' in format_statement(found, "card")
    with pytest.raises(InvalidArgument, match="no deployment of differential privacy"):
        format_statement(found, "registry")


def test_the_registry_entry_has_the_names_of_the_schema(run, second, grouped):
    for one in (run, second, grouped):
        whole = json.loads(format_statement(one, "registry"))
        assert set(whole) == {"url_slug", "status", "tier", "deployment"}
        assert (whole["status"], whole["tier"]) == ("Draft", 3)
        assert set(whole["deployment"]) == set(REGISTRY)
        for part, fields in whole["deployment"].items():
            assert set(fields) <= REGISTRY[part]
            for name, value in fields.items():
                assert value in CHOICES.get(name, (value,))


def test_what_the_run_cannot_know_says_who_must_fill_it_in(run):
    fields = entry(run)
    for part, name in (
        ("basic", "intended_use"),
        ("implementation", "justification"),
        ("deployment_model", "actors"),
    ):
        assert re.match(rf"{FILL_IN} \((the data curator|whoever .*)\): ", fields[part][name])
    text = format_statement(run, "nist")
    assert text.count('"who": ') >= 8
    assert "To be filled in" in format_statement(run, "card")
    assert "To be filled in" in format_statement(run, "html")


def test_the_card_begins_with_front_matter_that_names_cannot_break(second):
    card = format_statement(second, "card")
    start, front, rest = card.split("---\n", 2)
    assert start == ""
    keys = [line.partition(": ")[0] for line in front.splitlines()]
    assert keys == ["library_name", "tags", "differential_privacy", "model-index"]
    values = {
        key: json.loads(line.partition(": ")[2]) for key, line in zip(keys[1:], front.splitlines()[1:], strict=True)
    }
    assert values["differential_privacy"]["all_runs_on_the_data"] == {"epsilon": 8.0, "delta": 1e-4}
    assert values["model-index"][0]["results"][0]["metrics"][0]["value"] == second.history[-1].test_accuracy
    assert "<co>" not in rest.replace("\\<co>", "")


def test_names_are_escaped_on_the_page(second):
    page = format_statement(second, "html")
    assert "patients &amp; &lt;co&gt;" in page
    assert "<co>" not in page


def test_a_folder_is_the_same_as_the_run(run, folder):
    theirs = answers(folder)
    assert theirs["run"]["name"] == "ward-7"
    assert len(theirs["run"]["weights_sha256"]) == 64
    assert theirs["guarantee"] == answers(run)["guarantee"]


@pytest.mark.parametrize("form", SUFFIXES)
def test_files_have_the_suffix_of_their_form(folder, tmp_path, form):
    path = write_statement(folder, tmp_path / f"new/one{SUFFIXES[form]}", form)
    assert path.read_text(encoding="utf-8") == format_statement(folder, form)
    with pytest.raises(InvalidArgument, match="End it in"):
        write_statement(folder, tmp_path / "one.pdf", form)
    assert not (tmp_path / "one.pdf").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("privacy.json", "{}"),
        ("privacy.json", "[]"),
        ("privacy.json", '{"epsilon": "x"'),
        ("privacy.json", '{"method": "PATE"}'),
        ("configuration.json", "{}"),
        ("configuration.json", '{"plan": 3}'),
        ("history.json", "{}"),
    ],
)
def test_a_damaged_folder_is_refused(folder, tmp_path, name, content):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "public" / name).write_text(content, encoding="utf-8")
    for form in SUFFIXES:
        with pytest.raises(InvalidArgument):
            format_statement(copy, form)


def test_what_is_no_run_is_refused(tmp_path):
    for wrong in (3, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidArgument):
            format_statement(wrong)


def crowded(facts):
    """A statement with everything that can be on it."""
    group = {"share": 0.125, "budget": 3.0, "epsilon_spent": 2.0, "sample_rate": 0.2, "clip_scale": 0.5, "epsilon": 2.5}
    groups = [group | {"name": f"people of kind {number}"} for number in range(8)]
    shared = {
        "name": "patients of the north",
        "limit_epsilon": 3.0,
        "limit_delta": 1e-6,
        "unit": "user",
        "rule": "gaussian",
    }
    shared |= {"run": 3, "runs_admitted": 7, "epsilon_admitted": 1.2, "left": "some", "ledger_head": "a" * 64}
    users = {
        "rule": "the mean of the gradients of a user's records is clipped as one vector, and counted once. " * 3,
        "k_max": 9,
    }
    more = {"groups": groups, "data_set": shared, "users": users, "assumptions": ["nothing was published " * 4] * 3}
    more |= {"search": {"expected_trials": 10, "distribution": "logarithmic", "shape": 0}}
    return RunFacts(
        dict(facts.statement) | more, facts.configuration, 0.9, "a run with a rather long name", "digits", "mlp"
    )


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_prints_on_one_sheet(folder, tmp_path):
    for number, facts in enumerate((read_facts(folder), crowded(read_facts(folder)))):
        page, printed = tmp_path / f"{number}.html", tmp_path / f"{number}.pdf"
        page.write_text(make_statement_page(facts), encoding="utf-8")
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--user-data-dir={tmp_path}/c",
        )
        subprocess.run([CHROMIUM, *options, f"--print-to-pdf={printed}", str(page)], check=True, capture_output=True)
        assert len(re.findall(rb"/Type /Page\b", printed.read_bytes())) == 1


def test_a_regression_states_its_metric():
    plan = ap.plan("abadi", budget=RECORD, population=40, sample_rate=0.25, steps=2)
    data = (DATA[0], DATA[1].float())
    found = ap.train(torch.nn.Linear(3, 1), "mse", data, plan, lr=0.1, evaluate=ap.Public(data))
    utility = answers(found)["algorithms"]["utility"]
    assert utility["metric"] == {"metric": "rmse", "better": "lower"}
    assert utility["score_on_public_data"] == found.history[-1].score
    card = format_statement(found, "card")
    assert f"rmse {found.history[-1].score:.4g}; lower is better" in card
    assert '"type": "regression"' in card
    assert f"rmse {found.history[-1].score:.4g}" in format_statement(found, "html")
