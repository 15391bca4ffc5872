"""The papers run again: studies, tables, figures and their networks. Part of the repository, not of the package."""

from reproduction import (
    networks as networks,  # registers the networks of the papers, in every process that imports a part of this
)
