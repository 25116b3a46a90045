"""What would stop a run hours from now, found before it starts: `make check PROFILE=...`, and the start of a run on SLURM.

`checks` puts it together for a profile; `machine`, `slurm` and `hub` look at one thing each and raise a
`UserError` whose sentence says what is wrong and what to do.
"""
