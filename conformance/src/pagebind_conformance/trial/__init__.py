"""Trials: one planned call on lists, held against the oracle cell by cell. One file per operation."""
