"""The reference run of a scale: its records, which the project ships, and how a run on another machine compares with them."""
