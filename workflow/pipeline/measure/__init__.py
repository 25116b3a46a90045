"""Serving measurements with vLLM: throughput, latency, times of steps, and KV capacity.

`point.py` says what is served and how, `run.py` measures a point of any kind and makes its record; what a kind adds
(`kind.py`) stands in `throughput.py`, `latency.py`, `steps.py`, `capacity.py` and `answer.py`. `worker.py`, `server.py` and
`process.py` start and stop vLLM, `engine_program.py` and `client.py` are what they start, and `engine.py` reads what
vLLM says about itself.
"""
