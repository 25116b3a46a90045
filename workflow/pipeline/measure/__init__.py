"""Serving measurements with vLLM: throughput, latency, times of steps, and KV capacity.

A job (`job.py`) measures the points of one engine; `run.py` makes a point's record. The kinds of points are in `offline.py`
(an engine alone) and `latency.py` (a server). `pipeline.engines` starts and stops vLLM, in the programs
`engine_program.py` and `client.py`.
"""
