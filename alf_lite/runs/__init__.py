"""The directory of a run: its files, record, lock and checkpoints."""
