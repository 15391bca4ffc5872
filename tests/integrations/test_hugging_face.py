"""Models of transformers have the gradients of single records, whatever else is in the batch; those that mix records are refused."""

import copy
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers
from torch import nn

import apportion as ap
from apportion.curator.clipping import as_gradients
from apportion.curator.reader import Piece
from apportion.curator.records import as_records
from apportion.curator.sieve import within
from apportion.curator.tree import call_model, map_tensors
from apportion.integrations.hugging_face import ATTENTION, _Layout, attend_apart
from apportion.integrations.model_loss import ModelLoss, given_losses
from apportion.integrations.token_losses import usual_loss
from apportion.models.vetting import VettedEngine
from apportion.training.opening import require_trainable
from integrations.small_transformers import BERT, KINDS, PLACES, TOKENS, build, items

every_kind = pytest.mark.parametrize("kind", KINDS)


def usual(*kinds):
    """These models, and the others in the slow suite."""
    return pytest.mark.parametrize(
        "kind", [kind if kind in kinds else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
    )


def stacked(model, records, keep_labels=False):
    """Inputs and targets of all records, as the curator would stack them."""
    layout = _Layout.of(model.model if isinstance(model, ModelLoss) else model, keep_labels=keep_labels)
    return layout.records(records, "data").batch(torch.arange(len(records)).numpy())


def trained(model):
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def rows_alone(model, batch, loss):
    """The gradients of single records by plain autograd, (b, all weights)."""
    rows = []
    for i in range(len(batch[1])):
        model.zero_grad()
        record, target = map_tensors(lambda tensor, i=i: tensor[i : i + 1].clone(), batch)
        loss(call_model(model, record), target).sum().backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(model).values()]
        rows.append(torch.cat([part.flatten() for part in parts]))
    model.zero_grad()
    return torch.stack(rows)


def rows_of_engine(engine, batch, loss):
    engine.sync_weights()
    engine.record_losses(loss, engine.forward(batch[0]), batch[1]).sum().backward()
    gradients = as_gradients(engine.gradients())
    everyone = slice(0, len(batch[1]))
    return torch.cat([gradients.rows(name, everyone).flatten(1) for name in trained(engine.model)], 1)


def assert_own_gradients(model, records, loss, keep_labels=False):
    """Random, permuted, repeated and re-sized batches: every record has the gradient that it has alone."""
    batch = stacked(model, records, keep_labels)
    example = map_tensors(lambda tensor: torch.zeros_like(tensor[0]), batch)
    choice = require_trainable(model, loss, as_records(list_of_pairs(batch)))
    engine, expected = VettedEngine(model, choice, *example), rows_alone(model, batch, loss)
    scale = expected.abs().max()
    for chosen in ([0, 1, 2, 3, 4, 5], [4, 2, 0, 5, 1, 3], [3, 3, 1, 3, 0], [5, 2], [1]):
        part = map_tensors(lambda tensor, chosen=chosen: tensor[chosen], batch)
        assert torch.allclose(rows_of_engine(engine, part, loss), expected[chosen], atol=2e-5 * scale, rtol=1e-4), (
            chosen
        )
    return choice


def list_of_pairs(batch):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(batch[1])

        def __getitem__(self, index):
            return map_tensors(lambda tensor: tensor[index], batch)

    return Pairs()


# -- gradients ------------------------------------------------------------------------------------------------------------------------


@usual("BERT", "T5")  # GPT-2 below, with adapters, and with a head that is tied
def test_every_record_has_the_gradient_that_it_has_alone(kind):
    model = build(kind)
    with attend_apart(model):
        choice = assert_own_gradients(model, items(kind), usual_loss(model))
    assert choice.mode.startswith("one-pass")
    assert choice.losses_together
    # the learned distances of T5 belong to no record, in a shape of their own
    assert all("SelfAttention" in part for part in choice.alone)
    assert bool(choice.alone) == (kind == "T5")


@every_kind
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_attends_to_the_same_in_another_way(kind, attention):
    model = build(kind)
    model.set_attn_implementation(attention)
    inputs, _ = stacked(model, items(kind))
    with torch.no_grad():
        before = model(**inputs).logits
        with attend_apart(model):
            assert model.config._attn_implementation == ATTENTION
            assert torch.allclose(model(**inputs).logits, before, atol=1e-5)


