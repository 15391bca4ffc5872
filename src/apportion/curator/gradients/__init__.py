"""Per-record gradients.

`engine.py` says what an engine offers. `one_pass.py` is the fast one, with one file for each layer family (`layers.py` says which rule is
for which layer, `layer_use.py` what a rule offers); `reference.py` is the exact slow one.
"""
