"""The rehearsal engine: a Triton Python-backend model whose files are copied into a model repository.

The files import nothing of the package; here they only lie, they are never part of a submit or a status.
"""
