"""Per-record gradients: one file for each way of computing them."""