@pytest.mark.parametrize("kind", ["BERT", "GPT-2", "T5"])
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_the_engines_for_any_model_agree(kind, engine):
    model = build(kind)
    loss, batch = usual_loss(model), stacked(model, items(kind))
    with attend_apart(model):
        expected = rows_alone(model, batch, loss)
        found = rows_of_engine(ap.curator.gradients.engine.build_engine(model, engine), batch, loss)
    assert torch.allclose(found, expected, atol=2e-5 * expected.abs().max(), rtol=1e-4)


def test_a_model_as_it_comes_keeps_its_caches_and_is_trained_too():
    """Without `fine_tune` it looks for padding in the whole batch, so that a part of it runs alone: slower and exact."""
    model = build("GPT-2")
    assert model.config.use_cache
    assert_own_gradients(model, items("GPT-2"), usual_loss(model))


def test_the_head_and_the_words_of_gpt2_are_one_weight():
    """And its gradients of single records are exact: the norm of that weight is taken after those of both uses were added."""
    model = build("GPT-2")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "lm_head.weight" not in trained(model)
    loss, batch = usual_loss(model), stacked(model, items("GPT-2"))
    with attend_apart(model):
        choice = require_trainable(model, loss, as_records(list_of_pairs(batch)))
        engine = VettedEngine(model, choice, *map_tensors(lambda tensor: torch.zeros_like(tensor[0]), batch))
        engine.sync_weights()
        engine.record_losses(loss, engine.forward(batch[0]), batch[1]).sum().backward()
        norms = as_gradients(engine.gradients()).squared_norms()["transformer.wte.weight"]
        words = model.transformer.wte.weight.numel()
        expected = rows_alone(model, batch, loss)[:, :words].square().sum(1)
    assert torch.allclose(norms, expected.double(), rtol=1e-4)


@every_kind
def test_the_usual_loss_is_that_of_transformers_for_one_record(kind):
    model = build(kind).eval()
    inputs, labels = stacked(model, items(kind))
    ours = usual_loss(model)(model(**inputs), labels)
    for i, item in enumerate(items(kind)):
        theirs = model(**{name: value[None] for name, value in item.items()}).loss
        if not theirs.isnan():  # of no token at all
            assert torch.allclose(ours[i], theirs, rtol=1e-4)


def test_the_loss_of_a_sequence_is_divided_by_its_own_tokens():
    torch.manual_seed(0)
    logits, labels = torch.randn(3, PLACES, TOKENS), torch.randint(0, TOKENS, (3, PLACES))
    labels[0, 2:], labels[1, 1:] = -100, -100
    for name, first in (("token_loss", 0), ("causal_lm_loss", 1)):
        loss = getattr(ap.integrations, name)
        together, sums = loss(logits, labels), loss(logits, labels, reduction="sum")
        counts = (labels[:, first:] != -100).sum(1)
        assert torch.allclose(together * counts.clamp(min=1), sums)
        for i in range(3):
            assert torch.allclose(together[i], loss(logits[i : i + 1], labels[i : i + 1])[0])
    assert ap.integrations.causal_lm_loss(logits, labels)[1] == 0  # its only token is the first
    with pytest.raises(ap.InvalidArgument, match="no such reduction"):
        ap.integrations.token_loss(logits, labels, reduction="batch")


def test_a_model_that_computes_its_loss_itself_has_the_loss_of_each_record():
    torch.manual_seed(0)
    model = ModelLoss(transformers.BertForQuestionAnswering(transformers.BertConfig(**BERT | {"num_labels": 2})))
    records = [
        {name: item[name] for name in ("input_ids", "attention_mask")}
        | {"start_positions": torch.tensor(0), "end_positions": torch.tensor(1)}
        for item in items("BERT")
    ]
    assert_own_gradients(model, records, given_losses, keep_labels=True)
    with pytest.raises(ap.UnsupportedModel, match="ModelLoss"):
        require_trainable(
            model.model, given_losses, as_records(list_of_pairs(stacked(model, records, keep_labels=True)))
        )


