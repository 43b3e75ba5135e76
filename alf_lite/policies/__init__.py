"""Trained policies: built from a run, and evaluated."""
