"""The papers run again: studies, tables, figures and their networks. Part of the repository, not of the package."""
