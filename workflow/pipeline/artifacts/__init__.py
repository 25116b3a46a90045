"""Tables and figures: entries of `artifacts.yaml` (`contents`), drawn by their kind (`kinds/`) from measurement files."""
