"""Scorers that are made of scorers."""
