"""Watching a run: from its directory and Slurm's words to values. Reads files, writes none, asks nobody."""
