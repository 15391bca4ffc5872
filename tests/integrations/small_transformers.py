"""Models of transformers, made small from their configurations, and records for them: nothing is downloaded."""

from __future__ import annotations

import torch
import transformers

TOKENS, PLACES = 17, 6
GPT2 = {"vocab_size": TOKENS, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
BERT = {
    "vocab_size": TOKENS,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
BERT |= {"max_position_embeddings": 16, "num_labels": 3, "pad_token_id": 1}
BERT |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
DISTILBERT = {"vocab_size": TOKENS, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12, "num_labels": 3}
DISTILBERT |= {"max_position_embeddings": 16, "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
LLAMA = {
    "vocab_size": TOKENS,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
LLAMA |= {"num_key_value_heads": 1, "max_position_embeddings": 16}
T5 = {"vocab_size": TOKENS, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
T5 |= {"relative_attention_num_buckets": 4, "decoder_start_token_id": 0, "pad_token_id": 0}
VIT = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 8, "num_hidden_layers": 1, "num_labels": 3}
VIT |= {
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

KINDS = {
    "BERT": ("BertForSequenceClassification", "BertConfig", BERT),
    "DistilBERT": ("DistilBertForSequenceClassification", "DistilBertConfig", DISTILBERT),
    "RoBERTa": ("RobertaForTokenClassification", "RobertaConfig", BERT),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "T5": ("T5ForConditionalGeneration", "T5Config", T5),
    "ViT": ("ViTForImageClassification", "ViTConfig", VIT),
}


def build(kind: str, seed: int = 0) -> transformers.PreTrainedModel:
    """A model whose weights are large enough that a mistake would be seen; those of transformers begin near zero."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    name, configuration, settings = KINDS[kind]
    model = getattr(transformers, name)(getattr(transformers, configuration)(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    return model.train()


def items(kind: str, count: int = 6, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Records as people have them: padded to one length, each with a length of its own."""
    generator = torch.Generator().manual_seed(seed)
    return [_item(kind, 1 + (3 * i + seed) % PLACES, generator) for i in range(count)]


def _item(kind: str, length: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    label = torch.randint(0, 3, (), generator=generator)
    if kind == "ViT":
        return {"pixel_values": torch.randn(1, 8, 8, generator=generator), "labels": label}
    kept = torch.arange(PLACES) < length
    tokens = torch.randint(2, TOKENS, (PLACES,), generator=generator)
    item = {"input_ids": tokens.where(kept, 0 if kind == "T5" else 1), "attention_mask": kept.long()}
    if kind in ("GPT-2", "Llama"):
        return item | {"labels": tokens.where(kept, -100)}
    if kind == "T5":
        return item | {"labels": tokens[:3].where(kept[:3], -100)}
    if kind == "RoBERTa":
        return item | {"labels": torch.randint(0, 3, (PLACES,), generator=generator).where(kept, -100)}
    return item | {"labels": label}
