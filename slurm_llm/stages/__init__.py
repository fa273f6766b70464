"""Stages around serving, as Slurm jobs of their own: products made once before it, a measurement beside it.

`planning` turns a spec's `prepare` section into stages, `chain` submits what is missing through `executor`, `runner`
and `bench` are what the jobs run. docs/stages.md says how it is used.
"""
