"""The search for thresholds, with a made-up trainer, and with the real one on digits."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.compare import networks as models
from apportion.curator import mechanisms
from apportion.data import load
from apportion.search import SearchSettings, Trace, candidates, fit_decay, search
from apportion.search.candidates import Outcome
from apportion.search.search_progress import expected_trials
from apportion.search.search_rules import Fast, Greedy, Trial, best_of
from apportion.search.trainer import PublicTrainer, open_trainer
from apportion.training.packing import pack, unpack


def hill(threshold, top=0.3, slope=1.0):
    """Rises to 0.9 at `top`, then falls."""
    return 0.9 - slope * abs(threshold - top)


class MadeUp:
    """A state is the list of thresholds that led to it; the accuracy is a function of the last one and the epoch."""

    def __init__(self, accuracy=hill, fail_after=None):
        self.accuracy, self.left = accuracy, fail_after
        self.calls = []

    def initial(self, seed):
        return json.dumps([]).encode()

    def train_epoch(self, state, threshold, seed):
        if self.left is not None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        self.calls.append((state, threshold, seed))
        path = [*json.loads(state), threshold]
        accuracy = self.accuracy(threshold, len(path)) if self.accuracy is falling else self.accuracy(threshold)
        return Outcome(json.dumps(path).encode(), accuracy)


def falling(threshold, epoch):
    return hill(threshold, top=0.3 / epoch)


def settings_of(rule=None, **others):
    return SearchSettings(**{"data": "made-up", "noise_multiplier": 1.0, "runs": 1, "rule": rule or Greedy()} | others)


def run(settings, trainer, **others):
    return search(Trace(settings), lambda: trainer, **others)


def trials(*scores, start=0.05, step=0.01):
    return [Trial(1, 1, start + number * step, score) for number, score in enumerate(scores)]


# --- the rule of Lin et al.


def test_greedy_finds_the_top_and_stops_at_the_first_fall():
    rule, trainer = Greedy(tolerance=0.025), MadeUp()
    trace = run(settings_of(rule), trainer)
    assert trace.thresholds == [0.3]
    assert [trial.threshold for trial in trace.trials] == [round(0.05 + 0.01 * k, 12) for k in range(29)]
    assert 0.9 - hill(trace.trials[-1].threshold) > rule.tolerance >= 0.9 - hill(trace.trials[-2].threshold)
    assert len(trainer.calls) == len(trace.trials)  # no epoch was trained for nothing


def test_a_candidate_exactly_s_below_the_best_does_not_end_the_search():
    rule = Greedy(tolerance=0.02)
    assert 0.9 - 0.88 > 0.02  # in floats
    assert rule.upcoming(trials(0.9, 0.88))
    assert rule.upcoming(trials(0.9, 0.8799)) == []


def test_the_best_counts_and_not_the_last_but_one():
    rule = Greedy(tolerance=0.02)
    assert rule.upcoming(trials(0.9, 0.885, 0.881))
    assert rule.upcoming(trials(0.9, 0.885, 0.87)) == []


def test_a_rise_never_ends_the_search():
    assert Greedy().upcoming(trials(0.1, 0.5, 0.9))


def test_ties_keep_the_smaller_threshold():
    assert best_of(trials(0.5, 0.9, 0.9)).threshold == 0.060000000000000005
    assert best_of(list(reversed(trials(0.5, 0.9, 0.9)))).threshold == 0.060000000000000005


def test_candidates_are_multiples_and_not_sums():
    rule = Greedy(start=0.05, step=0.01, maximum=2.0)
    candidates = rule.upcoming([])
    assert candidates[:3] == [0.05, 0.06, 0.07]
    assert candidates[-1] == 2.0
    assert len(candidates) == rule.most == 196


def test_without_a_fall_the_search_ends_at_the_maximum_and_says_so():
    with pytest.warns(
        UserWarning, match=r"ended at maximum=0.2, and no candidate scored more than 0.02 below the best"
    ):
        trace = run(settings_of(Greedy(maximum=0.2)), MadeUp())
    assert trace.thresholds == [0.2]
    assert len(trace.trials) == 16


def test_if_all_score_nothing_the_start_is_returned_and_the_model_stays():
    trainer = MadeUp(lambda threshold: 0.0)
    with pytest.warns(UserWarning, match="maximum"):
        trace = run(settings_of(Greedy(maximum=0.1), epochs=2), trainer)
    assert trace.thresholds == [0.05, 0.05]
    assert {state for state, *_ in trainer.calls} == {b"[]"}


# --- epochs and runs


def test_every_candidate_starts_from_the_best_model_of_the_epoch_before():
    trainer = MadeUp(falling)
    trace = run(settings_of(epochs=3), trainer)
    assert trace.thresholds == [0.3, 0.15, 0.1]
    assert list(dict.fromkeys(state for state, *_ in trainer.calls)) == [b"[]", b"[0.3]", b"[0.3, 0.15]"]
    assert len(trainer.calls) == len(trace.trials)  # the best model of an epoch was kept, not trained again


def test_runs_repeat_the_first_epoch_only_and_their_mean_is_the_start():
    tops = iter([0.2, 0.2, 0.3, 0.4])  # two epochs of run 1, then runs 2 and 3

    class Lucky(MadeUp):
        def train_epoch(self, state, threshold, seed):
            if threshold == 0.05:
                self.top = next(tops)
            return Outcome(state, hill(threshold, self.top))

    trace = run(settings_of(epochs=2, runs=3), Lucky())
    assert trace.thresholds == [0.2, 0.2]
    assert trace.first_thresholds == [0.2, 0.3, 0.4]
    assert trace.content()["start"] == pytest.approx(0.3)
    assert {(trial.run, trial.epoch) for trial in trace.trials} == {(1, 1), (1, 2), (2, 1), (3, 1)}


def test_greedy_has_fresh_noise_for_each_candidate_and_fast_the_same_for_all():
    greedy, fast = MadeUp(), MadeUp()
    run(settings_of(runs=2), greedy)
    run(settings_of(Fast(), runs=2), fast)
    seeds = [seed for *_, seed in greedy.calls]
    assert len(set(seeds)) == len(seeds)
    assert len({seed for *_, seed in fast.calls}) == 2


# --- our own rule


@pytest.mark.parametrize("top", [0.05, 0.06, 0.1, 0.3, 0.7, 1.9, 2.0])
def test_fast_comes_close_with_ten_candidates(top):
    rule, tried = Fast(), []
    while ahead := rule.upcoming(tried):
        tried.append(Trial(1, 1, ahead[0], 0.9 - 0.1 * abs(math.log(ahead[0] / top))))
    assert len(tried) == 10 == len({trial.threshold for trial in tried})
    assert all(0.05 <= trial.threshold <= 2.0 for trial in tried)
    assert abs(math.log(best_of(tried).threshold / top)) < 0.14


def test_fast_with_nothing_to_choose_or_nothing_to_learn():
    assert Fast(start=1.0, maximum=1.0).upcoming([]) == [1.0]
    assert Fast(start=1.0, maximum=1.0).upcoming([Trial(1, 1, 1.0, 0.5)]) == []
    grid = Fast().upcoming([])
    assert Fast().upcoming([Trial(1, 1, threshold, 0.0) for threshold in grid]) == []


def test_fast_says_when_the_largest_was_the_best():
    with pytest.warns(UserWarning, match="the largest candidate was the best"):
        run(settings_of(Fast(maximum=0.2)), MadeUp())


# --- the file


def test_an_interrupted_search_goes_on_and_ends_with_the_same_file(tmp_path):
    settings = settings_of(epochs=3, runs=2)
    whole = search(Trace(settings, tmp_path / "whole"), lambda: MadeUp(falling))
    path = tmp_path / "parts"
    for count in (5, 1, 30, 20):
        with pytest.raises(KeyboardInterrupt):
            search(Trace.open(path, settings), lambda count=count: MadeUp(falling, fail_after=count))
        with pytest.raises(ap.InvalidArgument, match="holds no thresholds"):
            ap.clip.Sequence(file=path)  # half a search is of no use
    search(Trace.open(path, settings), lambda: MadeUp(falling))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert ap.clip.Sequence(file=path).thresholds == tuple(whole.thresholds) == (0.3, 0.15, 0.1)


def test_a_search_that_has_ended_trains_nothing(tmp_path):
    settings, again = settings_of(epochs=2), MadeUp(falling)
    search(Trace(settings, tmp_path / "f"), lambda: MadeUp(falling))
    assert search(Trace.open(tmp_path / "f", settings), lambda: again).thresholds == [0.3, 0.15]
    assert again.calls == []


def test_going_on_elsewhere_is_refused(tmp_path):
    settings = settings_of(epochs=2)
    with pytest.raises(KeyboardInterrupt):
        search(Trace(settings, tmp_path / "f"), lambda: MadeUp(fail_after=30))
    with pytest.raises(ap.InvalidArgument, match="scored 90.0000% and, repeated here, 89.0000%"):
        search(Trace.open(tmp_path / "f", settings), lambda: MadeUp(lambda threshold: hill(threshold) - 0.01))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "has seed = 0, and now it is 1"),
        ({"rule": Greedy(step=0.02)}, "has rule ="),
        ({"rule": Fast()}, "has rule ="),
        ({"epochs": 2}, "has epochs = 1, and now it is 2"),
        ({"public": True}, "has public = False"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, words):
    run_in = Trace(settings_of(), tmp_path / "f")
    search(run_in, MadeUp)
    with pytest.raises(ap.InvalidArgument, match=words):
        Trace.open(tmp_path / "f", settings_of(**change))


def test_a_damaged_file_is_refused(tmp_path):
    path, settings = tmp_path / "f", settings_of()
    search(Trace(settings, path), MadeUp)
    content = json.loads(path.read_text())
    for text in ("", "[]", "{", json.dumps({**content, "trace": [1]}), "[0.3, 0.2]"):
        path.write_text(text)
        with pytest.raises(ap.InvalidArgument, match="it is no file of a search"):
            Trace.open(path, settings)
    path.write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(ap.InvalidArgument, match="its format is 2"):
        Trace.open(path, settings)
    content["trace"][3]["threshold"] = 0.5
    path.write_text(json.dumps(content))
    with pytest.raises(ap.InvalidArgument, match="its trial of 0.5 in epoch 1 is not what this search tries there"):
        search(Trace.open(path, settings), MadeUp)


def test_the_expected_length_follows_the_epochs_that_are_over():
    settings = settings_of(Greedy(maximum=0.5), epochs=4, runs=3)
    trace = Trace(settings)
    assert expected_trials(trace) == 46 * 6
    trace.trials += [Trial(1, 1, 0.1, 0.5)] * 10 + [Trial(1, 2, 0.1, 0.5)]
    assert expected_trials(trace) == 60


# --- what it does to bad input


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: settings_of(noise_multiplier=0), "noise_multiplier=0.*private run"),
        (lambda: settings_of(runs=0), "runs=0"),
        (lambda: settings_of(epochs=1.5), "epochs=1.5"),
        (lambda: settings_of(optimizer="sdg"), "Did you mean 'sgd'"),
        (lambda: Greedy(step=0), "step=0"),
        (lambda: Greedy(tolerance=0), "tolerance=0"),
        (lambda: Greedy(maximum=0.01), "maximum=0.01: it lies below start=0.05"),
        (lambda: Fast(maximum=math.inf), "maximum=inf"),
        (lambda: run(settings_of(), MadeUp(), processes=0), "processes=0"),
        (lambda: fit_decay([0.3]), "epochs=1: a decay cannot be fitted to one threshold"),
    ],
)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        make()


# --- the fit


@pytest.mark.parametrize(("start", "power"), [(0.3, 0.5), (2.0, 0.9), (0.1, -0.2), (0.1, 1.2)])
def test_the_fit_recovers_a_decay(start, power):
    found = fit_decay([start / epoch**power for epoch in range(1, 8)])
    assert found.start == pytest.approx(start)
    assert found.power == pytest.approx(power)
    assert found.decays is (0 < power < 1)


def test_the_fit_has_the_least_squares_in_logarithms():
    thresholds = [0.5, 0.2, 0.3, 0.1, 0.12]

    def squares(start, power):
        return sum(math.log(c / start * t**power) ** 2 for t, c in enumerate(thresholds, start=1))

    found = fit_decay(thresholds)
    least = squares(found.start, found.power)
    for other in ((1.01, 0), (0.99, 0), (1, 0.01), (1, -0.01)):
        assert squares(found.start * other[0], found.power + other[1]) > least


# --- the real trainer

DIGITS = {"data": "digits", "model": "linear", "batch_size": 256, "noise_multiplier": 2.0}


@pytest.fixture(scope="module")
def momentum_trainer():
    return open_trainer(settings_of(**DIGITS, optimizer="momentum", lr=0.5))


def test_a_candidate_is_an_epoch_of_the_librarys_own_training(momentum_trainer):
    data, initial = load("digits"), momentum_trainer.initial(3)
    outcome = momentum_trainer.train_epoch(initial, 0.7, seed=11)
    model = models.build("linear", data)
    model.load_state_dict(unpack(initial)["model"])
    runs.train(
        *(model, cross_entropy, data.train),
        budget=ap.Budget(epsilon=1e6, delta=1e-5, unit=ap.Record()),
        population=len(data.train[0]),
        batch_size=256,
        epochs=1,
        count_usable=False,
        lr=0.5,
        optimizer="momentum",
        clip=ap.clip.Fixed(0.7),
        noise=ap.noise.Constant(multiplier=2.0),
        seed=11,
    )
    found = unpack(outcome.state)["model"]
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_model_and_optimiser_are_restored_for_every_candidate(momentum_trainer):
    first = momentum_trainer.train_epoch(momentum_trainer.initial(0), 0.5, seed=1)
    buffers = unpack(first.state)["optimizer"]["state"]
    assert buffers[0]["momentum_buffer"].abs().sum() > 0
    one = momentum_trainer.train_epoch(first.state, 0.5, seed=2)
    momentum_trainer.train_epoch(first.state, 0.9, seed=3)
    assert momentum_trainer.train_epoch(first.state, 0.5, seed=2) == one

    forgetful = unpack(first.state)
    forgetful["optimizer"]["state"] = {}
    assert momentum_trainer.train_epoch(pack(forgetful), 0.5, seed=2).state != one.state


def test_threads_weights_and_generator_are_as_before(momentum_trainer):
    torch.manual_seed(5)
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    initial = momentum_trainer.initial(0)
    assert initial == momentum_trainer.initial(0) != momentum_trainer.initial(1)
    momentum_trainer.train_epoch(initial, 0.5, seed=1)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads


def test_the_noise_is_that_of_the_mechanism(momentum_trainer, monkeypatch):
    deviations = []

    def recorded(exact_sum, standard_deviation, *rest):
        deviations.append(standard_deviation)
        return gaussian(exact_sum, standard_deviation, *rest)

    gaussian = mechanisms.add_gaussian_noise
    monkeypatch.setattr(mechanisms, "add_gaussian_noise", recorded)
    momentum_trainer.train_epoch(momentum_trainer.initial(0), 0.3, seed=1)
    assert len(deviations) == 2 * round(1437 / 256)  # weight and bias, at every step of one epoch
    assert len(set(deviations)) == 1
    assert 2.0 * 0.3 <= deviations[0] <= 2.0 * 0.3 * 1.001


def test_what_is_trained_ahead_and_dropped_changes_nothing(tmp_path, monkeypatch):
    def threads(count, start, make):
        return ThreadPoolExecutor(count, initializer=start, initargs=(make,))

    monkeypatch.setattr(candidates, "process_pool", threads)
    monkeypatch.setattr(candidates, "_trainer", None)
    settings, trained = settings_of(Greedy(start=0.1, step=0.05, tolerance=0.025), epochs=3), []
    files = [tmp_path / "one", tmp_path / "two"]
    for path, processes in zip(files, (1, 2), strict=True):
        trainer = MadeUp(falling)
        trace = search(Trace(settings, path), lambda trainer=trainer: trainer, processes=processes)
        trained.append(len(trainer.calls))
    assert trained[0] == len(trace.trials) < trained[1]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(tmp_path):
    settings = settings_of(Greedy(start=0.2, step=0.2, tolerance=0.001, maximum=9.0), **DIGITS, epochs=3)
    files = [tmp_path / "one", tmp_path / "two"]
    for path, processes in zip(files, (1, 2), strict=True):
        trace = search(Trace(settings, path), partial(open_trainer, settings), processes=processes)
    counts = [len(trace.tried(1, epoch)) for epoch in (1, 2, 3)]
    assert any(count % 2 for count in counts), counts  # at least one candidate was trained ahead and dropped
    assert files[0].read_bytes() == files[1].read_bytes()


# --- public data only


def test_private_data_is_refused():
    data = load("digits")
    with pytest.raises(
        ap.InvalidArgument, match=r"data='digits': a search on private records is not covered by any budget"
    ):
        PublicTrainer(data.train, data.test, lambda: models.build("linear", data), settings_of(**DIGITS))


def test_own_data_must_be_declared_public(tmp_path, monkeypatch):
    (tmp_path / "searched_records.py").write_text(
        "import torch, apportion\n"
        "pair = (torch.rand(40, 3), torch.zeros(40, dtype=torch.long))\n"
        "def private(): return pair, apportion.Public(pair)\n"
        "def public(): return apportion.Public(pair), apportion.Public(pair)\n"
        "def untested(): return apportion.Public(pair), None\n"
        "def model(): return torch.nn.Linear(3, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    own = {"noise_multiplier": 1.0, "model": "searched_records:model", "batch_size": 20}
    with pytest.raises(ap.InvalidArgument, match="If anything about this data may be published, say so: --public"):
        open_trainer(settings_of(data="searched_records:private", **own))
    with pytest.raises(ap.InvalidArgument, match="no test part"):
        open_trainer(settings_of(data="searched_records:untested", **own))
    with pytest.raises(ap.InvalidArgument, match="your own function builds the model"):
        open_trainer(settings_of(data="searched_records:public", activation="relu", **own))
    for settings in (
        settings_of(data="searched_records:private", public=True, **own),
        settings_of(data="searched_records:public", **own),
    ):
        trainer = open_trainer(settings)
        assert trainer.train_epoch(trainer.initial(0), 1.0, 0).accuracy <= 1


def test_the_activation_reaches_the_model():
    settings = {**DIGITS, "model": "mlp"}
    scores = set()
    for activation in ("relu", "tanh", None):
        trainer = open_trainer(settings_of(**settings, activation=activation))
        scores.add(trainer.train_epoch(trainer.initial(0), 1.0, 0).state)
    assert len(scores) == 2  # tanh is the default


def test_almost_no_noise_is_refused():
    with pytest.raises(ap.InvalidArgument, match="multiplier=0.001"):
        open_trainer(settings_of(**DIGITS | {"noise_multiplier": 1e-3}))
