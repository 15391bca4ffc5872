"""Models by name, for the data sets of the lab and for the tables of the papers. None mixes records, so all can be trained privately."""

from apportion.compare.networks.activations import ACTIVATIONS
from apportion.compare.networks.catalogue import MODELS, build, default_name
from apportion.compare.networks.sequences import CharacterModel, WordModel

__all__ = ["ACTIVATIONS", "MODELS", "CharacterModel", "WordModel", "build", "default_name"]
