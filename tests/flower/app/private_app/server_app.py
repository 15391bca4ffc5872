"""The server: three lines more than with Flower's own FedAvg."""

import json
import time
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import apportion as ap
from apportion.federated.flower import PrivateFedAvg
from private_app.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    budget = ap.Budget(epsilon=float(config["epsilon"]), delta=1e-4, unit=ap.User())
    sampling = {"population": config["population"], "sample_rate": config["rate"], "steps": config["rounds"]}
    recipe = ap.recipes.named("andrew").with_settings({"clip.share": 0.1})
    plan = ap.plan(recipe, budget=budget, **sampling, count_usable=False)
    model, folder = make_model(), Path(config["folder"])
    moves, before = [], torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    def log(entry):
        nonlocal before
        after = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        moves.append(float((after - before).norm()))
        before = after

    while len(list(grid.get_node_ids())) < config["nodes"]:  # so that the test knows who is there
        time.sleep(0.2)
    strategy = PrivateFedAvg(model, plan, storage=ap.Storage(folder / "run"), progress=False, log=log)
    strategy.start(grid, timeout=float(config["timeout"]))
    run = strategy.run
    facts = {"steps": run.steps, "epsilon": run.epsilon(), "planned": plan.epsilon, "moves": moves}
    facts["clip"] = [entry.clip for entry in run.history]
    facts["noise"] = list(plan.multipliers)
    (folder / "facts.json").write_text(json.dumps(facts))
