"""Start and stop vLLM, and read its log: for serving measurements and for scores.

`worker.py` and `process.py` start and stop programs, in the environment of `environment.py`; `log.py` reads what vLLM prints.
"""
