"""Experiments around the library: data, models, comparisons and the report. Nothing here is needed to train privately."""
