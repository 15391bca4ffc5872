"""What did an Opacus run cost? Needs no torch: `json.dump(engine.accountant.state_dict(), open("history.json", "w"))` was enough."""

import sys

from apportion.accounting.comparisons import compare_accountants
from apportion.accounting.schedules import read_schedule, schedule_from_history

if len(sys.argv) > 1:
    schedule = read_schedule(sys.argv[1])
else:  # (noise_multiplier, sample_rate, steps), as in `engine.accountant.history`
    schedule = schedule_from_history([(1.5, 256 / 60_000, 2_340), (1.1, 256 / 60_000, 2_340)])

for row in compare_accountants(schedule, delta=1e-5):
    epsilon = "refused" if row.epsilon is None else f"{row.epsilon:.3f}"
    print(f"{row.name:48} ε = {epsilon:8} {row.standing}")
    if row.epsilon is None:
        print(f"    {row.note}")

assert "torch" not in sys.modules
