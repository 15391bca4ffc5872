"""Designs of the papers' tables: the methods of each with equally many trials, chosen on the other data set of a pair."""
