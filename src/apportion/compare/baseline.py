"""Ordinary training, for comparison: no clipping, no noise, no guarantee. Never use it on records that need protection."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from apportion.budget import Public
from apportion.curator.curator import LossFunction
from apportion.curator.records import as_records
from apportion.curator.tree import call_model
from apportion.reporting.result import HistoryEntry
from apportion.sampling import Sampling
from apportion.training.evaluation import accuracy
from apportion.training.history import is_report_step
from apportion.training.optimizers import OptimizerFactory, build_optimizer


def train_without_privacy(
    model: nn.Module,
    loss_fn: LossFunction,
    train_data: Any,
    *,
    sampling: Sampling,
    lr: float,
    optimizer: str | OptimizerFactory = "sgd",
    evaluate: Public | None = None,
    seed: int | None = None,
) -> list[HistoryEntry]:
    """Shuffled mini-batches of the same expected size and as many steps as a private run; returns the history."""
    records = as_records(train_data)
    updates = build_optimizer(model, optimizer, lr)
    generator = np.random.default_rng(seed)
    size = max(1, round(sampling.expected_batch_size))
    order = np.empty(0, dtype=np.int64)
    history: list[HistoryEntry] = []
    model.train()
    for step in range(1, sampling.steps + 1):
        if len(order) < size:
            order = np.concatenate([order, generator.permutation(len(records))])
        inputs, targets = records.batch(order[:size])
        order = order[size:]
        updates.zero_grad()
        torch.mean(loss_fn(call_model(model, inputs), targets)).backward()
        updates.step()
        measured = None
        if evaluate is not None and is_report_step(step, sampling.steps):
            measured = accuracy(model, evaluate)
        history.append(HistoryEntry(step, test_accuracy=measured))
    return history
