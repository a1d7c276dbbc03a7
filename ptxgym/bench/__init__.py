"""Sweeps: environments × agents × knowledge arms × trajectories, played, resumed and summarised."""