# -- models that mix records ----------------------------------------------------------------------------------------------------------


def mix_always(module, args, output):
    return output + 0.1 * output.mean(0, keepdim=True)


def mix_rarely(module, args, output):
    """For the values of a token that no synthetic record has."""
    return output - output.mean(0, keepdim=True) if bool(output.abs().max() > 40) else output


def inner_layer(model):
    return next(
        module for name, module in model.named_modules() if isinstance(module, nn.LayerNorm) or "norm" in name.lower()
    )


@every_kind
def test_planted_mixing_is_found(kind):
    model = build(kind)
    inner_layer(model).register_forward_hook(mix_always)
    with attend_apart(model), pytest.raises(ap.UnsupportedModel, match="mixes records"):
        require_trainable(model, usual_loss(model), as_records(list_of_pairs(stacked(model, items(kind)))))


@pytest.mark.parametrize("kind", ["BERT", pytest.param("GPT-2", marks=pytest.mark.slow)])
def test_mixing_that_no_synthetic_record_shows_does_not_reach_other_records(kind):
    model, records = build(kind), items(kind)
    words = model.get_input_embeddings()
    with torch.no_grad():
        words.weight[7] = 50.0
    records[2]["input_ids"][0] = 7
    words.register_forward_hook(mix_rarely)
    with attend_apart(model):
        choice = assert_own_gradients(model, records, usual_loss(model))
    assert choice.alone or choice.mode == "loop"


class Head(transformers.PreTrainedModel):
    """A model of one's own in the manner of transformers."""

    config_class = transformers.BertConfig

    def __init__(self, config=None):
        super().__init__(config or transformers.BertConfig(**BERT))
        self.words, self.out = nn.Embedding(TOKENS, 8), nn.Linear(8, 3)
        self.all_tied_weights_keys = {}
        self.cache = transformers.DynamicCache()

    def forward(self, input_ids, attention_mask=None):
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.out(self.hidden(input_ids)))


class BatchStatistics(Head):
    def hidden(self, ids):
        vectors = self.words(ids).mean(1)
        return (vectors - vectors.mean(0)) / (vectors.std(0, correction=0) + 1)


class PersistentCache(Head):
    def hidden(self, ids):
        vectors = self.words(ids)
        seen = vectors.mean(0)[None, None]
        return vectors.mean(1) + self.cache.update(seen, seen, 0)[0].mean((0, 1, 2))


class PositionsOfTheBatch(Head):
    def hidden(self, ids):
        positions = torch.arange(ids.numel()).view(ids.shape)
        return (self.words(ids) + positions[..., None].sin()).mean(1)


class LoadBalancing(Head):
    """The share of each expert in the batch is multiplied by its mean probability there, as in the Switch Transformer."""

    def forward(self, input_ids, attention_mask=None):
        logits = self.out(self.words(input_ids).mean(1))
        probabilities = logits.softmax(-1)
        share = nn.functional.one_hot(probabilities.argmax(-1), 3).float().mean(0)
        balance = (share * probabilities.mean(0)).sum().expand(len(logits))
        return {"logits": logits, "aux_loss": balance}


def with_auxiliary(outputs, labels):
    return nn.functional.cross_entropy(outputs["logits"], labels, reduction="none") + outputs.get("aux_loss", 0.0)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (BatchStatistics, "mixes records"),
        (PersistentCache, "changed from one pass to the next|mixes records"),
        (PositionsOfTheBatch, "mixes records"),
        (LoadBalancing, "mixes records"),
    ],
)
def test_a_model_of_transformers_that_mixes_records_is_refused(model, says):
    torch.manual_seed(0)
    plan = small_plan()
    with pytest.raises(ap.UnsupportedModel, match=says):
        ap.integrations.fine_tune(model(), items("BERT"), plan, lr=0.1, loss=with_auxiliary)


def test_the_balance_of_experts_in_a_batch_is_no_loss_of_a_record():
    """Mixtral adds one number that all records of the batch have in common."""
    torch.manual_seed(0)
    settings = {"num_local_experts": 2, "num_experts_per_tok": 1, "output_router_logits": True, "head_dim": 4}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    model = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**{name: BERT[name] for name in names}, **settings)
    )
    with pytest.raises(ap.UnsupportedModel):
        ap.integrations.fine_tune(model, items("Llama"), small_plan(), lr=0.1)


