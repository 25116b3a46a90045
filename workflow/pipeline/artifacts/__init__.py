"""Tables, figures, claims and the report, made of one tidy frame of numbers."""
