"""Eight more workloads: `benchmarks/engine.py --more`. The engine was not developed on the first seven.

Small models on tables, where the fixed cost of a step shows; models of the library transformers, whole and with adapters of peft; a
residual network of the usual size. Weights are random and drop-out is as the libraries have it. The last one has a single weight and tiny
batches: nothing is left of a step but its fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional
from workloads import Workload, images, tokens

SENTENCE, BERT_WORDS = 64, 30_522
PASSAGE, GPT_WORDS = 128, 10_000


def table() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 2))


class Classified(nn.Module):
    """A model of transformers as the benchmark calls it: token numbers in, logits out."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        return self.model(input_ids=words, attention_mask=torch.ones_like(words)).logits


class NextWord(Classified):
    """Logits of the word at each place, with the classes in the second dimension, as torch's cross-entropy wants them."""

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words).transpose(1, 2)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=BERT_WORDS,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=SENTENCE,
        )
    )


def bert_tiny() -> nn.Module:
    return Classified(_bert())


def lora() -> nn.Module:
    """The same with adapters of rank 8 beside queries and values, and a new last layer; all else is frozen."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], task_type="SEQ_CLS")
    return Classified(get_peft_model(_bert(), settings))


def gpt2_small_ish() -> nn.Module:
    """Six layers of width 512; the first and the last layer share a weight, as in GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return NextWord(
        GPT2LMHeadModel(
            GPT2Config(
                vocab_size=GPT_WORDS,
                n_positions=PASSAGE,
                n_embd=512,
                n_layer=6,
                n_head=8,
                use_cache=False,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    )


class Basic(nn.Module):
    """Two convolutions of 3 × 3, each with group normalisation, around a short cut."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.GroupNorm(32, after), nn.GroupNorm(32, after)
        self.short_cut = None
        if before != after:
            self.short_cut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(32, after))

    def forward(self, pixels: Tensor) -> Tensor:
        through = functional.relu(self.first_norm(self.first(pixels)))
        through = self.second_norm(self.second(through))
        return functional.relu(through + (pixels if self.short_cut is None else self.short_cut(pixels)))


def resnet18() -> nn.Module:
    """ResNet-18 of He et al. with GroupNorm in place of BatchNorm."""
    stem = (nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.GroupNorm(32, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = [
        Basic(before, after, stride)
        for first, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        for before, stride in ((first, stride), (after, 1))
    ]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 200))


def _attend_apart(model: nn.Module) -> AbstractContextManager[None]:
    from apportion.integrations.hugging_face import attend_apart

    return attend_apart(model)


def _numbers(length: int) -> Callable[[int], Tensor]:
    return lambda records: torch.randn(records, length)


MORE = {
    workload.name: workload
    for workload in (
        Workload("table", table, _numbers(100), 2, batch=1024, parameters=6_594),
        Workload("scatter-linear", lambda: nn.Linear(3969, 10), _numbers(3969), 10, batch=4096, parameters=39_700),
        Workload("logistic", lambda: nn.Linear(30, 2), _numbers(30), 2, batch=256, parameters=62),
        Workload(
            "bert-tiny",
            bert_tiny,
            tokens(BERT_WORDS, SENTENCE),
            2,
            batch=64,
            parameters=4_725_378,
            within=_attend_apart,
        ),
        Workload("lora", lora, tokens(BERT_WORDS, SENTENCE), 2, batch=64, parameters=4_742_020, within=_attend_apart),
        Workload(
            "gpt2-small-ish",
            gpt2_small_ish,
            tokens(GPT_WORDS, PASSAGE),
            GPT_WORDS,
            batch=32,
            parameters=24_100_864,
            places=PASSAGE,
            within=_attend_apart,
        ),
        Workload("resnet18", resnet18, images(3, 64, 64), 200, batch=64, parameters=11_279_112),
        Workload("one-weight", lambda: nn.Linear(1, 1, bias=False), _numbers(1), 1, batch=8, parameters=1),
    )
}