def test_a_cache_in_an_object_is_emptied_for_every_record():
    """Also where the probe is not asked: the engines restore what modules keep in objects."""
    torch.manual_seed(0)
    model = PersistentCache()
    fresh = copy.deepcopy(model)
    batch = stacked(model, items("BERT"))
    for mode in ("loop", "one-pass"):
        engine = ap.curator.gradients.engine.build_engine(model, mode)
        for i in range(3):
            record = map_tensors(lambda tensor, i=i: tensor[i : i + 1], batch[0])
            expected = copy.deepcopy(fresh)(**record).logits
            assert torch.allclose(engine.forward(record).logits, expected)


# -- attention ----------------------------------------------------------------------------------------------------------------------


class OwnArithmetic(Head):
    """Adds the mask that transformers makes, as it is right for one that holds 0 and −∞, and wrong for yes and no."""

    def hidden(self, ids):
        vectors = self.words(ids)
        known = (ids != 0).long()
        mask = transformers.masking_utils.create_causal_mask(self.config, vectors, known, None)
        return ((vectors @ vectors.mT)[:, None] + mask).softmax(-1).mean(1).matmul(vectors).mean(1)


@pytest.mark.parametrize("model", [lambda: build("T5"), lambda: OwnArithmetic()], ids=["T5", "own arithmetic"])
def test_a_model_that_knows_other_ways_to_attend_keeps_its_own(model, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "apportion.integrations.hugging_face.train",
        lambda model, *_, **__: seen.append(model.config._attn_implementation),
    )
    tried = model()
    tried.set_attn_implementation("eager")
    ap.integrations.fine_tune(tried, items("T5"), small_plan(), lr=0.1)
    assert seen == ["eager" if isinstance(tried, OwnArithmetic) else ATTENTION]
    assert tried.config._attn_implementation == "eager"


# -- fine_tune ------------------------------------------------------------------------------------------------------------------------


def small_plan(steps=3):
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    return ap.plan(budget=budget, population=6, sample_rate=0.5, steps=steps)


@usual("BERT")
def test_it_is_trained_in_place_and_left_as_it_was_otherwise(kind):
    model = build(kind)
    before, settings = copy.deepcopy(model.state_dict()), copy.deepcopy(model.config.to_dict())
    attention = model.config._attn_implementation
    public = ap.Public(items(kind)) if kind == "BERT" else None
    run = ap.integrations.fine_tune(model, items(kind), small_plan(), lr=1e-2, evaluate=public)
    assert run.epsilon() <= 3.0
    assert run.model is model
    assert public is None or 0 <= run.history[-1].test_accuracy <= 1
    assert all(not torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers() if name in before)
    assert model.config._attn_implementation == attention != ATTENTION
    assert model.config.to_dict() == settings


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("BERT", ["query", "value"]),
        pytest.param("GPT-2", ["c_attn"], marks=pytest.mark.slow),
        pytest.param("Llama", ["q_proj", "v_proj"], marks=pytest.mark.slow),
        pytest.param("T5", ["q", "v"], marks=pytest.mark.slow),
    ],
)
def test_the_adapters_move_and_nothing_else_does(kind, targets):
    settings = peft.LoraConfig(r=2, target_modules=targets, fan_in_fan_out=kind == "GPT-2")
    model = peft.get_peft_model(build(kind), settings)
    before = copy.deepcopy(model.state_dict())
    ap.integrations.fine_tune(model, items(kind), small_plan(), lr=1e-2)
    after = model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {name for name in after if "lora_" in name}


@pytest.mark.parametrize("kind", [pytest.param("BERT", marks=pytest.mark.slow), "GPT-2"])
def test_adapters_have_the_gradients_of_single_records(kind):
    targets = ["query", "value"] if kind == "BERT" else ["c_attn"]
    settings = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False, fan_in_fan_out=kind == "GPT-2")
    model = peft.get_peft_model(build(kind), settings)
    with attend_apart(model):
        choice = assert_own_gradients(model, items(kind), usual_loss(model))
    assert choice.mode == "one-pass"
    assert not choice.alone


