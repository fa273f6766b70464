"""Load on a served model by NVIDIA's own tools: what a tool is told, where it runs, what it says, what is kept of that.

No request is made here: aiperf, genai-perf or perf_analyzer makes them, as a step of the run's job, as a job of its
own, or on this machine. Pure are `wishes`, the modules of the tools, `judging` and `comparing`; `measuring` runs one.
"""
