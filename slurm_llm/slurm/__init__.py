"""Slurm's dialect: text formats, states, reasons, commands; it knows nothing of specs, plans or runs."""