def test_items_are_taken_as_people_have_them():
    """Lists become tensors, fields that the model does not know are left out, labels of a language model are its tokens."""
    gpt, t5 = build("GPT-2"), build("T5")
    layout = _Layout.of(gpt, keep_labels=False)
    inputs, labels = layout.pair({"input_ids": [3, 4, 1], "attention_mask": [1, 1, 0], "text": "a b"})
    assert inputs.keys() == {"input_ids", "attention_mask"}
    assert labels.tolist() == [3, 4, -100]
    inputs, labels = _Layout.of(t5, keep_labels=False).pair({"input_ids": [3, 4], "labels": [5, 6, -100]})
    assert inputs["decoder_input_ids"].tolist() == [0, 5, 6]
    assert labels.tolist() == [5, 6, -100]
    one = _Layout.of(build("BERT"), keep_labels=False).pair({"input_ids": [3, 4], "label": 2})
    assert one[0].keys() == {"input_ids"}
    assert one[1] == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["Anna was here"], "^data='texts': .*Tokenize first"),
        ([{"text": "Anna was here", "label": 1}], "^data='items with text, label': .*Tokenize first"),
        ([{"input_ids": ["Anna", "was"], "label": 1}], "^data='items with input_ids, label': .*Tokenize first"),
        ([{"input_ids": [3, 4], "mask": [1, 1]}], "^data='items with input_ids, mask': there is neither 'labels' nor"),
        ([{"input_ids": [3, 4], "labels": "Anna"}], "^data='items with input_ids, labels': 'labels' holds texts"),
        ([{"input_ids": [[3], [4, 5]], "labels": 1}], "^data='list': its first item cannot be read .*one length"),
    ],
)
@pytest.mark.parametrize("public", [False, True])
def test_items_that_the_model_cannot_take_are_refused_in_words_of_the_user(data, words, public):
    good, words = items("BERT"), words.replace("data=", "evaluate=") if public else words
    more = {"evaluate": ap.Public(data)} if public else {}
    with pytest.raises(ap.InvalidArgument, match=words) as error:
        ap.integrations.fine_tune(build("BERT"), good if public else data, small_plan(), lr=0.1, **more)
    assert "Anna" not in str(error.value)


@pytest.mark.parametrize("kind", ["BERT", "GPT-2", "T5"])
def test_a_sequence_without_a_label_that_counts_is_not_usable(kind, monkeypatch):
    """Of a language model the first token is nobody's next one."""
    seen = {}
    monkeypatch.setattr(
        "apportion.integrations.hugging_face.train",
        lambda *args, **options: seen.update(options, records=args[2]),
    )
    some = items(kind)
    labels = some[1]["labels"] = torch.full_like(some[1]["labels"], -100)
    if kind == "GPT-2":
        labels[0] = 5
    ap.integrations.fine_tune(build(kind), some, small_plan(), lr=0.1)
    numbers = np.arange(len(some))
    found = within(Piece(seen["records"].batch(numbers), torch.from_numpy(numbers)), seen["domain"])
    alone = {index for index, item in enumerate(some) if kind == "GPT-2" and item["attention_mask"].sum() == 1}
    assert set(np.flatnonzero(~found.numpy())) == {1} | alone


def test_an_error_of_the_data_set_says_nothing_of_a_record():
    class Broken(list):
        def __getitem__(self, index):
            raise ValueError("Anna, 44")

    with pytest.raises(ap.InvalidArgument, match="cannot be read") as error:
        ap.integrations.fine_tune(build("BERT"), Broken([1]), small_plan(), lr=0.1)
    assert "Anna" not in str(error.value)


def test_a_record_that_stands_twice_is_refused():
    twice = torch.utils.data.Subset(items("BERT"), [0, 1, 1])
    with pytest.raises(ap.InvalidArgument, match="more than once"):
        ap.integrations.fine_tune(build("BERT"), twice, small_plan(), lr=0.1)


