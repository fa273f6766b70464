"""The rehearsal engine: a Triton Python-backend model whose files are copied into a model repository.

The files import nothing of the package. Planning reads faults.py; the others only lie here.
"""
