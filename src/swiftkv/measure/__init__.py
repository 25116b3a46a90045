"""Serving measurements with vLLM: throughput, latency, forward time, decoding and KV capacity.

`point.py` says what is served and how, `run.py` measures a point of any kind and makes its record, one module a kind says
what that kind adds (`kind.py`). `worker.py`, `server.py` and `process.py` start and stop vLLM, `engine_program.py` and
`client.py` are what they start, and `engine.py` reads what vLLM says about itself.
"""