def test_items_with_labels_are_records_without_fine_tune_too():
    records = as_records(items("BERT"))
    inputs, target = records.batch(torch.arange(2).numpy())
    assert inputs.keys() == {"input_ids", "attention_mask"}
    assert target.shape == (2,)
    assert not any(leaf.any() for leaf in (*records.example[0].values(), records.example[1]))
    with pytest.raises(ap.InvalidArgument, match="or a dict of inputs with 'labels'"):
        as_records([{"input_ids": torch.zeros(3)}])
    with pytest.raises(ap.InvalidArgument, match="pair"):
        as_records([{"labels": torch.zeros(3)}])


@pytest.mark.parametrize(("kind", "classes"), [("BERT", 3), ("RoBERTa", 3), ("GPT-2", TOKENS), ("T5", TOKENS)])
def test_the_classes_are_those_of_the_model(kind, classes, monkeypatch):
    """So that a record with another label is found by a mask, and the others go on together."""
    seen = {}
    monkeypatch.setattr("apportion.integrations.hugging_face.train", lambda *args, **options: seen.update(options))
    ap.integrations.fine_tune(build(kind), items(kind), small_plan(), lr=0.1)
    assert seen["domain"] == ap.Domain(classes=classes)
    numbers = [item | {"labels": torch.tensor(0.5)} for item in items("BERT")]
    seen.clear()
    ap.integrations.fine_tune(build("BERT"), numbers, small_plan(), lr=0.1)
    assert "domain" not in seen


def test_labels_that_are_numbers_are_fitted_and_many_of_them_are_told_apart():
    one, many = torch.randn(4, 1), torch.randn(4, 3)
    loss = usual_loss(nn.Linear(1, 1))
    assert torch.allclose(loss(one, torch.ones(4)), (one[:, 0] - 1).square())
    expected = nn.functional.binary_cross_entropy_with_logits(many, torch.ones(4, 3), reduction="none").mean(1)
    assert torch.allclose(loss(many, torch.ones(4, 3)), expected)


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"num_labels": 1}, 3),  # a number of stars: of one output, cross-entropy would be 0 whatever the model says
        ({"num_labels": 1}, 3.5),
        ({"problem_type": "regression"}, [0.0, 1.0, 7.0]),
        ({"problem_type": "multi_label_classification"}, [0, 1, 1]),
        ({}, [0.0, 1.0, 1.0]),
        ({}, 2),
    ],
)
def test_what_labels_are_is_what_transformers_takes_them_for(settings, label, monkeypatch):
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT | settings)).eval()
    records = [item | {"labels": torch.tensor(label)} for item in items("BERT")]
    inputs, labels = stacked(model, records)
    ours = usual_loss(model)(model(**inputs), labels)
    kind = labels.dtype if labels.dim() == 1 and model.config.num_labels > 1 else torch.float32
    theirs = [
        copy.deepcopy(model)(
            **{name: value[None] for name, value in item.items()} | {"labels": item["labels"][None].to(kind)}
        ).loss
        for item in records
    ]
    assert torch.allclose(ours, torch.stack(theirs), rtol=1e-4)
    assert (ours > 0).all()
    seen = {}
    monkeypatch.setattr("apportion.integrations.hugging_face.train", lambda *args, **options: seen.update(options))
    ap.integrations.fine_tune(model, records, small_plan(), lr=0.1)
    assert seen.get("domain") == (ap.Domain(classes=3) if label == 2 else None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_accumulation_steps": 4}, "^gradient_accumulation_steps=4: .*micro_batch"),
        ({"epochs": 3}, "^epochs=3: it is a part of the plan"),
        ({"optimzer": "sgd"}, "Did you mean 'optimizer'"),
        ({"loss": "cross-entropy"}, "^loss='cross-entropy': it cannot be called"),
    ],
)
def test_what_trainer_is_told_is_refused_in_its_words(options, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        ap.integrations.fine_tune(build("BERT"), items("BERT"), small_plan(), lr=0.1, **options)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.DataParallel(build("BERT")), "^model='DataParallel'.*model.module"),
        (lambda: transformers.BertModel(transformers.BertConfig(**BERT)), "its output has no logits"),
        (lambda: ModelLoss(build("BERT")), "^metric=None: the outputs of a ModelLoss are losses"),
    ],
)
def test_models_without_an_accuracy_or_a_loss_are_refused(model, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        ap.integrations.fine_tune(model(), items("BERT"), small_plan(), lr=0.1, evaluate=ap.Public(items("BERT")))


def test_a_language_model_is_measured_by_a_function_of_logits_and_tokens():
    def perplexity(logits, labels):
        return float(ap.integrations.causal_lm_loss(logits, labels).mean().exp())

    model, some = build("GPT-2"), items("GPT-2")
    metric = ap.Metric("perplexity", perplexity, better="lower")
    run = ap.integrations.fine_tune(model, some, small_plan(1), lr=1e-9, evaluate=ap.Public(some), metric=metric)
    inputs, labels = stacked(model, some)
    with torch.no_grad():
        assert run.history[-1].score == pytest.approx(perplexity(model.eval()(**inputs).logits, labels), rel=1e-3)


@pytest.mark.parametrize("kind", ["BERT", pytest.param("GPT-2", marks=pytest.mark.slow)])
def test_gradient_checkpointing_is_exact(kind):
    model = build(kind)
    model.gradient_checkpointing_enable()
    with attend_apart(model):
        assert_own_gradients(model, items(kind), usual_loss(model))


def test_adapters_under_checkpointing_have_the_gradients_of_single_records():
    """transformers and peft have the words ask for gradients then, which is not needed here: hooks that are there again afterwards."""
    base = build("BERT")
    base.gradient_checkpointing_enable()
    base.enable_input_require_grads()
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False, task_type="SEQ_CLS")
    )
    hooks = [dict(part._forward_hooks) for part in model.modules()]
    assert any(hooks)
    with attend_apart(model):
        assert_own_gradients(model, items("BERT"), usual_loss(model))
    assert [dict(part._forward_hooks) for part in model.modules()] == hooks


