"""A Flower app for tests/flower/test_flower.py."""
