"""A loop of Lightning Fabric, made private: two parameter groups of one optimizer, and a log of what was released.

pip install "apportion[fabric,data]"
python examples/fabric_loop.py
"""

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap

data = ap.data.load("digits")
plan = ap.plan(
    "default",
    budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
    population=data.population,
    sample_rate=0.2,
    steps=60,
)

torch.manual_seed(0)  # of the initial weights, which are public; noise never comes from this generator
body, head = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh()), nn.Linear(64, 10)
model = nn.Sequential(body, head)
optimizer = torch.optim.SGD([{"params": body.parameters(), "lr": 1.0}, {"params": head.parameters(), "lr": 2.0}])

fabric = Fabric(accelerator="cpu", devices=1)
model, optimizer = fabric.setup(model, optimizer)

with ap.integrations.CsvLog("steps.csv") as log:
    private = ap.make_private(model, optimizer, data.train, plan, log=log)
    for inputs, labels in private.batches():
        private.optimizer.zero_grad()
        fabric.backward(cross_entropy(private.model(inputs), labels))
        private.optimizer.step()

inputs, labels = data.test.data  # declared public
model.eval()
with torch.no_grad():
    accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
print(f"accuracy {accuracy:.3f} at ε = {private.epsilon():.3f}, δ = {plan.budget.delta}")
