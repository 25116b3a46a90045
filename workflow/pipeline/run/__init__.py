"""Planning, checking, starting and following a run of a scale."""
