"""Serving measurements with vLLM's own benchmark programs: throughput, latency, forward time and KV capacity.

`settings.py` says how one point is served, `process.py` and `server.py` start and stop vLLM, `engine.py` reads what vLLM
says about itself, one module a kind of point measures it, and `record.py` writes the measurement file.
"""
