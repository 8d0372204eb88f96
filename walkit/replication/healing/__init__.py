"""Healing: damaged ranges of a log get the frames of a peer that has the same ones."""
