"""Whole runs: training, evaluation and what they leave behind."""