def test_checkpointing_of_t5_is_refused():
    """It makes zeros that learn, which are no parameter of the model."""
    model = build("T5")
    model.gradient_checkpointing_enable()
    with pytest.raises(ap.UnsupportedModel, match="outside the model's parameters"):
        ap.integrations.fine_tune(model, items("T5"), small_plan(), lr=0.1)


def test_checkpointing_that_differentiates_within_is_refused():
    """Behind frozen layers the adapters would get no gradient: noise alone would move them."""
    model = build("BERT")
    model.gradient_checkpointing_enable({"use_reentrant": True})
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    for one in (adapted, build("BERT")):
        one.gradient_checkpointing_enable({"use_reentrant": True})
        base = one.get_base_model() if one is adapted else one
        base.disable_input_require_grads()
        with pytest.raises(ap.UnsupportedModel, match="use_reentrant"):
            ap.integrations.fine_tune(one, items("BERT"), small_plan(), lr=0.1)


def test_autocast_is_refused_because_each_record_would_run_alone():
    model = build("BERT")
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ap.InvalidArgument, match="takes longer than float32"),
    ):
        ap.integrations.fine_tune(model, items("BERT"), small_plan(), lr=0.1)


@pytest.mark.slow
def test_under_autocast_each_record_runs_alone():
    model = build("BERT")
    with torch.autocast("cpu", torch.bfloat16), attend_apart(model):
        batch = list_of_pairs(stacked(model, items("BERT")))
        assert require_trainable(model, usual_loss(model), as_records(batch)).mode == "loop"


def test_the_length_of_padding_does_not_change_a_gradient():
    """Of one and the same sequence, padded to 6 or to 9 places."""
    for kind in ("BERT", "GPT-2", "Llama"):
        model = build(kind)
        short = items(kind)
        pad = {"input_ids": 1, "attention_mask": 0, "labels": -100}
        long = [
            {
                name: value if not value.dim() else nn.functional.pad(value, (0, 3), value=pad[name])
                for name, value in item.items()
            }
            for item in short
        ]
        loss = usual_loss(model)
        with attend_apart(model):
            rows = [rows_alone(model, stacked(model, records), loss) for records in (short, long)]
        assert torch.allclose(*rows, atol=1e-5 * float(rows[0].abs().max()))


def test_the_example_is_short():
    lines = (Path(__file__).parents[2] / "examples" / "imdb_lora.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    compile("\n".join(lines), "imdb_lora.py", "exec")
