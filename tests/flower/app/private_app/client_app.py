"""A client as it is written for Flower's own FedAvg; some of them misbehave, as their node's configuration says."""

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import apportion as ap
from private_app.task import make_model, records_of

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    manner = str(context.node_config.get("manner", "honest"))
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, targets = records_of(int(context.node_config["partition-id"]))
    ap.federated.LocalSGD(lr=0.5, batch_size=5)(model, (inputs, targets))
    state = model.state_dict()
    if manner == "raises":
        raise OSError("no data here")
    if manner == "late":
        time.sleep(60)
    if manner == "nan":
        state["0.weight"][0, 0] = torch.nan
    if manner == "huge":
        state = {name: value + 1e6 for name, value in state.items()}
    if manner == "shapes":
        state = {name: value.flatten() for name, value in state.items()}
    metrics = MetricRecord({"num-examples": 10**9, "loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)
