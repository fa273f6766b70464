"""What runs inside the job: node agents, head, preflight, ports and the closing result.

The folder is copied into every run directory and started as `python3 <run>/agent <verb>`. Standard library only,
Python 3.6 or newer, and it imports nothing of the package around it.
"""
