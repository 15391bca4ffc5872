"""Who is held out depends on the record and the key alone."""

import numpy as np

from apportion.tables.splitting import hold_out

NAMES = [f"patient {number}" for number in range(20_000)]
KEY = bytes(range(32))


def test_one_record_less_moves_nobody_else():
    held = hold_out(NAMES, 0.2, KEY)
    for place in (0, 1, 500):
        rest = hold_out(NAMES[:place] + NAMES[place + 1 :], 0.2, KEY)
        assert rest.tolist() == np.delete(held, place).tolist()
    assert hold_out(NAMES[::-1], 0.2, KEY).tolist() == held[::-1].tolist()


def test_about_the_declared_part_is_held_out_by_every_key():
    for key in (KEY, b"another"):
        for fraction in (0.01, 0.2, 0.9):
            assert abs(hold_out(NAMES, fraction, key).mean() - fraction) < 4 * np.sqrt(
                fraction * (1 - fraction) / 20_000
            )
    assert (hold_out(NAMES, 0.5, KEY) != hold_out(NAMES, 0.5, b"another")).mean() > 0.45
    assert hold_out(NAMES, 0.2, KEY)[hold_out(NAMES, 0.1, KEY)].all()


def test_records_of_one_name_stay_together_and_those_without_stay():
    held = hold_out(["a", None, "a", "b", "\ud800", None] * 50, 0.5, KEY).reshape(50, 6)
    assert (held == held[0]).all()
    assert not held[:, [1, 5]].any()
