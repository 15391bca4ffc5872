"""Small tables for tests."""

import numpy as np

SCHEMA = """
[columns.age]
range = [18, 90]
[columns.sex]
categories = ["M", "F"]
[columns.dose]
range = [0, 10]
missing = true
[columns.ill]
categories = [0, 1]
"""
HEADER = "age,sex,dose,ill"


def patients(count, seed=0, header=HEADER):
    """A CSV of patients who can be told apart: who is older, or gets little, is ill."""
    random = np.random.default_rng(seed)
    lines = [header]
    for number in range(count):
        age, dose = random.uniform(18, 90), random.uniform(0, 10)
        ill = int((age - 54) / 10 - dose + 5 > 0)
        cells = {"age": f"{age:.1f}", "sex": "MF"[number % 2], "dose": f"{dose:.2f}", "ill": str(ill)}
        cells |= {"patient": f"p{number // 2}", "cost": f"{age + 5 * dose:.1f}", "visit": str(number)}
        lines.append(",".join(cells[name] for name in header.split(",")))
    return "\n".join(lines) + "\n"
