"""What a model answers for a record does not depend on the records before it, and no record ends anything."""

import numpy as np
import torch
from torch import nn

import apportion as ap
from apportion.compare.held_out import _values
from apportion.compare.prediction import Predictor
from apportion.tables.encoding import EncodedTable

SCHEMA = ap.tables.Schema({"age": {"range": (0, 1)}, "ill": {"categories": ["no", "yes"]}})


class Remembers(nn.Module):
    """Of the largest record; and it cannot bear one of them."""

    def __init__(self):
        super().__init__()
        self.seen = np.zeros(1)

    def forward(self, x):
        if float(x) == 0.5:
            raise SystemExit("cannot handle 0.5")
        answer = torch.cat([x - self.seen[0], torch.rand(1, 1)], 1)
        self.seen[0] = max(self.seen[0], float(x))
        return answer


def test_records_are_answered_alone():
    predictor = Predictor(ap.tables.Encoding(SCHEMA, target="ill"), Remembers().eval())
    rows = np.array([[0.1], [0.9], [0.5], [0.2]], dtype=np.float32)
    together = predictor.answer(rows)
    alone = np.concatenate([predictor.answer(row[None]) for row in rows])
    np.testing.assert_array_equal(together, alone)
    assert np.isnan(together[2]).all()
    assert np.isfinite(np.delete(together, 2, axis=0)).all()


def test_a_record_on_which_the_model_fails_is_wrong_and_nothing_else():
    held = EncodedTable(
        np.zeros((4, 1), dtype=np.float32), np.array([0, 0, 1, -1]), ("a", "b", "c", "d"), None, np.zeros(4, bool), {}
    )
    outputs = np.array([[1.0, 0.0], [np.nan, np.nan], [np.nan, np.nan], [1.0, 0.0]])
    np.testing.assert_array_equal(_values(outputs, held, True), [1.0, 0.0, 0.0, np.nan])
    numbers = EncodedTable(
        held.inputs, np.array([[0.2], [0.2], [np.nan], [1.0]], dtype=np.float32), held.names, None, held.broken, {}
    )
    found = _values(np.array([[0.2], [np.nan], [0.3], [2.0]]), numbers, False)
    np.testing.assert_allclose(found, [0.0, 1.0, np.nan, 0.0], atol=1e-6)
