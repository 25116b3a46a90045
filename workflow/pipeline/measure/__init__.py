"""Serving measurements with vLLM: throughput, latency, times of steps, and KV capacity.

A job (`job.py`) measures the points of one engine; `run.py` makes a point's record. The kinds of points are in `offline.py`
(an engine alone) and `latency.py` (a server). `worker.py` and `process.py` start and stop vLLM, in the programs
`engine_program.py` and `client.py`; `engine.py` reads vLLM's log.
"""
