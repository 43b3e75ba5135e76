"""alf_lite: algorithm-centric reinforcement learning."""

__version__ = "0.1.0"
