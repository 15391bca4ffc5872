"""Models of the transformers library, made small from their configurations: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import nn

from strangers.stranger import ANY, Stranger, between, floats, length_of

TOKENS, PLACES, SIZE = 17, 6, 8
SMALL = {
    "vocab_size": TOKENS,
    "hidden_size": SIZE,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
    "pad_token_id": 1,
}


class Logits(nn.Module):
    """Takes tensors and returns logits, as people wrap these models for a loop of their own."""

    def __init__(self, name, configuration, *, attention="eager", after=None, **settings):
        super().__init__()
        import transformers

        transformers.logging.set_verbosity_error()
        config = getattr(transformers, configuration)(**settings)
        config._attn_implementation = attention
        self.model = getattr(transformers, name)(config)
        with torch.no_grad():  # their initial weights are so small that nothing would be seen of a mistake
            for parameter in self.model.parameters():
                parameter.copy_(0.3 * torch.randn_like(parameter))
        if after is not None:
            self.model = after(self.model)

    def forward(self, **inputs):
        return self.model(**inputs).logits


class Causal(Logits):
    def forward(self, **inputs):
        return self.model(**inputs, use_cache=False).logits


class Images(Logits):
    def forward(self, x):
        return self.model(pixel_values=x).logits


class Translates(Logits):
    """Decodes from the first tokens of the input."""

    def forward(self, input_ids, attention_mask):
        out = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=input_ids[:, :3], use_cache=False
        )
        return out.logits


def text(out, start=2, pad=1):
    """Tokens that end in padding, and the mask that says so."""

    def record(wide):
        length = length_of(wide, PLACES)
        ids = torch.randint(start, TOKENS, (PLACES,))
        ids[length:] = pad
        return {"input_ids": ids, "attention_mask": (torch.arange(PLACES) < length).long()}, torch.randn(out)

    return record


def unmasked(out, start=2):
    return lambda wide: (
        {"input_ids": torch.randint(start, TOKENS if wide else start + 2, (PLACES,))},
        torch.randn(out),
    )


def answered(wide):
    inputs, _ = text(3)(wide)
    return inputs, torch.tensor(between(0, 2))


def adapted(model):
    import peft

    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False, lora_dropout=0.0)
    return peft.get_peft_model(model, settings)


def checkpointed(model):
    model.gradient_checkpointing_enable()
    return model


def hugging(build, record, *, needs=("transformers",), **options):
    return Stranger(build, record, ANY, needs=needs, **options)


GPT = {
    "vocab_size": TOKENS, "n_positions": 16, "n_embd": SIZE, "n_layer": 1, "n_head": 2,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
LLAMA = {
    "vocab_size": TOKENS, "hidden_size": SIZE, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16,
}  # fmt: skip
OPT = {
    "vocab_size": TOKENS, "hidden_size": SIZE, "ffn_dim": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 16, "word_embed_proj_dim": SIZE, "dropout": 0.0, "pad_token_id": 1,
}  # fmt: skip
T5 = {
    "vocab_size": TOKENS, "d_model": SIZE, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2,
    "dropout_rate": 0.0, "relative_attention_num_buckets": 4,
}  # fmt: skip
DISTIL = {
    "vocab_size": TOKENS, "dim": SIZE, "n_layers": 1, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 16,
    "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "num_labels": 3,
}  # fmt: skip
VIT = {
    "image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": SIZE, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 12, "num_labels": 3,
}  # fmt: skip

ENTRIES = {
    "BERT": hugging(lambda: Logits("BertForSequenceClassification", "BertConfig", **SMALL), text(3)),
    "BERT with scaled dot products": hugging(
        lambda: Logits("BertForSequenceClassification", "BertConfig", attention="sdpa", **SMALL),
        answered,
        loss=nn.functional.cross_entropy,
    ),
    "BERT for masked tokens": hugging(
        lambda: Logits("BertForMaskedLM", "BertConfig", **SMALL), unmasked((PLACES, TOKENS))
    ),
    "DistilBERT": hugging(lambda: Logits("DistilBertForSequenceClassification", "DistilBertConfig", **DISTIL), text(3)),
    "RoBERTa": hugging(lambda: Logits("RobertaForSequenceClassification", "RobertaConfig", **SMALL), text(3)),
    "ALBERT": hugging(
        lambda: Logits(
            "AlbertForSequenceClassification", "AlbertConfig", embedding_size=4, classifier_dropout_prob=0.0, **SMALL
        ),
        text(3),
    ),
    "ELECTRA": hugging(
        lambda: Logits("ElectraForSequenceClassification", "ElectraConfig", embedding_size=4, **SMALL), text(3)
    ),
    "GPT-2": hugging(lambda: Causal("GPT2LMHeadModel", "GPT2Config", **GPT), text((PLACES, TOKENS))),
    "GPT-2 for classification": hugging(
        lambda: Causal("GPT2ForSequenceClassification", "GPT2Config", num_labels=3, pad_token_id=1, **GPT), text(3)
    ),
    "Llama": hugging(lambda: Causal("LlamaForCausalLM", "LlamaConfig", **LLAMA), text((PLACES, TOKENS))),
    "Llama with scaled dot products": hugging(
        lambda: Causal("LlamaForCausalLM", "LlamaConfig", attention="sdpa", **LLAMA), text((PLACES, TOKENS))
    ),
    "OPT": hugging(lambda: Causal("OPTForCausalLM", "OPTConfig", **OPT), text((PLACES, TOKENS))),
    "T5": hugging(lambda: Translates("T5ForConditionalGeneration", "T5Config", **T5), text((3, TOKENS), pad=0)),
    "ViT": hugging(lambda: Images("ViTForImageClassification", "ViTConfig", **VIT), floats(1, 8, 8)),
    "BERT with gradient checkpointing": hugging(
        lambda: Logits("BertForSequenceClassification", "BertConfig", after=checkpointed, **SMALL), text(3)
    ),
    "BERT with LoRA": hugging(
        lambda: Logits("BertForSequenceClassification", "BertConfig", after=adapted, **SMALL),
        text(3),
        needs=("transformers", "peft"),
    ),
}
